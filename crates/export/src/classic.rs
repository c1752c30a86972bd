//! The classic form of a histogram: counts at or below each bound.

use crate::reading::Histogram;
use kstrobe_ebpf::buckets::Scheme;
use std::sync::Arc;

/// The classic buckets that the histograms of a family share, `+Inf` last.
pub(crate) struct Classic {
    /// In-kernel buckets never straddle a bound, so that each bucket's count is exact.
    scheme: Arc<Scheme>,
    /// Upper bounds, inclusive.
    bounds: Vec<f64>,
}

impl Classic {
    pub(crate) fn new(scheme: &Arc<Scheme>) -> Classic {
        let bounds = scheme.classic().bounds.iter().map(|(_, bound)| *bound).chain([f64::INFINITY]);
        Classic { scheme: scheme.clone(), bounds: bounds.collect() }
    }

    /// Upper bounds, ascending.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = f64> {
        self.bounds.iter().copied()
    }

    /// Observations at or below each bound, the last of all.
    pub(crate) fn cumulative(&self, histogram: Histogram<'_>, out: &mut Vec<u64>) {
        out.clear();
        out.resize(self.bounds.len(), 0);
        let of = &self.scheme.classic().of;
        for (bucket, count) in histogram.populated() {
            // There is a classic bucket for each of the scheme.
            let classic = of.get(bucket).map_or(0, |&classic| usize::from(classic));
            out[classic] = out[classic].wrapping_add(count);
        }
        let mut sum = 0u64;
        for count in out {
            sum = sum.wrapping_add(*count);
            *count = sum;
        }
    }

    /// Position of the bucket that an observation in the exported unit lies in.
    pub(crate) fn bucket_of(&self, value: f64) -> usize {
        self.bounds.partition_point(|bound| *bound < value)
    }
}
