//! What is drawn, as plain data.

use std::collections::HashMap;
use std::sync::Arc;

use crate::capture::rules::measure;
use crate::config::adhoc::scale::Scale;

/// One metric over one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Without the agent's prefix.
    pub name: String,
    /// Of its raw values.
    pub scale: Scale,
    /// Exported unit; empty without one.
    pub unit: String,
    /// Names of its labels.
    pub labels: Vec<String>,
    pub values: Values,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    Histograms(Vec<Row<Distribution>>),
    /// Raw increases.
    Counters(Vec<Row<u64>>),
    /// Raw values.
    Gauges(Vec<Row<f64>>),
}

/// The value of a label set.
#[derive(Clone, Debug, PartialEq)]
pub struct Row<T> {
    /// Parallel to the metric's label names.
    pub labels: Vec<String>,
    pub value: T,
}

/// Counts by the kernel's own buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Inclusive upper bounds in raw units; the last bucket has none.
    pub upper: Arc<[u64]>,
    /// One more than bounds.
    pub counts: Vec<u64>,
    /// Sum of the values in raw units.
    pub sum: u64,
}

impl Distribution {
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The value that a share of the values does not exceed, interpolated within its bucket. Counts are whole numbers.
    pub fn quantile(&self, share: f64, scale: Scale) -> Option<f64> {
        let raw = measure::quantile(&self.counts, &self.upper, share)?;
        Some(if scale == Scale::Count { raw.ceil() } else { raw.round() })
    }

    /// End of the highest bucket with a count: the largest value lies at or below. `None` beyond the last bound.
    pub fn max(&self) -> Option<u64> {
        self.upper.get(self.counts.iter().rposition(|count| *count > 0)?).copied()
    }
}

/// Values that are added up when label sets become one.
pub trait Add {
    fn add(&mut self, other: &Self);
}

impl Add for u64 {
    fn add(&mut self, other: &u64) {
        *self = self.saturating_add(*other);
    }
}

impl Add for f64 {
    fn add(&mut self, other: &f64) {
        *self += other;
    }
}

impl Add for Distribution {
    fn add(&mut self, other: &Distribution) {
        self.sum = self.sum.saturating_add(other.sum);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }
}

impl Metric {
    /// Whether it has no label set.
    pub fn is_empty(&self) -> bool {
        match &self.values {
            Values::Histograms(rows) => rows.is_empty(),
            Values::Counters(rows) => rows.is_empty(),
            Values::Gauges(rows) => rows.is_empty(),
        }
    }

    /// The same with these labels alone, by their positions: label sets that differ in others become one.
    pub fn merged(self, by: &[usize]) -> Metric {
        let labels = by.iter().filter_map(|at| self.labels.get(*at).cloned()).collect();
        let values = match self.values {
            Values::Histograms(rows) => Values::Histograms(merge(rows, by)),
            Values::Counters(rows) => Values::Counters(merge(rows, by)),
            Values::Gauges(rows) => Values::Gauges(merge(rows, by)),
        };
        Metric { labels, values, ..self }
    }
}

fn merge<T: Add>(rows: Vec<Row<T>>, by: &[usize]) -> Vec<Row<T>> {
    let mut merged: Vec<Row<T>> = Vec::new();
    let mut places: HashMap<Vec<String>, usize> = HashMap::new();
    for row in rows {
        let labels: Vec<String> = by.iter().filter_map(|at| row.labels.get(*at).cloned()).collect();
        match places.get(&labels) {
            Some(place) => merged[*place].value.add(&row.value),
            None => {
                places.insert(labels.clone(), merged.len());
                merged.push(Row { labels, value: row.value });
            }
        }
    }
    merged
}
