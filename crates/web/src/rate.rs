//! Token bucket for `rate_limit`.

use kstrobe_config::model::RateLimit;
use std::time::Duration;

/// The bucket, stored as the time at which it is full: each request advances it by one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    full_at_ns: u128,
}

impl Bucket {
    /// Takes a token at `now`, relative to any fixed time; false if the bucket is empty.
    pub fn take(&mut self, limit: RateLimit, now: Duration) -> bool {
        let (now, interval) = (now.as_nanos(), u128::from(limit.interval_ns));
        let full_at = self.full_at_ns.max(now) + interval;
        let may = full_at - now <= interval * u128::from(limit.burst);
        if may {
            self.full_at_ns = full_at;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_for_each_interval() {
        let limit = RateLimit { interval_ns: 1_000_000_000, burst: 3 };
        let mut bucket = Bucket::default();
        for (at_ms, may) in [
            (5_000, true),
            (5_000, true),
            (5_000, true),
            (5_000, false),
            (5_999, false),
            (6_000, true),
            (6_000, false),
            (7_500, true),
            (7_999, false),
            (8_000, true),
            (100_000, true),
            (100_000, true),
            (100_000, true),
            (100_000, false),
            // A clock that does not advance must not panic.
            (0, false),
        ] {
            assert_eq!(bucket.take(limit, Duration::from_millis(at_ms)), may, "{at_ms}");
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        let limit = RateLimit { interval_ns: u64::MAX, burst: u32::MAX };
        let mut bucket = Bucket::default();
        assert!(bucket.take(limit, Duration::MAX) && bucket.take(limit, Duration::MAX));
    }
}
