//! Looking through typed expressions.

use crate::typed::{Expr, Kind};

/// The direct operands of a node.
pub(super) fn children(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        Kind::Const(_)
        | Kind::Str(_)
        | Kind::Now
        | Kind::Pid
        | Kind::Tid
        | Kind::Uid
        | Kind::Gid
        | Kind::Comm
        | Kind::Cgroup
        | Kind::Cpu
        | Kind::FunctionAddress
        | Kind::PlaceId
        | Kind::Task
        | Kind::Arg { .. }
        | Kind::ArgCopy { .. }
        | Kind::Field { .. }
        | Kind::DataLoc { .. }
        | Kind::Saved(_)
        | Kind::State(_)
        | Kind::KernelStack
        | Kind::UserStack
        | Kind::Elapsed
        | Kind::OffCpu
        | Kind::OnCpu => Vec::new(),
        Kind::Load { base, .. } | Kind::Offset { base, .. } => vec![base],
        Kind::Element { base, index, .. } => vec![base, index],
        Kind::StrAt(a)
        | Kind::FdFile(a)
        | Kind::FdSock(a)
        | Kind::Unary(_, a)
        | Kind::Not(a)
        | Kind::Convert(a)
        | Kind::Swap(a)
        | Kind::Log2(a)
        | Kind::StrEq(a, _)
        | Kind::OneOf(a, _)
        | Kind::Selected(a, _) => vec![a],
        Kind::Arith(_, a, b) | Kind::Cmp(_, a, b) | Kind::And(a, b) | Kind::Or(a, b) => vec![a, b],
        Kind::Cond(a, b, c) => vec![a, b, c],
    }
}

/// Whether the expression or anything in it is such a node.
pub(super) fn any(expr: &Expr, test: &dyn Fn(&Kind) -> bool) -> bool {
    test(&expr.kind) || children(expr).into_iter().any(|e| any(e, test))
}

/// What makes nearly every event's value a new one, if the value comes straight from such a thing. A comparison, a
/// logarithm or a remainder of it has few values again.
pub(super) fn identity(expr: &Expr) -> Option<&'static str> {
    match &expr.kind {
        Kind::Now => Some("a point in time"),
        Kind::Elapsed | Kind::OffCpu | Kind::OnCpu => Some("a duration"),
        Kind::Pid => Some("a process id"),
        Kind::Tid => Some("a thread id"),
        Kind::Unary(_, a) | Kind::Convert(a) | Kind::Swap(a) if a.ty != crate::typed::Ty::Bool => identity(a),
        Kind::Arith(op, a, b) if !matches!(op, crate::typed::Arith::Rem | crate::typed::Arith::And) => {
            identity(a).or_else(|| identity(b))
        }
        Kind::Cond(_, a, b) => identity(a).or_else(|| identity(b)),
        _ if matches!(expr.ty, crate::typed::Ty::Ptr { .. }) => Some("an address"),
        _ => None,
    }
}
