//! Starts captures for rules and alerts: limits, outcomes, and links from series to captures.

use super::alerts::{Alert, Notification, Seen};
use super::cooldown::{Closed, Cooldown};
use super::evaluator::{Evaluator, Verdict};
use super::measure::Found;
use super::{Rule, metric_of};
use crate::capture::request::Request;
use crate::capture::service::Service;
use crate::capture::store::{Id, Trigger};
use kstrobe_config::model::When;
use kstrobe_export::snapshot::{Exemplar, Family, Link, Moment};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Name that alerts without a rule of their own are counted under.
pub const DEFAULT_RULE: &str = "alertmanager_default";
/// Limits of alerts without a rule.
const DEFAULT_COOLDOWN: Duration = Duration::from_secs(600);
const DEFAULT_PER_HOUR: u32 = 3;
/// Links from series to captures that are kept; the oldest go.
const MAX_LINKS: usize = 256;

/// The outcome of a rule or an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It runs.
    Started(Id),
    /// The rule's last capture is not long enough ago.
    Cooldown,
    /// The rule had as many as it may within an hour.
    HourlyCap,
    /// Another capture runs, or there is no room.
    Busy,
    /// It could not be started.
    Failed,
    /// The alert had its capture already.
    Duplicate,
    /// The alert is over.
    Resolved,
    /// The alert names a rule that does not exist.
    UnknownRule,
    /// The alert names no rule, and nothing is configured for such alerts.
    NoRule,
    /// The alert is about a node that has no agent.
    UnknownNode,
    /// The alert is about another node, whose agent cannot be reached.
    Unreachable,
    /// The alert is about another node, whose agent gets it.
    HandedOn,
}

impl Outcome {
    /// The label value in metrics and answers.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Started(_) => "started",
            Outcome::Cooldown => "cooldown",
            Outcome::HourlyCap => "hourly_cap",
            Outcome::Busy => "busy",
            Outcome::Failed => "failed",
            Outcome::Duplicate => "duplicate",
            Outcome::Resolved => "resolved",
            Outcome::UnknownRule => "unknown_rule",
            Outcome::NoRule => "no_rule",
            Outcome::UnknownNode => "unknown_node",
            Outcome::Unreachable => "unreachable",
            Outcome::HandedOn => "handed_on",
        }
    }
}

struct RuleState {
    rule: Rule,
    cooldown: Cooldown,
    evaluator: Option<Evaluator>,
    next: Instant,
    /// The last refusal: it is logged and counted once while the condition holds.
    refused: Option<&'static str>,
}

impl RuleState {
    fn new(rule: Rule, next: Instant) -> RuleState {
        RuleState {
            cooldown: Cooldown::new(rule.cooldown, rule.max_per_hour),
            evaluator: rule.condition.as_ref().map(Evaluator::new),
            next,
            refused: None,
            rule,
        }
    }

    /// The rule of a new configuration: its captures still count; another condition starts without its window.
    fn renew(mut self, rule: Rule, now: Instant) -> RuleState {
        self.cooldown.bound(rule.cooldown, rule.max_per_hour);
        if self.rule.condition != rule.condition {
            return RuleState { cooldown: self.cooldown, ..RuleState::new(rule, now) };
        }
        RuleState { next: self.next.min(now + rule.every), rule, ..self }
    }
}

/// All rules, and what alerts without a rule get.
pub struct RuleEngine {
    service: Arc<Service>,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    rules: Vec<RuleState>,
    default: Option<(Request, Cooldown)>,
    seen: Seen,
    counts: BTreeMap<(String, &'static str), u64>,
    links: Vec<(Id, Exemplar)>,
}

impl State {
    /// The rule that an alert names, and the name under which it is counted.
    fn rule_of(&self, alert: &Alert) -> (Option<Option<usize>>, String) {
        // Names that alerts bring along are not for labels: only those of the configuration are.
        let at = alert.rule().map(|name| self.rules.iter().position(|r| r.rule.name == name));
        let name = match at {
            Some(Some(at)) => self.rules[at].rule.name.clone(),
            Some(None) => "unknown".to_owned(),
            None => DEFAULT_RULE.to_owned(),
        };
        (at, name)
    }
}

impl RuleEngine {
    /// With these rules, and what alerts without a rule get.
    pub fn new(service: Arc<Service>, rules: Vec<Rule>, default: Option<Request>) -> RuleEngine {
        let begun = Instant::now();
        let state = State {
            rules: rules.into_iter().map(|rule| RuleState::new(rule, begun)).collect(),
            default: default.map(|request| (request, Cooldown::new(DEFAULT_COOLDOWN, DEFAULT_PER_HOUR))),
            seen: Seen::default(),
            counts: BTreeMap::new(),
            links: Vec::new(),
        };
        RuleEngine { service, begun, state: Mutex::new(state) }
    }

