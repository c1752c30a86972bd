//! Where the time of one call went: waited, interrupted, worked.

use super::activity::{Activity, Spell};
use super::bound::{Bound, Bounds, Figure};
use super::lengths::Length;
use super::names;
use super::text::task;
use super::waits::{Source, WaitRow};
use super::work::{self, Kinds};
use crate::calls::{Call, CallId, Calls};
use std::collections::HashMap;

/// Callers of the scheduler that are named, of the innermost: the kernel records about 50.
const MAX_CALLERS: usize = 64;

/// Where the time of one call's tree went.
pub(super) struct Split {
    nodes: Vec<Node>,
    pub source: Source,
    pub waited: Figure,
    pub interrupted: Figure,
    pub worked: Figure,
    pub waits: Vec<WaitRow>,
}

/// A call of the tree, callers first.
struct Node {
    id: CallId,
    parent: usize,
    zone: Zone,
    /// An interrupt begins here.
    interrupt: bool,
    layer: &'static str,
    length: Length,
    /// Time of it that is no work.
    away_ns: u64,
    /// More of its own time may be no work.
    doubt: bool,
}

/// What a call is part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zone {
    Work,
    Interrupt,
    Wait,
}

impl Split {
    pub fn of(
        calls: &Calls,
        lengths: &[Length],
        activity: &Activity,
        root: CallId,
        kinds: &mut Kinds,
        end_ns: u64,
    ) -> Split {
        let none = Figure::default();
        let mut split = Split {
            nodes: Vec::new(),
            source: Source::Calls,
            waited: none,
            interrupted: none,
            worked: none,
            waits: Vec::new(),
        };
        // Calls of the scheduler: those whose time is the wait.
        let mut scheduled: Vec<usize> = Vec::new();
        let mut path: Vec<usize> = Vec::new();
        for (id, depth) in calls.tree(root) {
            path.truncate(depth);
            let at = split.nodes.len();
            let parent = path.last().copied().unwrap_or(at);
            let (kind, length) = (kinds.of(calls, &calls[id]), lengths[id.0 as usize]);
            let above = split.nodes.get(parent).map_or(Zone::Work, |node| node.zone);
            let layer = kind.layer.or_else(|| split.nodes.get(parent).map(|node| node.layer)).unwrap_or("other");
            let mut zone = above;
            if zone == Zone::Work && kind.interrupt && at > 0 {
                zone = Zone::Interrupt;
            }
            // `schedule_timeout` sets up a timer and calls `schedule`: only what gives the CPU away itself is the wait.
            let gives_away =
                kind.waits && !calls[id].children.iter().any(|child| kinds.of(calls, &calls[*child]).waits);
            if zone != Zone::Wait && gives_away && at > 0 {
                zone = Zone::Wait;
                scheduled.push(at);
            }
            split.nodes.push(Node {
                id,
                parent,
                zone,
                interrupt: kind.interrupt,
                layer,
                length,
                away_ns: 0,
                doubt: false,
            });
            path.push(at);
        }
        if !split.by_switches(calls, activity, &scheduled, end_ns) {
            split.by_calls(calls, &scheduled);
            split.besides(calls, activity, &scheduled);
        }
        let total = split.nodes[0].length;
        let ended_ns = calls[root].start_ns.map(|start_ns| start_ns.saturating_add(total.ns));
        let mut last = Bound::default();
        for wait in &split.waits {
            let figure = wait.bounds.figure("waited_ns", wait.waited_ns);
            // A wait in which the trace ended is as long as the whole is: that bounds no other part.
            let with_it = total.running && ended_ns == wait.start_ns.map(|start_ns| start_ns.saturating_add(figure.ns));
            last = last.or(if with_it { figure.bound } else { Bound::default() });
            split.waited = split.waited.plus(if with_it { Figure { ns: figure.ns, ..none } } else { figure });
        }
        split.sum_away();
        // A call without a name may be one of the scheduler, or of an interrupt.
        let nameless = split.nodes.iter().any(|node| node.zone == Zone::Work && calls[node.id].function.is_none());
        if nameless {
            split.interrupted = split.interrupted.or(Bound::AT_LEAST);
            if split.source == Source::Calls {
                split.waited = split.waited.or(Bound::AT_LEAST);
            }
        }
        // What is not known of the end of the whole may belong to each part of it.
        split.worked = total.figure().minus(split.waited.plus(split.interrupted));
        split.waited = split.waited.or(total.bound).or(last);
        split.interrupted = split.interrupted.or(total.bound);
        split
    }

