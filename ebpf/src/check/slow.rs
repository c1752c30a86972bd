//! `slow:` which events are sent one by one, and what of them.

use super::expr::{Env, describe};
use super::label::LabelValue;
use super::never::{self, Never};
use super::report::{Checked, Report, Reported, whole};
use super::scope::{Role, Scope};
use super::{Input, MAX_FIELDS};
use crate::ast::{self, ExprKind};
use crate::diag::{Diagnostic, Place};
use crate::program::{Program, Slow, SpanField};
use crate::source::SpannedStr;
use crate::typed::{self, Decoder, Expr, Kind, Label, SlowMeasure, Ty};

/// Fields that exist nowhere else in the language.
pub(super) const STACKS: [(&str, Kind, Decoder); 2] =
    [("kstack", Kind::KernelStack, Decoder::KernelStack), ("ustack", Kind::UserStack, Decoder::UserStack)];

/// What is the same at all sites, learnt at the first.
#[derive(Clone, Default)]
pub(super) struct Column {
    fields: Option<Vec<Label>>,
    /// Where the condition stands that some site can never meet.
    never: Option<Place>,
}

impl Column {
    /// The block, once every site was checked without a mistake; `None` when no site sends anything.
    pub(super) fn finish(self, program: &Program, never: &mut Never) -> Option<typed::Slow> {
        let slow = program.slow.as_ref()?;
        let Some(fields) = self.fields else {
            self.never.into_iter().for_each(|place| never.add(place, "no single event is sent".into()));
            return None;
        };
        let (max_per_second, buffer_bytes) = (slow.max_per_second, slow.buffer_bytes);
        let otlp_span = slow.otlp_span.iter().map(|(field, _)| *field).collect();
        Some(typed::Slow { place: whole(&slow.when), fields, otlp_span, max_per_second, buffer_bytes })
    }
}

/// Counts, which need no types.
pub(super) fn check_limits(program: &Program, report: &mut Report) {
    if let Some((name, _)) = program.slow.as_ref().and_then(|slow| slow.fields.get(MAX_FIELDS)) {
        let message = format!("a record has at most {MAX_FIELDS} fields");
        report.add(Diagnostic::limit(whole(name), message));
    }
}

/// What a record reads at one site; `None` when the probe sends none.
pub(super) fn measure(
    input: Input,
    scope: &Scope,
    column: &mut Column,
    report: &mut Report,
) -> Checked<Option<SlowMeasure>> {
    let Some(slow) = &input.program.slow else { return Ok(None) };
    if scope.role == Role::Object {
        let diagnostic = Diagnostic::user(whole(&slow.when), "objects are no events: `slow` has no meaning at `iter:`");
        return Err(report.add(diagnostic.hint("events are where the kernel runs")));
    }
    let when = condition(input, scope, &slow.when, report).map(Some);
    if let Some(place) = when.as_ref().ok().and_then(never::place) {
        column.never = Some(place);
        return Ok(None);
    }
    let fields = fields(input, scope, slow, column, report);
    Ok(when?.zip(Some(fields?)).map(|(when, fields)| SlowMeasure { when, fields }))
}

fn condition(input: Input, scope: &Scope, text: &SpannedStr, report: &mut Report) -> Checked<Expr> {
    let ast = input.exprs.0.get(&text.id).ok_or(Reported)?;
    let mut env = Env { target: input.target, scope, text, report };
    let value = env.value(ast)?;
    env.truth(value)
}

fn fields(input: Input, scope: &Scope, slow: &Slow, column: &mut Column, report: &mut Report) -> Checked<Vec<Expr>> {
    let shown = slow.fields.iter().map(|(name, text)| (name.value.as_str(), text, None));
    let of_span = slow.otlp_span.iter().map(|(field, text)| (field.key(), text, Some(*field)));
    let all: Vec<_> = shown.chain(of_span).collect();
    let read = |(_, text, span): &(&str, &SpannedStr, Option<SpanField>)| {
        let ast = input.exprs.0.get(&text.id).ok_or(Reported)?;
        let mut env = Env { target: input.target, scope, text, report };
        let value = env.field(ast)?;
        match span {
            Some(field) => env.span_value(*field, value, ast),
            None => Ok(value),
        }
    };
    let read: Vec<_> = all.iter().map(read).collect();
    let read = read.into_iter().collect::<Checked<Vec<_>>>()?;
    let (mut labels, mut exprs) = (Vec::new(), Vec::new());
    for ((name, ..), LabelValue { expr, decoder, .. }) in all.iter().zip(read) {
        labels.push(Label { name: (*name).to_owned(), ty: expr.ty, decoder, domain: None });
        exprs.push(expr);
    }
    let Some(before) = &column.fields else {
        column.fields = Some(labels);
        return Ok(exprs);
    };
    let Some(differ) = before.iter().zip(&labels).position(|(a, b)| a != b) else { return Ok(exprs) };
    let (a, b) = (describe(input.target, before[differ].ty), describe(input.target, labels[differ].ty));
    let (name, value, _) = all[differ];
    let message = match a == b {
        true => format!("field `{name}` is shown in different ways at two hooks"),
        false => format!("field `{name}` is {a} at one hook and {b} at another"),
    };
    Err(report.add(Diagnostic::user(whole(value), message).hint("convert it to one type")))
}

impl Env<'_> {
    /// A field: what a label may be, and what labels are too many for.
    fn field(&mut self, ast: &ast::Expr) -> Checked<LabelValue> {
        if let ExprKind::Name(name) = &ast.kind
            && let Some((_, kind, decoder)) = STACKS.iter().find(|(stack, ..)| stack == name)
        {
            let expr = Expr { kind: kind.clone(), ty: Ty::S32, duration: false, place: self.place(ast.span) };
            return Ok(LabelValue { expr, decoder: decoder.clone(), domain: None });
        }
        let LabelValue { expr, decoder, .. } = self.label_value(ast)?;
        let plain = matches!(decoder, Decoder::Unsigned | Decoder::Signed);
        let decoder = match expr.ty {
            Ty::Ptr { .. } if plain => Decoder::Address,
            _ if plain && expr.duration => Decoder::Duration,
            _ => decoder,
        };
        Ok(LabelValue { expr: super::label::stored(expr), decoder, domain: None })
    }

    /// What a span of OpenTelemetry needs: a time, an id, or something to show as a name.
    fn span_value(&mut self, field: SpanField, value: LabelValue, ast: &ast::Expr) -> Checked<LabelValue> {
        let (fits, wanted, hint) = match field {
            SpanField::Duration => (
                matches!(value.decoder, Decoder::Duration),
                "a duration",
                "`elapsed` is one, and a number of nanoseconds times `1ns`",
            ),
            SpanField::Name => {
                let is_stack = matches!(value.decoder, Decoder::KernelStack | Decoder::UserStack);
                (!is_stack, "a name", "a stack is a field of `slow` by itself")
            }
            SpanField::TraceHigh | SpanField::Trace | SpanField::Parent | SpanField::Id => (
                matches!(value.decoder, Decoder::Unsigned | Decoder::Signed | Decoder::Address | Decoder::Str),
                "an id",
                "an id is a number, or text of hexadecimal digits",
            ),
        };
        match fits {
            true => Ok(value),
            false => Err(self.fail_hint(ast.span, format!("`{}` of `span` wants {wanted}", field.key()), hint)),
        }
    }
}
