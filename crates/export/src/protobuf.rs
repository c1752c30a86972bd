//! Prometheus's protobuf exposition: delimited `MetricFamily` messages, each histogram in its classic and its native form.
//!
//! Series are written field by field, by `fields`, in the order in which prost would write their messages: a tree of all series
//! would be several times as large as what is written. The length of a family stands before its series, and is added up from
//! theirs without writing them.

mod as_text;
mod fields;
pub mod message;
pub use as_text::text_0_0_4;
pub(crate) use message::{MetricFamily, MetricType};

use crate::classic::Classic;
use crate::exposition;
use crate::native::{Native, Spans};
use crate::number::quotient;
use crate::reading::{self, Block, PackedFamily, Value};
use crate::snapshot::{Descriptor, Exemplar, Kind, OfFamily, Series};
use crate::text::{named_after_unit, without_nul};
use crate::varint;
use fields::{COUNTER, Fields, GAUGE, HISTOGRAM, HistogramFields, Length, Sink, delimited};
use kstrobe_ebpf::buckets::Scheme;
use message::{Counter, Gauge, LabelPair, METRIC, Timestamp};
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
    let mut length = Vec::with_capacity(varint::MAX_BYTES);
    varint::put(&mut length, bytes as u64);
    head.splice(0..0, length);
}

/// How the metrics of a family are written.
pub(crate) struct Body<'a> {
    family: &'a PackedFamily,
    exemplars: OfFamily<'a>,
    histograms: Option<Histograms<'a>>,
    /// Of each label, its field for the name.
    names: Vec<Vec<u8>>,
    /// The labels of the series that is written.
    labels: Vec<u8>,
    /// The message of its value.
    value: Vec<u8>,
}

impl<'a> Body<'a> {
    pub(crate) fn new(family: &'a PackedFamily, exemplars: &'a [Exemplar], native_bucket_limit: usize) -> Body<'a> {
        Body {
            family,
            exemplars: OfFamily::new(&family.about.name, exemplars),
            histograms: family.scheme().map(|scheme| Histograms::new(scheme, native_bucket_limit)),
            names: family.about.label_names.iter().map(|name| fields::label_name(name)).collect(),
            labels: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Bytes that [`exposition::Body::write`] appends for a block.
    pub(crate) fn length(&mut self, block: &Block) -> usize {
        let metric = |(series, value): (&Series, Value<'_>)| {
            self.set_labels(series);
            let mut message = Length(0);
            self.write_value(&mut message, series, value);
            delimited(self.labels.len() + delimited(message.0))
        };
        block.values().map(metric).sum()
    }

    fn set_labels(&mut self, series: &Series) {
        self.labels.clear();
        for (position, name) in self.names.iter().enumerate() {
            let value = without_nul(self.family.label(series, position));
            fields::write_label(&mut self.labels, name, &value);
        }
    }

    /// Appends the message of a value. Returns the key of the field that it goes into.
    fn write_value(&mut self, out: &mut impl Sink, series: &Series, value: Value<'_>) -> u8 {
        let raw_per_unit = self.family.about.raw_per_unit;
        let created = series.created.and_then(timestamp);
        match (value, &mut self.histograms) {
            (Value::Counter(raw), _) => {
                Counter { value: quotient(raw, raw_per_unit), start_timestamp: created }.write(out);
                COUNTER
            }
            (Value::Gauge(number), _) => {
                Gauge { value: number.exported(raw_per_unit) }.write(out);
                GAUGE
            }
            (Value::Histogram(packed), histograms) => {
                if let Some(histograms) = histograms {
                    histograms.set(packed, self.exemplars.of(series));
                    histograms.fields(quotient(packed.sum, raw_per_unit), created).write(out);
                }
                HISTOGRAM
            }
        }
    }
}

impl exposition::Body for Body<'_> {
    fn write(&mut self, out: &mut Vec<u8>, block: &Block) {
        let mut message = std::mem::take(&mut self.value);
        for (series, value) in block.values() {
            message.clear();
            self.set_labels(series);
            let key = self.write_value(&mut message, series, value);
            out.push(METRIC_KEY);
            varint::put(out, (self.labels.len() + delimited(message.len())) as u64);
            out.extend_from_slice(&self.labels);
            out.push(key);
            varint::put(out, message.len() as u64);
            out.extend_from_slice(&message);
        }
        self.value = message;
    }

    fn is_plain(&self, block: &Block) -> bool {
        self.exemplars.is_empty() || block.series().iter().all(|series| self.exemplars.of(series).is_empty())
    }
}

/// `None` before 1970.
fn timestamp(time: SystemTime) -> Option<Timestamp> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp { seconds: i64::try_from(since.as_secs()).ok()?, nanos: since.subsec_nanos() as i32 })
}

/// What the histograms of a family share, and memory for one of them.
struct Histograms<'a> {
    scheme: &'a Arc<Scheme>,
    native_bucket_limit: usize,
    classic: Classic,
    /// Of each classic bucket, its field for the bound.
    bounds: Vec<Vec<u8>>,
    cumulative: Vec<u64>,
    native: Native,
    spans: Spans,
    /// By time: the classic bucket and the message of each.
    exemplars: Vec<(usize, Vec<u8>)>,
}

impl<'a> Histograms<'a> {
    fn new(scheme: &'a Arc<Scheme>, native_bucket_limit: usize) -> Histograms<'a> {
        let classic = Classic::new(scheme);
        Histograms {
            scheme,
            native_bucket_limit,
            bounds: classic.bounds().map(fields::upper_bound).collect(),
            classic,
            cumulative: Vec::new(),
            native: Native::default(),
            spans: Spans::default(),
            exemplars: Vec::new(),
        }
    }

    fn set(&mut self, packed: reading::Histogram<'_>, exemplars: &[&Exemplar]) {
        self.classic.cumulative(packed, &mut self.cumulative);
        self.native.set(self.scheme, packed);
        self.native.limit(self.native_bucket_limit);
        self.spans.set(&self.native);
        self.exemplars.clear();
        self.exemplars.extend(exemplars.iter().map(|exemplar| {
            let (name, id) = exemplar.link.label();
            let label = LabelPair { name: name.to_owned(), value: without_nul(id).into_owned() };
            let timestamp = timestamp(exemplar.at);
            let message = message::Exemplar { label: vec![label], value: exemplar.value, timestamp };
            (self.classic.bucket_of(exemplar.value), message.encode_to_vec())
        }));
    }

    /// The fields of the histogram that was set.
    fn fields(&self, sum: f64, created: Option<Timestamp>) -> HistogramFields<'_> {
        HistogramFields {
            sum,
            bounds: &self.bounds,
            cumulative: &self.cumulative,
            zero_threshold: self.scheme.zero_threshold(),
            native: &self.native,
            spans: &self.spans,
            created,
            exemplars: &self.exemplars,
        }
    }
}

#[cfg(test)]
mod tests;
