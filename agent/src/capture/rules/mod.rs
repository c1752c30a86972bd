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
use kstrobe_config::PREFIX;
use kstrobe_config::model::When;
use std::time::Duration;

/// A rule, its names resolved.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    /// When it fires by itself; `None` waits for an alert.
    pub condition: Option<When>,
    /// Time from one look to the next.
    pub every: Duration,
    /// Least time from one capture to the next.
    pub cooldown: Duration,
    /// Most captures in an hour.
    pub max_per_hour: u32,
    /// What is recorded.
    pub request: Request,
}

/// Full name of the metric that a condition is about.
pub fn metric_of(when: &When) -> String {
    format!("{PREFIX}{}", when.metric.value)
}
