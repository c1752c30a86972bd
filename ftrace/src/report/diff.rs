//! What changed between two captures.

use super::text::{Table, head, time};
use super::{Bound, Bounds, Functions, Syscalls, Waits};
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
    /// On which side of the first the truth may lie.
    #[serde(skip_serializing_if = "Bound::is_exact")]
    pub before_bound: Bound,
    /// On which side of the second the truth may lie.
    #[serde(skip_serializing_if = "Bound::is_exact")]
    pub after_bound: Bound,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionChange {
    pub function: String,
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
    pub interrupted_ns: Change,
    /// The rest.
    pub worked_ns: Change,
}

/// Change of one system call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SyscallChange {
    pub name: String,
    /// Calls.
    pub count: Change,
    /// From entry to exit.
    pub total_ns: Change,
    /// The longest.
    pub max_ns: Change,
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
            change.count.set(second, row.count, Bound::default());
            change.total_ns.set(second, row.total_ns, row.bounds.of("total_ns"));
            change.avg_ns.set(second, row.avg_ns, row.bounds.of("avg_ns"));
            change.self_ns.set(second, row.self_ns, row.bounds.of("self_ns"));
        }
        for row in &side.2.rows {
            let change = syscalls.entry(&row.name).or_default();
            let exact = Bound::default();
            change.count.set(second, row.count, exact);
            change.total_ns.set(second, row.total_ns, exact);
            change.max_ns.set(second, row.max_ns, exact);
            change.errors.set(second, row.errors, exact);
        }
    }
    let of = |field: &str, of: fn(&Waits) -> u64| {
        let bound = |bounds: &Bounds| bounds.of(field);
        let (before_bound, after_bound) = (bound(&before.1.bounds), bound(&after.1.bounds));
        Change { before: of(before.1), after: of(after.1), before_bound, after_bound }
    };
    let waits = CallChange {
        count: of("count", |waits| waits.count),
        total_ns: of("total_ns", |waits| waits.total_ns),
        waited_ns: of("waited_ns", |waits| waits.waited_ns),
        interrupted_ns: of("interrupted_ns", |waits| waits.interrupted_ns),
        worked_ns: of("worked_ns", |waits| waits.worked_ns),
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
    fn set(&mut self, second: bool, value: u64, bound: Bound) {
        match second {
            true => (self.after, self.after_bound) = (value, bound),
            false => (self.before, self.before_bound) = (value, bound),
        }
    }

    fn size(self) -> u64 {
        self.before.abs_diff(self.after)
    }

    fn sign(self) -> &'static str {
        if self.after < self.before { "-" } else { "+" }
    }

    fn time(self) -> [String; 3] {
        let size = format!("{}{}", self.sign(), time(self.size()));
        let bound = self.after_bound.or(self.before_bound.reversed());
        // The difference of two bounds is no bound in any direction that a sign could say.
        let size = if bound.is_exact() { size } else { Bound::ABOUT.show(&size) };
        [self.before_bound.show(&time(self.before)), self.after_bound.show(&time(self.after)), size]
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
                let mean = |sum: u64, bound: Bound, count: u64| {
                    sum.checked_div(count).map_or_else(|| "-".to_owned(), |ns| bound.show(&time(ns)))
                };
                let means = vec![
                    mean(change.before, change.before_bound, waits.count.before),
                    mean(change.after, change.after_bound, waits.count.after),
                ];
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
                let means = change.avg_ns.time()[..2].to_vec();
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
