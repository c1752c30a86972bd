//! Prometheus text 0.0.4 and OpenMetrics 1.0.
//!
//! The two differ little, and are written by the same code: OpenMetrics names a counter's family without `_total`, adds
//! `# UNIT`, `_created` and `# EOF`, and escapes quotes in HELP.

use crate::classic::Classic;
use crate::exposition;
use crate::number::{bound_text, decimal, float};
use crate::reading::{Block, Histogram, PackedFamily, Value};
use crate::snapshot::{Descriptor, Exemplar, Kind, Number, OfFamily, Series};
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

/// How the series of a family are written. `open`: as OpenMetrics, where alone exemplars are written.
pub(crate) struct Body<'a> {
    family: &'a PackedFamily,
    exemplars: OfFamily<'a>,
    line: Line<'a>,
    buckets: Option<Buckets>,
}

/// What the histograms of a family share.
struct Buckets {
    classic: Classic,
    /// The end of each bucket's line but for its count.
    tails: Vec<String>,
    /// The beginning of these lines.
    head: Vec<u8>,
    cumulative: Vec<u64>,
}

impl<'a> Body<'a> {
    pub(crate) fn new(family: &'a PackedFamily, exemplars: &'a [Exemplar], open: bool) -> Body<'a> {
        let buckets = family.scheme().map(|scheme| {
            let classic = Classic::new(scheme);
            let tails = classic.bounds().map(|bound| format!("le=\"{}\"}} ", bound_text(bound))).collect();
            Buckets { classic, tails, head: Vec::new(), cumulative: Vec::new() }
        });
        let exemplars = OfFamily::new(&family.about.name, exemplars);
        Body { family, exemplars, line: Line { base: family.about.stem(), labels: Vec::new(), created: open }, buckets }
    }
}

impl exposition::Body for Body<'_> {
    fn write(&mut self, out: &mut Vec<u8>, block: &Block) {
        let raw_per_unit = self.family.about.raw_per_unit;
        for (series, value) in block.values() {
            self.line.set_labels(self.family, series);
            match (value, &mut self.buckets) {
                (Value::Counter(value), _) => {
                    self.line.start(out, "_total");
                    decimal(out, value, raw_per_unit);
                    out.push(b'\n');
                    self.line.created(out, series);
                }
                (Value::Gauge(value), _) => {
                    self.line.start(out, "");
                    write_number(out, value, raw_per_unit);
                    out.push(b'\n');
                }
                (Value::Histogram(histogram), Some(buckets)) => {
                    buckets.write(out, &self.line, histogram, self.exemplars.of(series));
                    self.line.start(out, "_sum");
                    decimal(out, histogram.sum, raw_per_unit);
                    out.push(b'\n');
                    self.line.start(out, "_count");
                    let total = buckets.cumulative.last().copied().unwrap_or(0);
                    out.extend_from_slice(itoa::Buffer::new().format(total).as_bytes());
                    out.push(b'\n');
                    self.line.created(out, series);
                }
                (Value::Histogram(_), None) => {}
            }
        }
    }

    fn is_plain(&self, block: &Block) -> bool {
        self.exemplars.is_empty() || block.series().iter().all(|series| self.exemplars.of(series).is_empty())
    }
}

