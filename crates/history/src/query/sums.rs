//! Sums of changes, and what is made of them.

use crate::record::Packed;
use kstrobe_ebpf::buckets::Scheme;
use kstrobe_export::quantile::{Populated, quantile};
use kstrobe_export::quotient;
use std::collections::BTreeMap;

/// A bucket of any scheme by its bounds in raw units: above the first, up to the second; `u64::MAX` is +Inf.
pub(super) type Bounds = (u64, u64);

pub(super) fn bounds(scheme: &Scheme, bucket: u32) -> Bounds {
    let bucket = bucket as usize;
    let lower = bucket.checked_sub(1).and_then(|below| scheme.upper.get(below)).copied().unwrap_or(0);
    (lower, scheme.upper.get(bucket).copied().unwrap_or(u64::MAX))
}

/// The same in the exported unit.
pub(super) fn exported((lower, upper): Bounds, unit: u64) -> (f64, Option<f64>) {
    (quotient(lower, unit), (upper != u64::MAX).then(|| quotient(upper, unit)))
}

/// Changes of a counter or a histogram, added.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// Of a counter.
    pub increase: u64,
    /// Of a histogram, in raw units.
    pub sum: u64,
    pub buckets: BTreeMap<Bounds, u64>,
}

impl Sums {
    pub fn add(&mut self, change: Packed<'_>, scheme: Option<&Scheme>) {
        match change {
            Packed::Counter(increase) => self.increase = self.increase.wrapping_add(increase),
            Packed::Histogram { sum, buckets } => {
                self.sum = self.sum.wrapping_add(sum);
                let Some(scheme) = scheme else { return };
                for (bucket, count) in buckets.iter() {
                    let sum = self.buckets.entry(bounds(scheme, bucket)).or_default();
                    *sum = sum.wrapping_add(count);
                }
            }
            Packed::Gauge(_) => {}
        }
    }

    /// Observations of a histogram.
    pub fn count(&self) -> u64 {
        self.buckets.values().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    pub fn merge(&mut self, other: &Sums) {
        self.increase = self.increase.wrapping_add(other.increase);
        self.sum = self.sum.wrapping_add(other.sum);
        for (bounds, count) in &other.buckets {
            let sum = self.buckets.entry(*bounds).or_default();
            *sum = sum.wrapping_add(*count);
        }
    }

    /// In the exported unit.
    pub fn quantile(&self, share: f64, unit: u64) -> Option<f64> {
        let bucket = |(&(lower, upper), &count): (&Bounds, &u64)| Populated {
            lower: lower as f64,
            upper: if upper == u64::MAX { f64::INFINITY } else { upper as f64 },
            count,
        };
        quantile(self.buckets.iter().map(bucket), share).map(|raw| raw / unit as f64)
    }

    /// Upper bound of the highest bucket in the exported unit.
    pub fn max(&self, unit: u64) -> Option<f64> {
        self.buckets.keys().next_back().and_then(|bounds| exported(*bounds, unit).1)
    }
}
