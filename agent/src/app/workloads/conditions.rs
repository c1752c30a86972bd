//! The maps of conditions: which cgroups pass.

use std::collections::BTreeSet;

use kstrobe_ebpf::typed::{Selector, SelectorTerm};
use kstrobe_workloads::{self as workloads, Table, Term};

use crate::app::{Probe, lock};
use crate::metrics::owners::field;

/// Makes the maps of all probes hold what their conditions mean now. Says how many cgroups found no room.
pub(super) fn keep(table: &Table, probes: &[Probe]) -> usize {
    let matching = |selector: &Selector| table.matching(&as_asked(selector));
    probes.iter().map(|probe| lock(probe).select(&matching)).sum()
}

/// What a condition means, in the words of the table.
fn as_asked(selector: &Selector) -> workloads::Selector {
    let term = |term: &SelectorTerm| Term {
        field: field(term.name),
        values: term.values.iter().map(|value| value.as_str().into()).collect(),
        negated: term.negated,
    };
    workloads::Selector { terms: selector.terms.iter().map(term).collect() }
}

/// Ids for which a condition holds.
pub(crate) type Matching<'a> = &'a dyn Fn(&Selector) -> BTreeSet<u64>;
