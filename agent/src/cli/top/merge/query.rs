//! A metric over time: the answers of many nodes as one.

use super::counts::{Counts, Ends, bounds, is_sound};
use super::{LeftOut, NODE, shown};
use crate::cli::top::answers::{Group, Kind, Query, Total};
use crate::cli::top::request::Sort;
use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// How the groups of nodes become rows.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Whether each node has rows of its own, with the label [`NODE`].
    pub by_node: bool,
    pub sort: Sort,
    pub max: usize,
}

/// `None` where no answer is left. Rates, counts and sums are added by column and bucket, values of gauges by column; a column has none
/// where no node has one. Quantiles are those of the added counts.
pub fn query(answers: &[(String, Query)], rows: Rows) -> (Option<Query>, Vec<(String, LeftOut)>) {
    let mut left_out = Vec::new();
    let mut merged: Vec<(&str, &Query)> = Vec::new();
    for (node, query) in answers {
        match fits(merged.first().map_or(query, |(_, first)| *first), query) {
            Ok(()) => merged.push((node.as_str(), query)),
            Err(reason) => left_out.push((node.clone(), reason)),
        }
    }
    let Some((_, first)) = merged.first() else { return (None, left_out) };
    let window = Window {
        kind: first.kind,
        from: merged.iter().map(|(_, query)| query.from).min().unwrap_or(first.from),
        to: merged.iter().map(|(_, query)| query.to).max().unwrap_or(first.to),
        step: first.step,
    };
    let mut added: BTreeMap<Labels, Added> = BTreeMap::new();
    for (node, query) in &merged {
        for group in &query.groups {
            let mut labels: Labels =
                group.labels.iter().map(|(name, value)| (shown(name).to_owned(), value.clone())).collect();
            if rows.by_node {
                labels.insert(NODE.to_owned(), (*node).to_owned());
            }
            added.entry(labels).or_insert_with(|| Added::of(window)).add(window, query, group);
        }
    }
    let hidden = if rows.by_node {
        merged.iter().map(|(_, query)| query.left_out).sum()
    } else {
        drop_incomplete(&mut added, &merged)
    };
    let mut groups: Vec<(Group, Vec<Counts>)> =
        added.into_iter().map(|(labels, added)| added.group(window, labels)).collect();
    // Groups of the same key stay in the order of their labels.
    groups.sort_by(|(a, _), (b, _)| key(b, window.kind, rows.sort).total_cmp(&key(a, window.kind, rows.sort)));
    let cut = groups.len().saturating_sub(rows.max) as u64;
    groups.truncate(rows.max);
    let ends: BTreeSet<Ends> = groups.iter().flat_map(|(_, heat)| heat).flat_map(Counts::ends).collect();
    let places: BTreeMap<Ends, u64> = ends.iter().copied().zip(0..).collect();
    let with_heat = |(mut group, heat): (Group, Vec<Counts>)| {
        group.heat = heat.iter().map(|counts| counts.heat(&places)).collect();
        group
    };
    let query = Query {
        metric: first.metric.clone(),
        kind: first.kind,
        unit: first.unit.clone(),
        help: first.help.clone(),
        probe: first.probe.clone(),
        from: window.from,
        to: window.to,
        step: window.step,
        bounds: ends.into_iter().map(bounds).collect(),
        groups: groups.into_iter().map(with_heat).collect(),
        left_out: hidden + cut,
        sampled: merged.iter().any(|(_, query)| query.sampled),
    };
    (Some(query), left_out)
}

/// Whether the columns of two answers are columns of one.
fn fits(first: &Query, other: &Query) -> Result<(), LeftOut> {
    if (other.kind, &other.unit) != (first.kind, &first.unit) {
        return Err(LeftOut::Metric(other.metric.clone()));
    }
    let is_whole = |query: &Query| {
        query.step > 0
            && query.from < query.to
            && query.from.is_multiple_of(query.step)
            && query.to.is_multiple_of(query.step)
    };
    if other.step != first.step || !is_whole(other) || !is_whole(first) {
        return Err(LeftOut::Columns);
    }
    let mut heat = other.groups.iter().flat_map(|group| &group.heat);
    if !heat.all(|heat| is_sound(heat, &other.bounds)) {
        return Err(LeftOut::Bounds);
    }
    // Further apart they have no column in common.
    match other.from.abs_diff(first.from) {
        apart if apart >= first.to - first.from => Err(LeftOut::Clock(apart)),
        _ => Ok(()),
    }
}

