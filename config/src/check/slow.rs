//! `slow:`.

use super::{expression, expressions};
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Shape, Slow};
use crate::names;
use crate::raw::{Entry, Kind};
use crate::report::Report;

pub(crate) const KEYS: Keys = Keys { of: "`slow`", known: &["when", "fields", "max_per_second", "buffer"], later: &[] };

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
    let most = fields
        .get("max_per_second")
        .map_or(Some(DEFAULT_MAX_PER_SECOND), |node| fields::integer(node, 1..=MAX_PER_SECOND, report));
    let buffer = fields.get("buffer").map(|node| super::size(node, MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES, report));
    let buffer_bytes = buffer.map_or(Some(None), |bytes| bytes.map(|bytes| Some(bytes as u32)))?;
    Some(Slow { when: when?, fields: shown?, max_per_second: most? as u32, buffer_bytes })
}
