//! Conditions on names of cgroups: which cgroups pass.

use kstrobe_ebpf::typed::{Selector, SelectorTerm, WantedNames};
use kstrobe_workloads::{self as workloads, Decided, Table, Term, Wanted};

use crate::kernel::groups::Groups;
use crate::metrics::workload_names::field;

/// Decides conditions by the current names of cgroups.
pub struct Conditions<'a> {
    /// Names of cgroups.
    pub table: &'a Table,
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

fn selector_of(selector: &Selector) -> workloads::Selector {
    let term = |term: &SelectorTerm| Term {
        field: field(term.name),
        wanted: match &term.wanted {
            WantedNames::OneOf(values) => Wanted::OneOf(values.iter().map(|value| value.as_str().into()).collect()),
            WantedNames::Begin(prefix) => Wanted::Begin(prefix.as_str().into()),
        },
        negated: term.negated,
    };
    workloads::Selector { terms: selector.terms.iter().map(term).collect() }
}
