//! The lists of metrics of many nodes as one.

use super::counts::{Counts, is_sound};
use super::{LeftOut, NODE, shown};
use crate::cli::top::answers::{History, Kind, Summary};
use std::collections::{BTreeMap, BTreeSet};

/// Seconds by which a node's newest second may differ from that of the others: more is a wrong clock, or a history that stands still.
const MAX_APART: u64 = 10;

/// `newest` is the last second that all nodes have. Nodes with another clock are left out, and metrics that a node defines in
/// another way than most.
pub fn history(answers: &[(String, History)]) -> (History, Vec<(String, LeftOut)>) {
    let mut newest: Vec<u64> = answers.iter().filter_map(|(_, history)| history.newest).collect();
    newest.sort_unstable();
    let usual = newest.get(newest.len() / 2).copied();
    let apart = |history: &History| history.newest.zip(usual).map_or(0, |(own, usual)| own.abs_diff(usual));
    let (merged, others): (Vec<_>, Vec<_>) = answers.iter().partition(|(_, history)| apart(history) <= MAX_APART);
    let mut left_out: Vec<_> =
        others.iter().map(|(node, history)| (node.clone(), LeftOut::Clock(apart(history)))).collect();
    let mut by_name: BTreeMap<&str, Vec<OfNode<'_>>> = BTreeMap::new();
    for (node, history) in &merged {
        for summary in &history.metrics {
            by_name.entry(&summary.metric).or_default().push(OfNode { node, history, summary });
        }
    }
    let metrics = by_name.into_values().filter_map(|all| {
        let mut definitions: BTreeMap<(Kind, &str), usize> = BTreeMap::new();
        all.iter().for_each(|of| *definitions.entry(of.definition()).or_default() += 1);
        let (usual, _) = definitions.into_iter().max_by_key(|(_, nodes)| *nodes)?;
        let (same, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|of| of.definition() == usual);
        left_out.extend(others.iter().map(|of| (of.node.to_owned(), LeftOut::Metric(of.summary.metric.clone()))));
        Some(summary(&same))
    });
    let metrics = metrics.collect();
    let history = History {
        newest: merged.iter().filter_map(|(_, history)| history.newest).min(),
        lost_seconds: merged.iter().map(|(_, history)| history.lost_seconds).sum(),
        bounds: None,
        metrics,
    };
    (history, left_out)
}

struct OfNode<'a> {
    node: &'a str,
    history: &'a History,
    summary: &'a Summary,
}

impl<'a> OfNode<'a> {
    fn definition(&self) -> (Kind, &'a str) {
        (self.summary.kind, &self.summary.unit)
    }
}

/// There is one node at least. The values of gauges are added.
fn summary(nodes: &[OfNode<'_>]) -> Summary {
    let first = nodes[0].summary;
    let sum = |figure: fn(&Summary) -> Option<f64>| {
        nodes.iter().filter_map(|of| figure(of.summary)).reduce(|sum, figure| sum + figure)
    };
    let counts = counts(nodes).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let labels = nodes.iter().flat_map(|of| &of.summary.labels).filter(|label| seen.insert(*label));
    let labels = labels.map(|label| shown(label).to_owned()).chain([NODE.to_owned()]).collect();
    Summary {
        metric: first.metric.clone(),
        kind: first.kind,
        unit: first.unit.clone(),
        help: first.help.clone(),
        probe: first.probe.clone(),
        labels,
        series: nodes.iter().map(|of| of.summary.series).sum(),
        rate: sum(|summary| summary.rate),
        count: sum(|summary| summary.count),
        p50: counts.quantile(0.5),
        p99: counts.quantile(0.99),
        max: counts.max(),
        value: sum(|summary| summary.value),
        sampled: nodes.iter().any(|of| of.summary.sampled),
        heat: None,
    }
}

/// `None` where a node that has observations gives no counts, as agents of earlier versions do: a quantile of the others would not
/// be that of all.
fn counts(nodes: &[OfNode<'_>]) -> Option<Counts> {
    let mut counts = Counts::default();
    for of in nodes.iter().filter(|of| of.summary.count.is_none_or(|count| count > 0.0)) {
        let (heat, bounds) = (of.summary.heat.as_deref()?, of.history.bounds.as_deref()?);
        is_sound(heat, bounds).then(|| counts.add(heat, bounds))?;
    }
    Some(counts)
}
