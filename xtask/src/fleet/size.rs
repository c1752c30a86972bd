//! What one node's exposition is to a server of metrics, counted. Pure.

use super::node::counts;
use super::serve::body;
use anyhow::Result;
use kstrobe_export::Format;
use kstrobe_export::message::{BucketSpan, Histogram, LabelPair, MetricFamily};
use std::collections::BTreeMap;

/// How histograms are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Form {
    /// Buckets as series, from text.
    Classic,
    /// One series each, from protobuf.
    Native,
    /// Both, from protobuf.
    Both,
}

impl Form {
    /// In this order everywhere.
    pub const ALL: [Form; 3] = [Form::Classic, Form::Native, Form::Both];

    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Form::Classic => "classic, text",
            Form::Native => "native, protobuf",
            Form::Both => "both, protobuf",
        }
    }

    /// What is asked for.
    pub fn format(self) -> Format {
        if self == Form::Classic { Format::Text004 } else { Format::Protobuf }
    }
}

/// Series of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// Whose samples are numbers.
    pub floats: u64,
    /// Whose samples are native histograms.
    pub histograms: u64,
}

impl Series {
    /// All of them.
    pub fn all(self) -> u64 {
        self.floats + self.histograms
    }
}

/// Series of an exposition that is taken in a form.
pub fn series(families: &[MetricFamily], form: Form) -> Series {
    let mut all = Series::default();
    for metric in families.iter().flat_map(|family| &family.metric) {
        let Some(histogram) = &metric.histogram else {
            all.floats += 1;
            continue;
        };
        let native = histogram.schema != 0 || !histogram.positive_span.is_empty();
        if native && form != Form::Classic {
            all.histograms += 1;
        }
        // With a sum and a count.
        if !native || form != Form::Native {
            all.floats += histogram.bucket.len() as u64 + 2;
        }
    }
    all
}

/// Bytes of the answer, plain and packed.
pub fn bytes(families: &[MetricFamily], format: Format) -> Result<(u64, u64)> {
    let length = |gzip| body(families, format, gzip).map(|body| body.len() as u64);
    Ok((length(false)?, length(true)?))
}

/// Populated native buckets.
pub fn native_buckets(families: &[MetricFamily]) -> u64 {
    let histograms = families.iter().flat_map(|family| &family.metric).filter_map(|metric| metric.histogram.as_ref());
    histograms.map(|histogram| counts(histogram).len() as u64).sum()
}

/// Without a label: series that differ in nothing else become one.
pub fn without(families: &[MetricFamily], label: &str) -> Vec<MetricFamily> {
    let mut less = families.to_vec();
    for family in &mut less {
        let mut merged: BTreeMap<Vec<(String, String)>, usize> = BTreeMap::new();
        let mut kept = Vec::new();
        for mut metric in std::mem::take(&mut family.metric) {
            metric.label.retain(|pair| pair.name != label);
            let key = metric.label.iter().map(|LabelPair { name, value }| (name.clone(), value.clone())).collect();
            match merged.get(&key) {
                Some(&at) => add(&mut kept[at], &metric),
                None => {
                    merged.insert(key, kept.len());
                    kept.push(metric);
                }
            }
        }
        family.metric = kept;
    }
    less
}

fn add(into: &mut kstrobe_export::message::Metric, metric: &kstrobe_export::message::Metric) {
    if let (Some(sum), Some(more)) = (&mut into.counter, &metric.counter) {
        sum.value += more.value;
    }
    if let (Some(sum), Some(more)) = (&mut into.gauge, &metric.gauge) {
        sum.value += more.value;
    }
    if let (Some(sum), Some(more)) = (&mut into.histogram, &metric.histogram) {
        let mut all = counts(sum);
        for (index, count) in counts(more) {
            *all.entry(index).or_default() += count;
        }
        set_counts(sum, &all);
        sum.zero_count += more.zero_count;
        sum.sample_count += more.sample_count;
        sum.sample_sum += more.sample_sum;
        for (bucket, more) in sum.bucket.iter_mut().zip(&more.bucket) {
            bucket.cumulative_count += more.cumulative_count;
        }
    }
}

/// With at most so many native buckets each: two become one until it is so.
pub fn limited(families: &[MetricFamily], most: usize) -> Vec<MetricFamily> {
    let mut less = families.to_vec();
    for histogram in less.iter_mut().flat_map(|family| &mut family.metric).filter_map(|m| m.histogram.as_mut()) {
        let mut all = counts(histogram);
        while all.len() > most {
            let mut merged = BTreeMap::new();
            for (index, count) in all {
                // The upper bound of a bucket of the coarser schema is that of every second one: (i + 1) / 2, rounded down.
                *merged.entry((index + 1).div_euclid(2)).or_default() += count;
            }
            all = merged;
            histogram.schema -= 1;
        }
        set_counts(histogram, &all);
    }
    less
}

fn set_counts(histogram: &mut Histogram, counts: &BTreeMap<i32, u64>) {
    histogram.positive_span.clear();
    histogram.positive_delta.clear();
    let (mut next, mut last) = (0, 0);
    for (&index, &count) in counts {
        match histogram.positive_span.last_mut() {
            Some(span) if index == next => span.length += 1,
            _ => histogram.positive_span.push(BucketSpan { offset: index - next, length: 1 }),
        }
        histogram.positive_delta.push(count.cast_signed() - last);
        (next, last) = (index + 1, count.cast_signed());
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::tests::recording;
    use super::*;

    #[test]
    fn series_by_form() {
        let recording = recording();
        let families = recording.last();
        // Two counters and a gauge, and a histogram of three buckets.
        assert_eq!(series(families, Form::Classic), Series { floats: 3 + 5, histograms: 0 });
        assert_eq!(series(families, Form::Native), Series { floats: 3, histograms: 1 });
        assert_eq!(series(families, Form::Both), Series { floats: 3 + 5, histograms: 1 });
        assert_eq!(native_buckets(families), 3);
    }

    #[test]
    fn a_label_less_sums() {
        let recording = recording();
        let less = without(recording.last(), "comm");
        assert_eq!(less[0].metric.len(), 1);
        assert_eq!(less[0].metric[0].counter.unwrap().value, 40.0 + 7.0);
        let mut twice = recording.last().to_vec();
        let mut other = twice[2].metric[0].clone();
        other.label[0].value = "b".into();
        twice[2].metric.push(other);
        let less = without(&twice, "comm");
        let one = counts(recording.last()[2].metric[0].histogram.as_ref().unwrap());
        let sum = counts(less[2].metric[0].histogram.as_ref().unwrap());
        assert_eq!(sum, one.into_iter().map(|(index, count)| (index, 2 * count)).collect());
    }

    #[test]
    fn fewer_buckets_hold_the_same() {
        let recording = recording();
        let before = counts(recording.last()[2].metric[0].histogram.as_ref().unwrap());
        let less = limited(recording.last(), 2);
        let histogram = less[2].metric[0].histogram.as_ref().unwrap();
        let after = counts(histogram);
        assert!(after.len() <= 2 && histogram.schema < 3, "{after:?}");
        assert_eq!(after.values().sum::<u64>(), before.values().sum::<u64>());
        assert_eq!(limited(recording.last(), 160), recording.last());
    }
}
