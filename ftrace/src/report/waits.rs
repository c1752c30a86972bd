//! Wait against work: what a call waited for, what interrupted it, and what it did itself.

use super::Asked;
use super::activity::Activity;
use super::bound::{Bound, Bounds, Figure};
use super::lengths::{last_ns, lengths};
use super::split::Split;
use super::text::{Table, head, moment, task, time};
use super::work::{self, Kinds, Work, WorkRow};
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
    /// Calls without a name that may be among the selected ones.
    pub nameless: u64,
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
    pub layers: Vec<WorkRow>,
    /// Work by module.
    pub modules: Vec<WorkRow>,
    pub functions: Vec<WorkRow>,
    /// The slowest calls.
    pub calls: Vec<CallWait>,
    /// Calls that are not in `calls`.
    pub left_out: u64,
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
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
    pub layers: Vec<WorkRow>,
    /// Work by module.
    pub modules: Vec<WorkRow>,
    pub functions: Vec<WorkRow>,
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
}

/// One wait of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitRow {
    /// Callers of the scheduler below the root, `>` between them.
    pub cause: String,
    /// What it may have been instead, as the ends of calls are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_causes: Vec<String>,
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
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
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
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
}

/// Wait against work of the calls asked for.
pub fn waits(calls: &Calls, activity: &Activity, asked: &Asked) -> Waits {
    let end_ns = last_ns(calls).max(activity.end_ns);
    let lengths = lengths(calls, end_ns);
    let Roots { calls: mut roots, nameless } = roots(calls, activity, asked);
    // The slowest first, of equal ones the earlier.
    roots.sort_by_key(|root| (std::cmp::Reverse(lengths[root.0 as usize].ns), *root));
    let mut report = Waits { root: asked.root.clone(), count: roots.len() as u64, nameless, ..Waits::default() };
    let (mut kinds, mut work) = (Kinds::default(), Work::default());
    let mut causes: HashMap<String, CauseRow> = HashMap::new();
    // Calls without a name may be more of those that are summed.
    let none = Figure { ns: 0, bound: if nameless > 0 { Bound::AT_LEAST } else { Bound::default() } };
    let mut sums = [none; 4];
    for (at, root) in roots.iter().enumerate() {
        let listed = at < asked.slowest;
        let mut split = Split::of(calls, &lengths, activity, *root, &mut kinds, end_ns);
        let mut own = Work::default();
        split.work(calls, |call, layer, self_time| {
            work.add(call, layer, self_time.or(none.bound));
            if listed {
                own.add(call, layer, self_time);
            }
        });
        let total = lengths[root.0 as usize];
        report.open += u64::from(total.open);
        for (sum, part) in sums.iter_mut().zip([total.figure(), split.waited, split.interrupted, split.worked]) {
            *sum = sum.plus(part);
        }
        for wait in &split.waits {
            add_cause(&mut causes, wait, none.bound);
        }
        if !listed {
            report.left_out += 1;
            continue;
        }
        let call = &calls[*root];
        let mut bounds = Bounds::default();
        report.calls.push(CallWait {
            function: work::full_name(calls, call.function, call.module),
            pid: call.task.map(|task| task.pid),
            comm: comm(calls, activity, *root).map(str::to_owned),
            cpu: call.cpu,
            start_ns: call.start_ns,
            open: total.open,
            total_ns: bounds.keep("total_ns", total.figure()),
            waited_ns: bounds.keep("waited_ns", split.waited),
            interrupted_ns: bounds.keep("interrupted_ns", split.interrupted),
            worked_ns: bounds.keep("worked_ns", split.worked),
            waited_permille: bounds.keep("waited_permille", split.waited.share(total.figure())),
            source: split.source,
            waits: std::mem::take(&mut split.waits),
            layers: own.layers(),
            modules: own.modules(calls),
            functions: own.functions(calls),
            bounds,
        });
    }
    let names = ["total_ns", "waited_ns", "interrupted_ns", "worked_ns"];
    let [total_ns, waited_ns, interrupted_ns, worked_ns] =
        std::array::from_fn(|at| report.bounds.keep(names[at], sums[at]));
    report = Waits { total_ns, waited_ns, interrupted_ns, worked_ns, ..report };
    report.causes = causes.into_values().collect();
    report.causes.sort_by(|one, two| two.total_ns.cmp(&one.total_ns).then_with(|| one.cause.cmp(&two.cause)));
    (report.layers, report.modules, report.functions) = (work.layers(), work.modules(calls), work.functions(calls));
    report
}

fn add_cause(causes: &mut HashMap<String, CauseRow>, wait: &WaitRow, bound: Bound) {
    let certain = Bound { less: !wait.other_causes.is_empty(), more: false };
    let row = add_time(causes, &wait.cause, wait.bounds.figure("waited_ns", wait.waited_ns).or(bound).or(certain));
    row.count += 1;
    if let Some(state) = &wait.state {
        *row.states.entry(state.clone()).or_default() += 1;
    }
    if let Some(by) = &wait.woken_by {
        *row.woken_by.entry(by.clone()).or_default() += 1;
    }
    for other in &wait.other_causes {
        add_time(causes, other, Figure { ns: 0, bound: Bound::AT_LEAST });
    }
}

