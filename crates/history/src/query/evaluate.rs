//! From records to an answer: once over the range for the sums by which groups are ordered, once more for the columns of those
//! groups that are in the answer. The parts of a long range are looked at one after the other, so that one is in memory at a time.

use super::answer::{Answer, Group, Total, Values};
use super::sums::{Bounds, Sums, exported};
use super::{Query, QueryError, Sort, Window};
use crate::mark::Mark;
use crate::record::{Packed, Shape, sections, series};
use crate::registry::Metric;
use crate::store::{History, Record};
use kstrobe_ebpf::buckets::Scheme;
use kstrobe_export::snapshot::{Descriptor, Kind, Number};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A part of a history.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    /// Has the names, and the marks.
    pub history: &'a History,
    /// Those that count.
    pub records: &'a [&'a Record],
    /// What comes from then on is in a newer part.
    pub until: u64,
}

/// Calls its argument with each part of a history, the newest first.
pub(super) type Parts<'p> = &'p dyn Fn(&mut dyn FnMut(&Part<'_>));

/// What a query is about, and what all parts of its answer share.
struct Chosen<'q> {
    query: &'q Query,
    window: Window,
    /// The newest definition of the metric, with its probe.
    newest: Option<(Arc<Descriptor>, Arc<str>)>,
    /// Groups by the values of the labels that the query groups by.
    numbers: HashMap<Vec<Arc<str>>, usize>,
    /// Seconds of each column that were sampled.
    covered: Vec<u64>,
    /// Whether a probe was not measured whole.
    sampled: bool,
    marks: Vec<Mark>,
}

/// All definitions in one part that are of the same kind and unit, by number, each with the group of each of its series.
struct Versions<'h>(BTreeMap<u32, (&'h Metric, Vec<Option<usize>>)>);

pub(super) fn evaluate(parts: Parts<'_>, query: &Query, window: Window) -> Result<Answer, QueryError> {
    let mut chosen = Chosen {
        query,
        window,
        newest: None,
        numbers: HashMap::new(),
        covered: vec![0; window.columns()],
        sampled: false,
        marks: Vec::new(),
    };
    if query.by.is_empty() {
        // One group of everything is there even if nothing was counted.
        chosen.numbers.insert(Vec::new(), 0);
    }
    let mut wrong = None;
    let mut totals = Vec::new();
    // Of one group of everything there is nothing to choose: its columns are made at once.
    let mut columns = vec![vec![Sums::default(); window.columns()]; usize::from(query.by.is_empty())];
    let mut gauges = Gauges::default();
    parts(&mut |part| match chosen.look(part) {
        Ok(versions) if chosen.shape() == Some(Shape::Gauge) => gauges.add(&chosen, &versions, part.records),
        Ok(versions) if query.by.is_empty() => versions.count(window, part.records, |column, _, change, scheme| {
            columns[0][column].add(change, scheme);
        }),
        Ok(versions) => versions.count(window, part.records, |_, group, change, scheme| {
            if totals.len() <= group {
                totals.resize_with(group + 1, || None);
            }
            totals[group].get_or_insert_with(Sums::default).add(change, scheme);
        }),
        Err(error) => wrong = wrong.take().or(Some(error)),
    });
    if let Some(error) = wrong {
        return Err(error);
    }
    let Some((about, probe)) = chosen.newest.clone() else { return Err(QueryError::Metric(query.metric.clone())) };
    let (groups, left_out, bounds) = match about.kind {
        Kind::Gauge => gauges.groups(&chosen),
        _ if query.by.is_empty() => {
            let mut total = Sums::default();
            columns[0].iter().for_each(|column| total.merge(column));
            groups(&chosen, &about, &[0], vec![total], columns, 0)
        }
        _ => counts(&mut chosen, &about, parts, totals),
    };
    let mut marks = std::mem::take(&mut chosen.marks);
    marks.sort_by(|a, b| a.time.total_cmp(&b.time));
    let unit = about.raw_per_unit;
    Ok(Answer {
        metric: about.name.clone(),
        kind: kind(about.kind),
        unit: about.unit.clone(),
        help: about.help.clone(),
        probe,
        from: window.from,
        to: window.to,
        step: window.step,
        columns: window.columns(),
        bounds: bounds.into_iter().map(|bounds| exported(bounds, unit)).collect(),
        groups,
        left_out,
        sampled: chosen.sampled,
        marks,
    })
}

/// The API's word for it.
pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

