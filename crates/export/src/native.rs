//! The native (base-2 exponential) form of a histogram: counts of populated buckets, lowered to fewer buckets when there are
//! too many, and their spans and deltas as Prometheus takes them.

use crate::reading::Histogram;
use kstrobe_ebpf::buckets::{NativeBucket, Scheme};

/// Coarsest schema of Prometheus: a bucket spans a factor of 2^16.
const LOWEST_SCHEMA: i32 = -4;

/// So many empty buckets between two populated ones are written out: a new span would take more.
const MAX_FILLED: i32 = 2;

/// Counts of one histogram in its native form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Native {
    /// 2^schema buckets per power of two.
    pub schema: i32,
    /// Observations from 0 to [`Scheme::zero_threshold`], which lowering leaves alone.
    pub zero_count: u64,
    /// Index and count of each populated bucket, ascending. Bucket `i` is `(2^((i - 1) / 2^schema), 2^(i / 2^schema)]`; the
    /// zero bucket's part of it is not counted in it.
    pub populated: Vec<(i32, u64)>,
}

impl Native {
    /// Of counts per in-kernel bucket, at the scheme's own resolution.
    pub fn new(scheme: &Scheme, counts: &[u64]) -> Native {
        let (zero_count, populated) = scheme.fold_native(counts);
        Native { schema: i32::from(scheme.native().schema), zero_count, populated }
    }

    /// The same of a packed histogram, in the memory of another.
    pub(crate) fn set(&mut self, scheme: &Scheme, histogram: Histogram<'_>) {
        let fold = scheme.native();
        (self.schema, self.zero_count) = (i32::from(fold.schema), 0);
        self.populated.clear();
        for (bucket, count) in histogram.populated() {
            match (fold.of.get(bucket), self.populated.last_mut()) {
                (Some(NativeBucket::Index(index)), Some((last, sum))) if last == index => {
                    *sum = sum.wrapping_add(count)
                }
                (Some(NativeBucket::Index(index)), _) => self.populated.push((*index, count)),
                (Some(NativeBucket::Zero) | None, _) => self.zero_count = self.zero_count.wrapping_add(count),
            }
        }
    }

    /// Halves the resolution until at most so many buckets are populated, or none coarser exists; 0 asks for nothing.
    pub fn limited(mut self, bucket_limit: usize) -> Native {
        self.limit(bucket_limit);
        self
    }

    /// The same in place.
    pub(crate) fn limit(&mut self, bucket_limit: usize) {
        while bucket_limit > 0 && self.populated.len() > bucket_limit && self.schema > LOWEST_SCHEMA {
            self.lower();
        }
    }

    /// One schema down: bounds of a schema are every other bound of the next, so that pairs of buckets merge exactly.
    fn lower(&mut self) {
        self.schema -= 1;
        for (index, _) in &mut self.populated {
            // Half, rounded up: upper bounds are inclusive.
            *index = (*index >> 1) + (*index & 1);
        }
        self.populated.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.wrapping_add(next.1);
            }
            same
        });
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.populated.iter().fold(self.zero_count, |sum, (_, count)| sum.wrapping_add(*count))
    }

    /// Where its buckets are, and their counts.
    pub fn spans(&self) -> Spans {
        let mut spans = Spans::default();
        spans.set(self);
        spans
    }
}

/// Populated buckets as Prometheus takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Runs of buckets `(offset, length)`. The first offset is a bucket's index, the others count the buckets left out since
    /// the last run. Without any bucket there is one span `(0, 0)`, which tells an empty native histogram from a classic one.
    pub runs: Vec<(i32, u32)>,
    /// Each bucket's count less that of the one before.
    pub deltas: Vec<i64>,
}

