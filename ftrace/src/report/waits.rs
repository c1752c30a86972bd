//! Wait against work: what a call waited for, what interrupted it, and what it did itself.

use super::activity::{Activity, Spell};
use super::lengths::{Length, last_ns, lengths};
use super::text::{Table, at_least, head, moment, percent, permille, task, time};
use super::work::{self, Kinds, Work, WorkRow};
use super::{Asked, names};
use crate::calls::{CallId, Calls};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Wait against work of the calls asked for. Total = waited + interrupted + worked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// The root asked for; `None` for all outermost calls.
    pub root: Option<String>,
    /// How many calls there are.
    pub count: u64,
    /// Calls whose end was not recorded: their times are lower bounds.
    pub open: u64,
    /// From entry to exit.
    pub total_ns: u64,
    /// Off the CPU.
    pub waited_ns: u64,
    /// In interrupts that came upon them.
    pub interrupted_ns: u64,
    /// The rest.
    pub worked_ns: u64,
    /// What was waited for, the longest first.
    pub causes: Vec<CauseRow>,
    /// Work by layer.
    pub layers: Vec<WorkRow>,
    /// Work by module.
    pub modules: Vec<WorkRow>,
    /// Work by function.
    pub functions: Vec<WorkRow>,
    /// The slowest calls.
    pub calls: Vec<CallWait>,
    /// Calls that are not in `calls`.
    pub left_out: u64,
}

/// Where the time off the CPU is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `sched_switch` events of the thread.
    Switches,
    /// The calls of `schedule`.
    Calls,
}

/// Wait against work of one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallWait {
    /// The function.
    pub function: String,
    /// The thread.
    pub pid: Option<i32>,
    /// Its name.
    pub comm: Option<String>,
    /// Where it was entered.
    pub cpu: Option<u32>,
    /// When it was entered, nanoseconds of the trace's clock.
    pub start_ns: Option<u64>,
    /// Its end was not recorded: times are lower bounds.
    pub open: bool,
    /// From entry to exit.
    pub total_ns: u64,
    /// Off the CPU.
    pub waited_ns: u64,
    /// In interrupts that came upon it.
    pub interrupted_ns: u64,
    /// The rest.
    pub worked_ns: u64,
    /// Share of `waited_ns` in `total_ns`, tenths of a percent.
    pub waited_permille: u64,
    /// Where `waited_ns` is known from.
    pub source: Source,
    /// What it waited for, in order.
    pub waits: Vec<WaitRow>,
    /// Work by layer.
    pub layers: Vec<WorkRow>,
    /// Work by module.
    pub modules: Vec<WorkRow>,
    /// Work by function.
    pub functions: Vec<WorkRow>,
}

/// One wait of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitRow {
    /// Callers of the scheduler below the root, `>` between them.
    pub cause: String,
    /// When it began, nanoseconds of the trace's clock.
    pub start_ns: Option<u64>,
    /// How long it lasted.
    pub waited_ns: u64,
    /// Its end was not recorded.
    pub open: bool,
    /// The thread's state as it left the CPU, in the kernel's letters; `None` when that was not recorded.
    pub state: Option<String>,
    /// Who made it runnable; `None` when that was not recorded, or it was runnable all the time.
    pub woken_by: Option<String>,
    /// From being made runnable to running.
    pub delay_ns: Option<u64>,
}

/// All waits of one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CauseRow {
    /// Callers of the scheduler below the root, `>` between them.
    pub cause: String,
    /// How many waits.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many by the thread's state as it left the CPU, as far as recorded.
    pub states: BTreeMap<String, u64>,
    /// How many by who made it runnable, as far as recorded.
    pub woken_by: BTreeMap<String, u64>,
}

/// Callers of the scheduler that are named, of the innermost: the kernel records about 50.
const MAX_CALLERS: usize = 64;

