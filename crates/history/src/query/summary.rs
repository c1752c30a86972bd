//! All metrics at once: the list of what there is, and the seconds as they come.

use super::answer::{MetricSummary, Overview, SecondSummary};
use super::evaluate::kind;
use super::sums::{Bounds, Sums, exported};
use crate::record::{Packed, Shape, sections, series};
use crate::registry::Metric;
use crate::store::{History, Record};
use kstrobe_export::quotient;
use std::collections::{BTreeMap, HashMap};

/// Seconds that the overview looks at: those of the newest readings that cover as many, or more.
const RECENT: u64 = 10;

impl History {
    /// What there is, with figures of the last 10 s; with `heat`, also with the counts by bucket that they are made of.
    pub fn overview(&self, heat: bool) -> Overview {
        let usage = self.usage();
        let mut left = RECENT;
        let is_oldest = |record: &Record| {
            left = left.saturating_sub(record.second.seconds);
            left == 0
        };
        let start = self.records.iter().rposition(is_oldest).unwrap_or(0);
        let recent: Vec<&Record> = self.records.range(start..).collect();
        let (metrics, bounds) = self.summaries(&recent, self.end(), heat);
        let starts = || self.records.iter().map(|record| record.second);
        Overview {
            oldest: starts().map(|second| second.start + 1 - second.seconds).min(),
            newest: starts().map(|second| second.start + 1).max(),
            step: 1,
            bytes: usage.bytes,
            max_bytes: self.limits().bytes,
            lost_seconds: usage.lost.late + usage.lost.memory,
            disk: None,
            bounds: heat.then_some(bounds),
            metrics,
        }
    }

    /// One second of all metrics; `None` when it is not kept.
    pub fn summary(&self, number: u64) -> Option<SecondSummary> {
        let record = self.record(number)?;
        let (metrics, bounds) = self.summaries(&[record], number + 1, true);
        let second = record.second;
        let from = second.start + 1 - second.seconds;
        let marks = self.marks(from as f64, (second.start + 1) as f64).cloned().collect();
        Some(SecondSummary { time: second.start, bounds, metrics, marks })
    }

    /// Of each metric by its newest definition; gauges as they were at the end of the record before number `end`. With `heat`, the
    /// bounds that occur, and the counts.
    fn summaries(&self, records: &[&Record], end: u64, heat: bool) -> (Vec<MetricSummary>, Vec<(f64, Option<f64>)>) {
        let mut newest: BTreeMap<&str, (u32, &Metric)> = BTreeMap::new();
        for (number, metric) in self.registry.iter() {
            let known = newest.entry(&metric.about.name).or_insert((number, metric));
            if (metric.seen, number) > (known.1.seen, known.0) {
                *known = (number, metric);
            }
        }
        let mut sums: HashMap<u32, Sums> = HashMap::new();
        for record in records {
            for (number, section) in sections(&record.bytes) {
                let Some(metric) = self.registry.get(number).filter(|metric| metric.shape() != Shape::Gauge) else {
                    continue;
                };
                let sums = sums.entry(number).or_default();
                series(section, metric.shape()).for_each(|(_, change)| sums.add(change, metric.scheme.as_deref()));
            }
        }
        let values = self.gauges(end);
        let seconds: u64 = records.iter().map(|record| record.second.seconds).sum();
        let mut bounds: BTreeMap<(Bounds, u64), usize> = BTreeMap::new();
        if heat {
            for (number, metric) in newest.values() {
                let unit = metric.about.raw_per_unit;
                let keys = sums.get(number).into_iter().flat_map(|sums| sums.buckets.keys());
                bounds.extend(keys.map(|key| ((*key, unit), 0)));
            }
            bounds.values_mut().enumerate().for_each(|(at, number)| *number = at);
        }
        let summaries = newest.into_values().map(|(number, metric)| {
            let sampled = records.iter().flat_map(|record| &record.sampled).any(|probe| **probe == *metric.probe);
            let figures = Figures { sums: sums.get(&number), value: values.get(&number).copied(), seconds, sampled };
            summary(metric, &figures, heat.then_some(&bounds))
        });
        let summaries = summaries.collect();
        (summaries, bounds.into_keys().map(|(bounds, unit)| exported(bounds, unit)).collect())
    }

    /// The value of each metric that is a gauge before record number `end`: the sum over its series.
    fn gauges(&self, end: u64) -> HashMap<u32, f64> {
        let mut values: HashMap<u32, BTreeMap<u32, f64>> = HashMap::new();
        for (number, metric) in self.registry.iter().filter(|(_, metric)| metric.shape() == Shape::Gauge) {
            let unit = metric.about.raw_per_unit;
            let based = metric.series().filter_map(|(of, entry)| Some((of, entry.base?.exported(unit))));
            values.insert(number, based.collect());
        }
        let kept = (end.saturating_sub(self.end() - self.records.len() as u64)) as usize;
        for record in self.records.iter().take(kept) {
            for (number, section) in sections(&record.bytes) {
                let (Some(of_metric), Some(metric)) = (values.get_mut(&number), self.registry.get(number)) else {
                    continue;
                };
                for (of, change) in series(section, Shape::Gauge) {
                    match change {
                        Packed::Gauge(Some(value)) => {
                            _ = of_metric.insert(of, value.exported(metric.about.raw_per_unit))
                        }
                        _ => _ = of_metric.remove(&of),
                    }
                }
            }
        }
        values.retain(|_, series| !series.is_empty());
        values.into_iter().map(|(number, series)| (number, series.into_values().sum())).collect()
    }
}

struct Figures<'a> {
    sums: Option<&'a Sums>,
    value: Option<f64>,
    seconds: u64,
    sampled: bool,
}

fn summary(metric: &Metric, figures: &Figures<'_>, bounds: Option<&BTreeMap<(Bounds, u64), usize>>) -> MetricSummary {
    let about = &metric.about;
    let unit = about.raw_per_unit;
    let none = Sums::default();
    let sums = figures.sums.unwrap_or(&none);
    let count = match metric.shape() {
        Shape::Counter => Some(quotient(sums.increase, unit)),
        Shape::Histogram => Some(sums.count() as f64),
        Shape::Gauge => None,
    };
    let number = |bounds: &BTreeMap<_, usize>, of: &Bounds| bounds.get(&(*of, unit)).map_or(0, |at| *at as u64);
    let heat = |bounds| sums.buckets.iter().flat_map(|(of, count)| [number(bounds, of), *count]).collect();
    MetricSummary {
        metric: about.name.clone(),
        kind: kind(about.kind),
        unit: about.unit.clone(),
        help: about.help.clone(),
        probe: metric.probe.clone(),
        labels: about.label_names.clone(),
        series: metric.count(),
        rate: count.map(|count| if figures.seconds == 0 { 0.0 } else { count / figures.seconds as f64 }),
        count,
        p50: sums.quantile(0.5, unit),
        p99: sums.quantile(0.99, unit),
        max: sums.max(unit),
        value: figures.value,
        sampled: figures.sampled,
        heat: bounds.filter(|_| metric.shape() == Shape::Histogram).map(heat),
    }
}
