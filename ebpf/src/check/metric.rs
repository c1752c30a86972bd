//! Metrics: what their value may be, and that all sites agree about it.

use super::expr::{Env, Value, describe};
use super::never::{self, Never};
use super::report::{Checked, Report, Reported, whole};
use super::scope::{Role, Scope};
use super::{Input, MAX_KEY_BYTES, MAX_LABELS, MAX_METRICS, access, filter, slow, stacks};
use crate::diag::{Diagnostic, Place};
use crate::program::{Metric, MetricKind, Program};
use crate::source::SpannedStr;
use crate::typed::{self, Expr, Kind, Measure, Ty};

/// What is the same at all sites of a metric, learnt at the first.
#[derive(Clone, Default)]
struct Column {
    labels: Option<Vec<typed::Label>>,
    signed: Option<bool>,
    /// Where the condition stands that some site can never meet.
    never: Option<Place>,
}

/// One column per metric, and one of the records.
pub(super) struct Columns {
    metrics: Vec<Column>,
    pub(super) slow: slow::Column,
}

impl Columns {
    pub(super) fn new(program: &Program) -> Self {
        Self { metrics: vec![Column::default(); program.metrics.len()], slow: slow::Column::default() }
    }

    /// The metrics and the records, once every site was checked without a mistake.
    pub(super) fn finish(self, program: &Program, never: &mut Never) -> (Vec<typed::Metric>, Option<typed::Slow>) {
        for (metric, column) in program.metrics.iter().zip(&self.metrics).filter(|(_, column)| column.labels.is_none())
        {
            column
                .never
                .iter()
                .for_each(|place| never.add(*place, format!("`{}` measures nothing", metric.name.value)));
        }
        let with_column = program.metrics.iter().zip(self.metrics);
        let metrics = with_column
            .map(|(metric, column)| typed::Metric {
                name: metric.name.value.clone(),
                place: whole(&metric.name),
                kind: match &metric.kind {
                    MetricKind::Counter => typed::MetricKind::Counter,
                    MetricKind::Gauge(keep) => {
                        typed::MetricKind::Gauge { signed: column.signed.unwrap_or(false), keep: *keep }
                    }
                    MetricKind::Stacks(spec) => typed::MetricKind::Stacks(*spec),
                    MetricKind::Histogram(buckets) => typed::MetricKind::Histogram(buckets.clone()),
                },
                labels: column.labels.unwrap_or_default(),
                max_series: metric.max_series,
            })
            .collect();
        (metrics, self.slow.finish(program, never))
    }
}

/// Counts and names, which need no types.
pub(super) fn check_limits(program: &Program, report: &mut Report) {
    if let Some(metric) = program.metrics.get(MAX_METRICS) {
        let message = format!("a probe has at most {MAX_METRICS} metrics");
        report.add(Diagnostic::limit(whole(&metric.name), message).hint("put the others in a second probe"));
    }
    for (i, metric) in program.metrics.iter().enumerate() {
        if program.metrics[..i].iter().any(|m| m.name.value == metric.name.value) && !metric.name.value.is_empty() {
            report.add(Diagnostic::user(whole(&metric.name), format!("metric `{}` is there twice", metric.name.value)));
        }
        if let Some(label) = metric.labels.get(MAX_LABELS) {
            report.add(Diagnostic::limit(whole(&label.name), format!("a metric has at most {MAX_LABELS} labels")));
        }
        for (j, label) in metric.labels.iter().enumerate() {
            if metric.labels[..j].iter().any(|l| l.name.value == label.name.value) {
                report
                    .add(Diagnostic::user(whole(&label.name), format!("label `{}` is there twice", label.name.value)));
            }
        }
    }
}

/// What a metric reads at one site; `None` where its condition is never true.
pub(super) fn measure(
    input: Input,
    scope: &Scope,
    index: usize,
    columns: &mut Columns,
    report: &mut Report,
) -> Checked<Option<Measure>> {
    let metric = &input.program.metrics[index];
    let condition = filter(input, scope, &metric.filter, report);
    if let Some(place) = condition.as_ref().ok().and_then(never::place) {
        columns.metrics[index].never = Some(place);
        return Ok(None);
    }
    let value = value(input, scope, metric, &mut columns.metrics[index], report);
    let labels = labels(input, scope, metric, &mut columns.metrics[index], report);
    Ok(Some(Measure { filter: condition?, value: value?, labels: labels? }))
}

fn value(input: Input, scope: &Scope, metric: &Metric, column: &mut Column, report: &mut Report) -> Checked<Expr> {
    let Some(text) = &metric.value else {
        let place = whole(&metric.name);
        return match metric.kind {
            // A poll's counter is the total that the source keeps; rows of a reading are no such thing.
            MetricKind::Counter if scope.role == Role::Poll => {
                let message = format!("counter `{}` of a poll has no value", metric.name.value);
                let hint = "say which field is the running total: `value: args.NAME`";
                Err(report.add(Diagnostic::user(place, message).hint(hint)))
            }
            MetricKind::Counter | MetricKind::Stacks(_) => {
                Ok(Expr { kind: Kind::Const(1), ty: Ty::U64, duration: false, place })
            }
            _ => {
                let message = format!("metric `{}` has no value", metric.name.value);
                let hint = "say what it measures: `value: EXPRESSION`";
                Err(report.add(Diagnostic::user(place, message).hint(hint)))
            }
        };
    };
    let ast = input.exprs.0.get(&text.id).ok_or(Reported)?;
    let mut env = Env { target: input.target, scope, text, report };
    let value = env.value(ast)?;
    let is_literal = matches!(value, Value::Literal(_));
    let expr = env.typed(value)?;
    let unit = check_unit(metric, text, &expr, is_literal, report);
    let signed = stored_sign(input, metric, text, &expr, report);
    let signed = unit.and(signed)?;
    match column.signed {
        Some(before) if before != signed => {
            let message = "the value is signed at one hook and unsigned at another";
            return Err(report.add(Diagnostic::user(whole(text), message).hint("convert it: `s64(x)`")));
        }
        _ => column.signed = Some(signed),
    }
    Ok(access::convert(expr, if signed { Ty::S64 } else { Ty::U64 }))
}

