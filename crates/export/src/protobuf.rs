//! Prometheus's protobuf exposition: delimited `MetricFamily` messages, each histogram in its classic and its native form.
//!
//! One message is held at a time, that of a series, and its memory is used again for the next: a tree of all series would be
//! several times as large as what is written.

mod as_text;
pub mod message;
pub use as_text::text_0_0_4;
pub(crate) use message::{MetricFamily, MetricType};

use crate::classic::Classic;
use crate::native::Native;
use crate::number::quotient;
use crate::snapshot::{Exemplar, Family, Histograms, Kind, OfFamily, Series, Snapshot, Values};
use crate::text::{named_after_unit, without_nul};
use message::{Bucket, BucketSpan, Counter, Gauge, Histogram, LabelPair, METRIC, Metric, Timestamp};
use prost::Message;
use std::time::{SystemTime, UNIX_EPOCH};

/// Before each metric of a family: number of the field, and that a length follows.
const METRIC_KEY: u8 = (METRIC << 3 | 2) as u8;

/// Appends all families that have series.
pub fn write(out: &mut Vec<u8>, snapshot: &Snapshot, exemplars: &[Exemplar], native_bucket_limit: usize) {
    out.reserve(snapshot.families.iter().map(estimate).sum());
    for family in snapshot.families.iter().filter(|family| !family.is_empty()) {
        let start = out.len();
        write_family(out, family, exemplars, native_bucket_limit);
        // How long a family is, is known at its end and stands at its beginning.
        let mut length = Vec::with_capacity(10);
        // A vector takes all that is written to it.
        let _ = prost::encode_length_delimiter(out.len() - start, &mut length);
        out.splice(start..start, length);
    }
}

/// Bytes a family will take, more rather than less: memory that is not touched costs nothing, growing copies.
fn estimate(family: &Family) -> usize {
    let value = match &family.values {
        Values::Histograms(histograms) => {
            histograms.scheme.classic().bounds.len() * 20 + histograms.scheme.buckets() * 3
        }
        _ => 0,
    };
    let Some(series) = family.series.first() else { return 0 };
    let names: usize = family.about.label_names.iter().map(String::len).sum();
    let labels: usize = series.labels.iter().map(|text| text.len() + 24).sum();
    family.len() * (value + names + labels + 64) + 1024
}

fn write_family(out: &mut Vec<u8>, family: &Family, exemplars: &[Exemplar], native_bucket_limit: usize) {
    let about = &family.about;
    let kind = match about.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let unit = if named_after_unit(about) { about.unit.clone() } else { String::new() };
    let (name, help) = (about.name.clone(), without_nul(&about.help).into_owned());
    append(out, &MetricFamily { name, help, kind: kind.into(), metric: Vec::new(), unit });

    let mut metric = Metric { label: label_names(family), ..Metric::default() };
    match &family.values {
        Values::Counters(values) => {
            for (series, raw) in family.series.iter().zip(values) {
                set_labels(&mut metric, family, series);
                let value = quotient(*raw, about.raw_per_unit);
                metric.counter = Some(Counter { value, start_timestamp: series.created.and_then(timestamp) });
                append_metric(out, &metric);
            }
        }
        Values::Gauges(values) => {
            for (series, number) in family.series.iter().zip(values) {
                set_labels(&mut metric, family, series);
                metric.gauge = Some(Gauge { value: number.exported(about.raw_per_unit) });
                append_metric(out, &metric);
            }
        }
        Values::Histograms(histograms) => {
            let exemplars = OfFamily::new(family, exemplars);
            let form = Form { histograms, native_bucket_limit, classic: Classic::new(histograms) };
            for (position, series) in family.series.iter().enumerate() {
                set_labels(&mut metric, family, series);
                let mut histogram = metric.histogram.take().unwrap_or_default();
                form.fill(&mut histogram, position, about.raw_per_unit);
                histogram.start_timestamp = series.created.and_then(timestamp);
                set_exemplars(&mut histogram, &form.classic, exemplars.of(series));
                metric.histogram = Some(histogram);
                append_metric(out, &metric);
            }
        }
    }
}

/// A vector takes all that is written to it.
fn append(out: &mut Vec<u8>, message: &impl Message) {
    let _ = message.encode(out);
}

fn append_metric(out: &mut Vec<u8>, metric: &Metric) {
    out.push(METRIC_KEY);
    let _ = metric.encode_length_delimited(out);
}

fn label_names(family: &Family) -> Vec<LabelPair> {
    let names = family.about.label_names.iter();
    names.map(|name| LabelPair { name: name.clone(), value: String::new() }).collect()
}

fn set_labels(metric: &mut Metric, family: &Family, series: &Series) {
    for (position, label) in metric.label.iter_mut().enumerate() {
        label.value.clear();
        label.value.push_str(&without_nul(family.label(series, position)));
    }
}

/// `None` before 1970.
fn timestamp(time: SystemTime) -> Option<Timestamp> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp { seconds: i64::try_from(since.as_secs()).ok()?, nanos: since.subsec_nanos() as i32 })
}

/// What the histograms of a family share.
struct Form<'a> {
    histograms: &'a Histograms,
    native_bucket_limit: usize,
    classic: Classic,
}

impl Form<'_> {
    /// Everything but exemplars and the moment of creation.
    fn fill(&self, histogram: &mut Histogram, series: usize, raw_per_unit: u64) {
        let counts = self.histograms.counts_of(series);
        let classic = self.classic.bounds().zip(self.classic.cumulative(counts));
        histogram.bucket.clear();
        histogram.bucket.extend(classic.map(|(upper_bound, cumulative_count)| Bucket {
            cumulative_count,
            upper_bound,
            exemplar: None,
        }));
        histogram.sample_count = histogram.bucket.last().map_or(0, |all| all.cumulative_count);
        histogram.sample_sum = self.histograms.sum_of(series, raw_per_unit);

        let native = Native::new(&self.histograms.scheme, counts).limited(self.native_bucket_limit);
        let (spans, deltas) = native.spans();
        histogram.schema = native.schema;
        histogram.zero_threshold = self.histograms.scheme.zero_threshold();
        histogram.zero_count = native.zero_count;
        histogram.positive_span = spans.iter().map(|&(offset, length)| BucketSpan { offset, length }).collect();
        histogram.positive_delta = deltas;
    }
}

/// The newest in each classic bucket, and all of them by time in the native form.
fn set_exemplars(histogram: &mut Histogram, classic: &Classic, by_time: &[&Exemplar]) {
    histogram.exemplars.clear();
    for exemplar in by_time {
        let (name, id) = exemplar.link.label();
        let label = LabelPair { name: name.to_owned(), value: without_nul(id).into_owned() };
        let timestamp = timestamp(exemplar.at);
        let written = message::Exemplar { label: vec![label], value: exemplar.value, timestamp };
        if let Some(bucket) = histogram.bucket.get_mut(classic.bucket_of(exemplar.value)) {
            bucket.exemplar = Some(written.clone());
        }
        histogram.exemplars.push(written);
    }
}

#[cfg(test)]
mod tests;
