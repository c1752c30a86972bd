//! Numbers of metrics and series, by which records name them.

use crate::cursor::{Change, Labels, MetricChanges};
use crate::record::{self, Packed, Shape};
use crate::store::ProbeChanges;
use kstrobe_ebpf::buckets::Scheme;
use kstrobe_export::snapshot::{Descriptor, Number};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Memory of a series beside the texts of its labels, in bytes, nearly: its entry, and its key in the map.
const SERIES_BYTES: usize = 160;

/// All metrics that occur in the history, or in the last reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    /// By number; `None` is a number that is free again.
    metrics: Vec<Option<Metric>>,
    bytes: usize,
}

/// A metric as one probe defined it. Another definition of the same name is another entry.
#[derive(Clone, Debug)]
pub(crate) struct Metric {
    pub about: Arc<Descriptor>,
    pub probe: Arc<str>,
    /// Of a histogram, once it has a series.
    pub scheme: Option<Arc<Scheme>>,
    /// Number of the last record in which a reading had it.
    pub seen: u64,
    /// By number; `None` is a number that is free again.
    series: Vec<Option<Entry>>,
    numbers: HashMap<Labels, u32>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub labels: Labels,
    /// Number of the last record that names it.
    last: u64,
    /// Of a gauge: its value before the first record that is kept.
    pub base: Option<Number>,
    /// Whether it is a gauge that has a value now.
    live: bool,
}

impl Metric {
    fn new(about: Arc<Descriptor>, probe: Arc<str>, scheme: Option<Arc<Scheme>>, seen: u64) -> Metric {
        Metric { about, probe, scheme, seen, series: Vec::new(), numbers: HashMap::new(), free: Vec::new() }
    }

    pub fn shape(&self) -> Shape {
        Shape::of(self.about.kind)
    }

    /// `None` when there is no such series.
    pub fn labels(&self, series: u32) -> Option<&Labels> {
        self.series.get(series as usize)?.as_ref().map(|entry| &entry.labels)
    }

    /// The series with their numbers.
    pub fn series(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.series.iter().enumerate().filter_map(|(number, entry)| Some((number as u32, entry.as_ref()?)))
    }

    /// One more than the largest number of a series.
    pub fn numbers(&self) -> usize {
        self.series.len()
    }

    /// Series that occur.
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    fn is(&self, probe: &str, changes: &MetricChanges) -> bool {
        let same_about = Arc::ptr_eq(&self.about, &changes.about) || self.about == changes.about;
        let same_scheme = match (&self.scheme, &changes.scheme) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other) || own == other,
            _ => true,
        };
        same_about && same_scheme && *self.probe == *probe
    }

    /// The number of a series, which record `record` names.
    fn number(&mut self, labels: &Labels, record: u64, bytes: &mut usize) -> u32 {
        if let Some(&number) = self.numbers.get(labels) {
            return number;
        }
        let number = self.free.pop().unwrap_or(self.series.len() as u32);
        if number as usize == self.series.len() {
            self.series.push(None);
        }
        *bytes += series_bytes(labels);
        self.numbers.insert(labels.clone(), number);
        self.series[number as usize] = Some(Entry { labels: labels.clone(), last: record, base: None, live: false });
        number
    }
}

fn series_bytes(labels: &Labels) -> usize {
    SERIES_BYTES + labels.iter().map(|text| 2 * size_of::<Arc<str>>() + text.len()).sum::<usize>()
}

impl Registry {
    /// Packs the changes of a second as record number `record`. Probes may occur twice, such as before and after a reload: their
    /// changes are added.
    pub fn pack(&mut self, record: u64, probes: &[ProbeChanges]) -> Box<[u8]> {
        let mut changes: BTreeMap<(u32, u32), Change> = BTreeMap::new();
        for of_probe in probes {
            for of_metric in &of_probe.metrics {
                let metric = self.metric(&of_probe.probe, of_metric, record);
                for row in &of_metric.rows {
                    let live = matches!(row.change, Change::Gauge(Some(_)));
                    let series = self.series(metric, &row.labels, record, live);
                    changes
                        .entry((metric, series))
                        .and_modify(|sum| sum.add(&row.change))
                        .or_insert(row.change.clone());
                }
            }
        }
        record::pack(changes.iter().map(|((metric, series), change)| (*metric, *series, change)))
    }

