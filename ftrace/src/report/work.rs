//! Time on the CPU by function, module and layer.

use super::bound::{Bounds, Figure};
use super::names;
use super::text::{Table, head};
use crate::calls::{Call, Calls, NameId};
use serde::Serialize;
use std::collections::HashMap;
use std::hash::Hash;

/// Work of one layer, module or function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkRow {
    pub name: String,
    /// Calls that had a part in it.
    pub calls: u64,
    /// Work in these calls themselves, without what they called, waited for and were interrupted by.
    pub self_ns: u64,
    /// Which of these figures are bounds.
    #[serde(skip_serializing_if = "Bounds::is_exact")]
    pub bounds: Bounds,
}

/// Work by function, module and layer.
#[derive(Default)]
pub(super) struct Work {
    functions: HashMap<(Option<NameId>, Option<NameId>), Sum>,
    modules: HashMap<Option<NameId>, Sum>,
    layers: HashMap<&'static str, Sum>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    own: Figure,
}

impl Work {
    pub(super) fn add(&mut self, call: &Call, layer: &'static str, own: Figure) {
        let sums = [
            self.functions.entry((call.function, call.module)).or_default(),
            self.modules.entry(call.module).or_default(),
            self.layers.entry(layer).or_default(),
        ];
        for sum in sums {
            sum.calls += 1;
            sum.own = sum.own.plus(own);
        }
    }

    pub(super) fn layers(&self) -> Vec<WorkRow> {
        rows(&self.layers, |layer| (*layer).to_owned())
    }

    pub(super) fn modules(&self, calls: &Calls) -> Vec<WorkRow> {
        rows(&self.modules, |module| module_name(calls, *module).to_owned())
    }

    pub(super) fn functions(&self, calls: &Calls) -> Vec<WorkRow> {
        rows(&self.functions, |(function, module)| full_name(calls, *function, *module))
    }
}

/// Rows, the most work first.
fn rows<K: Eq + Hash>(sums: &HashMap<K, Sum>, name: impl Fn(&K) -> String) -> Vec<WorkRow> {
    let row = |(key, sum): (&K, &Sum)| {
        let mut bounds = Bounds::default();
        WorkRow { name: name(key), calls: sum.calls, self_ns: bounds.keep("self_ns", sum.own), bounds }
    };
    let mut rows: Vec<WorkRow> = sums.iter().map(row).collect();
    rows.sort_by(|one, two| two.self_ns.cmp(&one.self_ns).then_with(|| one.name.cmp(&two.name)));
    rows
}

/// Shows the first rows with their share of all work.
pub(super) fn render(out: &mut String, title: &str, rows: &[WorkRow], worked: Figure, limit: usize) {
    if rows.is_empty() {
        return;
    }
    head(out, title);
    let mut table = Table::new(&["", ">calls", ">self", ">share"]);
    for row in rows.iter().take(limit) {
        let share = row.bounds.share("self_ns", row.self_ns, worked);
        table.row(vec![row.name.clone(), row.calls.to_string(), row.bounds.time("self_ns", row.self_ns), share]);
    }
    table.render(out);
    if rows.len() > limit {
        head(out, &format!("  and {} more", rows.len() - limit));
    }
}

/// A function's name, or what stands for one that is not known.
pub(super) fn function_name(calls: &Calls, function: Option<NameId>) -> &str {
    function.map_or("(unknown)", |id| &calls.names[id])
}

/// A module's name; `kernel` for the kernel itself.
pub(super) fn module_name(calls: &Calls, module: Option<NameId>) -> &str {
    module.map_or("kernel", |id| &calls.names[id])
}

/// A function's name and module, as the kernel writes them.
pub(super) fn full_name(calls: &Calls, function: Option<NameId>, module: Option<NameId>) -> String {
    let name = function_name(calls, function);
    module.map_or_else(|| name.to_owned(), |module| format!("{name} [{}]", calls.names[module]))
}

/// What names say of functions, each asked once.
#[derive(Default)]
pub(super) struct Kinds {
    known: HashMap<NameId, Kind>,
}

/// What a function's name says.
#[derive(Clone, Copy, Default)]
pub(super) struct Kind {
    pub layer: Option<&'static str>,
    pub waits: bool,
    pub interrupt: bool,
}

impl Kinds {
    pub(super) fn of(&mut self, calls: &Calls, call: &Call) -> Kind {
        let Some(id) = call.function else { return Kind { interrupt: call.interrupt, ..Kind::default() } };
        let kind = self.known.entry(id).or_insert_with(|| {
            let name = &calls.names[id];
            Kind { layer: names::layer(name), waits: names::waits(name), interrupt: names::begins_interrupt(name) }
        });
        Kind { interrupt: kind.interrupt || call.interrupt, ..*kind }
    }
}
