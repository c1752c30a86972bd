//! OpenMetrics with timestamps: counts since the first second of the range, as scrapes would have them.
//!
//! A metric's samples stand together, as the format wants it, so each has a file of its own until the end.

use super::HistoryError;
use super::export::Writer;
use kstrobe_export::reading::{BlockBuilder, PackedFamily, Reading};
use kstrobe_export::snapshot::{Descriptor, Kind, Number, Series};
use kstrobe_export::{END, Form, Format};
use kstrobe_history::disk::Replayed;
use kstrobe_history::{Change, Labels, MetricChanges};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// A series that does not change is written so often, as Prometheus forgets one after 300 s without a sample.
const REPEAT_SECONDS: u64 = 240;

pub struct OpenMetrics {
    path: PathBuf,
    step: u64,
    /// End of the last second.
    end: Option<u64>,
    metrics: BTreeMap<String, Metric>,
    /// Metrics that have changes of another type than their first ones.
    left_out: BTreeSet<String>,
}

struct Metric {
    changes: MetricChanges,
    samples: BufWriter<File>,
    has_head: bool,
    series: BTreeMap<Labels, State>,
}

/// A series now.
struct State {
    value: Value,
    has_changed: bool,
    written: u64,
}

enum Value {
    Counter(u64),
    Gauge(Option<Number>),
    Histogram { sum: u64, counts: BTreeMap<u32, u64> },
}

impl OpenMetrics {
    pub fn create(path: &Path, step: u64) -> Result<OpenMetrics, HistoryError> {
        File::create(path).map_err(HistoryError::at(path))?;
        let (metrics, left_out) = (BTreeMap::new(), BTreeSet::new());
        Ok(OpenMetrics { path: path.to_owned(), step, end: None, metrics, left_out })
    }

    fn add(&mut self, changes: &MetricChanges) -> io::Result<()> {
        if changes.rows.is_empty() {
            return Ok(());
        }
        let name = &changes.about.name;
        if !self.metrics.contains_key(name) {
            let samples = BufWriter::new(unnamed(&self.path, self.metrics.len())?);
            let changes = MetricChanges { rows: Vec::new(), ..changes.clone() };
            let metric = Metric { changes, samples, has_head: false, series: BTreeMap::new() };
            self.metrics.insert(name.clone(), metric);
        }
        let Some(metric) = self.metrics.get_mut(name) else { return Ok(()) };
        if !is_same(&metric.changes.about, &changes.about) {
            self.left_out.insert(name.clone());
            return Ok(());
        }
        if metric.changes.scheme != changes.scheme {
            // Other buckets: as after a restart of what is scraped.
            metric.series.clear();
        }
        (metric.changes.about, metric.changes.scheme) = (changes.about.clone(), changes.scheme.clone());
        for row in &changes.rows {
            let state = metric.series.entry(row.labels.clone()).or_insert_with(|| State::new(&row.change));
            state.add(&row.change);
        }
        Ok(())
    }

    /// Writes all series that are due at this end of a second.
    fn sample(&mut self, at: u64) -> io::Result<()> {
        self.metrics.values_mut().try_for_each(|metric| metric.sample(at))
    }

    fn finish(mut self) -> io::Result<()> {
        if let Some(end) = self.end {
            self.sample(end)?;
        }
        let mut out = OpenOptions::new().write(true).truncate(true).open(&self.path)?;
        for metric in std::mem::take(&mut self.metrics).into_values() {
            let mut samples = metric.samples.into_inner().map_err(io::IntoInnerError::into_error)?;
            samples.rewind()?;
            io::copy(&mut samples, &mut out)?;
        }
        out.write_all(END)
    }
}

fn is_same(one: &Descriptor, other: &Descriptor) -> bool {
    one.kind == other.kind && one.raw_per_unit == other.raw_per_unit && one.label_names == other.label_names
}

