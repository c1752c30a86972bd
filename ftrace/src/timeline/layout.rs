//! Where calls lie in time, also those of which the trace does not say it.

use crate::calls::{Call, CallId, Calls};
use std::collections::HashMap;

/// One call, in nanoseconds of the trace's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub id: CallId,
    /// Index of its row.
    pub row: usize,
    /// Calls around it.
    pub depth: u32,
    pub start: u64,
    pub end: u64,
    /// Time in none of its calls.
    pub own: u64,
    /// The trace says when it began.
    pub timed: bool,
}

/// What a row is of: a thread, or a CPU where no thread is known or the idle one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowKey {
    pub pid: Option<i32>,
    pub cpu: Option<u32>,
}

impl RowKey {
    fn of(call: &Call) -> RowKey {
        match call.task {
            Some(task) if task.pid != 0 => RowKey { pid: Some(task.pid), cpu: None },
            task => RowKey { pid: task.map(|task| task.pid), cpu: call.cpu },
        }
    }
}

/// Places all calls; rows are in the order of their first call.
///
/// A call without a time of its own ends with the last of its calls that has one; without such it begins where the one before it ended.
pub(super) fn places(calls: &Calls) -> (Vec<Place>, Vec<RowKey>) {
    let mut rows: Vec<RowKey> = Vec::new();
    let mut numbers: HashMap<RowKey, usize> = HashMap::new();
    // When the last tree of a row ended.
    let mut ends: Vec<u64> = Vec::new();
    let known = known(calls);
    let lengths = lengths(calls);
    let begin = known.iter().flatten().map(|(start, _)| *start).min().unwrap_or_default();
    let mut places: Vec<Place> = Vec::with_capacity(calls.calls.len());
    for root in &calls.roots {
        let row = *numbers.entry(RowKey::of(&calls[*root])).or_insert_with_key(|key| {
            rows.push(*key);
            ends.push(begin);
            rows.len() - 1
        });
        // Of each call around: where its next call begins if that does not say it.
        let mut cursors = vec![ends[row]];
        for (id, depth) in calls.tree(*root) {
            cursors.truncate(depth + 1);
            let at = id.0 as usize;
            let cursor = cursors.last_mut();
            let before = cursor.as_ref().map_or(0, |cursor| **cursor);
            let (start, end) = known[at].unwrap_or_else(|| (before, before.saturating_add(lengths[at])));
            if let Some(cursor) = cursor {
                *cursor = before.max(end);
            }
            cursors.push(start);
            let inside = calls[id].children.iter().map(|child| lengths[child.0 as usize]);
            let own = lengths[at].saturating_sub(inside.fold(0, u64::saturating_add));
            let timed = calls[id].start_ns.is_some();
            places.push(Place { id, row, depth: depth as u32, start, end, own, timed });
        }
        ends[row] = cursors[0];
    }
    (places, rows)
}

/// Callees before callers.
fn inside_out(calls: &Calls) -> impl Iterator<Item = CallId> {
    let mut order: Vec<CallId> = calls.roots.iter().flat_map(|root| calls.tree(*root)).map(|(id, _)| id).collect();
    order.reverse();
    order.into_iter()
}

/// How long each call took: at least as long as its calls, when it is not known.
fn lengths(calls: &Calls) -> Vec<u64> {
    let mut lengths = vec![0_u64; calls.calls.len()];
    for id in inside_out(calls) {
        let call = &calls[id];
        let inside = || call.children.iter().map(|child| lengths[child.0 as usize]).fold(0, u64::saturating_add);
        lengths[id.0 as usize] = call.duration_ns.unwrap_or_else(inside);
    }
    lengths
}

/// Start and end of calls that the trace has a time of, or of one of their calls.
fn known(calls: &Calls) -> Vec<Option<(u64, u64)>> {
    let mut known: Vec<Option<(u64, u64)>> = vec![None; calls.calls.len()];
    for id in inside_out(calls) {
        let call = &calls[id];
        let inside = call.children.iter().filter_map(|child| known[child.0 as usize]);
        let inside = inside.reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)));
        known[id.0 as usize] = match (call.start_ns, call.duration_ns, inside) {
            (Some(start), Some(duration), _) => Some((start, start.saturating_add(duration))),
            (Some(start), None, inside) => Some((start, inside.map_or(start, |(_, end)| end.max(start)))),
            (None, Some(duration), Some((_, end))) => Some((end.saturating_sub(duration), end)),
            (None, None, inside) => inside,
            (None, Some(_), None) => None,
        };
    }
    known
}
