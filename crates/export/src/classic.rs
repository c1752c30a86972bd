//! The classic form of a histogram: counts at or below each bound.

use crate::snapshot::Histograms;

/// The classic buckets that the histograms of a family share, `+Inf` last.
pub(crate) struct Classic {
    /// Upper bound, inclusive, and the number of in-kernel buckets at or below it. These never straddle a bound, so that each
    /// bucket's count is exact.
    ends: Vec<(f64, usize)>,
}

impl Classic {
    pub(crate) fn new(histograms: &Histograms) -> Classic {
        let fold = histograms.scheme.classic();
        let end = |bucket: usize| fold.of.partition_point(|&of| usize::from(of) <= bucket);
        let bounds = fold.bounds.iter().map(|(_, bound)| *bound).chain([f64::INFINITY]);
        Classic { ends: bounds.enumerate().map(|(bucket, bound)| (bound, end(bucket))).collect() }
    }

    /// Upper bounds, ascending.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = f64> {
        self.ends.iter().map(|(bound, _)| *bound)
    }

    /// Observations at or below each bound, the last of all, from counts per in-kernel bucket.
    pub(crate) fn cumulative<'a>(&'a self, counts: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
        let (mut sum, mut from) = (0u64, 0);
        self.ends.iter().map(move |&(_, end)| {
            for count in counts.get(from..end).unwrap_or(&[]) {
                sum = sum.wrapping_add(*count);
            }
            from = end;
            sum
        })
    }

    /// Position of the bucket that an observation in the exported unit lies in.
    pub(crate) fn bucket_of(&self, value: f64) -> usize {
        self.ends.partition_point(|(bound, _)| *bound < value)
    }
}
