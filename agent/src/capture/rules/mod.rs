//! Rules: metrics and alerts that start captures.
//!
//! Data in, data out: [`measure`] computes a number from two moments of a metric, [`window`] keeps those moments, [`evaluator`]
//! says when a condition has held long enough, and [`cooldown`] whether a rule may have another capture. Only [`engine`]
//! starts any.

pub mod alerts;
pub mod configured;
pub mod cooldown;
pub mod engine;
pub mod evaluator;
pub mod measure;
pub mod window;

use crate::capture::request::Request;
use std::time::Duration;

/// A rule, its names resolved.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name.
    pub name: String,
    /// When it fires by itself; `None` waits for an alert.
    pub condition: Option<Condition>,
    /// Time from one look to the next.
    pub every: Duration,
    /// Least time from one capture to the next.
    pub cooldown: Duration,
    /// Most captures in an hour.
    pub max_per_hour: u32,
    /// What is recorded.
    pub request: Request,
}

/// `when:`
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// As the user wrote it.
    pub text: String,
    /// Full name of the metric.
    pub metric: String,
    /// Which of its series.
    pub matchers: Vec<Matcher>,
    /// What is computed.
    pub measure: Measure,
    /// Over how long a time.
    pub over: Duration,
    /// How it is compared.
    pub compare: Compare,
    /// With what, in the exported unit.
    pub threshold: f64,
    /// How long it must hold.
    pub held_for: Duration,
}

/// What is computed of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// The value that this share of observations does not exceed.
    Quantile(f64),
    /// Increase per second.
    Rate,
    /// The share of observations that compare so with a bound in the exported unit.
    Share(Compare, f64),
    /// The value of a gauge.
    Value,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `<=`
    AtMost,
}

impl Compare {
    /// Whether `value` compares so with `bound`.
    pub fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Compare::Above => value > bound,
            Compare::AtLeast => value >= bound,
            Compare::Below => value < bound,
            Compare::AtMost => value <= bound,
        }
    }

    /// Whether large values are what it looks for.
    pub fn looks_up(self) -> bool {
        matches!(self, Compare::Above | Compare::AtLeast)
    }
}

/// A condition on a label; one that a series does not have is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    /// Its name.
    pub label: String,
    /// A text, or a glob (`*`, `?`).
    pub text: String,
    /// Whether [`Matcher::text`] is a glob.
    pub glob: bool,
    /// Whether it must fit, or must not.
    pub fits: bool,
}
