//! Conditions that are constant false: the metric, event or hook behind one compiles to nothing, with a warning.
//!
//! `has_type(struct x) && ..` is how a probe says that it is for some kernels only. On the others it is no mistake, so that what the
//! condition guards is not even checked: it may name what this kernel lacks.

use super::report::Report;
use crate::diag::{Diagnostic, Place};
use crate::typed::{Expr, Kind, Measure, Shape};

/// Place of a condition that is constant false.
pub(super) fn place(condition: &Option<Expr>) -> Option<Place> {
    condition.as_ref().filter(|condition| condition.kind == Kind::Const(0)).map(|condition| condition.place)
}

/// Conditions that never hold, each with its effects.
#[derive(Default)]
pub(super) struct Never(Vec<(Place, Vec<String>)>);

impl Never {
    pub(super) fn add(&mut self, place: Place, effect: String) {
        let i = self.0.iter().position(|(known, _)| *known == place).unwrap_or_else(|| {
            self.0.push((place, Vec::new()));
            self.0.len() - 1
        });
        if !self.0[i].1.contains(&effect) {
            self.0[i].1.push(effect);
        }
    }

    /// One warning for each of them. A shape that measures nothing becomes one without sites.
    pub(super) fn finish(self, shape: &mut Shape, report: &mut Report) {
        let idle = !self.0.is_empty() && measures_nothing(shape);
        if idle {
            *shape = Shape::At(Vec::new());
        } else if let Shape::At(sites) = shape {
            let of_use = |measures: &[Option<Measure>]| measures.is_empty() || measures.iter().any(Option::is_some);
            sites.retain(|site| site.slow.is_some() || of_use(&site.measures));
        }
        for (place, effects) in self.0 {
            let hint = if idle { "the probe does nothing here".to_owned() } else { effects.join("; ") };
            report.warn(Diagnostic::warning(place, "this is never true on this kernel").hint(hint));
        }
    }
}

/// Whether it has no metric and sends no single event.
fn measures_nothing(shape: &Shape) -> bool {
    match shape {
        Shape::At(sites) => sites.iter().all(|site| site.slow.is_none() && site.measures.iter().all(Option::is_none)),
        Shape::Span { start, end, .. } => {
            let silent = end.iter().all(|site| site.slow.is_none() && site.measures.iter().all(Option::is_none));
            start.is_empty() || silent
        }
        Shape::Steps { sites, .. } => sites.iter().all(|site| site.slow.is_none() && site.observe.is_empty()),
        Shape::Poll { measures, .. } => measures.iter().all(Option::is_none),
    }
}
