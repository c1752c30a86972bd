//! Figures, and on which side of them the truth may lie where lines or records are missing.

use super::text::{percent, permille, time};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// On which side of a figure the exact value may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// It may be less: the figure is an upper bound.
    pub less: bool,
    /// It may be more: the figure is a lower bound.
    pub more: bool,
}

impl Bound {
    pub(super) const AT_LEAST: Bound = Bound { less: false, more: true };
    pub(super) const AT_MOST: Bound = Bound { less: true, more: false };
    pub(super) const ABOUT: Bound = Bound { less: true, more: true };

    /// Neither: the figure is what was recorded.
    pub fn is_exact(&self) -> bool {
        *self == Bound::default()
    }

    /// How it is written before a figure.
    pub fn sign(self) -> &'static str {
        match (self.less, self.more) {
            (false, false) => "",
            (false, true) => ">=",
            (true, false) => "<=",
            (true, true) => "~",
        }
    }

    /// Of a sum of two figures, and of the larger of both.
    pub(super) fn or(self, other: Bound) -> Bound {
        Bound { less: self.less || other.less, more: self.more || other.more }
    }

    /// Of what remains of a whole when a figure is taken away from it.
    pub(super) fn reversed(self) -> Bound {
        Bound { less: self.more, more: self.less }
    }

    /// A figure's text with its sign.
    pub(super) fn show(self, figure: &str) -> String {
        if self.is_exact() { figure.to_owned() } else { format!("{} {figure}", self.sign()) }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.sign())
    }
}

/// A time with its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figure {
    pub ns: u64,
    pub bound: Bound,
}

impl Figure {
    pub fn plus(self, other: Figure) -> Figure {
        Figure { ns: self.ns.saturating_add(other.ns), bound: self.bound.or(other.bound) }
    }

    pub fn minus(self, other: Figure) -> Figure {
        Figure { ns: self.ns.saturating_sub(other.ns), bound: self.bound.or(other.bound.reversed()) }
    }

    pub fn or(self, bound: Bound) -> Figure {
        Figure { bound: self.bound.or(bound), ..self }
    }

    /// Its share of a whole in tenths of a percent.
    pub fn share(self, whole: Figure) -> Figure {
        Figure { ns: permille(self.ns, whole.ns), bound: self.bound.or(whole.bound.reversed()) }
    }
}

/// The bounds of a row's figures by the names of its fields; those that are not in it are exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Bounds(BTreeMap<&'static str, Bound>);

impl Bounds {
    /// All figures are exact.
    pub fn is_exact(&self) -> bool {
        self.0.is_empty()
    }

    pub fn of(&self, field: &str) -> Bound {
        self.0.get(field).copied().unwrap_or_default()
    }

    /// Keeps the bound of a field, whose value it gives back.
    pub(super) fn keep(&mut self, field: &'static str, figure: Figure) -> u64 {
        if !figure.bound.is_exact() {
            self.0.insert(field, figure.bound);
        }
        figure.ns
    }

    /// A field of time as text.
    pub(super) fn time(&self, field: &str, ns: u64) -> String {
        self.of(field).show(&time(ns))
    }

    /// The share of a field in a whole as text.
    pub(super) fn share(&self, field: &str, part: u64, whole: Figure) -> String {
        let share = self.figure(field, part).share(whole);
        share.bound.show(&percent(share.ns))
    }

    /// A field as a figure again.
    pub(super) fn figure(&self, field: &str, ns: u64) -> Figure {
        Figure { ns, bound: self.of(field) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_bounds_the_rest_from_the_other_side() {
        let (whole, part) = (Figure { ns: 10, ..Figure::default() }, Figure { ns: 4, bound: Bound::AT_LEAST });
        assert_eq!(whole.minus(part), Figure { ns: 6, bound: Bound::AT_MOST });
        assert_eq!(whole.plus(part), Figure { ns: 14, bound: Bound::AT_LEAST });
        assert_eq!(whole.minus(part).plus(part).bound, Bound::ABOUT);
        let mut bounds = Bounds::default();
        assert_eq!((bounds.keep("whole_ns", whole), bounds.is_exact()), (10, true));
        assert_eq!((bounds.keep("part_ns", part), bounds.is_exact()), (4, false));
        assert_eq!(bounds.time("part_ns", 4), ">= 0.004 us");
        assert_eq!(bounds.share("part_ns", 4, whole), ">= 40.0 %");
        assert_eq!(bounds.time("whole_ns", 10), "0.010 us");
        assert_eq!(serde_json::to_string(&bounds).unwrap(), r#"{"part_ns":">="}"#);
    }
}