    /// Adds what is no work up to the root, and finds what interrupts took.
    fn sum_away(&mut self) {
        for at in (1..self.nodes.len()).rev() {
            let node = &self.nodes[at];
            let (parent, zone) = (node.parent, node.zone);
            let begins = zone == Zone::Interrupt && self.nodes[parent].zone != Zone::Interrupt;
            if begins {
                let away = Figure { ns: node.away_ns, bound: Bound::default() };
                self.interrupted = self.interrupted.plus(node.length.figure().minus(away));
                self.nodes[at].away_ns = self.nodes[at].length.ns;
            }
            let away_ns = self.nodes[at].away_ns;
            let parent = &mut self.nodes[parent];
            parent.away_ns = parent.away_ns.saturating_add(away_ns);
        }
    }

    /// Takes the calls of the scheduler as the time off the CPU.
    fn by_calls(&mut self, calls: &Calls, scheduled: &[usize]) {
        for at in scheduled {
            let length = self.nodes[*at].length;
            self.nodes[*at].away_ns = length.ns;
            // A call without a name in it may be the one that gives the CPU away, and shorter.
            let nameless = calls[self.nodes[*at].id].children.iter().any(|child| calls[*child].function.is_none());
            let bound = if nameless { Bound::AT_MOST } else { Bound::default() };
            let mut bounds = Bounds::default();
            self.waits.push(WaitRow {
                cause: self.cause(calls, *at),
                other_causes: Vec::new(),
                start_ns: calls[self.nodes[*at].id].start_ns,
                waited_ns: bounds.keep("waited_ns", length.figure().or(bound)),
                open: length.open,
                state: None,
                woken_by: None,
                delay_ns: None,
                bounds,
            });
        }
    }

    /// Adds what is known of times off the CPU in none of the calls of the scheduler.
    fn besides(&mut self, calls: &Calls, activity: &Activity, scheduled: &[usize]) {
        let root = &calls[self.nodes[0].id];
        let (Some(task), Some(start_ns)) = (root.task.filter(|task| task.pid != 0), root.start_ns) else { return };
        let stop_ns = start_ns.saturating_add(self.nodes[0].length.ns);
        let mut within: Vec<(u64, u64)> = scheduled
            .iter()
            .filter_map(|at| Some((calls[self.nodes[*at].id].start_ns?, self.nodes[*at].length.ns)))
            .map(|(start_ns, ns)| (start_ns, start_ns.saturating_add(ns)))
            .collect();
        within.sort_unstable();
        let innermost = Innermost::of(self, calls);
        for spell in activity.of_within(task.pid, start_ns, stop_ns) {
            let Some(out_ns) = spell.out.as_ref().map(|out| out.time_ns).filter(|out_ns| *out_ns >= start_ns) else {
                continue;
            };
            let before = within.partition_point(|(start_ns, _)| *start_ns <= out_ns);
            if before.checked_sub(1).is_some_and(|last| within[last].1 > out_ns) {
                continue;
            }
            let back_ns = spell.back.map(|back| back.0.min(stop_ns)).filter(|back_ns| *back_ns >= out_ns);
            let (at, certain) = innermost.at(out_ns, back_ns.unwrap_or(out_ns));
            self.nodes[at].doubt |= back_ns.is_none();
            let ns = back_ns.map_or(0, |back_ns| back_ns - out_ns);
            self.nodes[at].away_ns = self.nodes[at].away_ns.saturating_add(ns);
            // The event that says when it ran again is missing.
            let bound = if back_ns.is_none() { Bound::AT_LEAST } else { Bound::default() };
            let causes = self.causes(calls, at, certain);
            self.waits.push(wait(activity, spell, causes, out_ns, Figure { ns, bound }));
        }
        self.waits.sort_by_key(|wait| wait.start_ns);
    }

