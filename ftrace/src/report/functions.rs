//! Inclusive and self time by function and by module.

use super::lengths::{last_ns, lengths};
use super::text::{Table, head, percent, permille, time};
use super::waits::roots;
use super::{Activity, Asked, work};
use crate::calls::{CallId, Calls, NameId};
use serde::Serialize;
use std::collections::HashMap;
use std::hash::Hash;

/// Time by function and by module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Functions {
    /// The most self time first.
    pub functions: Vec<FunctionRow>,
    /// The most self time first.
    pub modules: Vec<ModuleRow>,
    /// Self time of all calls.
    pub self_ns: u64,
}

/// Calls of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionRow {
    /// The function.
    pub function: String,
    /// Its module; `kernel` for the kernel itself.
    pub module: String,
    /// Calls whose length is known.
    pub count: u64,
    /// Calls whose length is not known: not in the times.
    pub open: u64,
    /// From entry to exit, of a recursion the outermost call only.
    pub total_ns: u64,
    /// Without what was called.
    pub self_ns: u64,
    /// The shortest call.
    pub min_ns: u64,
    /// Mean of all calls, rounded down.
    pub avg_ns: u64,
    /// The longest call.
    pub max_ns: u64,
}

/// Calls of the functions of one module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModuleRow {
    /// The module; `kernel` for the kernel itself.
    pub module: String,
    /// Calls whose length is known.
    pub count: u64,
    /// From entry into the module to exit from it.
    pub total_ns: u64,
    /// Without what was called in other modules.
    pub self_ns: u64,
}

/// What one key's calls add up to, and how many of them are open on the way down the tree.
#[derive(Default)]
struct Sum {
    count: u64,
    open: u64,
    total_ns: u64,
    self_ns: u64,
    sum_ns: u64,
    min_ns: Option<u64>,
    max_ns: u64,
    entered: u32,
}

#[derive(Default)]
struct Sums<K> {
    by: HashMap<K, usize>,
    all: Vec<Sum>,
}

impl<K: Eq + Hash> Sums<K> {
    fn at(&mut self, key: K) -> usize {
        let next = self.all.len();
        let at = *self.by.entry(key).or_insert(next);
        if at == next {
            self.all.push(Sum::default());
        }
        at
    }

    fn enter(&mut self, at: usize, known_ns: Option<u64>, self_ns: u64) {
        let sum = &mut self.all[at];
        if let Some(ns) = known_ns {
            sum.count += 1;
            sum.sum_ns = sum.sum_ns.saturating_add(ns);
            sum.min_ns = Some(sum.min_ns.map_or(ns, |min| min.min(ns)));
            sum.max_ns = sum.max_ns.max(ns);
            sum.self_ns = sum.self_ns.saturating_add(self_ns);
            if sum.entered == 0 {
                sum.total_ns = sum.total_ns.saturating_add(ns);
            }
            sum.entered += 1;
        } else {
            sum.open += 1;
        }
    }
}

/// Inclusive and self time by function and by module, below the root asked for.
pub fn functions(calls: &Calls, activity: &Activity, asked: &Asked) -> Functions {
    let lengths = lengths(calls, last_ns(calls).max(activity.end_ns));
    let mut functions: Sums<(Option<NameId>, Option<NameId>)> = Sums { by: HashMap::new(), all: Vec::new() };
    let mut modules: Sums<Option<NameId>> = Sums { by: HashMap::new(), all: Vec::new() };
    // Calls on the way to the present one: their functions and modules, when they count.
    let mut path: Vec<Option<(usize, usize)>> = Vec::new();
    let mut all_ns: u64 = 0;
    let leave =
        |path: &mut Vec<Option<(usize, usize)>>, depth: usize, functions: &mut Sums<_>, modules: &mut Sums<_>| {
            for (function, module) in path.drain(depth.min(path.len())..).flatten() {
                leave_one(functions, function);
                leave_one(modules, module);
            }
        };
    for root in roots(calls, activity, asked) {
        for (id, depth) in calls.tree(root) {
            leave(&mut path, depth, &mut functions, &mut modules);
            let call = &calls[id];
            let length = lengths[id.0 as usize];
            let self_ns = length.ns.saturating_sub(below_ns(calls, &lengths, id));
            let known_ns = (!length.open).then_some(length.ns);
            let (function, module) = (functions.at((call.function, call.module)), modules.at(call.module));
            functions.enter(function, known_ns, self_ns);
            modules.enter(module, known_ns, self_ns);
            path.push(known_ns.map(|_| (function, module)));
            if known_ns.is_some() {
                all_ns = all_ns.saturating_add(self_ns);
            }
        }
        leave(&mut path, 0, &mut functions, &mut modules);
    }
    let mut report = Functions { self_ns: all_ns, ..Functions::default() };
    for ((function, module), at) in functions.by {
        let sum = &functions.all[at];
        report.functions.push(FunctionRow {
            function: work::function_name(calls, function).to_owned(),
            module: work::module_name(calls, module).to_owned(),
            count: sum.count,
            open: sum.open,
            total_ns: sum.total_ns,
            self_ns: sum.self_ns,
            min_ns: sum.min_ns.unwrap_or_default(),
            avg_ns: sum.sum_ns.checked_div(sum.count).unwrap_or_default(),
            max_ns: sum.max_ns,
        });
    }
    for (module, at) in modules.by {
        let sum = &modules.all[at];
        let module = work::module_name(calls, module).to_owned();
        report.modules.push(ModuleRow { module, count: sum.count, total_ns: sum.total_ns, self_ns: sum.self_ns });
    }
    let order = |one: &FunctionRow| (std::cmp::Reverse(one.self_ns), one.function.clone(), one.module.clone());
    report.functions.sort_by_cached_key(order);
    report.modules.sort_by_cached_key(|one| (std::cmp::Reverse(one.self_ns), one.module.clone()));
    report
}

fn leave_one<K>(sums: &mut Sums<K>, at: usize) {
    sums.all[at].entered -= 1;
}

/// Time in what a call called.
pub(super) fn below_ns(calls: &Calls, lengths: &[super::lengths::Length], id: CallId) -> u64 {
    calls[id].children.iter().fold(0, |sum: u64, child| sum.saturating_add(lengths[child.0 as usize].ns))
}

impl Functions {
    /// As text for a terminal, so many functions at most.
    pub fn render(&self, out: &mut String, limit: usize) {
        head(out, &format!("Functions: {} by self time", self.functions.len()));
        let mut table =
            Table::new(&[">calls", ">total", ">self", ">share", ">min", ">avg", ">max", ">open", "function", "module"]);
        for row in self.functions.iter().take(limit) {
            let times = [row.total_ns, row.self_ns].map(time);
            let [total, own] = times;
            let [min, avg, max] = [row.min_ns, row.avg_ns, row.max_ns].map(time);
            let share = percent(permille(row.self_ns, self.self_ns));
            let (count, open) = (row.count.to_string(), row.open.to_string());
            table.row(vec![count, total, own, share, min, avg, max, open, row.function.clone(), row.module.clone()]);
        }
        table.render(out);
        if self.functions.len() > limit {
            head(out, &format!("  and {} more", self.functions.len() - limit));
        }
        head(out, "Modules");
        let mut table = Table::new(&[">calls", ">total", ">self", ">share", "module"]);
        for row in &self.modules {
            let share = percent(permille(row.self_ns, self.self_ns));
            table.row(vec![row.count.to_string(), time(row.total_ns), time(row.self_ns), share, row.module.clone()]);
        }
        table.render(out);
    }
}
