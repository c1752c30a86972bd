//! From records to an answer: once over the range for the sums by which groups are ordered, once more for the columns of those
//! groups that are in the answer.

use super::answer::{Answer, Group, Total, Values};
use super::sums::{Bounds, Sums, exported};
use super::{Query, QueryError, Sort, Window};
use crate::record::{Packed, Shape, sections, series};
use crate::registry::Metric;
use crate::store::{History, Record};
use kstrobe_export::snapshot::Number;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The series that a query chooses.
struct Chosen<'a> {
    /// The newest definition of the metric.
    metric: &'a Metric,
    /// All definitions of the same kind and unit, by number, each with the group of each of its series.
    versions: BTreeMap<u32, (&'a Metric, Vec<Option<usize>>)>,
    /// Values of the labels that the query groups by.
    groups: Vec<Vec<Arc<str>>>,
}

pub(super) fn evaluate(
    history: &History,
    query: &Query,
    window: Window,
    records: &[&Record],
) -> Result<Answer, QueryError> {
    let chosen = choose(history, query)?;
    let metric = chosen.metric;
    let (groups, left_out, bounds) = match metric.shape() {
        Shape::Gauge => gauges(&chosen, query, window, records),
        _ => counts(&chosen, query, window, records),
    };
    let unit = metric.about.raw_per_unit;
    let in_range = records.iter().filter(|record| window.column(record.second.start).is_some());
    let sampled = in_range.flat_map(|record| &record.sampled).any(|probe| chosen.has_probe(probe));
    Ok(Answer {
        metric: metric.about.name.clone(),
        kind: kind(metric),
        unit: metric.about.unit.clone(),
        help: metric.about.help.clone(),
        probe: metric.probe.clone(),
        from: window.from,
        to: window.to,
        step: window.step,
        columns: window.columns(),
        bounds: bounds.into_iter().map(|bounds| exported(bounds, unit)).collect(),
        groups,
        left_out,
        sampled,
        marks: history.marks(window.from as f64, window.to as f64).cloned().collect(),
    })
}

/// The API's word for it.
pub(super) fn kind(metric: &Metric) -> &'static str {
    match metric.shape() {
        Shape::Counter => "counter",
        Shape::Gauge => "gauge",
        Shape::Histogram => "histogram",
    }
}

fn choose<'a>(history: &'a History, query: &Query) -> Result<Chosen<'a>, QueryError> {
    let is_named = |metric: &Metric| {
        let name = metric.about.name.as_str();
        name == query.metric || name.strip_prefix("kstrobe_") == Some(&query.metric)
    };
    let named = || history.registry.iter().filter(|(_, metric)| is_named(metric));
    let newest = named().max_by_key(|(number, metric)| (metric.seen, *number));
    let Some((_, metric)) = newest else { return Err(QueryError::Metric(query.metric.clone())) };
    let asked = query.matchers.iter().map(|matcher| &matcher.label).chain(&query.by);
    if let Some(label) = asked.into_iter().find(|label| !metric.about.label_names.contains(label)) {
        let labels = metric.about.label_names.clone();
        return Err(QueryError::Label { metric: metric.about.name.clone(), label: label.clone(), labels });
    }
    let is_same =
        |other: &Metric| other.about.kind == metric.about.kind && other.about.raw_per_unit == metric.about.raw_per_unit;
    let mut numbers: HashMap<Vec<Arc<str>>, usize> = HashMap::new();
    if query.by.is_empty() {
        numbers.insert(Vec::new(), 0);
    }
    let versions = named()
        .filter(|(_, other)| is_same(other))
        .map(|(number, version)| (number, (version, groups_of(version, query, &mut numbers))));
    let versions = versions.collect();
    let mut groups = vec![Vec::new(); numbers.len()];
    numbers.into_iter().for_each(|(values, number)| groups[number] = values);
    Ok(Chosen { metric, versions, groups })
}

/// The group of each series, by the series' number.
fn groups_of(metric: &Metric, query: &Query, numbers: &mut HashMap<Vec<Arc<str>>, usize>) -> Vec<Option<usize>> {
    let position = |label: &String| metric.about.label_names.iter().position(|name| name == label);
    let matched: Vec<_> = query.matchers.iter().map(|matcher| (matcher, position(&matcher.label))).collect();
    let by: Vec<_> = query.by.iter().map(position).collect();
    let mut groups = vec![None; metric.numbers()];
    for (number, entry) in metric.series() {
        let text = |position: Option<usize>| position.and_then(|at| entry.labels.get(at)).cloned().unwrap_or_default();
        if matched.iter().all(|(matcher, position)| matcher.accepts(&text(*position))) {
            let values: Vec<_> = by.iter().map(|position| text(*position)).collect();
            let next = numbers.len();
            groups[number as usize] = Some(*numbers.entry(values).or_insert(next));
        }
    }
    groups
}

