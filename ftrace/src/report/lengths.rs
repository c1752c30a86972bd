//! How long calls lasted, also those whose end was not recorded.

use super::bound::{Bound, Figure};
use super::work::Kinds;
use crate::calls::{CallId, Calls, Ends};
use std::collections::{HashMap, HashSet};

/// How long a call lasted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length {
    /// Nanoseconds.
    pub ns: u64,
    /// On which side of them the truth may lie.
    pub bound: Bound,
    /// Its end is not known.
    pub open: bool,
    /// It had not ended when the trace did: of what it called, the last call lasts as long as it does.
    pub running: bool,
}

impl Length {
    pub fn figure(self) -> Figure {
        Figure { ns: self.ns, bound: self.bound }
    }

    /// As a figure that is taken away from that of its caller.
    pub fn below(self, caller: Length) -> Figure {
        let bound = if self.running && caller.running { Bound::default() } else { self.bound };
        Figure { ns: self.ns, bound }
    }
}

/// Time of a call itself, without what it called.
pub(super) fn self_time(calls: &Calls, all: &[Length], id: CallId) -> Figure {
    let length = all[id.0 as usize];
    calls[id].children.iter().fold(length.figure(), |own, child| own.minus(all[child.0 as usize].below(length)))
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
    for id in order.iter().rev() {
        let call = &calls[*id];
        all[id.0 as usize] = match (call.duration_ns, call.start_ns) {
            (Some(ns), _) => Length { ns, ..Length::default() },
            (None, Some(start_ns)) if running[id.0 as usize] => {
                let ns = end_ns.saturating_sub(start_ns);
                Length { ns, bound: Bound::AT_LEAST, open: true, running: true }
            }
            (None, start_ns) => {
                let children = || call.children.iter().map(|child| (&calls[*child], all[child.0 as usize].ns));
                let sum = children().fold(0, |sum: u64, (_, ns)| sum.saturating_add(ns));
                let seen_ns = children().filter_map(|(child, ns)| Some(child.start_ns?.saturating_add(ns))).max();
                let spanned = seen_ns.zip(start_ns).map_or(0, |(seen_ns, start_ns)| seen_ns.saturating_sub(start_ns));
                Length { ns: sum.max(spanned), bound: Bound::AT_LEAST, open: true, running: false }
            }
        };
    }
    bound_waits(calls, &order, &mut all);
    if calls.damage.guessed > 0 {
        all.iter_mut().for_each(|length| length.bound = Bound::ABOUT);
    }
    all
}

/// A call of the scheduler whose end is missing is where its callers were meanwhile: it lasted as long as the nearest caller whose
/// end is known has time of its own, and at most that long. Callers between both lasted accordingly.
fn bound_waits(calls: &Calls, order: &[CallId], all: &mut [Length]) {
    let mut kinds = Kinds::default();
    let mut is_wait = |id: CallId| kinds.of(calls, &calls[id]).waits;
    // The nearest caller whose end is known, and which of them have given their time away: a second call has nothing left of it, and
    // may have lasted longer than it seems.
    let mut closed: Vec<Option<CallId>> = vec![None; all.len()];
    let mut given: HashSet<CallId> = HashSet::new();
    for id in order {
        let Some(parent) = calls[*id].parent else { continue };
        let caller = if all[parent.0 as usize].open { closed[parent.0 as usize] } else { Some(parent) };
        closed[id.0 as usize] = caller;
        let Some(caller) = caller.filter(|_| all[id.0 as usize].open && is_wait(*id)) else { continue };
        if calls[*id].children.iter().any(|child| is_wait(*child)) || !given.insert(caller) {
            continue;
        }
        let below_ns = calls[caller].children.iter().fold(0, |sum: u64, id| sum.saturating_add(all[id.0 as usize].ns));
        let own_ns = all[caller.0 as usize].ns.saturating_sub(below_ns);
        let mut open = Some(*id);
        while let Some(id) = open.filter(|id| *id != caller) {
            let length = &mut all[id.0 as usize];
            (length.ns, length.bound) = (length.ns.saturating_add(own_ns), Bound::AT_MOST);
            open = calls[id].parent;
        }
    }
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
