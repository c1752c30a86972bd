//! Rules from the configuration.

use super::engine::RuleEngine;
use super::{Compare, Condition, Matcher, Measure, Rule};
use crate::capture::api;
use crate::capture::request::Request;
use crate::capture::service::{Engine, Service};
use kstrobe_config::PREFIX;
use kstrobe_config::model::{self, Agent, Captures, Match};
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
            Some(condition) if !known(&condition.metric) => {
                tracing::error!(
                    rule = rule.name,
                    metric = condition.metric,
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
        condition: rule.when.as_ref().map(condition),
        every: Duration::from_nanos(rule.every_ns),
        cooldown: Duration::from_nanos(rule.cooldown_ns),
        max_per_hour: rule.max_per_hour,
        request: api::request(&rule.capture, captures),
    }
}

fn condition(when: &model::When) -> Condition {
    Condition {
        text: when.text.clone(),
        metric: format!("{PREFIX}{}", when.metric.value),
        matchers: when.matchers.iter().map(matcher).collect(),
        measure: match &when.measure {
            model::Measure::Quantile(share) => Measure::Quantile(*share),
            model::Measure::Rate => Measure::Rate,
            model::Measure::Share { compare, bound } => Measure::Share(self::compare(*compare), bound.value.value()),
            model::Measure::Value => Measure::Value,
        },
        over: Duration::from_nanos(when.over_ns),
        compare: compare(when.compare),
        threshold: when.threshold.value.value(),
        held_for: Duration::from_nanos(when.for_ns),
    }
}

fn matcher(matcher: &model::Matcher) -> Matcher {
    Matcher {
        label: matcher.label.value.clone(),
        text: matcher.text.clone(),
        glob: matches!(matcher.kind, Match::Like | Match::Unlike),
        fits: matches!(matcher.kind, Match::Equal | Match::Like),
    }
}

fn compare(compare: model::Compare) -> Compare {
    match compare {
        model::Compare::Above => Compare::Above,
        model::Compare::AtLeast => Compare::AtLeast,
        model::Compare::Below => Compare::Below,
        model::Compare::AtMost => Compare::AtMost,
    }
}
