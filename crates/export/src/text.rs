//! Prometheus text 0.0.4 and OpenMetrics 1.0.
//!
//! The two differ little, and are written by the same code: OpenMetrics names a counter's family without `_total`, adds
//! `# UNIT`, `_created` and `# EOF`, and escapes quotes in HELP.

use crate::classic::Classic;
use crate::number::{bound_text, decimal, float};
use crate::snapshot::{Descriptor, Exemplar, Family, Histograms, Kind, Number, OfFamily, Series, Snapshot, Values};
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

/// Appends all families that have series. `open`: as OpenMetrics, where alone exemplars are written.
pub fn write(out: &mut Vec<u8>, snapshot: &Snapshot, exemplars: &[Exemplar], open: bool) {
    out.reserve(snapshot.families.iter().map(estimate).sum());
    for family in snapshot.families.iter().filter(|family| !family.is_empty()) {
        write_family(out, family, exemplars, open);
    }
}

/// Bytes a family will take, nearly: growing a buffer of many megabytes by doubling would copy it and hold it twice.
fn estimate(family: &Family) -> usize {
    let lines = match &family.values {
        Values::Histograms(histograms) => histograms.scheme.classic().bounds.len() + 4,
        _ => 2,
    };
    let Some(series) = family.series.first() else { return 0 };
    let labels: usize = series.labels.iter().map(|text| text.len() + 16).sum();
    family.len() * lines * (family.about.name.len() + labels + 28) + 1024
}

fn write_family(out: &mut Vec<u8>, family: &Family, exemplars: &[Exemplar], open: bool) {
    let base = family.about.stem();
    write_metadata(out, family, base, open);
    let mut line = Line { base, labels: Vec::new(), created: open };
    match &family.values {
        Values::Counters(values) => {
            for (series, value) in family.series.iter().zip(values) {
                line.set_labels(family, series);
                line.start(out, "_total");
                decimal(out, *value, family.about.raw_per_unit);
                out.push(b'\n');
                line.created(out, series);
            }
        }
        Values::Gauges(values) => {
            for (series, value) in family.series.iter().zip(values) {
                line.set_labels(family, series);
                line.start(out, "");
                write_number(out, *value, family.about.raw_per_unit);
                out.push(b'\n');
            }
        }
        Values::Histograms(histograms) => {
            let exemplars = OfFamily::new(family, if open { exemplars } else { &[] });
            write_histograms(out, family, histograms, &exemplars, &mut line);
        }
    }
}

fn write_metadata(out: &mut Vec<u8>, family: &Family, base: &str, open: bool) {
    let about = &family.about;
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
    fn set_labels(&mut self, family: &Family, series: &Series) {
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

fn write_histograms(
    out: &mut Vec<u8>,
    family: &Family,
    histograms: &Histograms,
    exemplars: &OfFamily<'_>,
    line: &mut Line,
) {
    let classic = Classic::new(histograms);
    // The end of each bucket's line but for its count.
    let tails: Vec<String> = classic.bounds().map(|bound| format!("le=\"{}\"}} ", bound_text(bound))).collect();
    let mut head = Vec::new();
    let mut number = itoa::Buffer::new();
    for (position, series) in family.series.iter().enumerate() {
        line.set_labels(family, series);
        head.clear();
        for part in [line.base.as_bytes(), b"_bucket{", &line.labels, if line.labels.is_empty() { b"" } else { b"," }] {
            head.extend_from_slice(part);
        }
        let mut total = 0;
        let of_series = exemplars.of(series);
        for (bucket, (cumulative, tail)) in classic.cumulative(histograms.counts_of(position)).zip(&tails).enumerate() {
            total = cumulative;
            out.extend_from_slice(&head);
            out.extend_from_slice(tail.as_bytes());
            out.extend_from_slice(number.format(cumulative).as_bytes());
            // The newest is the last.
            if let Some(exemplar) = of_series.iter().rev().find(|e| classic.bucket_of(e.value) == bucket) {
                write_exemplar(out, exemplar);
            }
            out.push(b'\n');
        }
        line.start(out, "_sum");
        decimal(out, histograms.sums.get(position).copied().unwrap_or(0), family.about.raw_per_unit);
        out.push(b'\n');
        line.start(out, "_count");
        out.extend_from_slice(number.format(total).as_bytes());
        out.push(b'\n');
        line.created(out, series);
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