/// Whether the value is stored with a sign. Widening to the stored 64 bits loses nothing, so it needs no conversion.
fn stored_sign(input: Input, metric: &Metric, text: &SpannedStr, expr: &Expr, report: &mut Report) -> Checked<bool> {
    let gauge = matches!(metric.kind, MetricKind::Gauge(_));
    let (message, hint) = match expr.ty {
        Ty::Int { signed: false, .. } => return Ok(false),
        Ty::Int { signed: true, .. } if gauge => return Ok(true),
        Ty::Bool if gauge => return Ok(false),
        Ty::Int { signed: true, .. } => {
            let what = match metric.kind {
                MetricKind::Counter => "a counter never goes",
                MetricKind::Stacks(_) => "sums by stack never go",
                MetricKind::Gauge(_) | MetricKind::Histogram(_) => "a histogram never goes",
            };
            let message = format!("`{}` is {}, but {what} below zero", text.value, describe(input.target, expr.ty));
            (message, format!("convert it: `u64({})`, and keep negative ones out with `where`", text.value))
        }
        Ty::Bool => {
            (format!("`{}` is bool, not a number", text.value), "count with `where:` and no `value`".to_string())
        }
        ty => (
            format!("`{}` is {}, not a number", text.value, describe(input.target, ty)),
            "a value is a number".to_string(),
        ),
    };
    Err(report.add(Diagnostic::user(whole(text), message).hint(hint)))
}

/// Durations are exported in seconds and everything else is not: the name says which.
fn check_unit(metric: &Metric, text: &SpannedStr, expr: &Expr, is_literal: bool, report: &mut Report) -> Checked<()> {
    let name = &metric.name.value;
    if name.is_empty() {
        return Ok(());
    }
    let counter = metric.kind == MetricKind::Counter;
    let suffix = if counter { "_seconds_total" } else { "_seconds" };
    let named = name.ends_with(suffix);
    if named == expr.duration || (named && is_literal && expr.kind == Kind::Const(0)) {
        return Ok(());
    }
    let diagnostic = if named {
        let message = format!("`{}` is no duration, but `{name}` is in seconds", text.value);
        let hint = format!("make it one, as in `u64({}) * 1us`, or give the metric another unit", text.value);
        Diagnostic::user(whole(text), message).hint(hint)
    } else {
        let stem = name.strip_suffix("_total").filter(|_| counter).unwrap_or(name);
        let message = format!("`{}` is a duration, but `{name}` is not in seconds", text.value);
        Diagnostic::user(whole(text), message).hint(format!("name the metric `{stem}{suffix}`"))
    };
    Err(report.add(diagnostic))
}

fn labels(
    input: Input,
    scope: &Scope,
    metric: &Metric,
    column: &mut Column,
    report: &mut Report,
) -> Checked<Vec<Expr>> {
    let checked: Vec<_> = metric
        .labels
        .iter()
        .map(|label| {
            let ast = input.exprs.0.get(&label.value.id).ok_or(Reported)?;
            let mut env = Env { target: input.target, scope, text: &label.value, report };
            env.label(ast, metric.takes_any_label())
        })
        .collect();
    let checked: Vec<_> = checked.into_iter().collect::<Checked<_>>()?;
    let (mut exprs, mut kinds) = (Vec::new(), Vec::new());
    for (label, value) in metric.labels.iter().zip(checked) {
        let (ty, decoder, domain) = (value.expr.ty, value.decoder, value.domain);
        kinds.push(typed::Label { name: label.name.value.clone(), ty, decoder, domain });
        exprs.push(value.expr);
    }
    let bytes: u32 = kinds.iter().map(|l| l.ty.bytes()).sum();
    if bytes > MAX_KEY_BYTES {
        let message = format!("the labels take {bytes} bytes, at most {MAX_KEY_BYTES} are possible");
        return Err(report.add(Diagnostic::limit(whole(&metric.name), message).hint("shorten text with `str(x, n)`")));
    }
    if let MetricKind::Stacks(spec) = &metric.kind {
        let (labels, values) = stacks::key(input.program, spec, whole(&metric.name));
        kinds.extend(labels);
        exprs.extend(values);
    }
    match &column.labels {
        Some(before) if *before != kinds => {
            let differ = before.iter().zip(&kinds).position(|(a, b)| a != b).unwrap_or(0);
            let (a, b) = (describe(input.target, before[differ].ty), describe(input.target, kinds[differ].ty));
            let label = &metric.labels[differ];
            let message = match a == b {
                true => format!("label `{}` is shown in different ways at two hooks", label.name.value),
                false => format!("label `{}` is {a} at one hook and {b} at another", label.name.value),
            };
            return Err(report.add(Diagnostic::user(whole(&label.value), message).hint("convert it to one type")));
        }
        _ => column.labels = Some(kinds),
    }
    Ok(exprs)
}