impl Chosen<'_> {
    fn has_probe(&self, probe: &str) -> bool {
        self.versions.values().any(|(metric, _)| *metric.probe == *probe)
    }

    /// Calls `each` for each change of a chosen series: its definition, series, group and change.
    fn changes(&self, record: &Record, mut each: impl FnMut(u32, &Metric, u32, usize, Packed<'_>)) {
        for (number, section) in sections(&record.bytes) {
            let Some((metric, groups)) = self.versions.get(&number) else { continue };
            for (of, change) in series(section, metric.shape()) {
                if let Some(group) = groups.get(of as usize).copied().flatten() {
                    each(number, metric, of, group, change);
                }
            }
        }
    }

    fn labels(&self, query: &Query, group: usize) -> BTreeMap<String, Arc<str>> {
        query.by.iter().cloned().zip(self.groups[group].iter().cloned()).collect()
    }

    /// Numbers of the groups that are in the answer, largest first, and how many are left out. Those without a key have no part
    /// in it; equal ones are in the order of their labels.
    fn top(&self, query: &Query, keys: Vec<Option<f64>>) -> (Vec<usize>, usize) {
        let mut order: Vec<(f64, usize)> =
            keys.into_iter().enumerate().filter_map(|(group, key)| Some((key?, group))).collect();
        order
            .sort_by(|(a, left), (b, right)| b.total_cmp(a).then_with(|| self.groups[*left].cmp(&self.groups[*right])));
        let left_out = order.len().saturating_sub(query.top);
        (order.into_iter().take(query.top).map(|(_, group)| group).collect(), left_out)
    }
}

/// Seconds of each column that were sampled.
fn covered(window: Window, records: &[&Record]) -> Vec<u64> {
    let mut covered = vec![0; window.columns()];
    for record in records {
        if let Some(column) = window.column(record.second.start) {
            covered[column] += record.second.seconds;
        }
    }
    covered
}

type Groups = (Vec<Group>, usize, BTreeSet<Bounds>);

fn counts(chosen: &Chosen<'_>, query: &Query, window: Window, records: &[&Record]) -> Groups {
    let unit = chosen.metric.about.raw_per_unit;
    let in_range = || records.iter().filter_map(|record| Some((window.column(record.second.start)?, *record)));
    let mut totals = vec![None::<Sums>; chosen.groups.len()];
    for (_, record) in in_range() {
        chosen.changes(record, |_, metric, _, group, change| {
            totals[group].get_or_insert_default().add(change, metric.scheme.as_deref());
        });
    }
    if query.by.is_empty() {
        // One group of everything is there even if nothing was counted.
        totals[0].get_or_insert_default();
    }
    let is_counter = chosen.metric.shape() == Shape::Counter;
    let key = |sums: &Sums| match query.sort {
        _ if is_counter => sums.increase as f64,
        Sort::Count => sums.count() as f64,
        Sort::Sum => sums.sum as f64,
        Sort::P50 => sums.quantile(0.5, unit).unwrap_or(-1.0),
        Sort::P99 => sums.quantile(0.99, unit).unwrap_or(-1.0),
        Sort::Max => sums.buckets.keys().next_back().map_or(-1.0, |(_, upper)| *upper as f64),
    };
    let (top, left_out) = chosen.top(query, totals.iter().map(|sums| sums.as_ref().map(key)).collect());
    let mut places = vec![None; chosen.groups.len()];
    top.iter().enumerate().for_each(|(place, group)| places[*group] = Some(place));
    let mut columns = vec![vec![Sums::default(); window.columns()]; top.len()];
    for (column, record) in in_range() {
        chosen.changes(record, |_, metric, _, group, change| {
            if let Some(place) = places[group] {
                columns[place][column].add(change, metric.scheme.as_deref());
            }
        });
    }
    let totals: Vec<Sums> = top.iter().map(|group| totals[*group].take().unwrap_or_default()).collect();
    let bounds: BTreeSet<Bounds> = totals.iter().flat_map(|sums| sums.buckets.keys().copied()).collect();
    let numbers: HashMap<Bounds, u64> = bounds.iter().copied().zip(0..).collect();
    let covered = covered(window, records);
    let groups = top.iter().zip(totals).zip(columns).map(|((group, total), columns)| Group {
        labels: chosen.labels(query, *group),
        total: total_of(&total, is_counter, unit),
        values: values_of(&columns, &covered, &numbers, is_counter, unit),
    });
    (groups.collect(), left_out, bounds)
}