/// A node names its largest groups alone. One that another node has, but not such a node, may have a part there: its sum is not known.
/// Returns how many groups are hidden at least.
fn drop_incomplete(added: &mut BTreeMap<Labels, Added>, merged: &[(&str, &Query)]) -> u64 {
    let cut = merged.iter().filter(|(_, query)| query.left_out > 0).count();
    let all = added.len();
    added.retain(|_, added| added.of_cut_nodes == cut);
    let dropped = (all - added.len()) as u64;
    merged.iter().map(|(_, query)| query.left_out).max().unwrap_or_default().max(dropped)
}

/// The columns of a merged answer.
#[derive(Clone, Copy)]
struct Window {
    kind: Kind,
    from: u64,
    to: u64,
    step: u64,
}

impl Window {
    fn columns(self) -> usize {
        usize::try_from((self.to - self.from) / self.step).unwrap_or_default()
    }
}

/// A group's sums over nodes.
struct Added {
    rate: Vec<Option<f64>>,
    sum: Vec<Option<f64>>,
    value: Vec<Option<f64>>,
    heat: Vec<Counts>,
    total: Total,
    /// Of the nodes that do not name all of their groups, those that name this one.
    of_cut_nodes: usize,
}

fn add(to: &mut Option<f64>, figure: Option<f64>) {
    if let Some(figure) = figure {
        *to = Some(to.unwrap_or_default() + figure);
    }
}

impl Added {
    fn of(window: Window) -> Added {
        let columns = window.columns();
        Added {
            rate: vec![None; columns],
            sum: vec![None; columns],
            value: vec![None; columns],
            heat: vec![Counts::default(); columns],
            total: Total::default(),
            of_cut_nodes: 0,
        }
    }

    /// Columns are placed by their time.
    fn add(&mut self, window: Window, query: &Query, group: &Group) {
        let first = usize::try_from((query.from - window.from) / window.step).unwrap_or_default();
        let columns = |to: &mut [Option<f64>], of: &[Option<f64>]| {
            to.iter_mut().skip(first).zip(of).for_each(|(to, figure)| add(to, *figure));
        };
        columns(&mut self.rate, &group.rate);
        columns(&mut self.sum, &group.sum);
        columns(&mut self.value, &group.value);
        add(&mut self.total.count, group.total.count);
        add(&mut self.total.sum, group.total.sum);
        add(&mut self.total.last, group.total.last);
        self.of_cut_nodes += usize::from(query.left_out > 0);
        self.heat.iter_mut().skip(first).zip(&group.heat).for_each(|(to, heat)| to.add(heat, &query.bounds));
    }

    /// The group without its heat, and that.
    fn group(self, window: Window, labels: Labels) -> (Group, Vec<Counts>) {
        let Added { rate, sum, value, heat, mut total, .. } = self;
        let mut group = Group { labels, ..Group::default() };
        match window.kind {
            Kind::Histogram => {
                let mut all = Counts::default();
                heat.iter().for_each(|counts| all.merge(counts));
                [total.p50, total.p90, total.p99] = [0.5, 0.9, 0.99].map(|share| all.quantile(share));
                (total.count, total.max) = (Some(all.total() as f64), all.max());
                // Where no node has measured there is nothing to make a quantile of.
                group.p50 = heat.iter().map(|counts| counts.quantile(0.5)).collect();
                group.p99 = heat.iter().map(|counts| counts.quantile(0.99)).collect();
                group.max = heat.iter().map(Counts::max).collect();
                (group.rate, group.sum, group.total) = (rate, sum, total);
                (group, heat)
            }
            Kind::Counter => {
                (group.rate, group.total) = (rate, total);
                (group, Vec::new())
            }
            Kind::Gauge => {
                total.min = value.iter().flatten().copied().reduce(f64::min);
                total.max = value.iter().flatten().copied().reduce(f64::max);
                (group.value, group.total) = (value, total);
                (group, Vec::new())
            }
        }
    }
}

/// What the order of groups is by, as agents have it.
fn key(group: &Group, kind: Kind, sort: Sort) -> f64 {
    let Total { count, p50, p99, max, last, .. } = group.total;
    let key = match (kind, sort) {
        (Kind::Counter, _) | (Kind::Histogram, Sort::Rate | Sort::Name) => count,
        (Kind::Histogram, Sort::P50) => p50,
        (Kind::Histogram, Sort::P99) => p99,
        (Kind::Histogram, Sort::Max) => max.or(count.filter(|count| *count > 0.0).map(|_| f64::INFINITY)),
        (Kind::Gauge, Sort::Max) => max,
        (Kind::Gauge, _) => last,
    };
    // Below the smallest value of a gauge.
    key.unwrap_or(f64::NEG_INFINITY)
}