    /// Takes the thread's switches as the time off the CPU. Returns false when they are not all known.
    fn by_switches(&mut self, calls: &Calls, activity: &Activity, scheduled: &[usize], end_ns: u64) -> bool {
        let root = &calls[self.nodes[0].id];
        let (Some(task), Some(start_ns)) = (root.task.filter(|task| task.pid != 0), root.start_ns) else {
            return false;
        };
        let stop_ns = start_ns.saturating_add(self.nodes[0].length.ns);
        if !activity.switches || activity.gap_within(start_ns, stop_ns) {
            return false;
        }
        let mut away: Vec<(u64, u64, &Spell)> = Vec::new();
        for spell in activity.of_within(task.pid, start_ns, stop_ns) {
            let Some(out) = &spell.out else { continue };
            let back_ns = match spell.back {
                // A text of parts that were put together: nothing is known of the time between them.
                Some((back_ns, _)) if back_ns < out.time_ns => return false,
                Some((back_ns, _)) => back_ns,
                // It ran when the call began, so that was over.
                None if out.time_ns < start_ns => continue,
                None if self.nodes[0].length.open => end_ns,
                None => return false,
            };
            if back_ns > start_ns {
                away.push((out.time_ns.max(start_ns), back_ns.min(stop_ns), spell));
            }
        }
        let within = |start_ns: u64, length: Length| {
            let stop_ns = start_ns.saturating_add(length.ns);
            let first = away.partition_point(|(_, back_ns, _)| *back_ns <= start_ns);
            away[first..]
                .iter()
                .take_while(move |(out_ns, ..)| *out_ns < stop_ns)
                .map(move |(out_ns, back_ns, _)| back_ns.min(&stop_ns).saturating_sub(*out_ns.max(&start_ns)))
        };
        // A call of the scheduler without a switch: events of this thread are missing.
        let known = |at: &usize| {
            let node = &self.nodes[*at];
            calls[node.id].start_ns.is_some_and(|start_ns| within(start_ns, node.length).next().is_some())
        };
        let unseen = scheduled.is_empty() && activity.of(task.pid).next().is_none();
        if unseen || !scheduled.iter().all(known) {
            return false;
        }
        self.source = Source::Switches;
        let off: Vec<u64> = self
            .nodes
            .iter()
            .map(|node| calls[node.id].start_ns.map_or(0, |start_ns| within(start_ns, node.length).sum()))
            .collect();
        // What a call was off the CPU beyond its callees: the sum over callees is made later.
        let mut own = off.clone();
        for (node, off_ns) in self.nodes.iter().zip(&off).skip(1) {
            own[node.parent] = own[node.parent].saturating_sub(*off_ns);
        }
        self.nodes.iter_mut().zip(own).for_each(|(node, own)| node.away_ns = own);
        self.work_in_waits();
        self.list(calls, activity, start_ns, &away);
        true
    }

    /// Lists times off the CPU, each with when it began and ended within the whole.
    fn list(&mut self, calls: &Calls, activity: &Activity, start_ns: u64, away: &[(u64, u64, &Spell)]) {
        // Nothing of an open call is seen later than this: it may have ended before what its thread waited for then.
        let root = &self.nodes[0];
        let last = self.nodes.iter().skip(1).filter(|node| root.length.open && node.parent == 0);
        let ends = last.filter_map(|node| Some(calls[node.id].start_ns?.saturating_add(node.length.ns)));
        let seen_ns = ends.max().unwrap_or(start_ns);
        let innermost = Innermost::of(self, calls);
        for (out_ns, back_ns, spell) in away {
            let bound = Bound { less: self.nodes[0].length.open && *out_ns >= seen_ns, more: spell.back.is_none() };
            let (at, certain) = innermost.at(*out_ns, *back_ns);
            let causes = self.causes(calls, at, certain);
            self.waits.push(wait(activity, spell, causes, *out_ns, Figure { ns: back_ns - out_ns, bound }));
        }
    }

    /// Once waits are known otherwise, what the scheduler does is work, or part of the interrupt it does it in.
    fn work_in_waits(&mut self) {
        for at in 1..self.nodes.len() {
            let above = self.nodes[self.nodes[at].parent].zone;
            let node = &mut self.nodes[at];
            node.zone = if above == Zone::Interrupt || node.interrupt { Zone::Interrupt } else { Zone::Work };
        }
    }

