//! The local port of a TCP socket that is closed: the kernel has taken it away when the tracepoint of the last state comes.
//!
//! `tcp_set_state` frees the port (`inet_put_port` sets `skc_num` to 0) before the tracepoint of TCP_CLOSE, unless the
//! program had bound the socket. `inet_sport` stays.

use super::Input;
use super::report::Report;
use crate::ast::{BinaryOp, Expr, ExprKind, Ident};
use crate::diag::{Diagnostic, Place};
use crate::program::{Hook, HookKind, Shape};
use crate::source::SpannedStr;

/// `TCP_CLOSE`
const CLOSE: u64 = 7;
const PORT: [&str; 2] = ["sk_num", "skc_num"];

/// Warns of each read of the port at a hook that sees the last state.
pub(super) fn check(input: Input, report: &mut Report) {
    let program = input.program;
    let probes_own: Vec<&SpannedStr> = program.filters().collect();
    let mut reads = Reads { input, report };
    match &program.shape {
        Shape::At(hooks) => reads.measured(hooks, &probes_own, |_| true),
        Shape::Span(span) => {
            let ending: Vec<&SpannedStr> = span.filter_end.iter().collect();
            reads.measured(&span.end, &[ending.as_slice(), &probes_own].concat(), |_| true);
            let saved = span.save.iter().map(|(_, value)| value);
            reads.at(&span.start, &span.filter.iter().collect::<Vec<_>>(), span.by.iter().chain(saved));
            reads.at(&span.end, &ending, if span.by_end.is_empty() { &span.by } else { &span.by_end });
        }
        Shape::Steps(steps) => {
            for step in &steps.steps {
                let own: Vec<&SpannedStr> = step.filter.iter().collect();
                let all = [own.as_slice(), &probes_own].concat();
                reads.measured(&step.hooks, &all, |metric| step.observe.contains(&metric));
                let by = if step.by.is_empty() { &steps.by } else { &step.by };
                reads.at(&step.hooks, &own, by.iter().chain(step.set.iter().map(|(_, value)| value)));
            }
        }
        Shape::Poll { .. } => {}
    }
}

struct Reads<'a> {
    input: Input<'a>,
    report: &'a mut Report,
}

impl Reads<'_> {
    /// What is measured and sent at hooks while these conditions hold.
    fn measured(&mut self, hooks: &[Hook], conditions: &[&SpannedStr], observed: impl Fn(u32) -> bool) {
        let program = self.input.program;
        for (_, metric) in (0..).zip(&program.metrics).filter(|(i, _)| observed(*i)) {
            let conditions: Vec<&SpannedStr> = conditions.iter().copied().chain(&metric.filter).collect();
            self.at(hooks, &conditions, metric.value.iter().chain(metric.labels.iter().map(|label| &label.value)));
        }
        if let Some(slow) = &program.slow {
            self.at(hooks, conditions, std::iter::once(&slow.when).chain(slow.values()));
        }
    }

    /// Texts that are read at hooks while these conditions hold, and the conditions themselves.
    fn at<'t>(
        &mut self,
        hooks: &[Hook],
        conditions: &[&'t SpannedStr],
        texts: impl IntoIterator<Item = &'t SpannedStr>,
    ) {
        let excluded = |text: &&SpannedStr| self.input.exprs.0.get(&text.id).is_some_and(excludes_close);
        if hooks.iter().any(tells_of_close) && !conditions.iter().any(excluded) {
            conditions.iter().copied().chain(texts).for_each(|text| ports(self.input, text, self.report));
        }
    }
}

fn tells_of_close(hook: &Hook) -> bool {
    match &hook.kind {
        HookKind::FirstOf(hooks) => hooks.iter().any(tells_of_close),
        kind => kind.event() == Some("inet_sock_set_state"),
    }
}

/// Whether a condition is false when a socket reaches TCP_CLOSE: one of its terms says which other state is meant.
fn excludes_close(ast: &Expr) -> bool {
    let is_new = |e: &Expr| {
        matches!(&e.kind, ExprKind::Field(base, field)
            if field.name == "newstate" && matches!(&base.kind, ExprKind::Name(args) if args == "args"))
    };
    let is_close = |e: &Expr| match &e.kind {
        ExprKind::Name(name) => name == "TCP_CLOSE",
        ExprKind::Int(n) => *n == CLOSE,
        _ => false,
    };
    match &ast.kind {
        ExprKind::Binary(BinaryOp::And, a, b) => excludes_close(a) || excludes_close(b),
        ExprKind::Binary(BinaryOp::Or, a, b) => excludes_close(a) && excludes_close(b),
        ExprKind::Binary(op @ (BinaryOp::Eq | BinaryOp::Ne), a, b) => {
            let state = if is_new(a) { b } else { a };
            (is_new(a) || is_new(b)) && (is_close(state) == (*op == BinaryOp::Ne))
        }
        ExprKind::In(value, states, negated) => is_new(value) && states.iter().any(is_close) == *negated,
        _ => false,
    }
}

/// Warns of each port that an expression reads.
fn ports(input: Input, text: &SpannedStr, report: &mut Report) {
    let Some(ast) = input.exprs.0.get(&text.id) else { return };
    let mut found: Vec<&Ident> = Vec::new();
    members(ast, &mut found);
    for member in found.into_iter().filter(|member| PORT.contains(&member.name.as_str())) {
        let place = Place { text: text.id, span: member.span };
        let message = format!("`{}` is 0 when a socket reaches TCP_CLOSE", member.name);
        let hint = "`ntohs(cast(struct inet_sock, SOCKET).inet_sport)` keeps the local port";
        report.warn(Diagnostic::warning(place, message).hint(hint));
    }
}

/// Every member that is named.
fn members<'e>(ast: &'e Expr, into: &mut Vec<&'e Ident>) {
    if let ExprKind::Field(_, field) = &ast.kind {
        into.push(field);
    }
    ast.kind.children().into_iter().for_each(|child| members(child, into));
}
