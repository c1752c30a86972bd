//! What changed between two captures.

use super::text::{Table, head, time};
use super::{Functions, Syscalls, Waits};
use serde::Serialize;
use std::collections::BTreeMap;

/// What changed from one capture to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Wait against work of the roots asked for.
    pub waits: Option<CallChange>,
    /// The largest change of self time first.
    pub functions: Vec<FunctionChange>,
    /// The largest change of total time first.
    pub syscalls: Vec<SyscallChange>,
}

/// A number before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// In the first capture.
    pub before: u64,
    /// In the second.
    pub after: u64,
}

/// Change of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionChange {
    /// The function.
    pub function: String,
    /// Its module.
    pub module: String,
    /// Calls.
    pub count: Change,
    /// Inclusive time.
    pub total_ns: Change,
    /// Mean of the calls.
    pub avg_ns: Change,
    /// Without what was called.
    pub self_ns: Change,
}

/// Change of all calls of the roots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallChange {
    /// Calls.
    pub count: Change,
    /// From entry to exit.
    pub total_ns: Change,
    /// Off the CPU.
    pub waited_ns: Change,
    /// In interrupts.
    pub interrupted_ns: Change,
    /// The rest.
    pub worked_ns: Change,
}

/// Change of one system call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SyscallChange {
    /// Its name.
    pub name: String,
    /// Calls.
    pub count: Change,
    /// From entry to exit.
    pub total_ns: Change,
    /// The longest.
    pub max_ns: Change,
    /// Errors.
    pub errors: Change,
}

/// What of a capture is compared.
type Side<'a> = (&'a Functions, &'a Waits, &'a Syscalls);

/// What changed from `before` to `after`.
pub fn diff(before: Side<'_>, after: Side<'_>) -> Diff {
    let mut functions: BTreeMap<(&str, &str), FunctionChange> = BTreeMap::new();
    let mut syscalls: BTreeMap<&str, SyscallChange> = BTreeMap::new();
    for (side, second) in [(before, false), (after, true)] {
        for row in &side.0.functions {
            let change = functions.entry((&row.function, &row.module)).or_default();
            change.count.set(second, row.count);
            change.total_ns.set(second, row.total_ns);
            change.avg_ns.set(second, row.avg_ns);
            change.self_ns.set(second, row.self_ns);
        }
        for row in &side.2.rows {
            let change = syscalls.entry(&row.name).or_default();
            change.count.set(second, row.count);
            change.total_ns.set(second, row.total_ns);
            change.max_ns.set(second, row.max_ns);
            change.errors.set(second, row.errors);
        }
    }
    let of = |of: fn(&Waits) -> u64| Change { before: of(before.1), after: of(after.1) };
    let waits = CallChange {
        count: of(|waits| waits.count),
        total_ns: of(|waits| waits.total_ns),
        waited_ns: of(|waits| waits.waited_ns),
        interrupted_ns: of(|waits| waits.interrupted_ns),
        worked_ns: of(|waits| waits.worked_ns),
    };
    let named = |((function, module), change): ((&str, &str), FunctionChange)| FunctionChange {
        function: function.to_owned(),
        module: module.to_owned(),
        ..change
    };
    let mut report = Diff {
        waits: (waits.count != Change::default()).then_some(waits),
        functions: functions.into_iter().map(named).collect(),
        syscalls: syscalls
            .into_iter()
            .map(|(name, change)| SyscallChange { name: name.to_owned(), ..change })
            .collect(),
    };
    // Stable: what changed as much stays in the order of its name.
    report.functions.sort_by_key(|change| std::cmp::Reverse(change.self_ns.size()));
    report.syscalls.sort_by_key(|change| std::cmp::Reverse(change.total_ns.size()));
    report
}

impl Change {
    fn set(&mut self, second: bool, value: u64) {
        *if second { &mut self.after } else { &mut self.before } = value;
    }

    fn size(self) -> u64 {
        self.before.abs_diff(self.after)
    }

    fn sign(self) -> &'static str {
        if self.after < self.before { "-" } else { "+" }
    }

    fn time(self) -> [String; 3] {
        [time(self.before), time(self.after), format!("{}{}", self.sign(), time(self.size()))]
    }

    fn number(self) -> [String; 3] {
        [self.before.to_string(), self.after.to_string(), format!("{}{}", self.sign(), self.size())]
    }
}

impl Diff {
    /// As text for a terminal, so many rows of each table at most.
    pub fn render(&self, out: &mut String, limit: usize) {
        if let Some(waits) = &self.waits {
            head(out, "Change of wait against work");
            let mut table = Table::new(&["", ">before", ">after", ">change", ">mean before", ">mean after"]);
            table.row([vec!["calls".to_owned()], waits.count.number().to_vec()].concat());
            let rows = [
                ("total", waits.total_ns),
                ("waited", waits.waited_ns),
                ("interrupted", waits.interrupted_ns),
                ("worked", waits.worked_ns),
            ];
            for (name, change) in rows {
                let mean = |sum: u64, count: u64| sum.checked_div(count).map_or_else(|| "-".to_owned(), time);
                let means = vec![mean(change.before, waits.count.before), mean(change.after, waits.count.after)];
                table.row([vec![name.to_owned()], change.time().to_vec(), means].concat());
            }
            table.render(out);
        }
        if !self.functions.is_empty() {
            head(out, "Change of functions, the largest change of self time first");
            let mut table = Table::new(&[
                ">self before",
                ">after",
                ">change",
                ">total before",
                ">after",
                ">change",
                ">mean before",
                ">after",
                ">calls before",
                ">after",
                "function",
                "module",
            ]);
            for change in self.functions.iter().take(limit) {
                let means = vec![time(change.avg_ns.before), time(change.avg_ns.after)];
                let counts = change.count.number()[..2].to_vec();
                let names = vec![change.function.clone(), change.module.clone()];
                table.row(
                    [change.self_ns.time().to_vec(), change.total_ns.time().to_vec(), means, counts, names].concat(),
                );
            }
            table.render(out);
            if self.functions.len() > limit {
                head(out, &format!("  and {} more", self.functions.len() - limit));
            }
        }
        if !self.syscalls.is_empty() {
            head(out, "Change of system calls, the largest change of total time first");
            let mut table = Table::new(&[
                "call",
                ">total before",
                ">after",
                ">change",
                ">calls before",
                ">after",
                ">max before",
                ">after",
                ">errors before",
                ">after",
            ]);
            for change in self.syscalls.iter().take(limit) {
                let pairs =
                    [&change.count.number()[..2], &change.max_ns.time()[..2], &change.errors.number()[..2]].concat();
                table.row([vec![change.name.clone()], change.total_ns.time().to_vec(), pairs].concat());
            }
            table.render(out);
            if self.syscalls.len() > limit {
                head(out, &format!("  and {} more", self.syscalls.len() - limit));
            }
        }
    }
}