/// Appends the lines before the series of a family.
pub(crate) fn write_metadata(out: &mut Vec<u8>, about: &Descriptor, open: bool) {
    let base = about.stem();
    let kind = match about.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let total = if about.kind == Kind::Counter && !open { "_total" } else { "" };
    let mut comment = |keyword: &str, text: &str| {
        for part in ["# ", keyword, " ", base, total, " ", text, "\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    };
    let mut help = Vec::new();
    escape(&mut help, about.help.as_bytes(), open);
    comment("HELP", &String::from_utf8_lossy(&help));
    comment("TYPE", kind);
    if open && named_after_unit(about) {
        comment("UNIT", &about.unit);
    }
}

/// Whether a unit can be written: both OpenMetrics and Prometheus refuse one that the name does not end in.
pub(crate) fn named_after_unit(about: &Descriptor) -> bool {
    !about.unit.is_empty() && about.stem().strip_suffix(about.unit.as_str()).is_some_and(|rest| rest.ends_with('_'))
}

/// A NUL ends the input for Prometheus's text parser, so it is shown as U+FFFD, and so that a series is the same in every
/// format, in all of them.
pub(crate) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// The parts of a sample line that a series shares among its lines.
struct Line<'a> {
    base: &'a str,
    /// `a="x",b="y"`, rendered once per series.
    labels: Vec<u8>,
    created: bool,
}

impl Line<'_> {
    fn set_labels(&mut self, family: &PackedFamily, series: &Series) {
        self.labels.clear();
        for (position, name) in family.about.label_names.iter().enumerate() {
            if position > 0 {
                self.labels.push(b',');
            }
            self.labels.extend_from_slice(name.as_bytes());
            self.labels.extend_from_slice(b"=\"");
            escape(&mut self.labels, family.label(series, position).as_bytes(), true);
            self.labels.push(b'"');
        }
    }

    /// Name, labels and the space before the value.
    fn start(&self, out: &mut Vec<u8>, suffix: &str) {
        out.extend_from_slice(self.base.as_bytes());
        out.extend_from_slice(suffix.as_bytes());
        if !self.labels.is_empty() {
            out.push(b'{');
            out.extend_from_slice(&self.labels);
            out.push(b'}');
        }
        out.push(b' ');
    }

    fn created(&self, out: &mut Vec<u8>, series: &Series) {
        if let Some(since) = series.created.and_then(millis).filter(|_| self.created) {
            self.start(out, "_created");
            decimal(out, since, 1000);
            out.push(b'\n');
        }
    }
}

fn millis(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

impl Buckets {
    /// Appends the lines of the buckets, and leaves their counts in `cumulative`.
    fn write(&mut self, out: &mut Vec<u8>, line: &Line<'_>, histogram: Histogram<'_>, exemplars: &[&Exemplar]) {
        self.head.clear();
        let comma: &[u8] = if line.labels.is_empty() { b"" } else { b"," };
        for part in [line.base.as_bytes(), b"_bucket{", &line.labels, comma] {
            self.head.extend_from_slice(part);
        }
        self.classic.cumulative(histogram, &mut self.cumulative);
        let mut number = itoa::Buffer::new();
        for (bucket, (&cumulative, tail)) in self.cumulative.iter().zip(&self.tails).enumerate() {
            out.extend_from_slice(&self.head);
            out.extend_from_slice(tail.as_bytes());
            out.extend_from_slice(number.format(cumulative).as_bytes());
            // The newest is the last.
            if let Some(exemplar) = exemplars.iter().rev().find(|e| self.classic.bucket_of(e.value) == bucket) {
                write_exemplar(out, exemplar);
            }
            out.push(b'\n');
        }
    }
}

/// ` # {capture_id="20231114T221320000Z-0a1b2c"} 0.0531 1700000000.25`
fn write_exemplar(out: &mut Vec<u8>, exemplar: &Exemplar) {
    let (name, id) = exemplar.link.label();
    for part in [" # {", name, "=\""] {
        out.extend_from_slice(part.as_bytes());
    }
    escape(out, id.as_bytes(), true);
    out.extend_from_slice(b"\"} ");
    float(out, exemplar.value);
    if let Some(at) = millis(exemplar.at) {
        out.push(b' ');
        decimal(out, at, 1000);
    }
}

fn write_number(out: &mut Vec<u8>, number: Number, raw_per_unit: u64) {
    match number {
        Number::Unsigned(raw) => decimal(out, raw, raw_per_unit),
        Number::Signed(raw) => {
            if raw < 0 {
                out.push(b'-');
            }
            decimal(out, raw.unsigned_abs(), raw_per_unit);
        }
        Number::Float(value) => float(out, value),
    }
}

/// Label values escape `\`, `"` and newline; HELP of 0.0.4 leaves quotes alone. NUL as in [`without_nul`].
pub(crate) fn escape(out: &mut Vec<u8>, text: &[u8], quotes: bool) {
    let special = |byte: &u8| matches!(byte, b'\\' | b'\n' | 0) || (*byte == b'"' && quotes);
    let mut rest = text;
    while let Some(at) = rest.iter().position(special) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(match rest[at] {
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'"' => b"\\\"",
            _ => "\u{fffd}".as_bytes(),
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
pub(crate) mod tests;