/// Wait against work of the calls asked for.
pub fn waits(calls: &Calls, activity: &Activity, asked: &Asked) -> Waits {
    let end_ns = last_ns(calls).max(activity.end_ns);
    let lengths = lengths(calls, end_ns);
    let mut roots = roots(calls, activity, asked);
    // The slowest first, of equal ones the earlier.
    roots.sort_by_key(|root| (std::cmp::Reverse(lengths[root.0 as usize].ns), *root));
    let mut report = Waits { root: asked.root.clone(), count: roots.len() as u64, ..Waits::default() };
    let (mut kinds, mut work) = (Kinds::default(), Work::default());
    let mut causes: HashMap<String, CauseRow> = HashMap::new();
    for (at, root) in roots.iter().enumerate() {
        let listed = at < asked.slowest;
        let mut split = Split::of(calls, &lengths, activity, *root, &mut kinds, end_ns);
        let mut own = Work::default();
        split.work(calls, |call, layer, self_ns| {
            work.add(call, layer, self_ns);
            if listed {
                own.add(call, layer, self_ns);
            }
        });
        let total = lengths[root.0 as usize];
        let worked_ns = total.ns.saturating_sub(split.waited_ns).saturating_sub(split.interrupted_ns);
        report.open += u64::from(total.open);
        report.total_ns = report.total_ns.saturating_add(total.ns);
        report.waited_ns = report.waited_ns.saturating_add(split.waited_ns);
        report.interrupted_ns = report.interrupted_ns.saturating_add(split.interrupted_ns);
        report.worked_ns = report.worked_ns.saturating_add(worked_ns);
        for wait in &split.waits {
            add_cause(&mut causes, wait);
        }
        if !listed {
            report.left_out += 1;
            continue;
        }
        let call = &calls[*root];
        report.calls.push(CallWait {
            function: work::full_name(calls, call.function, call.module),
            pid: call.task.map(|task| task.pid),
            comm: comm(calls, activity, *root).map(str::to_owned),
            cpu: call.cpu,
            start_ns: call.start_ns,
            open: total.open,
            total_ns: total.ns,
            waited_ns: split.waited_ns,
            interrupted_ns: split.interrupted_ns,
            worked_ns,
            waited_permille: permille(split.waited_ns, total.ns),
            source: split.source,
            waits: std::mem::take(&mut split.waits),
            layers: own.layers(),
            modules: own.modules(calls),
            functions: own.functions(calls),
        });
    }
    report.causes = causes.into_values().collect();
    report.causes.sort_by(|one, two| two.total_ns.cmp(&one.total_ns).then_with(|| one.cause.cmp(&two.cause)));
    (report.layers, report.modules, report.functions) = (work.layers(), work.modules(calls), work.functions(calls));
    report
}

fn add_cause(causes: &mut HashMap<String, CauseRow>, wait: &WaitRow) {
    let row = causes
        .entry(wait.cause.clone())
        .or_insert_with(|| CauseRow { cause: wait.cause.clone(), ..CauseRow::default() });
    row.count += 1;
    row.total_ns = row.total_ns.saturating_add(wait.waited_ns);
    row.max_ns = row.max_ns.max(wait.waited_ns);
    if let Some(state) = &wait.state {
        *row.states.entry(state.clone()).or_default() += 1;
    }
    if let Some(by) = &wait.woken_by {
        *row.woken_by.entry(by.clone()).or_default() += 1;
    }
}

/// The calls asked for: outermost ones of the root function, else outermost ones of all.
pub(super) fn roots(calls: &Calls, activity: &Activity, asked: &Asked) -> Vec<CallId> {
    let kept = |id: &CallId| {
        let call = &calls[*id];
        asked.keeps(call.task.map(|task| task.pid), comm(calls, activity, *id), call.cpu)
    };
    if asked.root.is_none() {
        return calls.roots.iter().copied().filter(kept).collect();
    }
    let is_root = |id: CallId| calls[id].function.is_some_and(|name| asked.is_root(&calls.names[name]));
    let mut found = Vec::new();
    let mut open: Vec<CallId> = calls.roots.iter().rev().copied().collect();
    while let Some(id) = open.pop() {
        if is_root(id) {
            found.push(id);
        } else {
            open.extend(calls[id].children.iter().rev());
        }
    }
    found.retain(kept);
    found
}

pub(super) fn comm<'a>(calls: &'a Calls, activity: &'a Activity, id: CallId) -> Option<&'a str> {
    let task = calls[id].task?;
    // Graph text cuts names to seven characters; events have them whole.
    activity.comm(task.pid).or_else(|| task.comm.map(|comm| &*calls.names[comm]))
}

/// Where the time of one call's tree went.
struct Split {
    nodes: Vec<Node>,
    source: Source,
    waited_ns: u64,
    interrupted_ns: u64,
    waits: Vec<WaitRow>,
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
}