impl Chosen<'_> {
    /// Takes from a part what does not depend on values, and returns the definitions in it.
    fn look<'h>(&mut self, part: &Part<'h>) -> Result<Versions<'h>, QueryError> {
        let (window, Part { history, records, until }) = (self.window, *part);
        for record in records {
            if let Some(column) = window.column(record.second.start) {
                self.covered[column] += record.second.seconds;
            }
        }
        self.marks.extend(history.marks(window.from as f64, window.to.min(until) as f64).cloned());
        let versions = self.choose(history)?;
        let has_probe = |probe: &Arc<str>| versions.0.values().any(|(metric, _)| metric.probe == *probe);
        let in_range = records.iter().filter(|record| window.column(record.second.start).is_some());
        self.sampled |= in_range.flat_map(|record| &record.sampled).any(has_probe);
        Ok(versions)
    }

    fn choose<'h>(&mut self, history: &'h History) -> Result<Versions<'h>, QueryError> {
        let query = self.query;
        let is_named = |metric: &Metric| {
            let name = metric.about.name.as_str();
            name == query.metric || name.strip_prefix("kstrobe_") == Some(&query.metric)
        };
        let named = || history.registry.iter().filter(|(_, metric)| is_named(metric));
        let newest = named().max_by_key(|(number, metric)| (metric.seen, *number));
        if let (None, Some((_, metric))) = (&self.newest, newest) {
            let asked = query.matchers.iter().map(|matcher| &matcher.label).chain(&query.by);
            if let Some(label) = asked.into_iter().find(|label| !metric.about.label_names.contains(label)) {
                let labels = metric.about.label_names.clone();
                return Err(QueryError::Label { metric: metric.about.name.clone(), label: label.clone(), labels });
            }
            self.newest = Some((metric.about.clone(), metric.probe.clone()));
        }
        let Some((about, _)) = self.newest.clone() else { return Ok(Versions(BTreeMap::new())) };
        let is_same = |other: &Metric| other.about.kind == about.kind && other.about.raw_per_unit == about.raw_per_unit;
        let versions = named()
            .filter(|(_, other)| is_same(other))
            .map(|(number, version)| (number, (version, self.groups_of(version))));
        Ok(Versions(versions.collect()))
    }

    /// The group of each series, by the series' number.
    fn groups_of(&mut self, metric: &Metric) -> Vec<Option<usize>> {
        let position = |label: &String| metric.about.label_names.iter().position(|name| name == label);
        let matched: Vec<_> = self.query.matchers.iter().map(|matcher| (matcher, position(&matcher.label))).collect();
        let by: Vec<_> = self.query.by.iter().map(position).collect();
        let mut groups = vec![None; metric.numbers()];
        for (number, entry) in metric.series() {
            let text =
                |position: Option<usize>| position.and_then(|at| entry.labels.get(at)).cloned().unwrap_or_default();
            if matched.iter().all(|(matcher, position)| matcher.accepts(&text(*position))) {
                let values: Vec<_> = by.iter().map(|position| text(*position)).collect();
                let next = self.numbers.len();
                groups[number as usize] = Some(*self.numbers.entry(values).or_insert(next));
            }
        }
        groups
    }

    fn shape(&self) -> Option<Shape> {
        self.newest.as_ref().map(|(about, _)| Shape::of(about.kind))
    }

    /// Values of the labels of each group.
    fn values(&self) -> Vec<&[Arc<str>]> {
        let mut values: Vec<&[Arc<str>]> = vec![&[]; self.numbers.len()];
        self.numbers.iter().for_each(|(of, number)| values[*number] = of);
        values
    }

    fn labels(&self, values: &[Arc<str>]) -> BTreeMap<String, Arc<str>> {
        self.query.by.iter().cloned().zip(values.iter().cloned()).collect()
    }

    /// Numbers of the groups that are in the answer, largest first, and how many are left out. Those without a key have no part
    /// in it; equal ones are in the order of their labels.
    fn top(&self, keys: Vec<Option<f64>>) -> (Vec<usize>, usize) {
        let mut order: Vec<(f64, usize)> =
            keys.into_iter().enumerate().filter_map(|(group, key)| Some((key?, group))).collect();
        let values = self.values();
        order.sort_by(|(a, left), (b, right)| b.total_cmp(a).then_with(|| values[*left].cmp(values[*right])));
        let left_out = order.len().saturating_sub(self.query.top);
        (order.into_iter().take(self.query.top).map(|(_, group)| group).collect(), left_out)
    }
}

impl Versions<'_> {
    /// Calls `each` for each change of a chosen series: its definition's number, series, group, change and buckets.
    fn changes<'r>(&self, record: &'r Record, mut each: impl FnMut((u32, u32), usize, Packed<'r>, Option<&Scheme>)) {
        for (number, section) in sections(&record.bytes) {
            let Some((metric, groups)) = self.0.get(&number) else { continue };
            for (of, change) in series(section, metric.shape()) {
                if let Some(group) = groups.get(of as usize).copied().flatten() {
                    each((number, of), group, change, metric.scheme.as_deref());
                }
            }
        }
    }

    /// The same for all records in the window, each change with its column and group.
    fn count<'r>(
        &self,
        window: Window,
        records: &[&'r Record],
        mut each: impl FnMut(usize, usize, Packed<'r>, Option<&Scheme>),
    ) {
        for record in records {
            if let Some(column) = window.column(record.second.start) {
                self.changes(record, |_, group, change, scheme| each(column, group, change, scheme));
            }
        }
    }
}

type Groups = (Vec<Group>, usize, BTreeSet<Bounds>);