fn add_time<'a>(causes: &'a mut HashMap<String, CauseRow>, cause: &str, waited: Figure) -> &'a mut CauseRow {
    let row =
        causes.entry(cause.to_owned()).or_insert_with(|| CauseRow { cause: cause.to_owned(), ..CauseRow::default() });
    row.total_ns = row.bounds.keep("total_ns", row.bounds.figure("total_ns", row.total_ns).plus(waited));
    let max = Figure { ns: row.max_ns.max(waited.ns), bound: row.bounds.of("max_ns") };
    row.max_ns = row.bounds.keep("max_ns", max.or(waited.bound));
    row
}

/// The calls asked for.
pub(super) struct Roots {
    /// Outermost ones of the root function, else outermost ones of all.
    pub calls: Vec<CallId>,
    /// Calls without a name outside of them, each of which may be one of them, too.
    pub nameless: u64,
}

pub(super) fn roots(calls: &Calls, activity: &Activity, asked: &Asked) -> Roots {
    let kept = |id: &CallId| {
        let call = &calls[*id];
        asked.keeps(call.task.map(|task| task.pid), comm(calls, activity, *id), call.cpu)
    };
    if asked.root.is_none() {
        return Roots { calls: calls.roots.iter().copied().filter(kept).collect(), nameless: 0 };
    }
    let is_root = |id: CallId| calls[id].function.is_some_and(|name| asked.is_root(&calls.names[name]));
    let mut found = Roots { calls: Vec::new(), nameless: 0 };
    let mut open: Vec<CallId> = calls.roots.iter().rev().copied().collect();
    while let Some(id) = open.pop() {
        if is_root(id) {
            found.calls.push(id);
        } else {
            found.nameless += u64::from(calls[id].function.is_none() && kept(&id));
            open.extend(calls[id].children.iter().rev());
        }
    }
    found.calls.retain(kept);
    found
}

pub(super) fn comm<'a>(calls: &'a Calls, activity: &'a Activity, id: CallId) -> Option<&'a str> {
    let task = calls[id].task?;
    // Graph text cuts names to seven characters; events have them whole.
    activity.comm(task.pid).or_else(|| task.comm.map(|comm| &*calls.names[comm]))
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
            ("total", "total_ns", self.total_ns),
            ("waited", "waited_ns", self.waited_ns),
            ("interrupted", "interrupted_ns", self.interrupted_ns),
            ("worked", "worked_ns", self.worked_ns),
        ];
        let total = self.bounds.figure("total_ns", self.total_ns);
        for (name, field, ns) in times {
            // The whole is all of itself, however long it is.
            let share = if field == "total_ns" { "100.0 %".into() } else { self.bounds.share(field, ns, total) };
            table.row(vec![name.into(), self.bounds.time(field, ns), share]);
        }
        table.render(out);
        if self.open > 0 {
            head(
                out,
                &format!("  {} of them did not end in the capture: their times are lower bounds (>=)", self.open),
            );
        }
        if self.nameless > 0 {
            head(out, &format!("  {} calls without a name may be more of them", self.nameless));
        }
        self.render_causes(out);
        let worked = self.bounds.figure("worked_ns", self.worked_ns);
        work::render(out, "Work by layer", &self.layers, worked, usize::MAX);
        work::render(out, "Work by module", &self.modules, worked, usize::MAX);
        work::render(out, "Work by function", &self.functions, worked, 20);
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
            let (total, max) = (row.bounds.time("total_ns", row.total_ns), row.bounds.time("max_ns", row.max_ns));
            table.row(vec![row.count.to_string(), total, max, states, by, row.cause.clone()]);
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
                call.bounds.time("total_ns", call.total_ns),
                call.bounds.time("waited_ns", call.waited_ns),
                call.bounds.share("waited_ns", call.waited_ns, call.bounds.figure("total_ns", call.total_ns)),
                call.bounds.time("interrupted_ns", call.interrupted_ns),
                call.bounds.time("worked_ns", call.worked_ns),
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
                let others: String = wait.other_causes.iter().map(|other| format!(", or for {other}")).collect();
                let by = wait.woken_by.as_deref().map_or(String::new(), |by| format!(", woken by {by}"));
                let delay = wait.delay_ns.map_or(String::new(), |ns| format!(" {} before it ran", time(ns)));
                let _ = writeln!(
                    out,
                    "  waited {} for {}{others}{state}{by}{delay}",
                    wait.bounds.time("waited_ns", wait.waited_ns),
                    wait.cause
                );
            }
            for (name, rows) in [("layer", &call.layers), ("module", &call.modules)] {
                let part = |row: &WorkRow| format!("{} {}", row.name, row.bounds.time("self_ns", row.self_ns));
                let parts: Vec<String> = rows.iter().map(part).collect();
                let _ = writeln!(out, "  worked by {name}: {}", parts.join(", "));
            }
        }
    }
}
