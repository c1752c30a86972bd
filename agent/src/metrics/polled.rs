//! The series of a poll probe: rows that the agent reads in user space become values.
//!
//! A counter's value is the running total that the source keeps, a gauge's is what it says now, and a histogram counts one
//! observation per row and reading. A counter or gauge whose row is gone from the source is gone here: absent is not zero.

use crate::metrics::labels::OTHER;
use kstrobe_ebpf::buckets::Scheme;
use kstrobe_ebpf::layout::Aggregate;
use kstrobe_export::snapshot::{Descriptor, Family, Histograms, LabelTexts, Moment, Number, Series, Values};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// One metric of a poll probe.
#[derive(Clone, Debug)]
pub struct PolledMetric {
    pub about: Arc<Descriptor>,
    pub kind: PolledKind,
    /// Most label sets; what comes after goes to the series whose labels are all `other`.
    pub max_series: usize,
}

/// What the values of a polled metric are.
#[derive(Clone, Debug)]
pub enum PolledKind {
    /// The source's running total; rows with equal labels are added.
    Counter,
    /// Of the rows of a reading that have equal labels.
    Gauge {
        /// Two's complement.
        signed: bool,
        keep: Aggregate,
    },
    /// Observations.
    Histogram(Arc<Scheme>),
}

/// The series of one poll probe.
pub struct PolledSeries {
    metrics: Vec<(PolledMetric, BTreeMap<LabelTexts, Row>)>,
    previous: SystemTime,
    overflowed: u64,
}

struct Row {
    /// `None` for a total that the source was counting before anybody looked.
    created: Option<SystemTime>,
    /// Of the reading before.
    old: u64,
    value: u64,
    seen: bool,
    counts: Vec<u64>,
}

impl PolledSeries {
    /// No reading yet; `born` is now.
    pub fn new(metrics: Vec<PolledMetric>, born: Moment) -> Self {
        let metrics = metrics.into_iter().map(|metric| (metric, BTreeMap::new())).collect();
        Self { metrics, previous: born.wall, overflowed: 0 }
    }

    pub fn has_histograms(&self) -> bool {
        self.metrics.iter().any(|(metric, _)| matches!(metric.kind, PolledKind::Histogram(_)))
    }

    /// Starts a reading. After a failed one call this and [`PolledSeries::finish`]: old values do not count as new.
    pub fn begin(&mut self) {
        for row in self.metrics.iter_mut().flat_map(|(_, rows)| rows.values_mut()) {
            row.seen = false;
        }
    }

    /// The row of these labels, or of `other` when there is no room for a new one.
    fn row(&mut self, metric: usize, labels: &[String]) -> Option<&mut Row> {
        let (metric, rows) = self.metrics.get_mut(metric)?;
        let mut labels: LabelTexts = labels.iter().map(|text| Arc::from(text.as_str())).collect();
        if !rows.contains_key(&labels) && rows.len() >= metric.max_series {
            labels = labels.iter().map(|_| Arc::from(OTHER)).collect();
            self.overflowed += 1;
        }
        let buckets = if let PolledKind::Histogram(scheme) = &metric.kind { scheme.buckets() } else { 0 };
        let created = (!matches!(metric.kind, PolledKind::Counter)).then_some(self.previous);
        let fresh = || Row { created, old: 0, value: 0, seen: false, counts: vec![0; buckets] };
        Some(rows.entry(labels).or_insert_with(fresh))
    }

    /// One row's value for one metric, with label texts in the metric's order.
    pub fn observe(&mut self, metric: usize, labels: &[String], value: u64) {
        let Some(kind) = self.metrics.get(metric).map(|(m, _)| m.kind.clone()) else { return };
        let Some(row) = self.row(metric, labels) else { return };
        let first = !std::mem::replace(&mut row.seen, true);
        match &kind {
            PolledKind::Counter if first => (row.old, row.value) = (row.value, value),
            PolledKind::Counter => row.value = row.value.wrapping_add(value),
            PolledKind::Gauge { .. } if first => row.value = value,
            PolledKind::Gauge { signed, keep } => row.value = keep.of(row.value, value, *signed),
            PolledKind::Histogram(scheme) => {
                row.value = row.value.wrapping_add(value);
                row.counts[scheme.index(value)] += 1;
            }
        }
    }

