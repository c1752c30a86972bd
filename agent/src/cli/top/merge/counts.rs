//! Counts by bucket, added over nodes.

use crate::cli::top::answers::Bounds;
use kstrobe_export::quantile::{Populated, quantile};
use std::collections::BTreeMap;

/// The ends of a bucket as the bits of two numbers, of which those from 0 to +Inf are in the order of the numbers.
pub type Ends = (u64, u64);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts(BTreeMap<Ends, u64>);

/// Whether each pair of a place in `bounds` and a count has bounds.
pub fn is_sound(heat: &[u64], bounds: &[Bounds]) -> bool {
    heat.len().is_multiple_of(2) && heat.iter().step_by(2).all(|place| *place < bounds.len() as u64)
}

impl Counts {
    /// Adds pairs of a place in `bounds` and a count, one after the other, which [`is_sound`] accepts.
    pub fn add(&mut self, heat: &[u64], bounds: &[Bounds]) {
        for pair in heat.chunks_exact(2) {
            let (lower, upper) = bounds[pair[0] as usize];
            let ends = (lower.to_bits(), upper.unwrap_or(f64::INFINITY).to_bits());
            *self.0.entry(ends).or_default() += pair[1];
        }
    }

    pub fn merge(&mut self, other: &Counts) {
        other.0.iter().for_each(|(ends, count)| *self.0.entry(*ends).or_default() += count);
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// As an agent makes it of the counts of its series.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let bucket = |(&(lower, upper), &count): (&Ends, &u64)| Populated {
            lower: f64::from_bits(lower),
            upper: f64::from_bits(upper),
            count,
        };
        quantile(self.0.iter().map(bucket), share)
    }

    /// Upper bound of the highest bucket that has an observation; `None` where that is +Inf, too.
    pub fn max(&self) -> Option<f64> {
        let highest = self.0.iter().rev().find(|(_, count)| **count > 0);
        highest.map(|((_, upper), _)| f64::from_bits(*upper)).filter(|upper| upper.is_finite())
    }

    pub fn ends(&self) -> impl Iterator<Item = Ends> + '_ {
        self.0.keys().copied()
    }

    /// The pairs of [`Counts::add`]; all ends have a place.
    pub fn heat(&self, places: &BTreeMap<Ends, u64>) -> Vec<u64> {
        let pair = |(ends, count): (&Ends, &u64)| Some([*places.get(ends)?, *count]);
        self.0.iter().filter_map(pair).flatten().collect()
    }
}

pub fn bounds((lower, upper): Ends) -> Bounds {
    (f64::from_bits(lower), Some(f64::from_bits(upper)).filter(|upper| upper.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_the_same_bounds_are_added() {
        let mut counts = Counts::default();
        counts.add(&[0, 3, 1, 1], &[(0.0, Some(1.0)), (2.0, Some(4.0))]);
        counts.add(&[0, 5, 1, 1], &[(2.0, Some(4.0)), (1.0, Some(2.0))]);
        assert_eq!(
            counts.ends().map(bounds).collect::<Vec<_>>(),
            [(0.0, Some(1.0)), (1.0, Some(2.0)), (2.0, Some(4.0))]
        );
        assert_eq!((counts.total(), counts.max()), (10, Some(4.0)));
        // The fifth of ten is the first of six in its bucket: linear from 2 to 4.
        assert_eq!(counts.quantile(0.5), Some(2.0 + 2.0 / 6.0));
        let places = counts.ends().zip(0..).collect();
        assert_eq!(counts.heat(&places), [0, 3, 1, 1, 2, 6]);
        counts.add(&[0, 1], &[(4.0, None)]);
        assert_eq!((counts.max(), counts.quantile(1.0)), (None, Some(4.0)));
    }

    #[test]
    fn each_count_needs_bounds() {
        let bounds = [(0.0, None)];
        assert!(is_sound(&[0, 1], &bounds) && is_sound(&[], &bounds));
        assert!(!is_sound(&[1, 1], &bounds) && !is_sound(&[0], &bounds));
    }
}
