//! One second, packed.
//!
//! A record has a section for each metric that has changed: the metric's number less that of the section before, the section's
//! length, then its series in ascending order. A series is its number less the one before and its change. A change is: of a
//! counter the increase; of a gauge a byte for its type and the value; of a histogram the increase of the sum, the number of
//! buckets that have grown, and of each its distance from the one before and its increase. All numbers are LEB128.

use crate::cursor::Change;
use kstrobe_export::snapshot::{Kind, Number};
use kstrobe_export::varint::{get, put};

/// Changes of a second, sorted by metric and series.
pub(crate) fn pack<'a>(changes: impl Iterator<Item = (u32, u32, &'a Change)>) -> Box<[u8]> {
    let (mut out, mut section) = (Vec::new(), Vec::new());
    let (mut metric, mut previous) = (None, 0);
    let mut next_series = 0;
    for (of, series, change) in changes {
        if metric != Some(of) {
            flush(&mut out, &mut section, metric, &mut previous);
            (metric, next_series) = (Some(of), 0);
        }
        put(&mut section, u64::from(series - next_series));
        next_series = series;
        put_change(&mut section, change);
    }
    flush(&mut out, &mut section, metric, &mut previous);
    out.into_boxed_slice()
}

fn flush(out: &mut Vec<u8>, section: &mut Vec<u8>, metric: Option<u32>, previous: &mut u32) {
    let Some(metric) = metric else { return };
    put(out, u64::from(metric - *previous));
    put(out, section.len() as u64);
    out.append(section);
    *previous = metric;
}

fn put_change(out: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Counter(increase) => put(out, *increase),
        Change::Gauge(None) => out.push(0),
        Change::Gauge(Some(Number::Unsigned(value))) => {
            out.push(1);
            put(out, *value);
        }
        Change::Gauge(Some(Number::Signed(value))) => {
            out.push(2);
            put(out, ((value << 1) ^ (value >> 63)) as u64);
        }
        Change::Gauge(Some(Number::Float(value))) => {
            out.push(3);
            put(out, value.to_bits());
        }
        Change::Histogram { sum, buckets } => {
            put(out, *sum);
            put(out, buckets.len() as u64);
            let mut next = 0;
            for (bucket, increase) in buckets {
                put(out, u64::from(bucket - next));
                put(out, *increase);
                next = *bucket;
            }
        }
    }
}

/// What kind of changes a section has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Counter,
    Gauge,
    Histogram,
}

impl Shape {
    pub fn of(kind: Kind) -> Shape {
        match kind {
            Kind::Counter => Shape::Counter,
            Kind::Gauge => Shape::Gauge,
            Kind::Histogram => Shape::Histogram,
        }
    }
}

/// The sections of a record: number of the metric, and its series.
pub(crate) fn sections(mut bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut metric = 0;
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        metric = u32::wrapping_add(metric, get(&mut bytes) as u32);
        let length = get(&mut bytes) as usize;
        let (section, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some((metric, section))
    })
}

/// A change in a record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packed<'a> {
    Counter(u64),
    Gauge(Option<Number>),
    Histogram { sum: u64, buckets: Buckets<'a> },
}

/// Buckets that have grown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets<'a> {
    count: u64,
    bytes: &'a [u8],
}

impl<'a> Buckets<'a> {
    pub fn iter(self) -> impl Iterator<Item = (u32, u64)> + 'a {
        let (mut bytes, mut bucket) = (self.bytes, 0);
        (0..self.count).map_while(move |_| {
            if bytes.is_empty() {
                return None;
            }
            bucket = u32::wrapping_add(bucket, get(&mut bytes) as u32);
            Some((bucket, get(&mut bytes)))
        })
    }
}

/// The series of a section and their changes, ascending.
pub(crate) fn series(mut bytes: &[u8], shape: Shape) -> impl Iterator<Item = (u32, Packed<'_>)> {
    let mut series = 0;
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        series = u32::wrapping_add(series, get(&mut bytes) as u32);
        Some((series, get_change(&mut bytes, shape)))
    })
}

fn get_change<'a>(bytes: &mut &'a [u8], shape: Shape) -> Packed<'a> {
    match shape {
        Shape::Counter => Packed::Counter(get(bytes)),
        Shape::Gauge => {
            let (tag, rest) = bytes.split_first().map_or((0, *bytes), |(tag, rest)| (*tag, rest));
            *bytes = rest;
            Packed::Gauge(match tag {
                1 => Some(Number::Unsigned(get(bytes))),
                2 => {
                    let value = get(bytes);
                    Some(Number::Signed((value >> 1) as i64 ^ -((value & 1) as i64)))
                }
                3 => Some(Number::Float(f64::from_bits(get(bytes)))),
                _ => None,
            })
        }
        Shape::Histogram => {
            let (sum, count) = (get(bytes), get(bytes));
            let buckets = Buckets { count, bytes };
            for _ in 0..count {
                if bytes.is_empty() {
                    break;
                }
                get(bytes);
                get(bytes);
            }
            Packed::Histogram { sum, buckets }
        }
    }
}
