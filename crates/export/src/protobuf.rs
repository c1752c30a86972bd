//! Prometheus's protobuf exposition: delimited `MetricFamily` messages, each histogram in its classic and its native form.
//!
//! One message is held at a time, that of a series, and its memory is used again for the next: a tree of all series would be
//! several times as large as what is written.

mod as_text;
pub mod message;
pub use as_text::text_0_0_4;
pub(crate) use message::{MetricFamily, MetricType};

use crate::classic::Classic;
use crate::exposition;
use crate::native::Native;
use crate::number::quotient;
use crate::reading::{self, Block, PackedFamily, Value};
use crate::snapshot::{Descriptor, Exemplar, Kind, OfFamily, Series};
use crate::text::{named_after_unit, without_nul};
use kstrobe_ebpf::buckets::Scheme;
use message::{Bucket, BucketSpan, Counter, Gauge, Histogram, LabelPair, METRIC, Metric, Timestamp};
use prost::Message;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Before each metric of a family: number of the field, and that a length follows.
const METRIC_KEY: u8 = (METRIC << 3 | 2) as u8;

/// What stands before the metrics of a family, but for its length.
pub(crate) fn head(about: &Descriptor) -> Vec<u8> {
    let kind = match about.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let unit = if named_after_unit(about) { about.unit.clone() } else { String::new() };
    let (name, help) = (about.name.clone(), without_nul(&about.help).into_owned());
    MetricFamily { name, help, kind: kind.into(), metric: Vec::new(), unit }.encode_to_vec()
}

/// Puts the length of a family before its head.
pub(crate) fn prepend_length(head: &mut Vec<u8>, bytes: usize) {
    let mut length = Vec::with_capacity(10);
    // A vector takes all that is written to it.
    let _ = prost::encode_length_delimiter(bytes, &mut length);
    head.splice(0..0, length);
}

/// How the metrics of a family are written.
pub(crate) struct Body<'a> {
    family: &'a PackedFamily,
    exemplars: OfFamily<'a>,
    form: Option<Form<'a>>,
    /// The message of one series, whose memory is used again for the next.
    metric: Metric,
}

impl<'a> Body<'a> {
    pub(crate) fn new(family: &'a PackedFamily, exemplars: &'a [Exemplar], native_bucket_limit: usize) -> Body<'a> {
        let form = family.scheme().map(|scheme| Form {
            scheme,
            native_bucket_limit,
            classic: Classic::new(scheme),
            cumulative: Vec::new(),
        });
        let exemplars = OfFamily::new(&family.about.name, exemplars);
        Body { family, exemplars, form, metric: Metric { label: label_names(&family.about), ..Metric::default() } }
    }
}

impl exposition::Body for Body<'_> {
    fn write(&mut self, out: &mut Vec<u8>, block: &Block) {
        let raw_per_unit = self.family.about.raw_per_unit;
        for (series, value) in block.values() {
            let metric = &mut self.metric;
            set_labels(metric, self.family, series);
            match (value, &mut self.form) {
                (Value::Counter(raw), _) => {
                    let value = quotient(raw, raw_per_unit);
                    metric.counter = Some(Counter { value, start_timestamp: series.created.and_then(timestamp) });
                }
                (Value::Gauge(number), _) => metric.gauge = Some(Gauge { value: number.exported(raw_per_unit) }),
                (Value::Histogram(packed), Some(form)) => {
                    let histogram = metric.histogram.get_or_insert_default();
                    form.fill(histogram, packed, raw_per_unit);
                    histogram.start_timestamp = series.created.and_then(timestamp);
                    set_exemplars(histogram, &form.classic, self.exemplars.of(series));
                }
                (Value::Histogram(_), None) => {}
            }
            append_metric(out, metric);
        }
    }

    fn is_plain(&self, block: &Block) -> bool {
        self.exemplars.is_empty() || block.series().iter().all(|series| self.exemplars.of(series).is_empty())
    }
}

/// A vector takes all that is written to it.
fn append_metric(out: &mut Vec<u8>, metric: &Metric) {
    out.push(METRIC_KEY);
    let _ = metric.encode_length_delimited(out);
}

fn label_names(about: &Descriptor) -> Vec<LabelPair> {
    let names = about.label_names.iter();
    names.map(|name| LabelPair { name: name.clone(), value: String::new() }).collect()
}

fn set_labels(metric: &mut Metric, family: &PackedFamily, series: &Series) {
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
    scheme: &'a Arc<Scheme>,
    native_bucket_limit: usize,
    classic: Classic,
    cumulative: Vec<u64>,
}

impl Form<'_> {
    /// Everything but exemplars and the moment of creation.
    fn fill(&mut self, histogram: &mut Histogram, packed: reading::Histogram<'_>, raw_per_unit: u64) {
        self.classic.cumulative(packed, &mut self.cumulative);
        let classic = self.classic.bounds().zip(&self.cumulative);
        histogram.bucket.clear();
        histogram.bucket.extend(classic.map(|(upper_bound, &cumulative_count)| Bucket {
            cumulative_count,
            upper_bound,
            exemplar: None,
        }));
        histogram.sample_count = histogram.bucket.last().map_or(0, |all| all.cumulative_count);
        histogram.sample_sum = quotient(packed.sum, raw_per_unit);

        let native = Native::of(self.scheme, packed).limited(self.native_bucket_limit);
        let (spans, deltas) = native.spans();
        histogram.schema = native.schema;
        histogram.zero_threshold = self.scheme.zero_threshold();
        histogram.zero_count = native.zero_count;
        histogram.positive_span.clear();
        histogram.positive_span.extend(spans.iter().map(|&(offset, length)| BucketSpan { offset, length }));
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
