//! How long calls lasted, also those whose end was not recorded.

use crate::calls::{CallId, Calls, Ends};
use std::collections::HashMap;

/// How long a call lasted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length {
    /// Nanoseconds.
    pub ns: u64,
    /// Its end is not known: it lasted at least that long.
    pub open: bool,
}

/// The last time that calls and the events between them tell.
pub(super) fn last_ns(calls: &Calls) -> u64 {
    let marks = calls.marks.iter().filter_map(|mark| mark.time_ns);
    let ends = calls.calls.iter().filter_map(|call| Some(call.start_ns?.saturating_add(call.duration_ns.unwrap_or(0))));
    marks.chain(ends).max().unwrap_or_default()
}

/// All calls, callers before those they called.
pub(super) fn callers_first(calls: &Calls) -> Vec<CallId> {
    calls.roots.iter().flat_map(|root| calls.tree(*root).map(|(id, _)| id)).collect()
}

/// The length of every call.
pub(super) fn lengths(calls: &Calls, end_ns: u64) -> Vec<Length> {
    let mut all = vec![Length::default(); calls.calls.len()];
    let running = running(calls);
    let order = callers_first(calls);
    for id in order.into_iter().rev() {
        let call = &calls[id];
        all[id.0 as usize] = match (call.duration_ns, call.start_ns) {
            (Some(ns), _) => Length { ns, open: false },
            (None, Some(start_ns)) if running[id.0 as usize] => {
                Length { ns: end_ns.saturating_sub(start_ns), open: true }
            }
            (None, start_ns) => {
                let children = || call.children.iter().map(|child| (&calls[*child], all[child.0 as usize].ns));
                let sum = children().fold(0, |sum: u64, (_, ns)| sum.saturating_add(ns));
                let seen_ns = children().filter_map(|(child, ns)| Some(child.start_ns?.saturating_add(ns))).max();
                let spanned = seen_ns.zip(start_ns).map_or(0, |(seen_ns, start_ns)| seen_ns.saturating_sub(start_ns));
                Length { ns: sum.max(spanned), open: true }
            }
        };
    }
    all
}

/// Which calls were still running at the end: nothing of their thread came after them, and nothing was lost.
fn running(calls: &Calls) -> Vec<bool> {
    let mut running = vec![false; calls.calls.len()];
    if calls.damage.lost > 0 {
        return running;
    }
    let last_of_task: HashMap<(Option<i32>, Option<u32>), CallId> = calls
        .roots
        .iter()
        .map(|root| {
            let call = &calls[*root];
            let pid = call.task.map(|task| task.pid).filter(|pid| *pid != 0);
            // Without threads, and of the idle threads, what a CPU did last counts.
            ((pid, if pid.is_none() { call.cpu } else { None }), *root)
        })
        .collect();
    for root in last_of_task.into_values() {
        let mut last = Some(root);
        while let Some(id) = last.filter(|id| calls[*id].ends == Ends::Entry && calls[*id].duration_ns.is_none()) {
            running[id.0 as usize] = true;
            last = calls[id].children.last().copied();
        }
    }
    running
}
