//! Numbers from two moments of a metric.

use crate::kernel::binaries::pattern;
use kstrobe_config::model::{Compare, Matcher, Measure, When};
use kstrobe_export::quantile::{self, Populated};
use kstrobe_export::snapshot::{Family, Histograms, LabelTexts, Values};
use std::collections::HashMap;

/// What was found of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub labels: LabelTexts,
    /// What the condition compares.
    pub value: f64,
    /// An observation that stands for those that count, in the exported unit: for an exemplar of a histogram.
    pub typical: Option<f64>,
}

/// The series of a family that all matchers accept, with their values.
pub fn select(family: &Family, matchers: &[Matcher]) -> Family {
    let positions: Vec<Option<usize>> =
        matchers.iter().map(|m| family.about.label_names.iter().position(|name| *name == m.label.value)).collect();
    let kept: Vec<usize> = (0..family.series.len())
        .filter(|&at| {
            matchers.iter().zip(&positions).all(|(matcher, position)| {
                let label = position.map_or("", |position| family.label(&family.series[at], position));
                let fits = match matcher.kind.is_glob() {
                    true => pattern::matches(&matcher.text, label),
                    false => matcher.text == label,
                };
                fits != matcher.kind.is_negated()
            })
        })
        .collect();
    let values = match &family.values {
        Values::Counters(values) => Values::Counters(kept.iter().filter_map(|&at| values.get(at).copied()).collect()),
        Values::Gauges(values) => Values::Gauges(kept.iter().filter_map(|&at| values.get(at).copied()).collect()),
        Values::Histograms(histograms) => Values::Histograms(Histograms {
            scheme: histograms.scheme.clone(),
            sums: kept.iter().filter_map(|&at| histograms.sums.get(at).copied()).collect(),
            counts: kept.iter().flat_map(|&at| histograms.counts_of(at)).copied().collect(),
        }),
    };
    let series = kept.iter().map(|&at| family.series[at].clone()).collect();
    Family { about: family.about.clone(), columns: family.columns.clone(), series, values }
}

/// What the condition measures, for each series that had something to measure between the two moments.
pub fn measure(condition: &When, before: &Family, now: &Family, seconds: f64) -> Vec<Found> {
    let past: HashMap<&LabelTexts, usize> = before.series.iter().enumerate().map(|(at, s)| (&s.labels, at)).collect();
    let unit = now.about.raw_per_unit.max(1) as f64;
    let mut found = Vec::new();
    for (at, series) in now.series.iter().enumerate() {
        // A series that was not there began with nothing.
        let earlier = past.get(&series.labels).copied();
        let result = match (&now.values, &before.values) {
            (Values::Gauges(values), _) => values.get(at).map(|number| (number.exported(now.about.raw_per_unit), None)),
            (Values::Counters(values), Values::Counters(old)) => {
                let grown = values.get(at).map(|value| since(*value, earlier.and_then(|at| old.get(at).copied())));
                grown.map(|grown| (grown as f64 / unit / seconds, None))
            }
            (Values::Histograms(new), Values::Histograms(old)) if new.scheme.upper == old.scheme.upper => {
                let counts = growth(new.counts_of(at), earlier.map_or(&[], |at| old.counts_of(at)));
                of_counts(&condition.measure, &counts, &new.scheme.upper, unit, seconds)
            }
            _ => None,
        };
        if let Some((value, typical)) = result {
            found.push(Found { labels: series.labels.clone(), value, typical });
        }
    }
    found
}

/// `None` when nothing was observed and the measure is about what was.
fn of_counts(measure: &Measure, counts: &[u64], upper: &[u64], unit: f64, seconds: f64) -> Option<(f64, Option<f64>)> {
    let total: u64 = counts.iter().sum();
    let at = |share: f64| quantile(counts, upper, share).map(|raw| raw / unit);
    match measure {
        Measure::Quantile(share) => at(*share).map(|value| (value, Some(value))),
        Measure::Rate => Some((total as f64 / seconds, at(0.5))),
        Measure::Share { compare, bound } => {
            let above = above(counts, upper, bound.value.value() * unit)?;
            // The middle one of those that count.
            Some(match compare.looks_up() {
                true => (above, at(1.0 - above / 2.0)),
                false => (1.0 - above, at((1.0 - above) / 2.0)),
            })
        }
        Measure::Value => None,
    }
}

/// What a counter grew by. One that is smaller than before was given back and began anew.
fn since(now: u64, before: Option<u64>) -> u64 {
    now.checked_sub(before.unwrap_or(0)).unwrap_or(now)
}

fn growth(now: &[u64], before: &[u64]) -> Vec<u64> {
    let anew = before.len() != now.len() || now.iter().zip(before).any(|(now, before)| now < before);
    if anew { now.to_vec() } else { now.iter().zip(before).map(|(now, before)| now - before).collect() }
}

/// The value that a share of the observations does not exceed, in raw units, by [`kstrobe_export::quantile`].
pub fn quantile(counts: &[u64], upper: &[u64], share: f64) -> Option<f64> {
    let bucket = |(bucket, count): (usize, &u64)| {
        let (lower, upper) = ends(upper, bucket);
        Populated { lower, upper, count: *count }
    };
    quantile::quantile(counts.iter().enumerate().map(bucket), share)
}

/// The share of the observations above a bound in raw units. `None` when there are no observations.
pub fn above(counts: &[u64], upper: &[u64], bound: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return None;
    }
    let over = |(bucket, count): (usize, &u64)| {
        let (low, high) = ends(upper, bucket);
        let part =
            if low >= bound || high.is_infinite() { 1.0 } else { ((high - bound) / (high - low)).clamp(0.0, 1.0) };
        *count as f64 * part
    };
    Some(counts.iter().enumerate().map(over).sum::<f64>() / total as f64)
}

/// The ends of a bucket in raw units.
fn ends(upper: &[u64], bucket: usize) -> (f64, f64) {
    let bound = |at: usize| upper.get(at).map(|bound| *bound as f64);
    let low = bucket.checked_sub(1).and_then(bound).unwrap_or(0.0);
    (low, bound(bucket).unwrap_or(f64::INFINITY))
}

/// Of those that fulfil the condition, the one that does so most.
pub fn worst<'a>(found: impl Iterator<Item = &'a Found>, compare: Compare) -> Option<&'a Found> {
    found.reduce(|a, b| if (b.value > a.value) == compare.looks_up() && b.value != a.value { b } else { a })
}
