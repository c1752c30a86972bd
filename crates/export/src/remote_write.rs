//! A snapshot as Prometheus remote write 2.0: native histograms with their exemplars, counters, gauges, all with metadata
//! and the time they began; and the end of series that are gone.
//!
//! Each series has `job` and `instance` as if it was scraped: `service.name` and `service.instance.id` of the resource.
//! The other attributes are labels of the one series `target_info`, as Prometheus does with OTLP.

pub mod message;
mod seen;

pub use seen::{Gone, Seen};

use crate::native::Native;
use crate::number::quotient;
use crate::otlp::Resource;
use crate::part::Part;
use crate::snapshot::{self, Family, Kind, OfFamily, Series, Snapshot, Values};
use message::{BucketSpan, Exemplar, Histogram, Metadata, Request, Sample, TimeSeries};
use prost::Message;
use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

pub const CONTENT_TYPE: &str = "application/x-protobuf;proto=io.prometheus.write.v2.Request";
/// X-Prometheus-Remote-Write-Version of a request.
pub const VERSION: &str = "2.0.0";
/// Largest request in bytes before compression, unless a single series is larger.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// What Prometheus takes for the end of a series: a NaN of its own.
const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);

/// What all requests of a sender have.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// Who sends.
    pub resource: &'a Resource,
    /// Most populated buckets of a histogram: above it the resolution is halved. 0 for no limit.
    pub native_bucket_limit: usize,
}

/// Requests of [`MAX_REQUEST_BYTES`] for a snapshot and for what is gone since the last.
pub fn requests(snapshot: &Snapshot, exemplars: &[snapshot::Exemplar], gone: &[Gone], from: Sender<'_>) -> Vec<Part> {
    bounded_requests(snapshot, exemplars, gone, from, MAX_REQUEST_BYTES)
}

/// The same with a bound of the caller's.
pub fn bounded_requests(
    snapshot: &Snapshot,
    exemplars: &[snapshot::Exemplar],
    gone: &[Gone],
    from: Sender<'_>,
    most_bytes: usize,
) -> Vec<Part> {
    let mut packer = Packer::new(from.resource, most_bytes);
    let timestamp = millis(snapshot.at);
    for family in snapshot.families.iter().filter(|family| !family.is_empty()) {
        let exemplars = OfFamily::new(&family.about.name, exemplars);
        for (position, series) in family.series.iter().enumerate() {
            packer.series(|symbols| {
                let mut written = symbols.series(family, series);
                fill(&mut written, family, position, from.native_bucket_limit, timestamp);
                written.exemplars = exemplars.of(series).iter().map(|exemplar| symbols.exemplar(exemplar)).collect();
                written
            });
        }
    }
    for gone in gone {
        for series in &gone.family.series {
            packer.series(|symbols| {
                let mut written = symbols.series(&gone.family, series);
                match gone.family.about.kind {
                    Kind::Histogram => {
                        let spans = vec![BucketSpan { offset: 0, length: 0 }];
                        let end = Histogram { sum: STALE, timestamp, positive_spans: spans, ..Histogram::default() };
                        written.histograms.push(end);
                    }
                    Kind::Counter | Kind::Gauge => {
                        written.samples.push(Sample { value: STALE, timestamp, start_timestamp: 0 });
                    }
                }
                written
            });
        }
    }
    if !packer.is_empty() {
        packer.series(|symbols| symbols.target_info(timestamp));
    }
    packer.finish()
}

/// The compression that the protocol asks for. `None` above 4 GiB, which no part is.
pub fn compress(body: &[u8]) -> Option<Vec<u8>> {
    snap::raw::Encoder::new().compress_vec(body).ok()
}

/// Puts the value of a series in.
fn fill(written: &mut TimeSeries, family: &Family, position: usize, native_bucket_limit: usize, timestamp: i64) {
    let per_unit = family.about.raw_per_unit;
    let start_timestamp = written.created_timestamp;
    match &family.values {
        Values::Counters(values) => {
            written.samples.push(Sample { value: quotient(values[position], per_unit), timestamp, start_timestamp });
        }
        Values::Gauges(values) => {
            written.samples.push(Sample { value: values[position].exported(per_unit), timestamp, start_timestamp });
        }
        Values::Histograms(histograms) => {
            let native = Native::new(&histograms.scheme, histograms.counts_of(position)).limited(native_bucket_limit);
            let spans = native.spans();
            let span = |(offset, length): &(i32, u32)| BucketSpan { offset: *offset, length: *length };
            written.histograms.push(Histogram {
                count_int: native.count(),
                sum: histograms.sum_of(position, per_unit),
                schema: native.schema,
                zero_threshold: histograms.scheme.zero_threshold(),
                zero_count_int: native.zero_count,
                positive_spans: spans.runs.iter().map(span).collect(),
                positive_deltas: spans.deltas,
                timestamp,
                start_timestamp,
            });
        }
    }
}

/// Milliseconds since 1970.
fn millis(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or(0)
}

/// The texts of one request.
struct Symbols<'a> {
    resource: &'a Resource,
    numbers: HashMap<String, u32>,
    list: Vec<String>,
    bytes: usize,
}

impl<'a> Symbols<'a> {
    fn new(resource: &'a Resource) -> Self {
        let numbers = HashMap::from([(String::new(), 0)]);
        Symbols { resource, numbers, list: vec![String::new()], bytes: 0 }
    }

