//! Whether a condition has held long enough.

use super::measure::{self, Found};
use super::window::Window;
use kstrobe_config::model::{Measure, When};
use kstrobe_export::snapshot::{Family, LabelTexts};
use std::collections::HashMap;
use std::time::Duration;

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// No series fulfils the condition.
    Quiet,
    /// At least one does, but not yet for long enough.
    Holding,
    /// It has held for long enough: for this series, and for others less.
    Fires(Found),
}

/// The state of one condition.
#[derive(Debug)]
pub struct Evaluator {
    window: Window,
    /// Since when each series fulfils it.
    since: HashMap<LabelTexts, Duration>,
}

impl Evaluator {
    /// Without samples so far.
    pub fn new(condition: &When) -> Evaluator {
        Evaluator { window: Window::new(Duration::from_nanos(condition.over_ns)), since: HashMap::new() }
    }

    /// Looks at the metric as it is at `at`; `None` when it has no series at all. A series in which nothing was observed
    /// for the length of the window does not fulfil any condition on what was.
    pub fn look(&mut self, condition: &When, at: Duration, family: Option<&Family>) -> Verdict {
        let Some(family) = family else {
            self.since.clear();
            return Verdict::Quiet;
        };
        let now = measure::select(family, &condition.matchers);
        let found = match self.window.before(at) {
            Some((before, span)) => measure::measure(condition, before, &now, span.as_secs_f64()),
            // A gauge has no past.
            None if condition.measure == Measure::Value => measure::measure(condition, &now, &now, 1.0),
            None => Vec::new(),
        };
        self.window.push(at, now);
        let holds = |f: &&Found| condition.compare.holds(f.value, condition.threshold.value.value());
        let holding: Vec<&Found> = found.iter().filter(holds).collect();
        let since: HashMap<LabelTexts, Duration> =
            holding.iter().map(|f| (f.labels.clone(), self.since.get(&f.labels).copied().unwrap_or(at))).collect();
        self.since = since;
        let long = |f: &&&Found| {
            self.since
                .get(&f.labels)
                .is_some_and(|since| at.saturating_sub(*since) >= Duration::from_nanos(condition.for_ns))
        };
        match measure::worst(holding.iter().filter(long).copied(), condition.compare) {
            Some(worst) => Verdict::Fires(worst.clone()),
            None if holding.is_empty() => Verdict::Quiet,
            None => Verdict::Holding,
        }
    }
}
