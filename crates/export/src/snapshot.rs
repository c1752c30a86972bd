//! All series at one moment, as plain data.
//!
//! Columns instead of objects: a histogram family of 10,000 series is one flat vector of bucket counts, so that taking a
//! snapshot costs a handful of allocations however many series there are.

use crate::number::quotient;
use kstrobe_ebpf::buckets::Scheme;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// Every family at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the values were read.
    pub at: SystemTime,
    /// In a stable order.
    pub families: Vec<Family>,
}

/// What an exemplar leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Id of a capture that was started because of such observations.
    Capture(String),
    /// Id of a single event, which was this observation.
    Event(String),
}

impl Link {
    /// Name and value of its label.
    pub fn label(&self) -> (&'static str, &str) {
        match self {
            Link::Capture(id) => ("capture_id", id),
            Link::Event(id) => ("event_id", id),
        }
    }
}

/// A capture or single event that belongs to an observation of a histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Exemplar {
    /// Full name of the metric.
    pub family: String,
    /// Labels of the series, as [`Series::labels`].
    pub labels: LabelTexts,
    /// What it leads to.
    pub link: Link,
    /// The observation, in the exported unit.
    pub value: f64,
    /// When it was seen.
    pub at: SystemTime,
}

/// Exemplars of one family, by series.
pub(crate) struct OfFamily<'a>(HashMap<&'a [Arc<str>], Vec<&'a Exemplar>>);

impl<'a> OfFamily<'a> {
    pub(crate) fn new(family: &str, exemplars: &'a [Exemplar]) -> OfFamily<'a> {
        let mut by_series: HashMap<&[Arc<str>], Vec<&Exemplar>> = HashMap::new();
        for exemplar in exemplars.iter().filter(|exemplar| exemplar.family == family) {
            by_series.entry(&exemplar.labels).or_default().push(exemplar);
        }
        by_series.values_mut().for_each(|of_series| of_series.sort_by_key(|exemplar| exemplar.at));
        OfFamily(by_series)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of a series, the newest last.
    pub(crate) fn of(&self, series: &Series) -> &[&'a Exemplar] {
        self.0.get(&*series.labels).map_or(&[], Vec::as_slice)
    }
}

/// The two clocks of one instant, read together by the caller.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// For timestamps that leave the process.
    pub wall: SystemTime,
    /// For ages: never set back.
    pub mono: Instant,
}

impl Moment {
    /// Reads both clocks.
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), mono: Instant::now() }
    }
}

/// What a metric is, independent of its values; made once per metric and shared by all snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Full name, `kstrobe_` and a counter's `_total` included.
    pub name: String,
    /// One sentence.
    pub help: String,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// Unit of the exported values (`seconds`), empty when there is none.
    pub unit: String,
    /// Stored value / this = exported value: 1e9 for seconds kept as nanoseconds, else 1.
    pub raw_per_unit: u64,
    /// Label names in the user's order.
    pub label_names: Vec<String>,
}

impl Descriptor {
    /// The name without a counter's `_total`: OpenMetrics calls the family so.
    pub fn stem(&self) -> &str {
        self.name.strip_suffix("_total").filter(|_| self.kind == Kind::Counter).unwrap_or(&self.name)
    }
}

/// Kinds of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A sum that never goes back while its series lives.
    Counter,
    /// The last value.
    Gauge,
    /// A distribution.
    Histogram,
}

/// Label values of one series in key order; shared with the cache that decoded them.
pub type LabelTexts = Arc<[Arc<str>]>;

/// One metric with its series.
#[derive(Clone, Debug)]
pub struct Family {
    pub about: Arc<Descriptor>,
    /// For each label name, which of [`Series::labels`] is its value. (Metrics that share storage share the texts but
    /// may list them in different orders.)
    pub columns: Arc<[u32]>,
    /// Sorted by label texts.
    pub series: Vec<Series>,
    /// One value per series.
    pub values: Values,
}

/// Identity of one series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Label values in key order.
    pub labels: LabelTexts,
    /// A moment at which it did not exist yet, as late as is known: counts began after it. `None` when unknown (the
    /// kernel was counting before the agent came).
    pub created: Option<SystemTime>,
}

/// The values of a family, parallel to [`Family::series`].
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Raw units.
    Counters(Vec<u64>),
    /// Raw units (see [`Descriptor::raw_per_unit`]), or already exported units for [`Number::Float`].
    Gauges(Vec<Number>),
    /// In-kernel buckets.
    Histograms(Histograms),
}

/// A gauge's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Raw units.
    Unsigned(u64),
    /// Raw units.
    Signed(i64),
    /// Exported units.
    Float(f64),
}

impl Number {
    /// In exported units, correctly rounded.
    pub fn exported(self, raw_per_unit: u64) -> f64 {
        match self {
            Number::Unsigned(raw) => quotient(raw, raw_per_unit),
            Number::Signed(raw) => quotient(raw.unsigned_abs(), raw_per_unit) * raw.signum() as f64,
            Number::Float(value) => value,
        }
    }
}

/// Histograms of one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Histograms {
    /// The partition all of them share.
    pub scheme: Arc<Scheme>,
    /// True sums in raw units.
    pub sums: Vec<u64>,
    /// Counts per in-kernel bucket (not cumulative), series after series, [`Scheme::buckets`] each.
    pub counts: Vec<u64>,
}

impl Histograms {
    /// Bucket counts of one series, empty when there is no such series.
    pub fn counts_of(&self, series: usize) -> &[u64] {
        let stride = self.scheme.buckets();
        self.counts.get(series * stride..(series + 1) * stride).unwrap_or(&[])
    }

    /// Sum of one series in the exported unit, 0 when there is no such series.
    pub fn sum_of(&self, series: usize, raw_per_unit: u64) -> f64 {
        quotient(self.sums.get(series).copied().unwrap_or(0), raw_per_unit)
    }
}

impl Family {
    /// Value of a series' label, by position among [`Descriptor::label_names`].
    pub fn label<'a>(&self, series: &'a Series, position: usize) -> &'a str {
        self.columns.get(position).and_then(|&column| series.labels.get(column as usize)).map_or("", |text| text)
    }

    /// Number of series.
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Whether it has no series.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }
}