    fn of(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.bytes += text.len() + TAG_BYTES;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// Everything but values.
    fn series(&mut self, family: &Family, series: &Series) -> TimeSeries {
        let about = &family.about;
        let mut labels: Vec<(Cow<'_, str>, &str)> = vec![("__name__".into(), about.name.as_str())];
        for (position, name) in about.label_names.iter().enumerate() {
            // As Prometheus does when a scraped series has labels that the target has too.
            let name = if matches!(name.as_str(), "job" | "instance") {
                format!("exported_{name}").into()
            } else {
                Cow::from(name.as_str())
            };
            labels.push((name, family.label(series, position)));
        }
        let target = self.target();
        labels.extend(target.iter().map(|(name, value)| (Cow::from(*name), *value)));
        let kind = match about.kind {
            Kind::Counter => 1,
            Kind::Gauge => 2,
            Kind::Histogram => 3,
        };
        TimeSeries {
            labels_refs: self.labels(labels),
            metadata: Some(Metadata { kind, help_ref: self.of(&about.help), unit_ref: self.of(&about.unit) }),
            // A gauge has no beginning.
            created_timestamp: series.created.filter(|_| about.kind != Kind::Gauge).map_or(0, millis),
            ..TimeSeries::default()
        }
    }

    fn exemplar(&mut self, exemplar: &snapshot::Exemplar) -> Exemplar {
        let (name, id) = exemplar.link.label();
        let labels_refs = self.labels(vec![(name.into(), id)]);
        Exemplar { labels_refs, value: exemplar.value, timestamp: millis(exemplar.at) }
    }

    /// What a scrape would say of the target.
    fn target(&self) -> Vec<(&'static str, &'a str)> {
        let attribute = |name: &str| {
            let found = self.resource.attributes.iter().find(|(there, _)| there == name);
            found.map_or("", |(_, value)| value.as_str())
        };
        vec![("instance", attribute("service.instance.id")), ("job", attribute("service.name"))]
    }

    fn target_info(&mut self, timestamp: i64) -> TimeSeries {
        let mut labels: Vec<(Cow<'_, str>, &str)> = vec![("__name__".into(), "target_info")];
        labels.extend(self.target().into_iter().map(|(name, value)| (Cow::from(name), value)));
        let others = self.resource.attributes.iter();
        let others = others.filter(|(name, _)| !matches!(name.as_str(), "service.name" | "service.instance.id"));
        labels.extend(others.map(|(name, value)| (label_name(name).into(), value.as_str())));
        let help_ref = self.of("Who sends.");
        TimeSeries {
            labels_refs: self.labels(labels),
            samples: vec![Sample { value: 1.0, timestamp, start_timestamp: 0 }],
            metadata: Some(Metadata { kind: 6, help_ref, unit_ref: 0 }),
            ..TimeSeries::default()
        }
    }

    /// Sorted by name; a label without a value is no label. Of two of one name the first stays.
    fn labels(&mut self, mut labels: Vec<(Cow<'_, str>, &str)>) -> Vec<u32> {
        labels.retain(|(_, value)| !value.is_empty());
        labels.sort_by(|a, b| a.0.cmp(&b.0));
        labels.dedup_by(|next, kept| next.0 == kept.0);
        labels.iter().flat_map(|(name, value)| [self.of(name), self.of(value)]).collect()
    }
}

/// An attribute's name as a label's: `host.name` is `host_name`.
fn label_name(attribute: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let name: String = attribute.chars().map(plain).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("key_{name}") } else { name }
}

/// Most bytes of a tag and a length.
const TAG_BYTES: usize = 6;

/// Puts series into requests until these are full.
struct Packer<'a> {
    resource: &'a Resource,
    most_bytes: usize,
    done: Vec<Part>,
    symbols: Symbols<'a>,
    timeseries: Vec<TimeSeries>,
    bytes: usize,
}

impl<'a> Packer<'a> {
    fn new(resource: &'a Resource, most_bytes: usize) -> Self {
        let symbols = Symbols::new(resource);
        Packer { resource, most_bytes, done: Vec::new(), symbols, timeseries: Vec::new(), bytes: 0 }
    }

    fn is_empty(&self) -> bool {
        self.timeseries.is_empty() && self.done.is_empty()
    }

    /// `write` is called again with the symbols of a new request when the series does not fit into this one.
    fn series(&mut self, write: impl Fn(&mut Symbols<'a>) -> TimeSeries) {
        let symbols_before = self.symbols.list.len();
        let mut written = write(&mut self.symbols);
        let mut bytes = written.encoded_len() + TAG_BYTES;
        if self.bytes + bytes + self.symbols.bytes > self.most_bytes && !self.timeseries.is_empty() {
            self.symbols.list.truncate(symbols_before);
            self.close();
            written = write(&mut self.symbols);
            bytes = written.encoded_len() + TAG_BYTES;
        }
        self.bytes += bytes;
        self.timeseries.push(written);
    }

    fn close(&mut self) {
        let symbols = std::mem::replace(&mut self.symbols, Symbols::new(self.resource)).list;
        let timeseries = std::mem::take(&mut self.timeseries);
        let points = timeseries.iter().map(|series| (series.samples.len() + series.histograms.len()) as u64).sum();
        let body = Request { symbols, timeseries }.encode_to_vec();
        self.done.push(Part { body, points, runs: Vec::new() });
        self.bytes = 0;
    }

    fn finish(mut self) -> Vec<Part> {
        if !self.timeseries.is_empty() {
            self.close();
        }
        self.done
    }
}

#[cfg(test)]
mod tests;