    /// The callers of a call of the scheduler, below the root.
    fn cause(&self, calls: &Calls, at: usize) -> String {
        let mut callers = Vec::new();
        let mut at = at;
        while at != 0 && callers.len() < MAX_CALLERS {
            let node = &self.nodes[at];
            callers.push(work::function_name(calls, calls[node.id].function));
            at = node.parent;
        }
        callers.reverse();
        if let Some(first) = callers.iter().position(|name| names::waits(name)) {
            callers.truncate(first);
        }
        if callers.is_empty() { "(itself)".to_owned() } else { callers.join(" > ") }
    }

    /// The cause of a wait in a call, and those that it has if that call and others up to one that did not were over before.
    fn causes(&self, calls: &Calls, at: usize, certain: usize) -> (String, Vec<String>) {
        let cause = self.cause(calls, at);
        let mut others: Vec<String> = Vec::new();
        let mut at = at;
        while at != certain && others.len() < MAX_CALLERS {
            at = self.nodes[at].parent;
            let other = self.cause(calls, at);
            if other != cause && others.last() != Some(&other) {
                others.push(other);
            }
        }
        (cause, others)
    }

    /// Tells the work of each call itself.
    pub fn work(&self, calls: &Calls, mut tell: impl FnMut(&Call, &'static str, Figure)) {
        let worked_ns = |node: &Node| node.length.ns.saturating_sub(node.away_ns);
        let worked = |node: &Node| Figure { ns: worked_ns(node), ..node.length.figure() };
        let mut own: Vec<Figure> = self.nodes.iter().map(worked).collect();
        for node in self.nodes.iter().skip(1) {
            let below = node.length.below(self.nodes[node.parent].length);
            own[node.parent] = own[node.parent].minus(Figure { ns: worked_ns(node), ..below });
        }
        for (node, own) in self.nodes.iter().zip(own) {
            let bound = if node.doubt { Bound::AT_MOST } else { Bound::default() };
            if node.zone == Zone::Work {
                tell(&calls[node.id], node.layer, own.or(bound));
            }
        }
    }
}

/// Finds the innermost call that lasted all of a time.
struct Innermost {
    /// Per node its children's starts and ends, by time, and whether a child may have ended later.
    children: HashMap<usize, Vec<(u64, u64, usize, bool)>>,
}

impl Innermost {
    fn of(split: &Split, calls: &Calls) -> Innermost {
        let mut children: HashMap<usize, Vec<(u64, u64, usize, bool)>> = HashMap::new();
        for (at, node) in split.nodes.iter().enumerate().skip(1) {
            if let Some(start_ns) = calls[node.id].start_ns {
                let stop_ns = start_ns.saturating_add(node.length.ns);
                children.entry(node.parent).or_default().push((start_ns, stop_ns, at, node.length.open));
            }
        }
        children.values_mut().for_each(|children| children.sort_unstable());
        Innermost { children }
    }

    /// The call, and the innermost of its callers of which that is certain: those between both may have ended before, as their ends are
    /// missing.
    fn at(&self, from_ns: u64, to_ns: u64) -> (usize, usize) {
        let (mut at, mut certain) = (0, 0);
        while let Some(children) = self.children.get(&at) {
            let after = children.partition_point(|(start_ns, ..)| *start_ns <= from_ns);
            match children[..after].last() {
                Some((_, stop_ns, child, open)) if *open || *stop_ns >= to_ns => {
                    certain = if certain == at && *stop_ns >= to_ns { *child } else { certain };
                    at = *child;
                }
                _ => break,
            }
        }
        (at, certain)
    }
}

/// A time off the CPU as it is listed.
fn wait(
    activity: &Activity,
    spell: &Spell,
    (cause, other_causes): (String, Vec<String>),
    out_ns: u64,
    waited: Figure,
) -> WaitRow {
    let by = spell.woken.as_ref().map(|woken| match woken.by {
        Some(0) => format!("idle CPU {}", woken.cpu),
        Some(pid) => task_name(activity, pid),
        None => format!("CPU {}", woken.cpu),
    });
    let mut bounds = Bounds::default();
    WaitRow {
        cause,
        other_causes,
        start_ns: Some(out_ns),
        waited_ns: bounds.keep("waited_ns", waited),
        open: spell.back.is_none(),
        state: spell.out.as_ref().map(|out| out.state.to_string()),
        woken_by: by,
        delay_ns: spell.delay_ns(),
        bounds,
    }
}

fn task_name(activity: &Activity, pid: i32) -> String {
    task(activity.comm(pid), Some(pid))
}
