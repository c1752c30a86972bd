//! How times are spread.

use serde::Serialize;

/// A sum of times and how they are spread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Half are at most this long.
    pub p50_ns: u64,
    /// 90 of 100 are at most this long.
    pub p90_ns: u64,
    /// 99 of 100 are at most this long.
    pub p99_ns: u64,
    /// How many by powers of two.
    pub buckets: Vec<Bucket>,
}

/// How many times lie in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// The longest that is in it: a power of two less one.
    pub to_ns: u64,
    /// How many.
    pub count: u64,
}

impl Spread {
    /// Of times in any order.
    pub fn of(mut times_ns: Vec<u64>) -> Spread {
        times_ns.sort_unstable();
        let count = times_ns.len() as u64;
        // The smallest time that at least this share of all does not exceed.
        let quantile = |percent: u64| {
            let rank = (count * percent).div_ceil(100).max(1) as usize;
            times_ns.get(rank - 1).copied().unwrap_or_default()
        };
        let mut buckets: Vec<Bucket> = Vec::new();
        for ns in &times_ns {
            let to_ns = u64::MAX.checked_shr(ns.leading_zeros()).unwrap_or(0);
            match buckets.last_mut() {
                Some(bucket) if bucket.to_ns == to_ns => bucket.count += 1,
                _ => buckets.push(Bucket { to_ns, count: 1 }),
            }
        }
        Spread {
            count,
            total_ns: times_ns.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns)),
            min_ns: times_ns.first().copied().unwrap_or_default(),
            max_ns: times_ns.last().copied().unwrap_or_default(),
            p50_ns: quantile(50),
            p90_ns: quantile(90),
            p99_ns: quantile(99),
            buckets,
        }
    }

    /// Their mean, rounded down; 0 of none.
    pub fn avg_ns(&self) -> u64 {
        self.total_ns.checked_div(self.count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_occurred() {
        let spread = Spread::of((1..=100).rev().collect());
        assert_eq!((spread.count, spread.total_ns, spread.avg_ns()), (100, 5050, 50));
        assert_eq!((spread.min_ns, spread.p50_ns, spread.p90_ns, spread.p99_ns, spread.max_ns), (1, 50, 90, 99, 100));
        let buckets: Vec<(u64, u64)> = spread.buckets.iter().map(|bucket| (bucket.to_ns, bucket.count)).collect();
        assert_eq!(buckets, [(1, 1), (3, 2), (7, 4), (15, 8), (31, 16), (63, 32), (127, 37)]);
        assert_eq!(Spread::of(vec![]), Spread::default());
        assert_eq!(
            Spread::of(vec![0, u64::MAX]).buckets,
            [Bucket { to_ns: 0, count: 1 }, Bucket { to_ns: u64::MAX, count: 1 }]
        );
    }
}
