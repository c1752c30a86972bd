//! How the agents of a screen stand: which can answer a request, and why the others cannot. It knows no network and no clock.

use crate::cli::top::merge::{LeftOut, Merged, Plan};
use crate::cli::top::request::{Answer, Request};
use crate::cli::top::source::Failure;
use crate::cli::top::state::plain;
use kstrobe_fleet::Error;
use kstrobe_fleet::target::{Missing, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

#[derive(Debug)]
pub struct Standing {
    members: BTreeMap<String, Member>,
    /// Nodes without an agent.
    missing: Vec<Failure>,
    /// The last second that all nodes have, and when they said so.
    newest: Option<(u64, Instant)>,
}

#[derive(Debug)]
struct Member {
    target: Target,
    /// Plain names of its metrics, without those that it defines in another way than most; `None` before its first list.
    metrics: Option<BTreeSet<String>>,
    /// Why it does not answer. Until it does, it is asked for its probes alone, so that it delays no other answer.
    silent: Option<String>,
    /// Why its history is no part of that of all.
    apart: Option<String>,
}

impl Standing {
    pub fn new(targets: Vec<Target>, missing: Vec<Missing>) -> Standing {
        let mut standing = Standing { members: BTreeMap::new(), missing: Vec::new(), newest: None };
        standing.replace(targets, missing);
        standing
    }

    /// Takes a newer list of pods. What is known of an agent that is still there stays.
    pub fn replace(&mut self, targets: Vec<Target>, missing: Vec<Missing>) {
        let mut known = std::mem::take(&mut self.members);
        for target in targets {
            let same = known.remove(&target.node).filter(|member| member.target.agent.uid == target.agent.uid);
            let new = || Member { target: target.clone(), metrics: None, silent: None, apart: None };
            self.members.insert(target.node.clone(), same.unwrap_or_else(new));
        }
        let missing = missing.into_iter();
        self.missing = missing.map(|Missing { node, reason }| Failure { node, error: reason.to_string() }).collect();
    }

    pub fn agents(&self) -> usize {
        self.members.len()
    }

    /// The last second that all nodes have at this moment.
    pub fn newest(&self, now: Instant) -> Option<u64> {
        self.newest.map(|(second, at)| second + now.saturating_duration_since(at).as_secs())
    }

    /// The agents that are asked.
    pub fn targets(&self, request: &Request, plan: &Plan) -> Vec<Target> {
        let can_answer = |member: &Member| match request {
            Request::Probes => true,
            // A node whose clock is set right comes back.
            Request::History => member.silent.is_none(),
            Request::Events { .. } => member.absence().is_none(),
            Request::Total { metric, .. } | Request::Table { metric, .. } => {
                member.absence().is_none()
                    && member.metrics.as_ref().is_none_or(|metrics| metrics.contains(plain(metric)))
            }
        };
        let members = self.members.values().filter(|member| plan.concerns(&member.target.node) && can_answer(member));
        members.map(|member| member.target.clone()).collect()
    }

    /// Takes from answers which agents answer, and what they measure.
    pub fn learn(&mut self, request: &Request, answers: &[(String, Result<Answer, Error>)]) {
        for (node, answer) in answers {
            let Some(member) = self.members.get_mut(node) else { continue };
            match answer {
                Ok(Answer::Probes(_)) => member.silent = None,
                Ok(Answer::History(history)) => {
                    let names = history.metrics.iter().map(|summary| plain(&summary.metric).to_owned());
                    (member.metrics, member.apart) = (Some(names.collect()), None);
                }
                Ok(Answer::Query(_) | Answer::Events(_)) => {}
                Err(error) if *request == Request::Probes || is_silence(error) => {
                    member.silent = Some(error.to_string());
                }
                // The others of its answers may be good.
                Err(_) => {}
            }
        }
    }

    /// Takes from a merged list of metrics which nodes have no part in it.
    pub fn learn_merged(&mut self, merged: &Merged, now: Instant) {
        let Answer::History(history) = &merged.answer else { return };
        self.newest = history.newest.map(|newest| (newest, now));
        for (node, reason) in &merged.left_out {
            let Some(member) = self.members.get_mut(node) else { continue };
            match (reason, &mut member.metrics) {
                (LeftOut::Metric(metric), Some(metrics)) => _ = metrics.remove(plain(metric)),
                (LeftOut::Metric(_), None) => {}
                _ => member.apart = Some(reason.to_string()),
            }
        }
    }

    /// Adds the nodes that were not asked though the request concerns them.
    pub fn add_absent(&self, plan: &Plan, failed: &mut Vec<Failure>) {
        let absent = self.members.values().filter_map(|member| {
            Some(Failure { node: member.target.node.clone(), error: member.absence()?.to_owned() })
        });
        for failure in absent.chain(self.missing.iter().cloned()) {
            if plan.concerns(&failure.node) && failed.iter().all(|known| known.node != failure.node) {
                failed.push(failure);
            }
        }
    }
}

impl Member {
    fn absence(&self) -> Option<&str> {
        self.silent.as_deref().or(self.apart.as_deref())
    }
}

/// Whether another request would get no answer either.
fn is_silence(error: &Error) -> bool {
    match error {
        Error::Transport(_) | Error::Timeout(_) | Error::Body(_) | Error::Endless => true,
        Error::Refused { status, .. } => status.is_server_error(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::answers::{History, Probes};
    use crate::cli::top::merge::merge;
    use crate::cli::top::request::Span;
    use kstrobe_fleet::TransportError;
    use kstrobe_fleet::target::{NoAgent, Pod};
    use serde_json::json;
    use std::time::Duration;

    fn target(node: &str, uid: &str) -> Target {
        let agent = Pod { uid: uid.into(), node: node.into(), ..Pod::default() };
        Target { node: node.into(), agent, pods: Vec::new() }
    }

    fn standing() -> Standing {
        let missing = Missing { node: "n9".into(), reason: NoAgent::None };
        Standing::new(vec![target("n1", "a"), target("n2", "b")], vec![missing])
    }

    fn asked(standing: &Standing, request: &Request) -> Vec<String> {
        let plan = Plan::of(request, standing.agents(), None);
        standing.targets(request, &plan).into_iter().map(|target| target.node).collect()
    }

    fn failed(standing: &Standing, request: &Request) -> Vec<String> {
        let mut failed = Vec::new();
        standing.add_absent(&Plan::of(request, 2, None), &mut failed);
        failed.into_iter().map(|failure| failure.node).collect()
    }

    fn total(metric: &str, node: Option<&str>) -> Request {
        let chosen = node.map(|node| ("node".to_owned(), node.to_owned())).into_iter().collect();
        Request::Total { metric: metric.into(), chosen, span: Span { end: None, seconds: 60, step: 1 } }
    }

    fn list(newest: u64, metrics: &[&str]) -> History {
        let metrics: Vec<_> = metrics.iter().map(|name| json!({"metric": name, "type": "counter"})).collect();
        serde_json::from_value(json!({"newest": newest, "metrics": metrics})).unwrap()
    }

    fn learn(standing: &mut Standing, lists: &[(&str, History)], now: Instant) {
        let answers = || lists.iter().map(|(node, list)| ((*node).to_owned(), Answer::History(list.clone())));
        let all: Vec<_> = answers().map(|(node, answer)| (node, Ok(answer))).collect();
        standing.learn(&Request::History, &all);
        let plan = Plan::of(&Request::History, 2, None);
        standing.learn_merged(&merge(&Request::History, &plan, answers().collect()).unwrap(), now);
    }

    #[test]
    fn a_query_goes_to_nodes_that_have_the_metric() {
        let (mut standing, now) = (standing(), Instant::now());
        assert_eq!(asked(&standing, &total("a", None)), ["n1", "n2"], "before the first list");
        learn(&mut standing, &[("n1", list(100, &["kstrobe_a", "kstrobe_b"])), ("n2", list(101, &["kstrobe_b"]))], now);
        assert_eq!(asked(&standing, &total("kstrobe_a", None)), ["n1"]);
        assert_eq!(asked(&standing, &total("b", None)), ["n1", "n2"]);
        assert_eq!(asked(&standing, &total("b", Some("n2"))), ["n2"]);
        assert_eq!(standing.newest(now + Duration::from_millis(2500)), Some(102));
        assert_eq!(failed(&standing, &total("b", None)), ["n9"]);
        assert_eq!(failed(&standing, &total("b", Some("n2"))), [""; 0]);
    }

    #[test]
    fn a_silent_node_is_asked_for_its_probes_alone() {
        let mut standing = standing();
        let silence = || Err(TransportError::new("connection refused").into());
        standing.learn(&total("a", None), &[("n2".to_owned(), silence())]);
        for request in [Request::History, total("a", None), Request::Events { probe: None }] {
            assert_eq!(asked(&standing, &request), ["n1"]);
            assert_eq!(failed(&standing, &request), ["n2", "n9"]);
        }
        assert_eq!(asked(&standing, &Request::Probes), ["n1", "n2"]);
        standing.learn(&Request::Probes, &[("n2".to_owned(), Ok(Answer::Probes(Probes::default())))]);
        assert_eq!(asked(&standing, &total("a", None)), ["n1", "n2"]);
        // A refusal of one request says nothing of the next.
        let refused = Error::Refused { status: http::StatusCode::NOT_FOUND, message: String::new() };
        standing.learn(&Request::History, &[("n2".to_owned(), Err(refused))]);
        assert_eq!(asked(&standing, &total("a", None)), ["n1", "n2"]);
    }

    #[test]
    fn a_node_with_another_clock_is_left_out_until_it_agrees() {
        let (mut standing, now) = (standing(), Instant::now());
        let list = |newest| list(newest, &["kstrobe_a"]);
        learn(&mut standing, &[("n1", list(4000)), ("n2", list(400))], now);
        assert_eq!(standing.newest(now), Some(4000));
        assert_eq!(asked(&standing, &total("a", None)), ["n1"]);
        assert_eq!(asked(&standing, &Request::History), ["n1", "n2"]);
        learn(&mut standing, &[("n1", list(4001)), ("n2", list(4000))], now);
        assert_eq!(standing.newest(now), Some(4000));
        assert_eq!(asked(&standing, &total("a", None)), ["n1", "n2"]);
    }

    #[test]
    fn a_replaced_agent_begins_anew() {
        let mut standing = standing();
        let late = || ("n1".to_owned(), Err(Error::Timeout(Duration::from_secs(5))));
        standing.learn(&Request::History, &[late()]);
        standing.replace(vec![target("n1", "a"), target("n2", "b"), target("n3", "c")], Vec::new());
        assert_eq!(asked(&standing, &Request::History), ["n2", "n3"]);
        standing.replace(vec![target("n1", "d")], Vec::new());
        assert_eq!(asked(&standing, &Request::History), ["n1"]);
        assert_eq!(failed(&standing, &Request::History), [""; 0]);
    }

    #[test]
    fn an_unlike_metric_is_not_asked_for() {
        let (mut standing, now) = (standing(), Instant::now());
        let mut other = list(100, &["kstrobe_a", "kstrobe_b"]);
        other.metrics[0].unit = "bytes".into();
        learn(&mut standing, &[("n1", list(100, &["kstrobe_a", "kstrobe_b"])), ("n2", other)], now);
        let one = asked(&standing, &total("a", None));
        assert_eq!((one.len(), asked(&standing, &total("b", None)).len()), (1, 2));
    }
}
