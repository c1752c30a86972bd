//! `slow:`.

use super::{expression, expressions};
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Shape, Slow, SpanField, Spanned, SpannedStr};
use crate::names;
use crate::raw::{Entry, Kind, Node};
use crate::report::Report;

pub(crate) const KEYS: Keys =
    Keys { of: "`slow`", known: &["when", "fields", "span", "max_per_second", "buffer"], later: &[] };

pub(crate) const SPAN_KEYS: Keys =
    Keys { of: "`span` of `slow`", known: &["duration", "name", "trace_id", "parent_id", "id"], later: &[] };

pub(crate) const DEFAULT_MAX_PER_SECOND: u64 = 10;
/// More than a CPU can send.
pub(crate) const MAX_PER_SECOND: u64 = 1_000_000;
/// Pages of some machines have as many bytes.
pub(crate) const MIN_BUFFER_BYTES: u64 = 64 << 10;
pub(crate) const MAX_BUFFER_BYTES: u64 = 64 << 20;

/// The block, with its defaults.
pub(super) fn slow(entry: &Entry, shape: Option<&Shape>, report: &mut Report) -> Option<Slow> {
    if let Some(Shape::Poll { .. }) = shape {
        let diagnostic = Diagnostic::error(&entry.key.at, "rows of a poll are no events: `slow` has no meaning here");
        report.push(diagnostic.hint("events are where the kernel runs: use `at` or `span`"));
    }
    let fields = Fields::read(&entry.value, &entry.key.at, &KEYS, report)?;
    let when = fields.need("when", "`slow`", report).and_then(|node| expression(node, report));
    let shown = fields.need("fields", "`slow`", report).map(|node| {
        let shown = expressions(node, "`fields`", report, |name| names::identifier(name, "name of a field"));
        if matches!(&node.kind, Kind::Mapping(entries) if entries.is_empty()) {
            report.push(Diagnostic::error(&node.at, "`fields` is empty").hint("name what to show: `{ comm: comm }`"));
        }
        shown
    });
    let otlp_span = fields.entry("span").map_or(Some(Vec::new()), |entry| otlp_span(entry, shape, report));
    let most = fields
        .get("max_per_second")
        .map_or(Some(DEFAULT_MAX_PER_SECOND), |node| fields::integer(node, 1..=MAX_PER_SECOND, report));
    let buffer = fields.get("buffer").map(|node| super::size(node, MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES, report));
    let buffer_bytes = buffer.map_or(Some(None), |bytes| bytes.map(|bytes| Some(bytes as u32)))?;
    Some(Slow { when: when?, fields: shown?, otlp_span: otlp_span?, max_per_second: most? as u32, buffer_bytes })
}

/// What a record says of itself as a span of OpenTelemetry.
fn otlp_span(entry: &Entry, shape: Option<&Shape>, report: &mut Report) -> Option<Vec<(SpanField, SpannedStr)>> {
    let keys = Fields::read(&entry.value, &entry.key.at, &SPAN_KEYS, report)?;
    let mut known = Vec::new();
    match (keys.get("duration"), shape) {
        (Some(node), _) => known.push((SpanField::Duration, expression(node, report)?)),
        (None, Some(Shape::Span(_)) | None) => {
            known.push((SpanField::Duration, Spanned::new("elapsed".into(), entry.key.at.clone())));
        }
        (None, Some(_)) => {
            let diagnostic = Diagnostic::error(&entry.key.at, "`span` of `slow` needs `duration` here");
            report.push(diagnostic.hint("only a probe with a start and an end has `elapsed`, which is the default"));
        }
    }
    match keys.get("trace_id") {
        Some(Node { kind: Kind::Sequence(halves), at }) => match halves.as_slice() {
            [high, low] => {
                known.push((SpanField::TraceHigh, expression(high, report)?));
                known.push((SpanField::Trace, expression(low, report)?));
            }
            _ => {
                let diagnostic = Diagnostic::error(at, format!("a trace's id has two halves, not {}", halves.len()));
                report.push(diagnostic.hint("write `[HIGH, LOW]`, or one expression"));
            }
        },
        Some(node) => known.push((SpanField::Trace, expression(node, report)?)),
        None => {}
    }
    for (key, field) in [("parent_id", SpanField::Parent), ("id", SpanField::Id), ("name", SpanField::Name)] {
        if let Some(node) = keys.get(key) {
            known.push((field, expression(node, report)?));
        }
    }
    if let Some(parent) = keys.entry("parent_id").filter(|_| keys.get("trace_id").is_none() && !keys.meant("trace_id"))
    {
        let diagnostic = Diagnostic::error(&parent.key.at, "a parent is in a trace: `parent_id` needs `trace_id`");
        report.push(diagnostic);
    }
    Some(known)
}
