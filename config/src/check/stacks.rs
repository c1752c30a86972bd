//! The keys of `type: stacks`.

use crate::diag::Diagnostic;
use crate::fields::{self, Fields};
use crate::model::{Metric, MetricKind, Shape, StackSpec, Unwind};
use crate::raw::Entry;
use crate::report::Report;

/// Stacks vary more than labels do.
pub(crate) const DEFAULT_MAX_SERIES: u64 = 4096;
/// What `kernel.perf_event_max_stack` allows unless somebody raised it.
pub(crate) const MAX_DEPTH: u64 = 127;

const KEYS: [&str; 4] = ["stacks", "depth", "taken", "unwind"];
const UNWIND: [&str; 2] = ["tables", "frame_pointers"];
const HALVES: [&str; 2] = ["kernel", "user"];

/// `stacks:`, `depth:`, `taken:` and `unwind:`, with their defaults.
pub(super) fn stacks(fields: &Fields<'_>, report: &mut Report) -> Option<MetricKind> {
    let halves = fields.entry("stacks").map_or(Some(HALVES.to_vec()), |entry| halves(entry, report));
    let depth = fields.get("depth").map_or(Some(MAX_DEPTH), |node| fields::integer(node, 1..=MAX_DEPTH, report));
    let taken = fields
        .get("taken")
        .map_or(Some("end"), |node| fields::choice(node, "`start` or `end`", &["start", "end"], &[], report));
    let unwind = fields
        .get("unwind")
        .map_or(Some(UNWIND[0]), |node| fields::choice(node, "`tables` or `frame_pointers`", &UNWIND, &[], report));
    let halves = halves?;
    Some(MetricKind::Stacks(StackSpec {
        kernel: halves.contains(&"kernel"),
        user: halves.contains(&"user"),
        depth: depth? as u32,
        at_start: taken? == "start",
        unwind: if unwind? == UNWIND[0] { Unwind::Tables } else { Unwind::FramePointers },
    }))
}

fn halves(entry: &Entry, report: &mut Report) -> Option<Vec<&'static str>> {
    let nodes = fields::one_or_many(&entry.value, "of `kernel` and `user`", report);
    let found = nodes.iter().map(|node| fields::choice(node, "`kernel` or `user`", &HALVES, &[], report));
    found.collect::<Option<Vec<_>>>().filter(|found| !found.is_empty())
}

/// Other kinds of metric have none of these keys.
pub(super) fn refuse(kind: &str, fields: &Fields<'_>, report: &mut Report) {
    for entry in KEYS.iter().filter_map(|key| fields.entry(key)) {
        let message = format!("a {kind} has no `{}`", entry.key.value);
        report.push(Diagnostic::error(&entry.key.at, message).hint("only `type: stacks` has"));
    }
}

/// Only a span has a start, and rows of a poll come from no call.
pub(super) fn check_shape(metric: &Metric, shape: &Shape, report: &mut Report) {
    let MetricKind::Stacks(StackSpec { at_start, .. }) = metric.kind else { return };
    let name = &metric.name.value;
    match shape {
        Shape::Poll { .. } => {
            let diagnostic = Diagnostic::error(&metric.name.at, format!("`{name}` is of stacks, and a poll has none"));
            report.push(diagnostic.hint("stacks are taken where the kernel runs: use `at` or `span`"));
        }
        Shape::Span(_) => {}
        Shape::At(_) | Shape::Steps(_) if at_start => {
            let message = format!("`{name}` is `taken: start`, and only a span has a start");
            report.push(Diagnostic::error(&metric.name.at, message).hint("leave `taken` out"));
        }
        Shape::At(_) | Shape::Steps(_) => {}
    }
}