/// A file that goes with its owner.
fn unnamed(beside: &Path, number: usize) -> io::Result<File> {
    let mut name = beside.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{number}"));
    let path = beside.with_file_name(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

impl State {
    fn new(change: &Change) -> State {
        let value = match change {
            Change::Counter(_) => Value::Counter(0),
            Change::Gauge(_) => Value::Gauge(None),
            Change::Histogram { .. } => Value::Histogram { sum: 0, counts: BTreeMap::new() },
        };
        State { value, has_changed: true, written: 0 }
    }

    fn add(&mut self, change: &Change) {
        self.has_changed = true;
        match (&mut self.value, change) {
            (Value::Counter(value), Change::Counter(increase)) => *value = value.wrapping_add(*increase),
            (Value::Gauge(value), Change::Gauge(now)) => *value = *now,
            (Value::Histogram { sum, counts }, Change::Histogram { sum: more, buckets }) => {
                *sum = sum.wrapping_add(*more);
                buckets.iter().for_each(|(bucket, count)| *counts.entry(*bucket).or_default() += count);
            }
            // A metric has one kind.
            _ => {}
        }
    }
}

impl Metric {
    fn sample(&mut self, at: u64) -> io::Result<()> {
        let about = &self.changes.about;
        let scheme = self.changes.scheme.as_ref();
        let mut builder = match (about.kind, scheme) {
            (Kind::Counter, _) => BlockBuilder::counters(),
            (Kind::Gauge, _) => BlockBuilder::gauges(),
            (Kind::Histogram, Some(scheme)) => BlockBuilder::histograms(scheme),
            (Kind::Histogram, None) => return Ok(()),
        };
        let mut dense = vec![0; scheme.map_or(0, |scheme| scheme.buckets())];
        let mut series = Vec::new();
        for (labels, state) in &mut self.series {
            if !state.has_changed && at < state.written + REPEAT_SECONDS {
                continue;
            }
            (state.has_changed, state.written) = (false, at);
            series.push(Series { labels: labels.to_vec().into(), created: None });
            match &state.value {
                Value::Counter(value) => builder.counter(*value),
                Value::Gauge(value) => builder.gauge(*value),
                Value::Histogram { sum, counts } => {
                    dense.fill(0);
                    for (bucket, count) in counts {
                        if let Some(at) = dense.get_mut(*bucket as usize) {
                            *at = *count;
                        }
                    }
                    builder.histogram(*sum, &dense);
                }
            }
        }
        if series.is_empty() {
            return Ok(());
        }
        let columns = (0..about.label_names.len() as u32).collect();
        let blocks = vec![Arc::new(builder.build(series.into()))];
        let families = vec![PackedFamily { about: about.clone(), columns, blocks }];
        let at_time = UNIX_EPOCH + Duration::from_secs(at);
        let reading = Reading { at: at_time, took: Duration::ZERO, families, exemplars: Vec::new() };
        let mut text = Vec::new();
        let form = Form { format: Format::OpenMetrics100, native_bucket_limit: 0 };
        let written = kstrobe_export::write(&reading, &[], form, None, &mut |piece| {
            text.extend_from_slice(&piece);
            Ok(())
        });
        debug_assert_eq!(written, Ok(()), "a vector takes all");
        self.write(&text, at)
    }

    /// Writes an exposition of this metric, each sample with its time. What is said of the metric itself is written once.
    fn write(&mut self, exposition: &[u8], at: u64) -> io::Result<()> {
        let lines = exposition.strip_suffix(END).unwrap_or(exposition).split(|byte| *byte == b'\n');
        for line in lines.filter(|line| !line.is_empty()) {
            if !line.starts_with(b"#") {
                self.samples.write_all(line)?;
                writeln!(self.samples, " {at}")?;
            } else if !self.has_head {
                self.samples.write_all(line)?;
                self.samples.write_all(b"\n")?;
            }
        }
        self.has_head = true;
        Ok(())
    }
}

impl Writer for OpenMetrics {
    fn second(&mut self, replayed: &Replayed) -> Result<(), HistoryError> {
        let end = replayed.second.start + 1;
        let written = (|| {
            // The samples of a step have what was counted until its end.
            if let Some(last) = self.end.filter(|last| (last - 1) / self.step != (end - 1) / self.step) {
                self.sample(last)?;
            }
            self.end = Some(end);
            replayed.probes.iter().flat_map(|probe| &probe.metrics).try_for_each(|changes| self.add(changes))
        })();
        written.map_err(HistoryError::at(&self.path))
    }

    fn end(self: Box<Self>) -> Result<Vec<String>, HistoryError> {
        let path = self.path.clone();
        let left_out = self.left_out.iter().map(|name| format!("{name}: left out where it is of another type or unit"));
        let left_out = left_out.collect();
        self.finish().map_err(HistoryError::at(&path))?;
        Ok(left_out)
    }
}