    /// Replaces the rules and the request of alerts without a rule. Rules of the same name keep their state.
    pub fn configure(&self, rules: Vec<Rule>, default: Option<Request>) {
        let now = Instant::now();
        let mut state = self.state();
        let mut before = std::mem::take(&mut state.rules);
        let renewed = rules.into_iter().map(|rule| match before.iter().position(|old| old.rule.name == rule.name) {
            Some(at) => before.swap_remove(at).renew(rule, now),
            None => RuleState::new(rule, now),
        });
        state.rules = renewed.collect();
        let cooldown = state.default.take().map(|(_, cooldown)| cooldown);
        let cooldown = cooldown.unwrap_or_else(|| Cooldown::new(DEFAULT_COOLDOWN, DEFAULT_PER_HOUR));
        state.default = default.map(|request| (request, cooldown));
    }

    /// The captures.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Metrics that rules are about; empty when none has a condition.
    pub fn metrics(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.state().rules.iter().filter_map(|r| r.rule.condition.as_ref()).map(metric_of).collect();
        names.sort();
        names.dedup();
        names
    }

    /// When the next rule is due, and the metrics of the rules that are due at `now`.
    pub fn due(&self, now: Instant) -> (Option<Instant>, Vec<String>) {
        let state = self.state();
        let conditions = || state.rules.iter().filter_map(|r| r.rule.condition.as_ref().map(|c| (r, c)));
        let due = conditions().filter(|(r, _)| r.next <= now).map(|(_, c)| metric_of(c)).collect();
        (conditions().map(|(r, _)| r.next).min(), due)
    }

    /// Evaluates the rules that are due on these families, and starts captures for those that fire.
    pub fn look(&self, families: &[Family], now: Moment) {
        let mut state = self.state();
        for at in 0..state.rules.len() {
            let current = &mut state.rules[at];
            let (Some(condition), Some(evaluator)) = (current.rule.condition.clone(), &mut current.evaluator) else {
                continue;
            };
            if current.next > now.mono {
                continue;
            }
            // From now: missed evaluations are not made up for.
            current.next = now.mono + current.rule.every;
            let name = metric_of(&condition);
            let family = families.iter().find(|family| family.about.name == name);
            let since = now.mono.saturating_duration_since(self.begun);
            match evaluator.look(&condition, since, family) {
                Verdict::Fires(found) => self.fire(&mut state, at, &condition, &found, family, now),
                Verdict::Quiet => current.refused = None,
                Verdict::Holding => {}
            }
        }
    }

    fn fire(
        &self,
        state: &mut State,
        at: usize,
        condition: &When,
        found: &Found,
        family: Option<&Family>,
        now: Moment,
    ) {
        let since = now.mono.saturating_duration_since(self.begun);
        let current = &mut state.rules[at];
        let why = format!("{}: {}{}", condition.text, number(found.value), labels(family, found));
        let trigger = Trigger { kind: "rule".into(), rule: current.rule.name.clone(), why, ..Trigger::default() };
        let (outcome, reason) = ask(&self.service, &mut current.cooldown, &current.rule.request, trigger, since);
        let name = current.rule.name.clone();
        match &outcome {
            Outcome::Started(id) => {
                current.refused = None;
                if let Some(value) = found.typical {
                    let family = metric_of(condition);
                    let labels = found.labels.clone();
                    let link = Link::Capture(id.to_string());
                    let exemplar = Exemplar { family, labels, link, value, at: now.wall };
                    state.links.push((id.clone(), exemplar));
                    let surplus = state.links.len().saturating_sub(MAX_LINKS);
                    state.links.drain(..surplus);
                }
            }
            // A rule fires at each evaluation while its condition holds: count equal refusals once.
            refused if current.refused == Some(refused.name()) => return,
            refused => {
                current.refused = Some(refused.name());
                tracing::info!(rule = name, result = refused.name(), reason, "a rule fires and gets no capture");
            }
        }
        *state.counts.entry((name, outcome.name())).or_default() += 1;
    }

