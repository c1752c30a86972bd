//! Threads over time: their states, system calls and wakeups, as a picture needs them.
//!
//! Of what lies in the range that is shown, the longest states and calls are kept, and the wakeups that waited longest for a CPU.
//! How many were left out, and how long the longest of those was, goes with the answer.

mod follow;
mod longest;

use super::Happening;
use super::syscalls::{self, Span};
use follow::{Follow, Piece, Recorded};
use longest::Longest;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    /// It could run, and waits for a CPU.
    Runnable,
    /// It waits, and a signal ends that.
    Sleeping,
    /// It waits, and no signal ends that: mostly for a disk.
    Blocked,
}

impl State {
    /// All, in the order of [`Threads::states`].
    pub const ALL: [State; 4] = [State::Running, State::Runnable, State::Sleeping, State::Blocked];
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub threads: usize,
    pub states: usize,
    pub calls: usize,
    pub wakeups: usize,
}

impl Default for Limits {
    /// As JSON less than a megabyte.
    fn default() -> Limits {
        Limits { threads: 100, states: 16_000, calls: 8_000, wakeups: 4_000 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// From the first event of the capture, nanoseconds.
    pub from_ns: u64,
    /// The end of the capture when `None`.
    pub to_ns: Option<u64>,
    /// Only threads with this in their name, or of this number.
    pub find: String,
}

impl Shown {
    fn finds(&self, pid: i32, comm: &str) -> bool {
        self.find.is_empty()
            || comm.to_lowercase().contains(&self.find.to_lowercase())
            || self.find.parse().is_ok_and(|wanted: i32| wanted == pid)
    }
}

/// Threads over time. All times are nanoseconds from `origin_ns`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Threads {
    /// The first event, by the trace's clock; as text, as numbers of scripts end at 53 bits.
    pub origin_ns: String,
    /// The length of the whole capture.
    pub duration_ns: u64,
    /// The range that is shown.
    pub from_ns: u64,
    pub to_ns: u64,
    /// Events that this would need and the capture does not hold.
    pub not_recorded: Vec<String>,
    /// Names of states: rows point into them.
    pub states: Vec<State>,
    /// Names of system calls: rows point into them.
    pub calls: Vec<String>,
    /// The most time on CPUs first.
    pub threads: Vec<ThreadRow>,
    /// Where records were lost: what threads did then is not known.
    pub gaps: Vec<(u64, u64)>,
    pub left_out: LeftOut,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadRow {
    pub pid: i32,
    pub comm: String,
    /// Time in each state within the range, in the order of [`Threads::states`]: of all of them, shown or not.
    pub times_ns: [u64; 4],
    /// Start, length, state, and the CPU of one that runs.
    pub states: Vec<(u64, u64, u8, Option<u32>)>,
    /// Start, length, name, and what it returned; `null` for one that was not over.
    pub calls: Vec<(u64, u64, u32, Option<i64>)>,
    /// When, by which thread, on which CPU that was, and how long until it ran; `null` when that was not seen.
    pub wakeups: Vec<(u64, Option<i32>, u32, Option<u64>)>,
}

/// What lies in the range and is not in the rows: threads, and what the threads in the rows did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub threads: u64,
    pub states: u64,
    pub longest_state_ns: u64,
    pub calls: u64,
    pub longest_call_ns: u64,
    pub wakeups: u64,
}

/// What is kept of a thread while events are read.
struct Kept {
    name: u32,
    returned: Option<i64>,
}

struct Wakeup {
    ran: bool,
    time_ns: u64,
    by: Option<i32>,
    cpu: u32,
}

/// Threads over time, from `sched_switch`, `sched_waking` and events of system calls. `names` tells the name of a system call.
/// The events are read three times.
pub fn threads<'a, 'n, Events: Iterator<Item = Happening<'a>>>(
    events: impl Fn() -> Events,
    shown: &Shown,
    limits: Limits,
    names: impl Fn(u64) -> Option<&'n str>,
) -> Threads {
    let (mut origin, mut end, mut recorded) = (u64::MAX, 0, Recorded::default());
    for event in events() {
        (origin, end) = (origin.min(event.time_ns), end.max(event.time_ns));
        recorded.take(&event);
    }
    let recorded = recorded.end();
    let is_recorded = |pid: i32| recorded.as_ref().is_none_or(|pids| pids.contains(&pid));
    let origin = origin.min(end);
    let duration_ns = end - origin;
    let to_ns = shown.to_ns.unwrap_or(duration_ns).min(duration_ns);
    let from_ns = shown.from_ns.min(to_ns);
    let (from, to) = (origin + from_ns, origin + to_ns);
    let overlaps = |start: u64, stop: u64| start <= to && stop >= from;

    let mut states: Longest<Piece> = Longest::new(limits.states);
    let mut wakeups: Longest<Wakeup> = Longest::new(limits.wakeups);
    let mut times: HashMap<i32, [u64; 4]> = HashMap::new();
    let mut follow = Follow::new(|pid, comm: &str, piece: Piece| {
        if !is_recorded(pid) || !overlaps(piece.start_ns, piece.end_ns) || !shown.finds(pid, comm) {
            return;
        }
        let within = piece.end_ns.min(to).saturating_sub(piece.start_ns.max(from));
        times.entry(pid).or_default()[piece.state as usize] += within;
        if let Some(woken) = &piece.woken
            && woken.time_ns >= from
        {
            let wakeup = Wakeup { ran: piece.is_over, time_ns: woken.time_ns, by: woken.by, cpu: woken.cpu };
            wakeups.add(piece.end_ns - piece.start_ns, pid, wakeup);
        }
        states.add(piece.end_ns - piece.start_ns, pid, piece);
    });
    events().for_each(|event| follow.take(&event));
    let followed = follow.end();

    let mut call_names = Names::default();
    let mut calls: [Longest<(u64, Kept)>; 2] = [Longest::new(limits.calls), Longest::new(limits.calls)];
    let mut callers: [HashSet<i32>; 2] = Default::default();
    let paired = syscalls::pair(events(), names, |span: Span<'_>| {
        // A thread that calls exit is gone: the call is never over.
        if span.returned.is_none() && span.name.starts_with("exit") {
            return;
        }
        let comm = followed.comms.get(&span.pid).map_or("", String::as_str);
        if !overlaps(span.start_ns, span.end_ns) || !shown.finds(span.pid, comm) {
            return;
        }
        let kept = Kept { name: call_names.of(span.name), returned: span.returned };
        callers[usize::from(span.is_raw)].insert(span.pid);
        calls[usize::from(span.is_raw)].add(span.end_ns.saturating_sub(span.start_ns), span.pid, (span.start_ns, kept));
    });
    let calls = std::mem::replace(&mut calls[usize::from(paired.is_raw)], Longest::new(0));
    let callers = std::mem::take(&mut callers[usize::from(paired.is_raw)]);

    let mut order: Vec<(Reverse<[u64; 4]>, i32)> = times.iter().map(|(pid, times)| (Reverse(*times), *pid)).collect();
    order.extend(callers.into_iter().filter(|pid| !times.contains_key(pid)).map(|pid| (Reverse([0; 4]), pid)));
    order.sort_unstable();
    let hidden = order.len().saturating_sub(limits.threads) as u64;
    order.truncate(limits.threads);
    let mut rows: BTreeMap<i32, ThreadRow> = BTreeMap::new();
    for (Reverse(times_ns), pid) in &order {
        let comm = followed.comms.get(pid).cloned().unwrap_or_default();
        rows.insert(*pid, ThreadRow { pid: *pid, comm, times_ns: *times_ns, ..ThreadRow::default() });
    }

    let pids: HashSet<i32> = rows.keys().copied().collect();
    let passes = |pid: i32| pids.contains(&pid);
    let states = states.end(passes, |length, pid, piece| {
        if let Some(row) = rows.get_mut(&pid) {
            row.states.push((piece.start_ns - origin, length, piece.state as u8, piece.cpu));
        }
    });
    let calls = calls.end(passes, |length, pid, (start_ns, kept)| {
        if let Some(row) = rows.get_mut(&pid) {
            row.calls.push((start_ns - origin, length, kept.name, kept.returned));
        }
    });
    let wakeups = wakeups.end(passes, |delay, pid, wakeup| {
        if let Some(row) = rows.get_mut(&pid) {
            row.wakeups.push((wakeup.time_ns - origin, wakeup.by, wakeup.cpu, wakeup.ran.then_some(delay)));
        }
    });
    let left_out = LeftOut {
        threads: hidden,
        states: states.count,
        longest_state_ns: states.longest,
        calls: calls.count,
        longest_call_ns: calls.longest,
        wakeups: wakeups.count,
    };
    let mut not_recorded = Vec::new();
    for (recorded, name) in [
        (followed.switches, "sched_switch"),
        (followed.wakeups, "sched_waking or sched_wakeup"),
        (paired.seen, "raw_syscalls:* or syscalls:*"),
    ] {
        not_recorded.extend((!recorded).then(|| name.to_owned()));
    }
    let threads = order.iter().filter_map(|(_, pid)| rows.remove(pid)).map(sorted).collect();
    let gaps = followed.gaps.iter().map(|(from, to)| (from.saturating_sub(origin), to - origin)).collect();
    let (origin_ns, calls, states) = (origin.to_string(), call_names.all, State::ALL.to_vec());
    Threads { origin_ns, duration_ns, from_ns, to_ns, not_recorded, states, calls, threads, gaps, left_out }
}

/// By time.
fn sorted(mut row: ThreadRow) -> ThreadRow {
    row.states.sort_unstable();
    row.calls.sort_unstable();
    row.wakeups.sort_unstable();
    row
}

/// Texts, each once.
#[derive(Default)]
struct Names {
    all: Vec<String>,
    known: HashMap<String, u32>,
}

impl Names {
    fn of(&mut self, name: &str) -> u32 {
        if let Some(at) = self.known.get(name) {
            return *at;
        }
        let next = self.all.len() as u32;
        self.all.push(name.to_owned());
        self.known.insert(name.to_owned(), next);
        next
    }
}
