//! Rules from the configuration.

use super::engine::RuleEngine;
use super::{Rule, metric_of};
use crate::capture::api;
use crate::capture::request::Request;
use crate::capture::service::{Engine, Service};
use kstrobe_config::model::{self, Agent, Captures};
use std::sync::Arc;
use std::time::Duration;

/// Opens the store and makes the rule engine of the configuration; `None` without `captures`. Leaves out rules about metrics
/// that are not `known`: their probes have mistakes.
pub fn open(agent: &Agent, engine: Engine, known: impl Fn(&str) -> bool) -> std::io::Result<Option<Arc<RuleEngine>>> {
    let Some(captures) = &agent.captures else { return Ok(None) };
    let service = Service::open(captures.clone(), engine)?;
    let (rules, default) = rules(agent, captures, known);
    Ok(Some(Arc::new(RuleEngine::new(service, rules, default))))
}

/// Applies another configuration with the same folder of captures.
pub fn configure(engine: &RuleEngine, agent: &Agent, captures: &Captures, known: impl Fn(&str) -> bool) {
    engine.service().configure(captures.clone());
    let (rules, default) = rules(agent, captures, known);
    engine.configure(rules, default);
}

/// All rules, and what alerts without a rule get.
fn rules(agent: &Agent, captures: &Captures, known: impl Fn(&str) -> bool) -> (Vec<Rule>, Option<Request>) {
    let mut rules = Vec::new();
    for rule in agent.rules.iter().map(|rule| self::rule(rule, captures)) {
        match &rule.condition {
            Some(when) if !known(&metric_of(when)) => {
                tracing::error!(
                    rule = rule.name,
                    metric = metric_of(when),
                    "no probe has this metric: the rule never fires"
                );
            }
            _ => rules.push(rule),
        }
    }
    let default = captures.alertmanager_default.as_ref().map(|capture| api::request(capture, captures));
    (rules, default)
}

/// A rule, its capture bounded by `captures`.
pub fn rule(rule: &model::Rule, captures: &Captures) -> Rule {
    Rule {
        name: rule.name.value.clone(),
        condition: rule.when.clone(),
        every: Duration::from_nanos(rule.every_ns),
        cooldown: Duration::from_nanos(rule.cooldown_ns),
        max_per_hour: rule.max_per_hour,
        request: api::request(&rule.capture, captures),
    }
}
