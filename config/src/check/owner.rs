//! `owner:`.

use super::expression;
use crate::diag::Diagnostic;
use crate::fields::{Fields, Keys};
use crate::model::{Owner, Shape};
use crate::raw::{Entry, Kind};
use crate::report::Report;

pub(crate) const KEYS: Keys = Keys { of: "`owner`", known: &["start", "end"], later: &[] };

/// `none`, an expression, or one for each end of a span.
pub(super) fn owner(entry: &Entry, shape: Option<&Shape>, report: &mut Report) -> Option<Owner> {
    let key = &entry.key;
    if let Some(Shape::Poll { .. }) = shape {
        let diagnostic = Diagnostic::error(&key.at, "rows of a poll belong to no cgroup: `owner` has no meaning here");
        report.push(diagnostic.hint("events are where the kernel runs: use `at`, `span` or `steps`"));
        return None;
    }
    if let Kind::Mapping(_) = &entry.value.kind {
        let fields = Fields::read(&entry.value, &key.at, &KEYS, report)?;
        if let Some(Shape::At(_) | Shape::Steps(_)) = shape {
            report.push(
                Diagnostic::error(&key.at, "only a span has a start and an end").hint("write `owner: EXPRESSION`"),
            );
            return None;
        }
        let start = fields.need("start", "`owner`", report).and_then(|node| expression(node, report));
        let end = fields.need("end", "`owner`", report).and_then(|node| expression(node, report));
        return Some(Owner::Of { end: end?, start: Some(start?) });
    }
    let end = expression(&entry.value, report)?;
    Some(match end.value.trim() {
        "none" => Owner::None,
        _ => Owner::Of { end, start: None },
    })
}
