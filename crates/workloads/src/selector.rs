//! Conditions on names, and what changes when what meets them does.

use crate::workload::{Field, Workload};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Terms that must all hold; without any, everything does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    /// The terms.
    pub terms: Vec<Term>,
}

/// `FIELD in [VALUES]`, or that not. A name that there is none of is the empty text, as it is in labels: `pod == ""` means
/// what runs in no pod, and `namespace != "shop"` holds for services of the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// Which name.
    pub field: Field,
    /// One of these.
    pub values: Vec<Arc<str>>,
    /// None of these.
    pub negated: bool,
}

impl Selector {
    /// Whether all of its names are the same for all containers of a pod.
    pub fn is_of_pods(&self) -> bool {
        self.terms.iter().all(|term| !matches!(term.field, Field::Container | Field::Unit))
    }

    /// Whether all terms hold.
    pub fn matches(&self, workload: &Workload) -> bool {
        self.terms.iter().all(|term| term.matches(workload))
    }
}

impl Term {
    /// Whether it holds.
    pub fn matches(&self, workload: &Workload) -> bool {
        let name = workload.get(self.field).unwrap_or_default();
        self.values.iter().any(|value| &**value == name) != self.negated
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, term) in self.terms.iter().enumerate() {
            let and = if number == 0 { "" } else { " && " };
            write!(f, "{and}{term}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field;
        match (&self.values[..], self.negated) {
            ([value], false) => write!(f, "{field} == {value:?}"),
            ([value], true) => write!(f, "{field} != {value:?}"),
            (values, false) => write!(f, "{field} in {values:?}"),
            (values, true) => write!(f, "!({field} in {values:?})"),
        }
    }
}

/// What to put into and take out of a set, so that it becomes another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Only in the new one, ascending.
    pub added: Vec<u64>,
    /// Only in the old one, ascending.
    pub removed: Vec<u64>,
}

impl Difference {
    /// Between two sets.
    pub fn between(old: &BTreeSet<u64>, new: &BTreeSet<u64>) -> Difference {
        Difference { added: new.difference(old).copied().collect(), removed: old.difference(new).copied().collect() }
    }

    /// Whether the sets are the same.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}
