//! Call stacks as part of a metric's key: a stack's id is stored behind the labels as if it were one more.

use crate::diag::Place;
use crate::program::{MetricKind, Program, Shape, StackSpec};
use crate::typed::{Decoder, Expr, Kind, Label, Ty};

/// A hidden field of a key: no expression can name it.
struct Field {
    name: &'static str,
    kind: Kind,
    ty: Ty,
}

/// User addresses mean something only together with the process.
fn fields(kernel: bool, user: bool) -> Vec<Field> {
    let field = |name, kind, ty| Field { name, kind, ty };
    let mut fields = Vec::new();
    if kernel {
        fields.push(field("kernel stack", Kind::KernelStack, Ty::S32));
    }
    if user {
        fields.push(field("user stack", Kind::UserStack, Ty::S32));
        fields.push(field("pid", Kind::Pid, Ty::U32));
    }
    fields
}

/// What a span saves at its start for metrics whose stacks are taken there, behind the user's values.
pub(super) fn saved(program: &Program, place: Place) -> Vec<(String, Expr)> {
    let taken = |half: fn(&StackSpec) -> bool| {
        program.metrics.iter().any(|m| matches!(&m.kind, MetricKind::Stacks(s) if s.at_start && half(s)))
    };
    let fields = fields(taken(|s| s.kernel), taken(|s| s.user));
    fields.into_iter().map(|f| (f.name.to_owned(), expr(f.kind, f.ty, place))).collect()
}

/// The fields of a metric's key behind its labels, as labels and as what is read at a site.
pub(super) fn key(program: &Program, spec: &StackSpec, place: Place) -> (Vec<Label>, Vec<Expr>) {
    let saved = saved(program, place);
    let first = match &program.shape {
        Shape::Span(span) => span.save.len(),
        _ => 0,
    };
    let mut labels = Vec::new();
    let mut exprs = Vec::new();
    for Field { name, kind, ty } in fields(spec.kernel, spec.user) {
        let decoder = if ty == Ty::U32 { Decoder::Unsigned } else { Decoder::Signed };
        labels.push(Label { name: name.to_owned(), ty, decoder, domain: None });
        let at = saved.iter().position(|(saved, _)| saved == name).filter(|_| spec.at_start);
        let kind = at.map_or(kind, |at| Kind::Saved((first + at) as u32));
        exprs.push(expr(kind, ty, place));
    }
    (labels, exprs)
}

/// Whether the value is a stack's id.
pub(super) fn is_stack(e: &Expr) -> bool {
    matches!(e.kind, Kind::KernelStack | Kind::UserStack)
}

fn expr(kind: Kind, ty: Ty, place: Place) -> Expr {
    Expr { kind, ty, duration: false, place }
}