    /// Adds one reading's observations to a histogram, given by in-kernel bucket.
    pub fn merge(&mut self, metric: usize, labels: &[String], sum: u64, counts: &[u64]) {
        let Some(row) = self.row(metric, labels) else { return };
        row.seen = true;
        row.value = row.value.wrapping_add(sum);
        for (total, count) in row.counts.iter_mut().zip(counts) {
            *total += count;
        }
    }

    /// Ends a reading: rows that were not in it are forgotten (histograms are kept), and a total that went back is a new
    /// series from here on.
    pub fn finish(&mut self, now: Moment) {
        for (metric, rows) in &mut self.metrics {
            if !matches!(metric.kind, PolledKind::Histogram(_)) {
                rows.retain(|_, row| row.seen);
            }
            if matches!(metric.kind, PolledKind::Counter) {
                for row in rows.values_mut().filter(|row| row.value < row.old) {
                    row.created = Some(self.previous);
                }
            }
        }
        self.previous = now.wall;
    }

    /// Rows that went to the `other` series.
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// The last reading, one family per metric.
    pub fn families(&self) -> Vec<Family> {
        self.metrics.iter().map(|(metric, rows)| family(metric, rows)).collect()
    }
}

fn family(metric: &PolledMetric, rows: &BTreeMap<LabelTexts, Row>) -> Family {
    let series = rows.iter().map(|(labels, row)| Series { labels: labels.clone(), created: row.created }).collect();
    let raw = rows.values().map(|row| row.value);
    let values = match &metric.kind {
        PolledKind::Counter => Values::Counters(raw.collect()),
        PolledKind::Gauge { signed: false, .. } => Values::Gauges(raw.map(Number::Unsigned).collect()),
        PolledKind::Gauge { signed: true, .. } => {
            Values::Gauges(raw.map(|value| Number::Signed(value as i64)).collect())
        }
        PolledKind::Histogram(scheme) => Values::Histograms(Histograms {
            scheme: scheme.clone(),
            sums: raw.collect(),
            counts: rows.values().flat_map(|row| row.counts.iter().copied()).collect(),
        }),
    };
    let columns = (0..metric.about.label_names.len() as u32).collect();
    Family { about: metric.about.clone(), columns, series, values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_ebpf::buckets::BucketSpec;
    use kstrobe_export::delta::difference;
    use kstrobe_export::snapshot::{Kind, Snapshot};

    fn metric(kind: PolledKind, max_series: usize) -> PolledMetric {
        let about = Descriptor {
            name: "kstrobe_x".into(),
            help: "X.".into(),
            kind: Kind::Gauge,
            unit: String::new(),
            raw_per_unit: 1,
            label_names: vec!["port".into()],
        };
        PolledMetric { about: Arc::new(about), kind, max_series }
    }

    fn read(polled: &mut PolledSeries, rows: &[(&str, u64)]) -> Vec<Family> {
        polled.begin();
        for (label, value) in rows {
            polled.observe(0, &[(*label).to_owned()], *value);
        }
        polled.finish(Moment::now());
        polled.families()
    }

    fn texts(family: &Family) -> Vec<&str> {
        family.series.iter().map(|series| family.label(series, 0)).collect()
    }

    #[test]
    fn rows_with_equal_labels_are_what_the_gauge_keeps() {
        let kept = Aggregate::ALL.map(|keep| {
            let about = metric(PolledKind::Gauge { signed: true, keep }, 10);
            let mut polled = PolledSeries::new(vec![about], Moment::now());
            read(&mut polled, &[("a", 1)]);
            read(&mut polled, &[("a", 3), ("a", -4i64 as u64), ("a", 2)])[0].values.clone()
        });
        let gauge = |value| Values::Gauges(vec![Number::Signed(value)]);
        assert_eq!(kept, [2, -4, 3, 1].map(gauge), "of one reading: last, min, max, sum");
    }

    #[test]
    fn a_row_that_is_gone_is_absent() {
        let mut polled = PolledSeries::new(
            vec![metric(PolledKind::Gauge { signed: false, keep: Aggregate::Last }, 10)],
            Moment::now(),
        );
        let families = read(&mut polled, &[("80", 3), ("22", 0)]);
        assert_eq!(texts(&families[0]), ["22", "80"]);
        assert_eq!(families[0].values, Values::Gauges(vec![Number::Unsigned(0), Number::Unsigned(3)]));
        assert_eq!(texts(&read(&mut polled, &[("80", 1)])[0]), ["80"]);
        assert!(read(&mut polled, &[])[0].is_empty());
    }

    #[test]
    fn totals_are_added_and_a_fall_starts_a_new_series() {
        let mut polled = PolledSeries::new(vec![metric(PolledKind::Counter, 10)], Moment::now());
        let first = read(&mut polled, &[("80", 3), ("80", 4)]);
        assert_eq!(first[0].values, Values::Counters(vec![7]));
        assert_eq!(first[0].series[0].created, None);
        let more = read(&mut polled, &[("80", 9)]);
        assert_eq!(more[0].series, first[0].series);
        let before = polled.previous;
        let fell = read(&mut polled, &[("80", 2)]);
        assert_eq!(fell[0].values, Values::Counters(vec![2]));
        assert_eq!(fell[0].series[0].created, Some(before));
        assert_eq!(read(&mut polled, &[("80", 3)])[0].series, fell[0].series);
    }

    #[test]
    fn a_total_from_before_the_agent_is_not_told_as_new() {
        let mut polled = PolledSeries::new(vec![metric(PolledKind::Counter, 10)], Moment::now());
        let mut snapshot = |rows: &[(&str, u64)]| Snapshot { at: SystemTime::now(), families: read(&mut polled, rows) };
        let (first, second) = (snapshot(&[("80", 1_000_000)]), snapshot(&[("80", 1_000_003), ("22", 5)]));
        assert!(difference(None, &first).families.is_empty());
        let new = difference(Some(&first), &second);
        assert_eq!(new.families[0].values, Values::Counters(vec![3]));
        assert_eq!(new.families[0].series[0].created, Some(first.at));
        // A reading that failed: the total fell nowhere, and what came meanwhile is not counted twice.
        snapshot(&[]);
        let third = snapshot(&[("80", 1_000_004), ("22", 5)]);
        assert_eq!(difference(Some(&second), &third).families[0].values, Values::Counters(vec![1]));
    }

    #[test]
    fn what_finds_no_room_is_other_and_counted() {
        let mut polled = PolledSeries::new(vec![metric(PolledKind::Counter, 2)], Moment::now());
        let families = read(&mut polled, &[("1", 1), ("2", 2), ("3", 3), ("4", 4)]);
        assert_eq!(texts(&families[0]), ["1", "2", OTHER]);
        assert_eq!(families[0].values, Values::Counters(vec![1, 2, 7]));
        assert_eq!(polled.overflowed(), 2);
    }

    #[test]
    fn histograms_keep_counting() {
        let spec = BucketSpec { schema: 0, raw_per_unit: 1, min: 1, max: 4, classic: vec![] };
        let scheme = Arc::new(Scheme::new(&spec).unwrap());
        assert_eq!(scheme.upper, [0, 1, 2, 4]);
        let mut polled = PolledSeries::new(vec![metric(PolledKind::Histogram(scheme), 10)], Moment::now());
        read(&mut polled, &[("80", 1), ("80", 2)]);
        read(&mut polled, &[]);
        let Values::Histograms(histograms) = &read(&mut polled, &[("80", 5)])[0].values else { panic!("histogram") };
        assert_eq!((histograms.counts_of(0), histograms.sums[0]), ([0, 1, 1, 0, 1].as_slice(), 8));
    }
}
