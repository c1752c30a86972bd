//! Fields of `io.prometheus.client`, written as prost writes the messages of [`super::message`]: in the order of their numbers,
//! without those that are zero.

use super::message::{BucketSpan, Counter, Gauge, Timestamp};
use crate::native::{Native, Spans};
use crate::varint::{self, zigzag};

/// Keys of the fields of `Metric` that hold a value.
pub(super) const GAUGE: u8 = delimited_key(2);
pub(super) const COUNTER: u8 = delimited_key(3);
pub(super) const HISTOGRAM: u8 = delimited_key(7);

/// Key of field 16 of `Histogram`, the only one that takes two bytes.
const EXEMPLARS: [u8; 2] = [0x82, 1];

const fn varint_key(number: u8) -> u8 {
    number << 3
}

/// Of a `double`.
const fn fixed64_key(number: u8) -> u8 {
    number << 3 | 1
}

/// Of a field with a length.
const fn delimited_key(number: u8) -> u8 {
    number << 3 | 2
}

/// Takes what is written, or its length.
pub(super) trait Sink {
    fn bytes(&mut self, bytes: &[u8]);
    fn varint(&mut self, value: u64);
}

/// The fields of a message.
pub(super) trait Fields {
    fn write(&self, out: &mut impl Sink);

    fn length(&self) -> usize {
        let mut length = Length(0);
        self.write(&mut length);
        length.0
    }
}

impl Sink for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn varint(&mut self, value: u64) {
        varint::put(self, value);
    }
}

/// The length of what was written.
pub(super) struct Length(pub usize);

impl Sink for Length {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }

    fn varint(&mut self, value: u64) {
        self.0 += varint::length(value);
    }
}

/// Bytes of a field with a key of one byte, a length and that many bytes.
pub(super) fn delimited(length: usize) -> usize {
    1 + varint::length(length as u64) + length
}

fn write_varint(out: &mut impl Sink, number: u8, value: u64) {
    if value != 0 {
        out.bytes(&[varint_key(number)]);
        out.varint(value);
    }
}

fn write_double(out: &mut impl Sink, number: u8, value: f64) {
    if value != 0.0 {
        out.bytes(&[fixed64_key(number)]);
        out.bytes(&value.to_le_bytes());
    }
}

fn write_bytes(out: &mut impl Sink, number: u8, bytes: &[u8]) {
    out.bytes(&[delimited_key(number)]);
    out.varint(bytes.len() as u64);
    out.bytes(bytes);
}

fn write_message(out: &mut impl Sink, number: u8, message: &impl Fields) {
    out.bytes(&[delimited_key(number)]);
    out.varint(message.length() as u64);
    message.write(out);
}

impl Fields for Timestamp {
    fn write(&self, out: &mut impl Sink) {
        write_varint(out, 1, self.seconds as u64);
        write_varint(out, 2, self.nanos as u64);
    }
}

impl Fields for Counter {
    fn write(&self, out: &mut impl Sink) {
        write_double(out, 1, self.value);
        self.start_timestamp.iter().for_each(|time| write_message(out, 3, time));
    }
}

impl Fields for Gauge {
    fn write(&self, out: &mut impl Sink) {
        write_double(out, 1, self.value);
    }
}

impl Fields for BucketSpan {
    fn write(&self, out: &mut impl Sink) {
        write_varint(out, 1, zigzag(self.offset.into()));
        write_varint(out, 2, self.length.into());
    }
}

/// A classic bucket.
struct Bucket<'a> {
    cumulative_count: u64,
    /// The field for the bound.
    upper_bound: &'a [u8],
    /// The message, if there is one.
    exemplar: Option<&'a [u8]>,
}

impl Fields for Bucket<'_> {
    fn write(&self, out: &mut impl Sink) {
        write_varint(out, 1, self.cumulative_count);
        out.bytes(self.upper_bound);
        self.exemplar.iter().for_each(|exemplar| write_bytes(out, 3, exemplar));
    }
}

/// The field for the name of a label.
pub(super) fn label_name(name: &str) -> Vec<u8> {
    let mut field = Vec::new();
    write_bytes(&mut field, 1, name.as_bytes());
    field
}

/// A label, of which `name` is the field for the name.
pub(super) fn write_label(out: &mut Vec<u8>, name: &[u8], value: &str) {
    let bytes = if value.is_empty() { 0 } else { delimited(value.len()) };
    out.push(delimited_key(1));
    out.varint((name.len() + bytes) as u64);
    out.bytes(name);
    if !value.is_empty() {
        write_bytes(out, 2, value.as_bytes());
    }
}

/// The field for the bound of a classic bucket.
pub(super) fn upper_bound(bound: f64) -> Vec<u8> {
    let mut field = Vec::new();
    write_double(&mut field, 2, bound);
    field
}

/// All that is written of a histogram.
pub(super) struct HistogramFields<'a> {
    pub sum: f64,
    /// Of each classic bucket, its field for the bound.
    pub bounds: &'a [Vec<u8>],
    /// Of each classic bucket, its count with all below it.
    pub cumulative: &'a [u64],
    pub zero_threshold: f64,
    pub native: &'a Native,
    pub spans: &'a Spans,
    pub created: Option<Timestamp>,
    /// By time: the classic bucket and the message of each.
    pub exemplars: &'a [(usize, Vec<u8>)],
}

impl Fields for HistogramFields<'_> {
    fn write(&self, out: &mut impl Sink) {
        write_varint(out, 1, self.cumulative.last().copied().unwrap_or(0));
        write_double(out, 2, self.sum);
        for (bucket, (upper_bound, &cumulative_count)) in self.bounds.iter().zip(self.cumulative).enumerate() {
            // The newest is the last.
            let exemplar = self.exemplars.iter().rev().find(|(of, _)| *of == bucket);
            let exemplar = exemplar.map(|(_, message)| message.as_slice());
            write_message(out, 3, &Bucket { cumulative_count, upper_bound, exemplar });
        }
        write_varint(out, 5, zigzag(self.native.schema.into()));
        write_double(out, 6, self.zero_threshold);
        write_varint(out, 7, self.native.zero_count);
        for &(offset, length) in &self.spans.runs {
            write_message(out, 12, &BucketSpan { offset, length });
        }
        let deltas = || self.spans.deltas.iter().map(|delta| zigzag(*delta));
        if !self.spans.deltas.is_empty() {
            out.bytes(&[delimited_key(13)]);
            out.varint(deltas().map(varint::length).sum::<usize>() as u64);
            deltas().for_each(|delta| out.varint(delta));
        }
        self.created.iter().for_each(|time| write_message(out, 15, time));
        for (_, exemplar) in self.exemplars {
            out.bytes(&EXEMPLARS);
            out.varint(exemplar.len() as u64);
            out.bytes(exemplar);
        }
    }
}