    /// Takes the values of gauges out of a record before which nothing will be asked.
    pub fn settle(&mut self, record: &[u8]) {
        for (metric, section) in record::sections(record) {
            if self.get(metric).is_some_and(|metric| metric.shape() == Shape::Gauge) {
                for (series, change) in record::series(section, Shape::Gauge) {
                    if let Packed::Gauge(value) = change {
                        self.set_base(metric, series, value);
                    }
                }
            }
        }
    }

    /// Adds a metric under the next number, or its buckets to one that had none yet. `None` when the number is another.
    pub fn define(
        &mut self,
        number: u32,
        about: Descriptor,
        probe: Arc<str>,
        scheme: Option<Arc<Scheme>>,
    ) -> Option<()> {
        if let Some(known) = self.metrics.get_mut(number as usize) {
            known.as_mut()?.scheme = scheme;
            return Some(());
        }
        let is_next = number as usize == self.metrics.len();
        is_next.then(|| self.metrics.push(Some(Metric::new(about.into(), probe, scheme, 0))))
    }

    /// Adds a series under the next number of its metric. `None` where there is no such metric.
    pub fn define_series(&mut self, metric: u32, labels: &Labels) -> Option<()> {
        let metric = self.metrics.get_mut(metric as usize)?.as_mut()?;
        metric.number(labels, 0, &mut self.bytes);
        Some(())
    }

    /// To be called for each record that names the metric, in their order.
    pub fn see(&mut self, metric: u32, record: u64) {
        if let Some(Some(metric)) = self.metrics.get_mut(metric as usize) {
            metric.seen = record;
        }
    }

    /// The number of a metric that a reading has.
    pub fn metric(&mut self, probe: &Arc<str>, changes: &MetricChanges, record: u64) -> u32 {
        let known = self.metrics.iter_mut().enumerate().find_map(|(number, metric)| {
            let metric = metric.as_mut().filter(|metric| metric.is(probe, changes))?;
            Some((number, metric))
        });
        if let Some((number, metric)) = known {
            metric.seen = record;
            if metric.scheme.is_none() {
                metric.scheme = changes.scheme.clone();
            }
            return number as u32;
        }
        let metric = Metric::new(changes.about.clone(), probe.clone(), changes.scheme.clone(), record);
        let number = self.metrics.iter().position(Option::is_none).unwrap_or(self.metrics.len());
        match self.metrics.get_mut(number) {
            Some(free) => *free = Some(metric),
            None => self.metrics.push(Some(metric)),
        }
        number as u32
    }

    /// The number of a series that record `record` names. `live` says whether it is a gauge with a value.
    pub fn series(&mut self, metric: u32, labels: &Labels, record: u64, live: bool) -> u32 {
        let Some(Some(metric)) = self.metrics.get_mut(metric as usize) else { return 0 };
        let number = metric.number(labels, record, &mut self.bytes);
        if let Some(entry) = &mut metric.series[number as usize] {
            (entry.last, entry.live) = (record, live);
        }
        number
    }

    pub fn get(&self, metric: u32) -> Option<&Metric> {
        self.metrics.get(metric as usize)?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Metric)> {
        self.metrics.iter().enumerate().filter_map(|(number, metric)| Some((number as u32, metric.as_ref()?)))
    }

    /// The value of a gauge before the first record.
    pub fn set_base(&mut self, metric: u32, series: u32, value: Option<Number>) {
        if let Some(Some(metric)) = self.metrics.get_mut(metric as usize)
            && let Some(Some(entry)) = metric.series.get_mut(series as usize)
        {
            entry.base = value;
        }
    }

    /// Forgets series that no record names from `first` on, and metrics that the last reading did not have.
    pub fn sweep(&mut self, first: u64, last: u64) {
        for slot in &mut self.metrics {
            let Some(metric) = slot else { continue };
            for (number, entry) in metric.series.iter_mut().enumerate() {
                if let Some(old) = entry.take_if(|entry| entry.last < first && !entry.live) {
                    self.bytes -= series_bytes(&old.labels);
                    metric.numbers.remove(&old.labels);
                    metric.free.push(number as u32);
                }
            }
            if metric.numbers.is_empty() && metric.seen < last {
                *slot = None;
            }
        }
    }

    /// Memory of all series.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
