//! The native (base-2 exponential) form of a histogram: counts of populated buckets, lowered to fewer buckets when there are
//! too many, and their spans and deltas as Prometheus takes them.

use crate::reading::Histogram;
use kstrobe_ebpf::buckets::{NativeBucket, Scheme};

/// Coarsest schema of Prometheus: a bucket spans a factor of 2^16.
const LOWEST_SCHEMA: i32 = -4;

/// So many empty buckets between two populated ones are written out: a new span would take more.
const MAX_FILLED: i32 = 2;

/// Counts of one histogram in its native form.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// The same of a packed histogram.
    pub(crate) fn of(scheme: &Scheme, histogram: Histogram<'_>) -> Native {
        let fold = scheme.native();
        let mut native = Native { schema: i32::from(fold.schema), zero_count: 0, populated: Vec::new() };
        for (bucket, count) in histogram.populated() {
            match (fold.of.get(bucket), native.populated.last_mut()) {
                (Some(NativeBucket::Index(index)), Some((last, sum))) if last == index => {
                    *sum = sum.wrapping_add(count)
                }
                (Some(NativeBucket::Index(index)), _) => native.populated.push((*index, count)),
                (Some(NativeBucket::Zero) | None, _) => native.zero_count = native.zero_count.wrapping_add(count),
            }
        }
        native
    }

    /// Halves the resolution until at most so many buckets are populated, or none coarser exists; 0 asks for nothing.
    pub fn limited(mut self, bucket_limit: usize) -> Native {
        while bucket_limit > 0 && self.populated.len() > bucket_limit && self.schema > LOWEST_SCHEMA {
            self.lower();
        }
        self
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

    /// Runs of buckets `(offset, length)`, and each bucket's count less that of the one before. The first offset is a
    /// bucket's index, the others count the buckets left out since the last run. Without any bucket there is one span
    /// `(0, 0)`, which tells an empty native histogram from a classic one.
    pub fn spans(&self) -> (Vec<(i32, u32)>, Vec<i64>) {
        let mut spans: Vec<(i32, u32)> = Vec::new();
        let mut deltas = Vec::with_capacity(self.populated.len());
        // Index and count of the bucket before.
        let mut before: Option<(i32, u64)> = None;
        for &(index, count) in &self.populated {
            let gap = before.map_or(index, |(last, _)| index - last - 1);
            let mut last_count = before.map_or(0, |(_, count)| count);
            match spans.last_mut().filter(|_| gap <= MAX_FILLED) {
                Some((_, length)) => {
                    for _ in 0..gap {
                        deltas.push(0u64.wrapping_sub(last_count) as i64);
                        last_count = 0;
                    }
                    *length += gap as u32 + 1;
                }
                None => spans.push((gap, 1)),
            }
            deltas.push(count.wrapping_sub(last_count) as i64);
            before = Some((index, count));
        }
        if spans.is_empty() {
            spans.push((0, 0));
        }
        (spans, deltas)
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
    fn read((spans, deltas): &(Vec<(i32, u32)>, Vec<i64>)) -> Vec<(i32, u64)> {
        let (mut index, mut count, mut deltas) = (0i32, 0i64, deltas.iter());
        let mut buckets = Vec::new();
        for &(offset, length) in spans {
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
            assert_eq!(native(0, populated).spans(), (spans.to_vec(), deltas.to_vec()), "{populated:?}");
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
