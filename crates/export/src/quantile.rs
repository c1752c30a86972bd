//! Quantiles of exact buckets.

/// A bucket that has observations: its ends, the upper one infinite for the last, and their number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Populated {
    pub lower: f64,
    pub upper: f64,
    pub count: u64,
}

/// The value that a share of the observations does not exceed: linear between the ends of its bucket. What lies beyond the last
/// bound is at it. `None` when there are no observations. Buckets ascend.
pub fn quantile(buckets: impl Iterator<Item = Populated> + Clone, share: f64) -> Option<f64> {
    let total: u64 = buckets.clone().map(|bucket| bucket.count).sum();
    let rank = share * total as f64;
    let (mut below, mut result) = (0, None);
    for Populated { lower, upper, count } in buckets.filter(|bucket| bucket.count > 0) {
        let part = ((rank - below as f64) / count as f64).clamp(0.0, 1.0);
        result = Some(if upper.is_finite() { lower + (upper - lower) * part } else { lower });
        below += count;
        if below as f64 >= rank {
            break;
        }
    }
    result
}
