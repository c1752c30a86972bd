//! The maps of conditions: which cgroups pass.

use kstrobe_ebpf::typed::{Selector, SelectorTerm};
use kstrobe_workloads::{self as workloads, Decided, Table, Term};

use crate::app::{SharedProbe, lock};
use crate::kernel::groups::Groups;
use crate::metrics::owners::field;

/// Decides conditions by the current names of cgroups.
pub(crate) struct Conditions<'a> {
    table: &'a Table,
    /// Offsets for programs that see new cgroups; `None` where such programs cannot run.
    pub groups: Option<&'a Groups>,
}

impl Conditions<'_> {
    /// The cgroups that meet a condition, and those that are undecided.
    pub fn decide(&self, selector: &Selector) -> Decided {
        self.table.decide(&selector_of(selector))
    }

    /// Whether the table has this cgroup.
    pub fn knows(&self, id: u64) -> bool {
        self.table.knows(id)
    }
}

/// Updates the maps of all probes' conditions. Returns how many cgroups did not fit.
pub(super) fn keep(table: &Table, groups: Option<&Groups>, probes: &[SharedProbe]) -> usize {
    let conditions = Conditions { table, groups };
    probes.iter().map(|probe| lock(probe).select(&conditions)).sum()
}

fn selector_of(selector: &Selector) -> workloads::Selector {
    let term = |term: &SelectorTerm| Term {
        field: field(term.name),
        values: term.values.iter().map(|value| value.as_str().into()).collect(),
        negated: term.negated,
    };
    workloads::Selector { terms: selector.terms.iter().map(term).collect() }
}
