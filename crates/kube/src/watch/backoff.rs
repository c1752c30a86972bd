//! Exponential backoff.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Pauses double up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Pause after the first failure.
    pub first: Duration,
    /// Maximum pause.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) }
    }
}

impl Backoff {
    /// Pause after `failures` consecutive failures. `random` in `0..1` scales it between half and all, so that the nodes of a
    /// cluster do not retry at once.
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let doubled = self.first.saturating_mul(1u32 << failures.saturating_sub(1).min(20));
        // Values outside the range, NaN included, are clamped.
        let part = if (0.0..=1.0).contains(&random) { random } else { 1.0 };
        doubled.min(self.longest).mul_f64(0.5 + part / 2.0)
    }
}

/// Random number in `0..1` for jitter; not for cryptography.
pub fn random() -> f64 {
    // `RandomState` has random keys.
    RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_differ_by_chance() {
        let backoff = Backoff::default();
        for (failures, random, millis) in
            [(0, 1.0, 1000), (1, 1.0, 1000), (1, 0.0, 500), (2, 1.0, 2000), (5, 1.0, 16_000), (6, 1.0, 30_000)]
        {
            assert_eq!(backoff.pause(failures, random), Duration::from_millis(millis), "{failures} {random}");
        }
        assert_eq!(backoff.pause(u32::MAX, 0.0), Duration::from_secs(15));
        assert_eq!(backoff.pause(1, f64::NAN), backoff.first);
    }
}
