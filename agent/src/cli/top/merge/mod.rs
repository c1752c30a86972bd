//! The answers of many agents as one: requests in, paths out; answers in, one answer out. It knows no network and no clock.
//!
//! Each metric gets the label [`NODE`], by which tables are divided and pages narrowed as by its own labels.

mod counts;
mod history;
mod query;
#[cfg(test)]
mod tests;

use super::answers::{Event, Events, Node, Probe, Probes};
use super::request::{Answer, Chosen, MAX_EVENTS, MAX_ROWS, Request, Sort};
use query::Rows;
use std::collections::BTreeMap;

/// The label of a metric's node.
pub const NODE: &str = "node";
/// What a metric's own label `node` is called beside that, as Prometheus does.
const OWN_NODE: &str = "exported_node";
/// Groups that all agents together give for a table. An agent names its largest, so that with more of them fewer rows are incomplete.
const MAX_GROUPS: usize = 2000;
/// Groups that an agent gives at most.
const MAX_GROUPS_OF_AGENT: usize = 1000;

/// Why the answer of a node, or of one of its metrics, has no part in the merged one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeftOut {
    #[error("its newest second is {0} s away from that of the others: its clock is wrong, or its history stands still")]
    Clock(u64),
    #[error("its `{0}` has another type or unit than that of the others")]
    Metric(String),
    #[error("its answer has other columns than that of the others")]
    Columns,
    #[error("its answer has a count without a bucket")]
    Bounds,
}

/// A request as agents understand it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub path: String,
    /// Only this node is asked.
    pub only: Option<String>,
    /// Whether each node has rows of its own.
    pub by_node: bool,
}

impl Plan {
    /// `newest` is the last second that all nodes have: the same range is asked of all.
    pub fn of(request: &Request, nodes: usize, newest: Option<u64>) -> Plan {
        let mut request = request.clone();
        let (mut only, mut by_node) = (None, false);
        if let Request::Table { by, .. } = &mut request {
            by_node = by.iter().any(|label| label == NODE);
            by.retain(|label| label != NODE);
            by.iter_mut().for_each(|label| *label = own(label).to_owned());
        }
        if let Request::Total { chosen, span, .. } | Request::Table { chosen, span, .. } = &mut request {
            only = take_node(chosen);
            span.end = span.end.or(newest);
        }
        let groups = (MAX_GROUPS / nodes.max(1)).clamp(MAX_ROWS, MAX_GROUPS_OF_AGENT);
        let path = request.path_for(groups);
        let path = if request == Request::History { path + "?heat=true" } else { path };
        Plan { path, only, by_node }
    }

    /// Whether the answer is about this node.
    pub fn concerns(&self, node: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == node)
    }
}

fn take_node(chosen: &mut Chosen) -> Option<String> {
    let node = chosen.iter().find(|(label, _)| label == NODE).map(|(_, node)| node.clone());
    chosen.retain(|(label, _)| label != NODE);
    chosen.iter_mut().for_each(|(label, _)| *label = own(label).to_owned());
    node
}

/// The agent's name of a label.
fn own(label: &str) -> &str {
    if label == OWN_NODE { NODE } else { label }
}

/// The name of an agent's label beside that of the node.
fn shown(label: &str) -> &str {
    if label == NODE { OWN_NODE } else { label }
}

/// An answer for all nodes, and whose were left out of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    pub answer: Answer,
    pub left_out: Vec<(String, LeftOut)>,
}

/// `None` where there is nothing to merge. Answers are to this request, one of each node.
pub fn merge(request: &Request, plan: &Plan, answers: Vec<(String, Answer)>) -> Option<Merged> {
    if answers.is_empty() {
        return None;
    }
    let whole = |answer| Some(Merged { answer, left_out: Vec::new() });
    match request {
        Request::Probes => whole(Answer::Probes(probes(&all(answers, |answer| match answer {
            Answer::Probes(probes) => Some(probes),
            _ => None,
        })))),
        Request::Events { .. } => whole(Answer::Events(events(all(answers, |answer| match answer {
            Answer::Events(events) => Some(events),
            _ => None,
        })))),
        Request::History => {
            let (history, left_out) = history::history(&all(answers, |answer| match answer {
                Answer::History(history) => Some(history),
                _ => None,
            }));
            Some(Merged { answer: Answer::History(history), left_out })
        }
        Request::Total { .. } | Request::Table { .. } => {
            let sort = if let Request::Table { sort, .. } = request { *sort } else { Sort::Rate };
            let rows = Rows { by_node: plan.by_node, sort, max: MAX_ROWS };
            let answers = all(answers, |answer| match answer {
                Answer::Query(query) => Some(query),
                _ => None,
            });
            let (query, left_out) = query::query(&answers, rows);
            Some(Merged { answer: Answer::Query(query?), left_out })
        }
    }
}

fn all<T>(answers: Vec<(String, Answer)>, is: impl Fn(Answer) -> Option<T>) -> Vec<(String, T)> {
    answers.into_iter().filter_map(|(node, answer)| Some((node, is(answer)?))).collect()
}

/// CPUs, budgets and costs are added. A probe is attached where all nodes that have it say so; of samples the thinnest counts.
fn probes(answers: &[(String, Probes)]) -> Probes {
    let nodes = || answers.iter().map(|(_, probes)| &probes.node);
    let mut kernels: Vec<&str> = nodes().map(|node| node.kernel.as_str()).collect();
    kernels.dedup();
    let mut merged: BTreeMap<&str, Probe> = BTreeMap::new();
    for probe in answers.iter().flat_map(|(_, probes)| &probes.probes) {
        let Some(all) = merged.get_mut(probe.name.as_str()) else {
            merged.insert(&probe.name, probe.clone());
            continue;
        };
        // An idle probe has nothing to attach on its node.
        all.attached = (all.attached || all.idle) && (probe.attached || probe.idle) && (all.attached || probe.attached);
        all.idle &= probe.idle;
        all.cost_ppm = all.cost_ppm.into_iter().chain(probe.cost_ppm).reduce(|sum, cost| sum + cost);
        all.one_of = all.one_of.max(probe.one_of);
    }
    Probes {
        node: Node {
            name: if let [(node, _)] = answers { node.clone() } else { format!("{} nodes", answers.len()) },
            kernel: if let [kernel] = kernels[..] { kernel.to_owned() } else { String::new() },
            cpus: nodes().map(|node| node.cpus).sum(),
            // Without a budget on one node there is none for all.
            budget_ppm: nodes().map(|node| node.budget_ppm).sum(),
        },
        nodes: answers.iter().map(|(node, _)| node.clone()).collect(),
        probes: merged.into_values().collect(),
    }
}

/// The newest of all nodes, by time.
fn events(answers: Vec<(String, Events)>) -> Events {
    let gone = answers.iter().map(|(_, events)| events.gone).sum();
    let named = answers.into_iter().flat_map(|(node, events)| {
        let named = move |event| Event { node: node.clone(), ..event };
        events.events.into_iter().map(named)
    });
    let mut events: Vec<Event> = named.collect();
    // Times are UTC in one format, whose order is that of the text.
    events.sort_by(|a, b| a.time.cmp(&b.time));
    Events { events: events.split_off(events.len().saturating_sub(MAX_EVENTS)), gone }
}