fn in_unit(raw: u64, unit: u64) -> f64 {
    kstrobe_export::quotient(raw, unit)
}

fn total_of(sums: &Sums, is_counter: bool, unit: u64) -> Total {
    if is_counter {
        return Total::Counter { count: in_unit(sums.increase, unit) };
    }
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| sums.quantile(share, unit));
    Total::Histogram { count: sums.count(), sum: in_unit(sums.sum, unit), p50, p90, p99, max: sums.max(unit) }
}

fn values_of(columns: &[Sums], covered: &[u64], numbers: &HashMap<Bounds, u64>, is_counter: bool, unit: u64) -> Values {
    let each = |value: &dyn Fn(&Sums, u64) -> Option<f64>| -> Vec<Option<f64>> {
        let columns = columns.iter().zip(covered);
        columns.map(|(sums, seconds)| (*seconds > 0).then(|| value(sums, *seconds)).flatten()).collect()
    };
    if is_counter {
        return Values::Counter { rate: each(&|sums, seconds| Some(in_unit(sums.increase, unit) / seconds as f64)) };
    }
    let heat = |sums: &Sums| sums.buckets.iter().flat_map(|(bounds, count)| [numbers[bounds], *count]).collect();
    Values::Histogram {
        rate: each(&|sums, seconds| Some(sums.count() as f64 / seconds as f64)),
        sum: each(&|sums, _| Some(in_unit(sums.sum, unit))),
        p50: each(&|sums, _| sums.quantile(0.5, unit)),
        p99: each(&|sums, _| sums.quantile(0.99, unit)),
        max: each(&|sums, _| sums.max(unit)),
        heat: columns.iter().map(heat).collect(),
    }
}

/// The values of gauges change in records, and last until the next change.
fn gauges(chosen: &Chosen<'_>, query: &Query, window: Window, records: &[&Record]) -> Groups {
    let unit = chosen.metric.about.raw_per_unit;
    let mut now: Vec<BTreeMap<(u32, u32), f64>> = vec![BTreeMap::new(); chosen.groups.len()];
    let set = |now: &mut Vec<BTreeMap<_, _>>, group: usize, series: (u32, u32), value: Option<Number>| match value {
        Some(value) => _ = now[group].insert(series, value.exported(unit)),
        None => _ = now[group].remove(&series),
    };
    for (number, (metric, groups)) in &chosen.versions {
        for (of, entry) in metric.series() {
            if let Some(group) = groups[of as usize] {
                set(&mut now, group, (*number, of), entry.base);
            }
        }
    }
    let mut values = vec![vec![None; window.columns()]; chosen.groups.len()];
    for record in records {
        chosen.changes(record, |number, _, of, group, change| {
            if let Packed::Gauge(value) = change {
                set(&mut now, group, (number, of), value);
            }
        });
        if let Some(column) = window.column(record.second.start) {
            for (group, series) in now.iter().enumerate() {
                values[group][column] = (!series.is_empty()).then(|| series.values().sum());
            }
        }
    }
    let totals: Vec<[Option<f64>; 3]> = values
        .iter()
        .map(|values| {
            let some = || values.iter().flatten().copied();
            [some().reduce(f64::min), some().reduce(f64::max), some().next_back()]
        })
        .collect();
    let keys = totals.iter().map(|[_, max, last]| if query.sort == Sort::Max { *max } else { *last });
    let keys = keys.map(|key| if query.by.is_empty() { key.or(Some(0.0)) } else { key });
    let (top, left_out) = chosen.top(query, keys.collect());
    let groups = top.into_iter().map(|group| {
        let [min, max, last] = totals[group];
        let value = std::mem::take(&mut values[group]);
        Group {
            labels: chosen.labels(query, group),
            total: Total::Gauge { min, max, last },
            values: Values::Gauge { value },
        }
    });
    (groups.collect(), left_out, BTreeSet::new())
}
