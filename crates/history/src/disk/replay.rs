//! The seconds of an archive one after the other, as they were pushed, whatever segments they lie in.

use super::{Archive, DiskError};
use crate::cursor::{Change, Labels, MetricChanges, Row};
use crate::mark::Mark;
use crate::record::{Packed, Shape, sections, series};
use crate::store::{History, ProbeChanges, Record, Second};
use kstrobe_export::snapshot::{Descriptor, Number};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A second with all that has changed in it.
#[derive(Clone, Debug)]
pub struct Replayed {
    pub second: Second,
    pub probes: Vec<ProbeChanges>,
    pub marks: Vec<Mark>,
}

/// A segment that could not be read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    pub path: PathBuf,
    /// Where the readable part ends.
    pub at: u64,
    pub unread: u64,
}

/// A gauge by its probe, name and labels.
type GaugeId = (Arc<str>, String, Labels);

/// The values of all gauges.
#[derive(Debug, Default)]
struct Gauges(BTreeMap<GaugeId, (Arc<Descriptor>, Number)>);

impl Archive {
    /// Calls `each` with the seconds from one time to before another, the oldest first. The first one also has the gauges from
    /// before it, and the first one of another agent's run ends those of the run before. Returns what could not be read.
    pub fn replay<E: From<DiskError>>(
        &self,
        from: u64,
        to: u64,
        mut each: impl FnMut(Replayed) -> Result<(), E>,
    ) -> Result<Vec<Damaged>, E> {
        let mut damaged = Vec::new();
        // As `each` knows them.
        let mut given = Gauges::default();
        for segment in self.segments()?.into_iter().filter(|segment| segment.is_within(from, to)) {
            let decoded = match segment.read() {
                Ok(decoded) => decoded,
                // It was too old meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(DiskError::at(&segment.path)(error).into()),
            };
            let valid = decoded.valid as u64;
            if valid < segment.bytes {
                let at = segment.offset + valid;
                damaged.push(Damaged { path: segment.path.clone(), at, unread: segment.bytes - valid });
            }
            let history = decoded.history;
            let mut now = Gauges::before(&history);
            let mut is_first = true;
            let mut after = f64::NEG_INFINITY;
            for record in &history.records {
                let second = record.second;
                if !(from..to).contains(&second.start) {
                    now.apply(&history, record);
                    continue;
                }
                let mut probes = Vec::new();
                if std::mem::take(&mut is_first) {
                    probes.extend(given.change_to(&now));
                }
                probes.extend(changes(&history, record));
                now.apply(&history, record);
                let end = (second.start + 1) as f64;
                let marks = history.marks(after.max(from as f64), end).cloned().collect();
                after = end;
                each(Replayed { second, probes, marks })?;
            }
            if !is_first {
                given = now;
            }
        }
        Ok(damaged)
    }
}

/// As they were pushed: for each probe, its metrics that have changed.
fn changes(history: &History, record: &Record) -> Vec<ProbeChanges> {
    let mut probes: Vec<ProbeChanges> = record.sampled.iter().map(|probe| of(probe, true)).collect();
    for (number, section) in sections(&record.bytes) {
        let Some(metric) = history.registry.get(number) else { continue };
        let known = probes.iter().position(|probe| probe.probe == metric.probe);
        let at = known.unwrap_or_else(|| {
            probes.push(of(&metric.probe, false));
            probes.len() - 1
        });
        let rows = series(section, metric.shape()).filter_map(|(of, change)| {
            let labels = metric.labels(of)?.clone();
            let change = match change {
                Packed::Counter(increase) => Change::Counter(increase),
                Packed::Gauge(value) => Change::Gauge(value),
                Packed::Histogram { sum, buckets } => Change::Histogram { sum, buckets: buckets.iter().collect() },
            };
            Some(Row { labels, change })
        });
        let (about, scheme) = (metric.about.clone(), metric.scheme.clone());
        probes[at].metrics.push(MetricChanges { about, scheme, rows: rows.collect() });
    }
    probes
}

fn of(probe: &Arc<str>, sampled: bool) -> ProbeChanges {
    ProbeChanges { probe: probe.clone(), sampled, metrics: Vec::new() }
}

impl Gauges {
    fn before(history: &History) -> Gauges {
        let mut gauges = Gauges::default();
        for (_, metric) in history.registry.iter().filter(|(_, metric)| metric.shape() == Shape::Gauge) {
            for (_, entry) in metric.series() {
                gauges.set(&metric.probe, &metric.about, &entry.labels, entry.base);
            }
        }
        gauges
    }

    fn set(&mut self, probe: &Arc<str>, about: &Arc<Descriptor>, labels: &Labels, value: Option<Number>) {
        let id = (probe.clone(), about.name.clone(), labels.clone());
        match value {
            Some(value) => _ = self.0.insert(id, (about.clone(), value)),
            None => _ = self.0.remove(&id),
        }
    }

    fn apply(&mut self, history: &History, record: &Record) {
        for (number, section) in sections(&record.bytes) {
            let gauge = history.registry.get(number).filter(|metric| metric.shape() == Shape::Gauge);
            let Some(metric) = gauge else { continue };
            for (of, change) in series(section, Shape::Gauge) {
                if let (Packed::Gauge(value), Some(labels)) = (change, metric.labels(of)) {
                    self.set(&metric.probe, &metric.about, labels, value);
                }
            }
        }
    }

    /// Rows after which who knew these values knows the other ones.
    fn change_to(&self, other: &Gauges) -> Vec<ProbeChanges> {
        let ended = self.0.iter().filter(|(id, _)| !other.0.contains_key(id)).map(|(id, (about, _))| (id, about, None));
        let set = other.0.iter().filter(|(id, value)| self.0.get(id).map(|(_, old)| *old) != Some(value.1));
        let set = set.map(|(id, (about, value))| (id, about, Some(*value)));
        let mut probes: Vec<ProbeChanges> = Vec::new();
        for ((probe, _, labels), about, value) in ended.chain(set) {
            let rows = vec![Row { labels: labels.clone(), change: Change::Gauge(value) }];
            let mut changed = of(probe, false);
            changed.metrics.push(MetricChanges { about: about.clone(), scheme: None, rows });
            probes.push(changed);
        }
        probes
    }
}