/// What a call is part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zone {
    Work,
    Interrupt,
    Wait,
}

impl Split {
    fn of(
        calls: &Calls,
        lengths: &[Length],
        activity: &Activity,
        root: CallId,
        kinds: &mut Kinds,
        end_ns: u64,
    ) -> Split {
        let mut split =
            Split { nodes: Vec::new(), source: Source::Calls, waited_ns: 0, interrupted_ns: 0, waits: Vec::new() };
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
            split.nodes.push(Node { id, parent, zone, interrupt: kind.interrupt, layer, length, away_ns: 0 });
            path.push(at);
        }
        if !split.by_switches(calls, activity, &scheduled, end_ns) {
            split.by_calls(calls, &scheduled);
        }
        split.waited_ns = split.waits.iter().fold(0, |sum, wait| sum.saturating_add(wait.waited_ns));
        split.sum_away();
        split
    }

    /// Adds what is no work up to the root, and finds what interrupts took.
    fn sum_away(&mut self) {
        for at in (1..self.nodes.len()).rev() {
            let node = &self.nodes[at];
            let (parent, zone) = (node.parent, node.zone);
            let begins = zone == Zone::Interrupt && self.nodes[parent].zone != Zone::Interrupt;
            if begins {
                self.interrupted_ns = self.interrupted_ns.saturating_add(node.length.ns.saturating_sub(node.away_ns));
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
            self.waits.push(WaitRow {
                cause: self.cause(calls, *at),
                start_ns: calls[self.nodes[*at].id].start_ns,
                waited_ns: length.ns,
                open: length.open,
                state: None,
                woken_by: None,
                delay_ns: None,
            });
        }
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
                Some((back_ns, _)) => back_ns,
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
        let mut innermost = Innermost::of(self, calls);
        for (out_ns, back_ns, spell) in &away {
            let by = spell.woken.as_ref().map(|woken| match woken.by {
                Some(0) => format!("idle CPU {}", woken.cpu),
                Some(pid) => task_name(activity, pid),
                None => format!("CPU {}", woken.cpu),
            });
            self.waits.push(WaitRow {
                cause: self.cause(calls, innermost.at(*out_ns, *back_ns)),
                start_ns: Some(*out_ns),
                waited_ns: back_ns - out_ns,
                open: spell.back.is_none(),
                state: spell.out.as_ref().map(|out| out.state.to_string()),
                woken_by: by,
                delay_ns: spell.delay_ns(),
            });
        }
        true
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

    /// Tells the work of each call itself.
    fn work(&self, calls: &Calls, mut tell: impl FnMut(&crate::calls::Call, &'static str, u64)) {
        let mut self_ns: Vec<u64> = self.nodes.iter().map(|node| node.length.ns.saturating_sub(node.away_ns)).collect();
        for at in (1..self.nodes.len()).rev() {
            let node = &self.nodes[at];
            let worked_ns = node.length.ns.saturating_sub(node.away_ns);
            self_ns[node.parent] = self_ns[node.parent].saturating_sub(worked_ns);
        }
        for (node, self_ns) in self.nodes.iter().zip(self_ns) {
            if node.zone == Zone::Work {
                tell(&calls[node.id], node.layer, self_ns);
            }
        }
    }
}

/// Finds the innermost call that lasted all of a time.
struct Innermost {
    /// Per node its children's starts and ends, by time.
    children: HashMap<usize, Vec<(u64, u64, usize)>>,
}

impl Innermost {
    fn of(split: &Split, calls: &Calls) -> Innermost {
        let mut children: HashMap<usize, Vec<(u64, u64, usize)>> = HashMap::new();
        for (at, node) in split.nodes.iter().enumerate().skip(1) {
            if let Some(start_ns) = calls[node.id].start_ns {
                let stop_ns = start_ns.saturating_add(node.length.ns);
                children.entry(node.parent).or_default().push((start_ns, stop_ns, at));
            }
        }
        children.values_mut().for_each(|children| children.sort_unstable());
        Innermost { children }
    }

    fn at(&mut self, from_ns: u64, to_ns: u64) -> usize {
        let mut at = 0;
        while let Some(children) = self.children.get(&at) {
            let after = children.partition_point(|(start_ns, ..)| *start_ns <= from_ns);
            match children[..after].last() {
                Some((_, stop_ns, child)) if *stop_ns >= to_ns => at = *child,
                _ => break,
            }
        }
        at
    }
}

fn task_name(activity: &Activity, pid: i32) -> String {
    task(activity.comm(pid), Some(pid))
}

impl Waits {
    /// As text for a terminal.
    pub fn render(&self, out: &mut String) {
        let of = self.root.as_deref().unwrap_or("all outermost functions");
        head(out, &format!("Wait against work: {} calls of {of}", self.count));
        if self.count == 0 {
            head(out, "  no such call was recorded");
            return;
        }
        let mut table = Table::new(&["", ">time", ">share"]);
        let times = [
            ("total", self.total_ns),
            ("waited", self.waited_ns),
            ("interrupted", self.interrupted_ns),
            ("worked", self.worked_ns),
        ];
        for (name, ns) in times {
            table.row(vec![name.into(), at_least(ns, self.open > 0), percent(permille(ns, self.total_ns))]);
        }
        table.render(out);
        if self.open > 0 {
            head(
                out,
                &format!("  {} of them did not end in the capture: their times are lower bounds (>=)", self.open),
            );
        }
        self.render_causes(out);
        work::render(out, "Work by layer", &self.layers, self.worked_ns, usize::MAX);
        work::render(out, "Work by module", &self.modules, self.worked_ns, usize::MAX);
        work::render(out, "Work by function", &self.functions, self.worked_ns, 20);
        self.render_calls(out);
    }

    fn render_causes(&self, out: &mut String) {
        if self.causes.is_empty() {
            return;
        }
        head(out, "Waited for");
        let counts = |counts: &BTreeMap<String, u64>| match counts.len() {
            0 => "not recorded".to_owned(),
            _ => counts.iter().map(|(name, count)| format!("{name} x{count}")).collect::<Vec<_>>().join(", "),
        };
        let mut table = Table::new(&[">count", ">total", ">max", "state", "woken by", "cause"]);
        for row in &self.causes {
            let (states, by) = (counts(&row.states), counts(&row.woken_by));
            table.row(vec![row.count.to_string(), time(row.total_ns), time(row.max_ns), states, by, row.cause.clone()]);
        }
        table.render(out);
    }

    fn render_calls(&self, out: &mut String) {
        head(out, "Calls, the slowest first");
        let mut table = Table::new(&[
            ">start s",
            "task",
            ">CPU",
            "function",
            ">total",
            ">waited",
            ">share",
            ">interrupted",
            ">worked",
            "wait from",
        ]);
        for call in &self.calls {
            table.row(vec![
                moment(call.start_ns),
                task(call.comm.as_deref(), call.pid),
                call.cpu.map_or("-".into(), |cpu| cpu.to_string()),
                call.function.clone(),
                at_least(call.total_ns, call.open),
                at_least(call.waited_ns, call.open),
                percent(call.waited_permille),
                time(call.interrupted_ns),
                at_least(call.worked_ns, call.open),
                (if call.source == Source::Switches { "switches" } else { "calls" }).into(),
            ]);
        }
        table.render(out);
        if self.left_out > 0 {
            head(out, &format!("  and {} faster ones", self.left_out));
        }
        for call in &self.calls {
            let _ = writeln!(
                out,
                "{} at {} of {}",
                call.function,
                moment(call.start_ns),
                task(call.comm.as_deref(), call.pid)
            );
            for wait in &call.waits {
                let state = wait.state.as_deref().map_or(String::new(), |state| format!(", state {state}"));
                let by = wait.woken_by.as_deref().map_or(String::new(), |by| format!(", woken by {by}"));
                let delay = wait.delay_ns.map_or(String::new(), |ns| format!(" {} before it ran", time(ns)));
                let _ = writeln!(
                    out,
                    "  waited {} for {}{state}{by}{delay}",
                    at_least(wait.waited_ns, wait.open),
                    wait.cause
                );
            }
            for (name, rows) in [("layer", &call.layers), ("module", &call.modules)] {
                let parts: Vec<String> = rows.iter().map(|row| format!("{} {}", row.name, time(row.self_ns))).collect();
                let _ = writeln!(out, "  worked by {name}: {}", parts.join(", "));
            }
        }
    }
}