    /// Starts captures for the alerts of a notification; one outcome for each alert.
    pub fn alert(&self, notification: &Notification, client: &str) -> Vec<Outcome> {
        let mut state = self.state();
        notification.alerts.iter().map(|alert| self.one(&mut state, alert, client)).collect()
    }

    /// Counts an alert that is about another node; a reason is why its agent does not get it.
    pub fn elsewhere(&self, alert: &Alert, outcome: &Outcome, reason: &str) {
        let mut state = self.state();
        let (_, name) = state.rule_of(alert);
        let (result, alert) = (outcome.name(), alert.name());
        if !reason.is_empty() {
            tracing::warn!(rule = name, alert, result, reason, "an alert about another node gets no capture");
        }
        *state.counts.entry((name, result)).or_default() += 1;
    }

    fn one(&self, state: &mut State, alert: &Alert, client: &str) -> Outcome {
        let since = self.begun.elapsed();
        let (at, name) = state.rule_of(alert);
        let trigger = Trigger {
            kind: "alertmanager".into(),
            client: client.to_owned(),
            rule: name.clone(),
            why: format!("alert {:.200}", alert.name()),
        };
        let outcome = if !alert.is_firing() {
            Outcome::Resolved
        } else if state.seen.has(alert) {
            Outcome::Duplicate
        } else {
            let State { rules, default, .. } = state;
            let (outcome, reason) = match (at, default) {
                (Some(None), _) => (Outcome::UnknownRule, "there is no such rule".to_owned()),
                (None, None) => (Outcome::NoRule, "captures.alertmanager_default is not set".to_owned()),
                (None, Some((request, cooldown))) => ask(&self.service, cooldown, request, trigger, since),
                (Some(Some(at)), _) => {
                    let RuleState { rule, cooldown, .. } = &mut rules[at];
                    ask(&self.service, cooldown, &rule.request, trigger, since)
                }
            };
            if !matches!(outcome, Outcome::Started(_)) {
                let result = outcome.name();
                tracing::info!(rule = name, alert = alert.name(), result, reason, "an alert gets no capture");
            }
            outcome
        };
        if matches!(outcome, Outcome::Started(_)) {
            state.seen.add(alert);
        }
        *state.counts.entry((name, outcome.name())).or_default() += 1;
        outcome
    }

    /// Outcomes by rule and result.
    pub fn counts(&self) -> Vec<(String, &'static str, u64)> {
        self.state().counts.iter().map(|((rule, result), n)| (rule.clone(), *result, *n)).collect()
    }

    /// Which captures belong to which series: those that are there and did not fail.
    pub fn exemplars(&self) -> Vec<Exemplar> {
        let mut state = self.state();
        state.links.retain(|(id, _)| self.service.has(id));
        state.links.iter().map(|(_, exemplar)| exemplar.clone()).collect()
    }
}

/// Starts a capture within the cooldown. Returns the outcome, and the reason if it is a refusal.
fn ask(
    service: &Arc<Service>,
    cooldown: &mut Cooldown,
    request: &Request,
    trigger: Trigger,
    since: Duration,
) -> (Outcome, String) {
    match cooldown.ask(since) {
        Err(Closed::Cooldown) => return (Outcome::Cooldown, "its cooldown is not over".to_owned()),
        Err(Closed::HourlyCap) => return (Outcome::HourlyCap, "it had max_per_hour captures".to_owned()),
        Ok(()) => {}
    }
    match service.start(request.clone(), trigger) {
        Ok(id) => {
            cooldown.started(since);
            (Outcome::Started(id), String::new())
        }
        Err(refusal) => {
            let outcome = if refusal.is_temporary() { Outcome::Busy } else { Outcome::Failed };
            (outcome, refusal.to_string())
        }
    }
}

/// With as many digits as a person reads.
fn number(value: f64) -> String {
    format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn labels(family: Option<&Family>, found: &Found) -> String {
    let Some(family) = family else { return String::new() };
    let Some(series) = family.series.iter().find(|series| series.labels == found.labels) else { return String::new() };
    let names = family.about.label_names.iter().enumerate();
    let pairs: Vec<String> =
        names.map(|(at, name)| format!("{name}=\"{}\"", family.label(series, at).escape_debug())).collect();
    if pairs.is_empty() { String::new() } else { format!(" in {{{}}}", pairs.join(",")) }
}
