//! Selectors on workload names, and differences of the selected ids.

use crate::workload::{Field, Workload};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// All terms must match; an empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    pub terms: Vec<Term>,
}

/// `FIELD in [VALUES]`, or that it begins so; or the negation. An absent name is the empty string, as in labels: `pod == ""` matches groups outside of
/// pods, and `namespace != "shop"` matches host services.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// Name to compare.
    pub field: Field,
    pub wanted: Wanted,
    /// Matches names that are not wanted.
    pub negated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    OneOf(Vec<Arc<str>>),
    /// All names that begin so.
    Begin(Arc<str>),
}

impl Selector {
    /// Whether the result is equal for all containers of a pod.
    pub fn is_of_pods(&self) -> bool {
        self.terms.iter().all(|term| !matches!(term.field, Field::Container | Field::Unit | Field::CgroupPath))
    }

    /// Whether all terms match.
    pub fn matches(&self, workload: &Workload) -> bool {
        self.terms.iter().all(|term| term.matches(workload))
    }
}

impl Term {
    /// Whether the term matches.
    pub fn matches(&self, workload: &Workload) -> bool {
        let name = workload.get(self.field).unwrap_or_default();
        let is_wanted = match &self.wanted {
            Wanted::OneOf(values) => values.iter().any(|value| &**value == name),
            Wanted::Begin(prefix) => name.starts_with(&**prefix),
        };
        is_wanted != self.negated
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
        let values = match &self.wanted {
            Wanted::OneOf(values) => &values[..],
            Wanted::Begin(prefix) => {
                return write!(f, "{}starts_with({field}, {prefix:?})", if self.negated { "!" } else { "" });
            }
        };
        match (values, self.negated) {
            ([value], false) => write!(f, "{field} == {value:?}"),
            ([value], true) => write!(f, "{field} != {value:?}"),
            (values, false) => write!(f, "{field} in {values:?}"),
            (values, true) => write!(f, "!({field} in {values:?})"),
        }
    }
}

/// Difference of two sets of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Ids only in the new set, ascending.
    pub added: Vec<u64>,
    /// Ids only in the old set, ascending.
    pub removed: Vec<u64>,
}

impl Difference {
    /// Computes the difference.
    pub fn between(old: &BTreeSet<u64>, new: &BTreeSet<u64>) -> Difference {
        Difference { added: new.difference(old).copied().collect(), removed: old.difference(new).copied().collect() }
    }

    /// Whether the sets are equal.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}