impl Spans {
    /// Those of a histogram, in the memory of another's.
    pub(crate) fn set(&mut self, native: &Native) {
        self.runs.clear();
        self.deltas.clear();
        // Index and count of the bucket before.
        let mut before: Option<(i32, u64)> = None;
        for &(index, count) in &native.populated {
            let gap = before.map_or(index, |(last, _)| index - last - 1);
            let mut last_count = before.map_or(0, |(_, count)| count);
            match self.runs.last_mut().filter(|_| gap <= MAX_FILLED) {
                Some((_, length)) => {
                    for _ in 0..gap {
                        self.deltas.push(0u64.wrapping_sub(last_count) as i64);
                        last_count = 0;
                    }
                    *length += gap as u32 + 1;
                }
                None => self.runs.push((gap, 1)),
            }
            self.deltas.push(count.wrapping_sub(last_count) as i64);
            before = Some((index, count));
        }
        if self.runs.is_empty() {
            self.runs.push((0, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_ebpf::buckets::BucketSpec;
    use proptest::prelude::*;

    fn native(schema: i32, populated: &[(i32, u64)]) -> Native {
        Native { schema, zero_count: 0, populated: populated.to_vec() }
    }

    /// What a reader makes of spans and deltas: populated buckets.
    fn read(spans: &Spans) -> Vec<(i32, u64)> {
        let (mut index, mut count, mut deltas) = (0i32, 0i64, spans.deltas.iter());
        let mut buckets = Vec::new();
        for &(offset, length) in &spans.runs {
            index += offset;
            for _ in 0..length {
                count = count.wrapping_add(*deltas.next().unwrap());
                buckets.push((index, count as u64));
                index += 1;
            }
        }
        assert_eq!(deltas.next(), None);
        buckets.retain(|(_, count)| *count != 0);
        buckets
    }

    #[test]
    fn spans_fill_small_gaps_and_skip_large_ones() {
        for (populated, spans, deltas) in [
            (&[][..], &[(0, 0)][..], &[][..]),
            (&[(-3, 5)], &[(-3, 1)], &[5]),
            (&[(0, 5)], &[(0, 1)], &[5]),
            (&[(-1, 5), (0, 7), (1, 1)], &[(-1, 3)], &[5, 2, -6]),
            (&[(1, 5), (3, 7)], &[(1, 3)], &[5, -5, 7]),
            (&[(1, 5), (4, 7)], &[(1, 4)], &[5, -5, 0, 7]),
            (&[(1, 5), (5, 7), (6, 8)], &[(1, 1), (3, 2)], &[5, 2, 1]),
        ] {
            let expected = Spans { runs: spans.to_vec(), deltas: deltas.to_vec() };
            assert_eq!(native(0, populated).spans(), expected, "{populated:?}");
        }
    }

    #[test]
    fn lowering_merges_pairs_with_inclusive_upper_bounds() {
        // Schema 1 bucket 2 is (2^0.5, 2], bucket 1 is (1, 2^0.5]: both are bucket 1 of schema 0, which is (1, 2].
        let fine = native(1, &[(-3, 1), (-2, 2), (-1, 4), (0, 8), (1, 16), (2, 32), (3, 64)]);
        let coarse = native(0, &[(-1, 3), (0, 12), (1, 48), (2, 64)]);
        assert_eq!(fine.clone().limited(6), coarse);
        assert_eq!(fine.clone().limited(7), fine);
        assert_eq!(fine.clone().limited(0), fine, "no limit");
        assert_eq!(coarse.limited(2), native(-1, &[(0, 15), (1, 112)]));
    }

    #[test]
    fn there_is_a_lowest_schema() {
        let wide = native(-3, &[(-9, 1), (0, 1), (9, 1), (i32::MAX, 1)]);
        let lowest = wide.limited(1);
        assert_eq!((lowest.schema, lowest.populated.len()), (-4, 4));
    }

    fn buckets() -> impl Strategy<Value = Vec<(i32, u64)>> {
        let one = (-5000i32..5000, 1u64..1 << 40);
        proptest::collection::btree_map(-5000i32..5000, one.prop_map(|(_, count)| count), 0..300)
            .prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #[test]
        fn spans_read_back(populated in buckets()) {
            prop_assert_eq!(read(&native(3, &populated).spans()), populated);
        }

        #[test]
        fn lowering_keeps_the_count_and_each_value_in_its_bucket(populated in buckets(), limit in 1usize..200) {
            let fine = native(5, &populated);
            let coarse = fine.clone().limited(limit);
            prop_assert_eq!(coarse.count(), fine.count());
            prop_assert!(coarse.populated.len() <= limit || coarse.schema == LOWEST_SCHEMA);
            prop_assert!(coarse.populated.windows(2).all(|pair| pair[0].0 < pair[1].0));
            // A coarse bucket holds the fine ones whose upper bounds lie in it.
            let ratio = 1 << (fine.schema - coarse.schema);
            for &(index, count) in &coarse.populated {
                let inside = fine.populated.iter().filter(|(i, _)| *i > (index - 1) * ratio && *i <= index * ratio);
                prop_assert_eq!(count, inside.map(|(_, count)| count).sum::<u64>());
            }
        }

        #[test]
        fn a_scheme_read_at_lower_resolution_is_the_scheme_of_that_resolution(
            values in proptest::collection::vec(0u64..1 << 26, 1..200), schema in 1u8..=5, down in 1u8..=5,
        ) {
            // Seconds from nanoseconds, zero bucket below a bound of every schema.
            let scheme = |schema| Scheme::new(&BucketSpec {
                schema, raw_per_unit: 1_000_000_000, min: 0, max: 1 << 28, classic: vec![],
            }).unwrap();
            let counts = |scheme: &Scheme| {
                let mut counts = vec![0; scheme.buckets()];
                values.iter().for_each(|v| counts[scheme.index(*v)] += 1);
                counts
            };
            let lower = schema.saturating_sub(down);
            let (fine, coarse) = (scheme(schema), scheme(lower));
            let mut folded = Native::new(&fine, &counts(&fine));
            while folded.schema > i32::from(lower) {
                folded.lower();
            }
            prop_assert_eq!(folded, Native::new(&coarse, &counts(&coarse)));
        }
    }
}
