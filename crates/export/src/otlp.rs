//! A snapshot as OTLP: histograms become exponential histograms, counters monotonic sums, gauges gauges.
//!
//! Native buckets and exponential ones have the same bounds: scale is schema, and bucket `index` of the one is
//! `index - 1` of the other. So counts pass through unchanged.
//!
//! A snapshot makes several requests when it is large, since receivers refuse messages above a limit (4 MiB is usual for
//! gRPC).

mod bundle;
pub mod logs;
mod names;
mod points;
pub mod spans;
mod value;

pub use names::{metric_name, ucum};
pub use value::{Attributes, Value};

use crate::part::{Part, Run};
use crate::snapshot::{Exemplar, Family, OfFamily, Snapshot, Values};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogram, Gauge, Metric, ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource as ResourceMessage;
use prost::Message;
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest request in bytes before compression, unless a single point is larger: half of what gRPC receivers take.
pub const MAX_REQUEST_BYTES: usize = 2 << 20;

/// Who sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// `service.name`, `host.name`, ... : attributes that are the same for all series.
    pub attributes: Vec<(String, String)>,
    /// Version of the agent, as the scope's.
    pub version: String,
}

/// What a counter's or histogram's value covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temporality {
    /// All since the series began.
    #[default]
    Cumulative,
    /// What came since the last report: the snapshot is a difference, see [`crate::delta`].
    Delta,
}

/// Requests of [`MAX_REQUEST_BYTES`] for a snapshot.
pub fn requests(snapshot: &Snapshot, exemplars: &[Exemplar], from: &Resource, temporality: Temporality) -> Vec<Part> {
    bounded_requests(snapshot, exemplars, from, temporality, MAX_REQUEST_BYTES)
}

/// The same with a bound of the caller's.
pub fn bounded_requests(
    snapshot: &Snapshot,
    exemplars: &[Exemplar],
    from: &Resource,
    temporality: Temporality,
    most_bytes: usize,
) -> Vec<Part> {
    let mut packer = Packer::new(from, most_bytes);
    let time = unix_nanos(snapshot.at);
    for (position, family) in snapshot.families.iter().enumerate().filter(|(_, family)| !family.is_empty()) {
        match &family.values {
            Values::Counters(values) => {
                let points = family
                    .series
                    .iter()
                    .zip(values)
                    .map(|(series, value)| points::counter(family, series, *value, time));
                packer.family(position, family, points, |data_points| {
                    let aggregation_temporality = temporality.code();
                    Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
                });
            }
            Values::Gauges(values) => {
                let points =
                    family.series.iter().zip(values).map(|(series, value)| points::gauge(family, series, *value, time));
                packer.family(position, family, points, |data_points| Data::Gauge(Gauge { data_points }));
            }
            Values::Histograms(histograms) => {
                let exemplars = OfFamily::new(&family.about.name, exemplars);
                let points =
                    (0..family.series.len()).map(|nth| points::histogram(family, histograms, nth, &exemplars, time));
                packer.family(position, family, points, |data_points| {
                    let aggregation_temporality = temporality.code();
                    Data::ExponentialHistogram(ExponentialHistogram { data_points, aggregation_temporality })
                });
            }
        }
    }
    packer.finish()
}

/// What a receiver says of a request it took: data points, log records or spans that it refused, and why; the answers of
/// the three services have one form. Unreadable ones say nothing.
pub fn refused(response: &[u8]) -> (u64, String) {
    let partial = ExportMetricsServiceResponse::decode(response).ok().and_then(|response| response.partial_success);
    partial.map_or((0, String::new()), |partial| {
        (u64::try_from(partial.rejected_data_points).unwrap_or(0), partial.error_message)
    })
}

impl Temporality {
    fn code(self) -> i32 {
        match self {
            Temporality::Cumulative => AggregationTemporality::Cumulative as i32,
            Temporality::Delta => AggregationTemporality::Delta as i32,
        }
    }
}

/// Puts points into requests until these are full.
struct Packer<'a> {
    from: &'a Resource,
    most_bytes: usize,
    /// Size of what every request has.
    envelope_bytes: usize,
    done: Vec<Part>,
    metrics: Vec<Metric>,
    runs: Vec<Run>,
    bytes: usize,
    points: u64,
}

/// Tag and length of a nested message of up to 2 MiB.
const NESTED_BYTES: usize = 5;

impl<'a> Packer<'a> {
    fn new(from: &'a Resource, most_bytes: usize) -> Self {
        let envelope_bytes = request(from, Vec::new()).encoded_len() + 3 * NESTED_BYTES;
        let (done, metrics, runs) = (Vec::new(), Vec::new(), Vec::new());
        Packer { from, most_bytes, envelope_bytes, done, metrics, runs, bytes: envelope_bytes, points: 0 }
    }

    fn family<P: Message>(
        &mut self,
        position: usize,
        family: &Family,
        points: impl Iterator<Item = P>,
        data: impl Fn(Vec<P>) -> Data,
    ) {
        let about = &family.about;
        let (name, unit) = (metric_name(about), ucum(&about.unit).into_owned());
        let metric = |points: Vec<P>| Metric {
            name: name.clone(),
            description: about.help.clone(),
            unit: unit.clone(),
            metadata: Vec::new(),
            data: Some(data(points)),
        };
        let head_bytes = metric(Vec::new()).encoded_len() + 2 * NESTED_BYTES;
        self.bytes += head_bytes;
        let (mut some, mut first) = (Vec::new(), 0);
        for (nth, point) in points.enumerate() {
            let bytes = point.encoded_len() + NESTED_BYTES;
            if self.bytes + bytes > self.most_bytes && (!some.is_empty() || !self.metrics.is_empty()) {
                if !some.is_empty() {
                    self.metric(metric(std::mem::take(&mut some)), (position, first..nth));
                }
                self.close();
                self.bytes += head_bytes;
                first = nth;
            }
            self.bytes += bytes;
            some.push(point);
        }
        if !some.is_empty() {
            self.metric(metric(some), (position, first..family.len()));
        }
    }

    fn metric(&mut self, metric: Metric, run: Run) {
        self.points += run.1.len() as u64;
        self.metrics.push(metric);
        self.runs.push(run);
    }

    fn close(&mut self) {
        let body = request(self.from, std::mem::take(&mut self.metrics)).encode_to_vec();
        self.done.push(Part { body, points: std::mem::take(&mut self.points), runs: std::mem::take(&mut self.runs) });
        self.bytes = self.envelope_bytes;
    }

    fn finish(mut self) -> Vec<Part> {
        if !self.metrics.is_empty() {
            self.close();
        }
        self.done
    }
}

fn request(from: &Resource, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    let scope_metrics = ScopeMetrics { scope: Some(scope(from)), metrics, schema_url: String::new() };
    let resource = Some(resource(from));
    let resource_metrics = ResourceMetrics { resource, scope_metrics: vec![scope_metrics], schema_url: String::new() };
    ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] }
}

fn resource(from: &Resource) -> ResourceMessage {
    let attributes = from.attributes.iter().map(|(key, value)| attribute(key, value)).collect();
    ResourceMessage { attributes, ..ResourceMessage::default() }
}

fn scope(from: &Resource) -> InstrumentationScope {
    InstrumentationScope { name: "kstrobe".into(), version: from.version.clone(), ..InstrumentationScope::default() }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.into(), value: Some(text(value)), ..KeyValue::default() }
}

fn text(value: &str) -> AnyValue {
    AnyValue { value: Some(any_value::Value::StringValue(value.into())) }
}

/// 0 is OTLP's word for an unknown time.
fn unix_nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
