//! What a frame says, unpacked: the second, definitions, values of gauges, changes, marks.

use crate::cursor::Labels;
use crate::mark::{Mark, MarkKind};
use crate::registry::{Metric, Registry};
use crate::store::{Record, Second};
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use kstrobe_export::snapshot::{Descriptor, Kind};
use kstrobe_export::varint::{get, put};
use std::sync::Arc;

/// What was defined in a segment so far, by the number of a metric.
#[derive(Debug, Default)]
pub(super) struct Defined(Vec<DefinedMetric>);

#[derive(Debug, Default)]
struct DefinedMetric {
    series: u32,
    has_scheme: bool,
}

impl Defined {
    /// Writes what the registry has beyond that: numbers there only grow within a segment.
    pub fn write(&mut self, out: &mut Vec<u8>, registry: &Registry) {
        let (mut metrics, mut series) = (Vec::new(), Vec::new());
        let (mut metric_count, mut series_count) = (0, 0);
        for (number, metric) in registry.iter() {
            let is_new = number as usize >= self.0.len();
            if is_new {
                self.0.push(DefinedMetric::default());
            }
            let known = &mut self.0[number as usize];
            if is_new || metric.scheme.is_some() != known.has_scheme {
                known.has_scheme = metric.scheme.is_some();
                metric_count += 1;
                put_metric(&mut metrics, number, metric);
            }
            for (_, entry) in metric.series().skip(known.series as usize) {
                series_count += 1;
                put(&mut series, u64::from(number));
                put_texts(&mut series, entry.labels.iter().map(|text| &**text));
                known.series += 1;
            }
        }
        put(out, metric_count);
        out.append(&mut metrics);
        put(out, series_count);
        out.append(&mut series);
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_texts<'a>(out: &mut Vec<u8>, texts: impl ExactSizeIterator<Item = &'a str>) {
    put(out, texts.len() as u64);
    texts.for_each(|text| put_text(out, text));
}

fn put_metric(out: &mut Vec<u8>, number: u32, metric: &Metric) {
    let about = &metric.about;
    put(out, u64::from(number));
    out.push(match about.kind {
        Kind::Counter => 0,
        Kind::Gauge => 1,
        Kind::Histogram => 2,
    });
    [&*about.name, &*about.help, &*about.unit, &*metric.probe].into_iter().for_each(|text| put_text(out, text));
    put(out, about.raw_per_unit);
    put_texts(out, about.label_names.iter().map(String::as_str));
    out.push(u8::from(metric.scheme.is_some()));
    if let Some(BucketSpec { schema, raw_per_unit, min, max, classic }) = metric.scheme.as_deref().map(|s| &s.spec) {
        out.push(*schema);
        [*raw_per_unit, *min, *max].into_iter().for_each(|value| put(out, value));
        put_texts(out, classic.iter().map(String::as_str));
    }
}

pub(super) fn put_marks(out: &mut Vec<u8>, marks: &[Mark]) {
    put(out, marks.len() as u64);
    for mark in marks {
        out.extend_from_slice(&mark.time.to_le_bytes());
        out.push(match mark.kind {
            MarkKind::Event => 0,
            MarkKind::Capture => 1,
            MarkKind::Reload => 2,
            MarkKind::Budget => 3,
            MarkKind::Kernel => 4,
            MarkKind::Pod => 5,
        });
        put_text(out, &mark.text);
        put_texts(out, mark.link.as_deref().into_iter().collect::<Vec<_>>().into_iter());
    }
}

/// Reads a frame. `None` in place of anything that is not as it should be.
pub(super) struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    fn number(&mut self) -> Option<u64> {
        (!self.0.is_empty()).then(|| get(&mut self.0))
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn texts<T, C: FromIterator<T>>(&mut self, make: impl Fn(&str) -> T) -> Option<C> {
        (0..self.number()?).map(|_| self.text().map(&make)).collect()
    }

    /// Adds a frame's definitions to the registry and returns its second and its marks. A segment's first frame has no gauges
    /// but those before it.
    pub fn read(&mut self, registry: &mut Registry, number: u64) -> Option<(Record, Vec<Mark>)> {
        let second = Second { start: self.number()?, seconds: self.number()? };
        if second.seconds == 0 || second.seconds > second.start || second.start >= u64::from(u32::MAX) {
            return None;
        }
        for _ in 0..self.number()? {
            self.metric(registry)?;
        }
        for _ in 0..self.number()? {
            let metric = u32::try_from(self.number()?).ok()?;
            let labels: Labels = self.texts(|text| Arc::from(text))?;
            registry.define_series(metric, &labels)?;
        }
        registry.settle(self.bytes()?);
        let sampled = self.texts(|text| Arc::from(text))?;
        let bytes: Arc<[u8]> = self.bytes()?.into();
        crate::record::sections(&bytes).for_each(|(metric, _)| registry.see(metric, number));
        let marks = (0..self.number()?).map(|_| self.mark()).collect::<Option<_>>()?;
        Some((Record { second, sampled, bytes }, marks))
    }

    fn metric(&mut self, registry: &mut Registry) -> Option<()> {
        let number = u32::try_from(self.number()?).ok()?;
        let kind = match self.byte()? {
            0 => Kind::Counter,
            1 => Kind::Gauge,
            2 => Kind::Histogram,
            _ => return None,
        };
        let [name, help, unit, probe] = [self.text()?, self.text()?, self.text()?, self.text()?];
        let raw_per_unit = self.number().filter(|unit| *unit > 0)?;
        let label_names = self.texts(str::to_owned)?;
        let scheme = match self.byte()? {
            0 => None,
            _ => Some(Arc::new(self.scheme()?)),
        };
        let [name, help, unit] = [name, help, unit].map(str::to_owned);
        registry.define(number, Descriptor { name, help, kind, unit, raw_per_unit, label_names }, probe.into(), scheme)
    }

    fn scheme(&mut self) -> Option<Scheme> {
        let schema = self.byte()?;
        let [raw_per_unit, min, max] = [self.number()?, self.number()?, self.number()?];
        let classic = self.texts(str::to_owned)?;
        Scheme::new(&BucketSpec { schema, raw_per_unit, min, max, classic }).ok()
    }

    fn mark(&mut self) -> Option<Mark> {
        let (time, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        let kind = match self.byte()? {
            0 => MarkKind::Event,
            1 => MarkKind::Capture,
            2 => MarkKind::Reload,
            3 => MarkKind::Budget,
            4 => MarkKind::Kernel,
            5 => MarkKind::Pod,
            _ => return None,
        };
        let text = self.text()?.to_owned();
        let link = self.texts::<_, Vec<_>>(str::to_owned)?.pop();
        Some(Mark { time: f64::from_le_bytes(*time), kind, text, link })
    }
}