/// Chooses groups by their totals, and goes over the parts once more for their columns.
fn counts(chosen: &mut Chosen<'_>, about: &Descriptor, parts: Parts<'_>, mut totals: Vec<Option<Sums>>) -> Groups {
    let (query, window, unit) = (chosen.query, chosen.window, about.raw_per_unit);
    let key = |sums: &Sums| match query.sort {
        _ if about.kind == Kind::Counter => sums.increase as f64,
        Sort::Count => sums.count() as f64,
        Sort::Sum => sums.sum as f64,
        Sort::P50 => sums.quantile(0.5, unit).unwrap_or(-1.0),
        Sort::P99 => sums.quantile(0.99, unit).unwrap_or(-1.0),
        Sort::Max => sums.buckets.keys().next_back().map_or(-1.0, |(_, upper)| *upper as f64),
    };
    let (top, left_out) = chosen.top(totals.iter().map(|sums| sums.as_ref().map(key)).collect());
    let places: HashMap<usize, usize> = top.iter().copied().zip(0..).collect();
    let mut columns = vec![vec![Sums::default(); window.columns()]; top.len()];
    parts(&mut |part| {
        // What the first look has found is not wrong now.
        let Ok(versions) = chosen.choose(part.history) else { return };
        versions.count(window, part.records, |column, group, change, scheme| {
            if let Some(place) = places.get(&group) {
                columns[*place][column].add(change, scheme);
            }
        });
    });
    let totals = top.iter().map(|group| totals[*group].take().unwrap_or_default()).collect();
    groups(chosen, about, &top, totals, columns, left_out)
}

fn groups(
    chosen: &Chosen<'_>,
    about: &Descriptor,
    top: &[usize],
    totals: Vec<Sums>,
    columns: Vec<Vec<Sums>>,
    left_out: usize,
) -> Groups {
    let (unit, is_counter) = (about.raw_per_unit, about.kind == Kind::Counter);
    let bounds: BTreeSet<Bounds> = totals.iter().flat_map(|sums| sums.buckets.keys().copied()).collect();
    let numbers: HashMap<Bounds, u64> = bounds.iter().copied().zip(0..).collect();
    let values = chosen.values();
    let groups = top.iter().zip(totals).zip(columns).map(|((group, total), columns)| Group {
        labels: chosen.labels(values[*group]),
        total: total_of(&total, is_counter, unit),
        values: values_of(&columns, &chosen.covered, &numbers, is_counter, unit),
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
#[derive(Default)]
struct Gauges {
    /// By group and column.
    values: Vec<Vec<Option<f64>>>,
    /// Columns that a newer part has the end of.
    newer: Vec<bool>,
}

impl Gauges {
    fn add(&mut self, chosen: &Chosen<'_>, versions: &Versions<'_>, records: &[&Record]) {
        let (window, groups) = (chosen.window, chosen.numbers.len());
        let unit = chosen.newest.as_ref().map_or(1, |(about, _)| about.raw_per_unit);
        self.values.resize(groups, vec![None; window.columns()]);
        self.newer.resize(window.columns(), false);
        let mut now: Vec<BTreeMap<(u32, u32), f64>> = vec![BTreeMap::new(); groups];
        let set = |now: &mut Vec<BTreeMap<_, _>>, group: usize, series: (u32, u32), value: Option<Number>| match value {
            Some(value) => _ = now[group].insert(series, value.exported(unit)),
            None => _ = now[group].remove(&series),
        };
        for (number, (metric, groups)) in &versions.0 {
            for (of, entry) in metric.series() {
                if let Some(group) = groups[of as usize] {
                    set(&mut now, group, (*number, of), entry.base);
                }
            }
        }
        let mut own = BTreeSet::new();
        for record in records {
            versions.changes(record, |series, group, change, _| {
                if let Packed::Gauge(value) = change {
                    set(&mut now, group, series, value);
                }
            });
            if let Some(column) = window.column(record.second.start).filter(|column| !self.newer[*column]) {
                own.insert(column);
                for (group, series) in now.iter().enumerate() {
                    self.values[group][column] = (!series.is_empty()).then(|| series.values().sum());
                }
            }
        }
        own.into_iter().for_each(|column| self.newer[column] = true);
    }

    fn groups(mut self, chosen: &Chosen<'_>) -> Groups {
        let query = chosen.query;
        let totals: Vec<[Option<f64>; 3]> = self
            .values
            .iter()
            .map(|values| {
                let some = || values.iter().flatten().copied();
                [some().reduce(f64::min), some().reduce(f64::max), some().next_back()]
            })
            .collect();
        let keys = totals.iter().map(|[_, max, last]| if query.sort == Sort::Max { *max } else { *last });
        let keys = keys.map(|key| if query.by.is_empty() { key.or(Some(0.0)) } else { key });
        let (top, left_out) = chosen.top(keys.collect());
        let labels = chosen.values();
        let groups = top.into_iter().map(|group| {
            let [min, max, last] = totals[group];
            let value = std::mem::take(&mut self.values[group]);
            Group {
                labels: chosen.labels(labels[group]),
                total: Total::Gauge { min, max, last },
                values: Values::Gauge { value },
            }
        });
        (groups.collect(), left_out, BTreeSet::new())
    }
}
