//! Why threads left the CPU, and for how long.

use super::names;
use super::text::{Table, head, not_recorded, task, time};
use super::{Activity, Asked};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;

/// Why threads left the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Switches {
    /// Events that this would need and the capture does not hold.
    pub not_recorded: Vec<String>,
    /// By state, the most time first.
    pub states: Vec<SwitchRow>,
    /// By thread and state, the most time first.
    pub tasks: Vec<SwitchRow>,
    /// By stack, the most time first; empty when no stacks were recorded.
    pub stacks: Vec<SwitchStack>,
    /// Times off the CPU that were given up, as records were lost while they lasted.
    pub given_up: u64,
}

/// Times off the CPU of one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SwitchRow {
    /// The thread; `None` in the sums over threads.
    pub pid: Option<i32>,
    /// Its name.
    pub comm: Option<String>,
    /// Its state as it left, in the kernel's letters; `R+` is preempted.
    pub state: String,
    /// How often.
    pub count: u64,
    /// How often it was not seen to come back: not in the times.
    pub open: u64,
    /// Time off the CPU.
    pub off_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Times off the CPU at one stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SwitchStack {
    /// Functions, the innermost first.
    pub stack: Vec<String>,
    /// State in the kernel's letters.
    pub state: String,
    /// How often.
    pub count: u64,
    /// Time off the CPU, of those that were seen to come back.
    pub off_ns: u64,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    open: u64,
    off_ns: u64,
    max_ns: u64,
}

impl Sum {
    fn add(&mut self, off_ns: Option<u64>) {
        self.count += 1;
        self.open += u64::from(off_ns.is_none());
        self.off_ns = self.off_ns.saturating_add(off_ns.unwrap_or_default());
        self.max_ns = self.max_ns.max(off_ns.unwrap_or_default());
    }
}

/// Why threads left the CPU (`sched_switch`).
pub fn switches(activity: &Activity, asked: &Asked) -> Switches {
    let mut report = Switches { given_up: activity.given_up, ..Switches::default() };
    if !activity.switches {
        report.not_recorded.push("sched_switch".to_owned());
    }
    let mut rows: HashMap<(Option<i32>, &str), Sum> = HashMap::new();
    let mut stacks: HashMap<(usize, &str), Sum> = HashMap::new();
    for spell in &activity.spells {
        let Some(out) = &spell.out else { continue };
        if !asked.keeps(Some(spell.pid), activity.comm(spell.pid), Some(out.cpu)) {
            continue;
        }
        let off_ns = spell.off_ns();
        rows.entry((None, &out.state)).or_default().add(off_ns);
        rows.entry((Some(spell.pid), &out.state)).or_default().add(off_ns);
        if let Some(stack) = out.stack {
            stacks.entry((stack, &out.state)).or_default().add(off_ns);
        }
    }
    let mut rows: Vec<SwitchRow> = rows
        .into_iter()
        .map(|((pid, state), sum)| SwitchRow {
            pid,
            comm: pid.and_then(|pid| activity.comm(pid)).map(str::to_owned),
            state: state.to_owned(),
            count: sum.count,
            open: sum.open,
            off_ns: sum.off_ns,
            max_ns: sum.max_ns,
        })
        .collect();
    rows.sort_by(|one, two| (two.off_ns, one.pid, &one.state).cmp(&(one.off_ns, two.pid, &two.state)));
    (report.states, report.tasks) = rows.into_iter().partition(|row| row.pid.is_none());
    report.stacks = stacks
        .into_iter()
        .map(|((stack, state), sum)| SwitchStack {
            stack: activity.stacks[stack].iter().map(|name| name.to_string()).collect(),
            state: state.to_owned(),
            count: sum.count,
            off_ns: sum.off_ns,
        })
        .collect();
    report.stacks.sort_by(|one, two| (two.off_ns, &one.stack, &one.state).cmp(&(one.off_ns, &two.stack, &two.state)));
    report
}

impl Switches {
    /// As text for a terminal, so many stacks at most.
    pub fn render(&self, out: &mut String, limit: usize) {
        head(out, "Why threads left the CPU");
        if not_recorded(out, &self.not_recorded) {
            return;
        }
        let mut table = Table::new(&["state", ">count", ">off CPU", ">max", ">not seen back", "meaning"]);
        for row in &self.states {
            let [off, max] = [row.off_ns, row.max_ns].map(time);
            let meaning = names::state(&row.state).to_owned();
            table.row(vec![row.state.clone(), row.count.to_string(), off, max, row.open.to_string(), meaning]);
        }
        table.render(out);
        let mut table = Table::new(&["task", "state", ">count", ">off CPU", ">max", ">not seen back"]);
        for row in &self.tasks {
            let [off, max] = [row.off_ns, row.max_ns].map(time);
            let name = task(row.comm.as_deref(), row.pid);
            table.row(vec![name, row.state.clone(), row.count.to_string(), off, max, row.open.to_string()]);
        }
        table.render(out);
        if self.given_up > 0 {
            head(
                out,
                &format!("  {} times off the CPU were given up, as records were lost while they lasted", self.given_up),
            );
        }
        if self.stacks.is_empty() {
            head(out, "  stacks: not recorded");
            return;
        }
        for stack in self.stacks.iter().take(limit) {
            let _ = writeln!(
                out,
                "  {} off the CPU in {} times, state {}, at",
                time(stack.off_ns),
                stack.count,
                stack.state
            );
            stack.stack.iter().for_each(|function| head(out, &format!("    {function}")));
        }
        if self.stacks.len() > limit {
            head(out, &format!("  and {} more stacks", self.stacks.len() - limit));
        }
    }
}
