//! Inclusive and self time by function and by module.

use super::bound::{Bound, Bounds, Figure};
use super::lengths::{last_ns, lengths, self_time};
use super::text::{Table, head};
use super::waits::{Roots, roots};
use super::{Activity, Asked, work};
use crate::calls::{Calls, NameId};
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
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
}

/// Calls of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionRow {
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
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
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
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
}

/// What one key's calls add up to, and how many of them are open on the way down the tree.
#[derive(Default)]
struct Sum {
    count: u64,
    open: u64,
    total: Figure,
    own: Figure,
    sum_ns: u64,
    min_ns: Option<u64>,
    max_ns: u64,
    entered: u32,
}

impl Sum {
    /// Calls whose length is not known, and calls without a name that may be of the root asked for, would add to sums, and may be shorter
    /// or longer than all others.
    fn keep(&self, nameless: bool, bounds: &mut Bounds) -> [u64; 5] {
        let open = self.open > 0 || nameless;
        let add = |figure: Figure| figure.or(Bound { less: false, more: open });
        let of = |ns: u64, less: bool, more: bool| Figure {
            ns,
            bound: self.total.bound.or(Bound { less: open && less, more: open && more }),
        };
        let avg_ns = self.sum_ns.checked_div(self.count).unwrap_or_default();
        [
            bounds.keep("total_ns", add(self.total)),
            bounds.keep("self_ns", add(self.own)),
            bounds.keep("min_ns", of(self.min_ns.unwrap_or_default(), true, false)),
            bounds.keep("avg_ns", of(avg_ns, true, true)),
            bounds.keep("max_ns", of(self.max_ns, false, true)),
        ]
    }
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

    fn enter(&mut self, at: usize, known: Option<Figure>, own: Figure) {
        let sum = &mut self.all[at];
        if let Some(figure) = known {
            let ns = figure.ns;
            sum.count += 1;
            sum.sum_ns = sum.sum_ns.saturating_add(ns);
            sum.min_ns = Some(sum.min_ns.map_or(ns, |min| min.min(ns)));
            sum.max_ns = sum.max_ns.max(ns);
            sum.own = sum.own.plus(own);
            if sum.entered == 0 {
                sum.total = sum.total.plus(figure);
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
    let Roots { calls: roots, nameless } = roots(calls, activity, asked);
    let nameless = nameless > 0;
    let mut all = Figure { ns: 0, bound: if nameless { Bound::AT_LEAST } else { Bound::default() } };
    let leave =
        |path: &mut Vec<Option<(usize, usize)>>, depth: usize, functions: &mut Sums<_>, modules: &mut Sums<_>| {
            for (function, module) in path.drain(depth.min(path.len())..).flatten() {
                leave_one(functions, function);
                leave_one(modules, module);
            }
        };
    for root in roots {
        for (id, depth) in calls.tree(root) {
            leave(&mut path, depth, &mut functions, &mut modules);
            let call = &calls[id];
            let length = lengths[id.0 as usize];
            let own = self_time(calls, &lengths, id);
            let known = (!length.open).then_some(length.figure());
            let (function, module) = (functions.at((call.function, call.module)), modules.at(call.module));
            functions.enter(function, known, own);
            modules.enter(module, known, own);
            path.push(known.map(|_| (function, module)));
            all = match known {
                Some(_) => all.plus(own),
                None => all.or(Bound::AT_LEAST),
            };
        }
        leave(&mut path, 0, &mut functions, &mut modules);
    }
    let mut report = Functions::default();
    report.self_ns = report.bounds.keep("self_ns", all);
    for ((function, module), at) in functions.by {
        let (sum, mut bounds) = (&functions.all[at], Bounds::default());
        let [total_ns, self_ns, min_ns, avg_ns, max_ns] = sum.keep(nameless, &mut bounds);
        report.functions.push(FunctionRow {
            function: work::function_name(calls, function).to_owned(),
            module: work::module_name(calls, module).to_owned(),
            count: sum.count,
            open: sum.open,
            total_ns,
            self_ns,
            min_ns,
            avg_ns,
            max_ns,
            bounds,
        });
    }
    for (module, at) in modules.by {
        let (sum, mut all) = (&modules.all[at], Bounds::default());
        let [total_ns, self_ns, ..] = sum.keep(nameless, &mut all);
        let module = work::module_name(calls, module).to_owned();
        let mut bounds = Bounds::default();
        bounds.keep("total_ns", all.figure("total_ns", total_ns));
        bounds.keep("self_ns", all.figure("self_ns", self_ns));
        report.modules.push(ModuleRow { module, count: sum.count, total_ns, self_ns, bounds });
    }
    let order = |one: &FunctionRow| (std::cmp::Reverse(one.self_ns), one.function.clone(), one.module.clone());
    report.functions.sort_by_cached_key(order);
    report.modules.sort_by_cached_key(|one| (std::cmp::Reverse(one.self_ns), one.module.clone()));
    report
}

fn leave_one<K>(sums: &mut Sums<K>, at: usize) {
    sums.all[at].entered -= 1;
}

impl Functions {
    /// As text for a terminal, so many functions at most.
    pub fn render(&self, out: &mut String, limit: usize) {
        head(out, &format!("Functions: {} by self time", self.functions.len()));
        let all = self.bounds.figure("self_ns", self.self_ns);
        let mut table =
            Table::new(&[">calls", ">total", ">self", ">share", ">min", ">avg", ">max", ">open", "function", "module"]);
        for row in self.functions.iter().take(limit) {
            let time = |field, ns| row.bounds.time(field, ns);
            let (total, own) = (time("total_ns", row.total_ns), time("self_ns", row.self_ns));
            let (min, avg) = (time("min_ns", row.min_ns), time("avg_ns", row.avg_ns));
            let max = time("max_ns", row.max_ns);
            let share = row.bounds.share("self_ns", row.self_ns, all);
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
            let share = row.bounds.share("self_ns", row.self_ns, all);
            let total = row.bounds.time("total_ns", row.total_ns);
            let own = row.bounds.time("self_ns", row.self_ns);
            table.row(vec![row.count.to_string(), total, own, share, row.module.clone()]);
        }
        table.render(out);
    }
}
