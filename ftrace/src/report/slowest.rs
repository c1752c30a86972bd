//! The slowest calls with what they called.

use super::bound::{Bound, Bounds, Figure};
use super::lengths::{last_ns, lengths, self_time};
use super::text::{head, moment, task};
use super::waits::{comm, roots};
use super::{Activity, Asked, work};
use crate::calls::Calls;
use serde::Serialize;
use std::fmt::Write;

/// The slowest calls with what they called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Slowest {
    /// The root asked for; `None` for all outermost calls.
    pub root: Option<String>,
    /// How many calls there are.
    pub count: u64,
    /// The slowest first.
    pub calls: Vec<SlowCall>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowCall {
    /// The thread.
    pub pid: Option<i32>,
    /// Its name.
    pub comm: Option<String>,
    /// Where it was entered.
    pub cpu: Option<u32>,
    /// When it was entered, nanoseconds of the trace's clock.
    pub start_ns: Option<u64>,
    /// Itself and what it called, callers first.
    pub tree: Vec<TreeLine>,
    /// Calls that are deeper than asked for, or too many to be shown.
    pub left_out: u64,
}

/// One call of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TreeLine {
    /// Calls between it and the slow one, 0 for the slow one itself.
    pub depth: usize,
    /// The function, and its module.
    pub function: String,
    /// From entry to exit.
    pub total_ns: u64,
    /// Without what it called.
    pub self_ns: u64,
    /// Its end was not recorded: times are lower bounds.
    pub open: bool,
    /// An interrupt began it.
    pub interrupt: bool,
    /// Arguments as the trace shows them.
    pub arguments: Option<String>,
    /// The returned value as the trace shows it.
    pub returned: Option<String>,
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
}

/// Lines of one tree: more do not fit a terminal, and a capture may hold millions.
const MAX_LINES: usize = 2000;

/// The slowest calls of a root function.
pub fn slowest(calls: &Calls, activity: &Activity, asked: &Asked) -> Slowest {
    let lengths = lengths(calls, last_ns(calls).max(activity.end_ns));
    let mut roots = roots(calls, activity, asked).calls;
    let count = roots.len() as u64;
    roots.sort_by_key(|root| (std::cmp::Reverse(lengths[root.0 as usize].ns), *root));
    let slow = |root: &crate::calls::CallId| {
        let call = &calls[*root];
        let mut slow = SlowCall {
            pid: call.task.map(|task| task.pid),
            comm: comm(calls, activity, *root).map(str::to_owned),
            cpu: call.cpu,
            start_ns: call.start_ns,
            tree: Vec::new(),
            left_out: 0,
        };
        for (id, depth) in calls.tree(*root) {
            if depth > asked.depth || slow.tree.len() >= MAX_LINES {
                slow.left_out += 1;
                continue;
            }
            let (call, length) = (&calls[id], lengths[id.0 as usize]);
            let mut bounds = Bounds::default();
            slow.tree.push(TreeLine {
                depth,
                function: work::full_name(calls, call.function, call.module),
                total_ns: bounds.keep("total_ns", length.figure()),
                self_ns: bounds.keep("self_ns", self_time(calls, &lengths, id)),
                open: length.open,
                interrupt: call.interrupt,
                arguments: call.arguments.as_deref().map(str::to_owned),
                returned: call.returned.as_deref().map(str::to_owned),
                bounds,
            });
        }
        slow
    };
    Slowest { root: asked.root.clone(), count, calls: roots.iter().take(asked.slowest).map(slow).collect() }
}

impl Slowest {
    /// As text for a terminal.
    pub fn render(&self, out: &mut String) {
        let of = self.root.as_deref().unwrap_or("all outermost functions");
        head(out, &format!("Slowest calls: {} of {} calls of {of}", self.calls.len(), self.count));
        for call in &self.calls {
            let cpu = call.cpu.map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
            head(out, &format!("  at {} of {}{cpu}", moment(call.start_ns), task(call.comm.as_deref(), call.pid)));
            let whole =
                call.tree.first().map_or(Figure::default(), |line| line.bounds.figure("total_ns", line.total_ns));
            for line in &call.tree {
                let total = line.bounds.time("total_ns", line.total_ns);
                // The whole is all of itself, however long it is.
                let whole = if line.depth == 0 { Figure { bound: Bound::default(), ..whole } } else { whole };
                let share = line.bounds.share("total_ns", line.total_ns, whole);
                let indent = "  ".repeat(line.depth);
                let arguments = line.arguments.as_deref().unwrap_or_default();
                let returned = line.returned.as_deref().map_or(String::new(), |value| format!(" = {value}"));
                let mark = if line.interrupt { "  (interrupt)" } else { "" };
                // Writing to a String cannot fail.
                let _ =
                    writeln!(out, "  {total:>16} {share:>7}  {indent}{}({arguments}){returned}{mark}", line.function);
            }
            if call.left_out > 0 {
                head(out, &format!("  and {} calls that are deeper or later", call.left_out));
            }
        }
    }
}
