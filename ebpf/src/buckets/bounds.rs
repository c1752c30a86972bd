//! Exact bucket bounds: powers `2^(k / 2^schema)` and decimal fractions, each as the largest integer of the raw unit that
//! does not exceed it.
//!
//! For integers `v <= floor(bound)` and `v <= bound` are the same test, so nothing is lost by storing the floor. Floating
//! point only guesses; integers decide, because one unit too many puts a value that equals a bound into the wrong bucket.

use super::big::Big;
use std::cmp::Ordering;

/// The native bounds of one schema, in raw units.
pub(super) struct Grid {
    schema: u8,
    raw_per_unit: u64,
    /// `raw_per_unit^(2^schema)`.
    power: Big,
}

impl Grid {
    pub(super) fn new(schema: u8, raw_per_unit: u64) -> Grid {
        Grid { schema, raw_per_unit, power: Big::from(raw_per_unit).squared(schema) }
    }

    /// `v` against `2^(k / 2^schema) * raw_per_unit`: both sides raised to the power `2^schema`.
    pub(super) fn compare(&self, v: u64, k: i32) -> Ordering {
        let left = Big::from(v).squared(self.schema);
        if k >= 0 { left.cmp(&self.power.shl(k.unsigned_abs())) } else { left.shl(k.unsigned_abs()).cmp(&self.power) }
    }

    /// Largest integer at or below bound `k`, which must be below 2^63 raw units.
    pub(super) fn floor(&self, k: i32) -> u64 {
        let guess = (f64::from(k) / f64::from(1u32 << self.schema)).exp2() * self.raw_per_unit as f64;
        let mut low = ((guess * (1.0 - 1e-15)) as u64).saturating_sub(1);
        let mut high = ((guess * (1.0 + 1e-15)) as u64).saturating_add(2);
        while self.compare(low, k) == Ordering::Greater {
            low /= 2;
        }
        while self.compare(high, k) != Ordering::Greater && high < u64::MAX {
            high = high.saturating_mul(2);
        }
        // low <= bound < high
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.compare(middle, k) {
                Ordering::Greater => high = middle,
                _ => low = middle,
            }
        }
        low
    }

    /// Index of the largest bound at or below `v` (`v > 0`).
    pub(super) fn at_or_below(&self, v: u64) -> i32 {
        let mut k = self.guess(v);
        while self.compare(v, k) == Ordering::Less {
            k -= 1;
        }
        while self.compare(v, k + 1) != Ordering::Less {
            k += 1;
        }
        k
    }

    /// Index of the largest bound below `v` (`v > 0`).
    pub(super) fn below(&self, v: u64) -> i32 {
        let k = self.at_or_below(v);
        if self.compare(v, k) == Ordering::Equal { k - 1 } else { k }
    }

    /// Index of the smallest bound at or above `v` (`v > 0`).
    pub(super) fn at_or_above(&self, v: u64) -> i32 {
        self.below(v) + 1
    }

    fn guess(&self, v: u64) -> i32 {
        let octaves = (v as f64).log2() - (self.raw_per_unit as f64).log2();
        (octaves * f64::from(1u32 << self.schema)).floor() as i32
    }
}

/// `2^(k / 2^schema)`, correctly rounded.
pub(super) fn power_of_two(schema: u8, k: i32) -> f64 {
    let per_octave = 1i32 << schema;
    let (octave, part) = (k.div_euclid(per_octave), k.rem_euclid(per_octave));
    // 2^(part / 2^schema) in 54 bits, rounded to the 53 of a double. It is 1 or irrational, so there are no ties.
    let mantissa = Grid::new(schema, 1 << 53).floor(part).div_ceil(2);
    mantissa as f64 * 2f64.powi(octave - 52)
}

/// A non-negative decimal fraction: `digits * 10^exponent`, without trailing zeros in `digits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    digits: u64,
    exponent: i32,
}

/// Beyond this no bound can be meant, and within it comparing needs no more than some 100 digits.
const MAX_EXPONENT: i32 = 40;

impl Decimal {
    pub(super) fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// Reads `0.0025`, `2.5e-03`, `10`; `None` for anything else, also for more than 19 significant digits.
    pub(super) fn parse(text: &str) -> Option<Decimal> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        let mut digits = 0u64;
        for c in whole.chars().chain(fraction.chars()) {
            digits = digits.checked_mul(10)?.checked_add(u64::from(c.to_digit(10)?))?;
        }
        let mut exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        if digits == 0 {
            return Some(Decimal { digits: 0, exponent: 0 });
        }
        while digits.is_multiple_of(10) {
            digits /= 10;
            exponent = exponent.checked_add(1)?;
        }
        (exponent.abs() <= MAX_EXPONENT).then_some(Decimal { digits, exponent })
    }

    /// Largest integer at or below `self * factor`; `None` when it does not fit.
    pub(super) fn floor_of_product(self, factor: u64) -> Option<u64> {
        let product = u128::from(self.digits) * u128::from(factor);
        let power = 10u128.checked_pow(self.exponent.unsigned_abs());
        let floor = match power {
            Some(power) if self.exponent >= 0 => product.checked_mul(power)?,
            Some(power) => product / power,
            None if self.exponent >= 0 && product > 0 => return None,
            // product < 2^128 < 10^39
            None => 0,
        };
        u64::try_from(floor).ok()
    }

    fn scaled(self, by: i32) -> Big {
        (0..self.exponent + by).fold(Big::from(self.digits), |b, _| b.mul(&Big::from(10)))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Decimal) -> Ordering {
        self.scaled(MAX_EXPONENT).cmp(&other.scaled(MAX_EXPONENT))
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Decimal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_of_known_powers() {
        // 2^(1/8) = 1.09050773266525765920..., 2^(1/2) = 1.41421356237309504880...
        assert_eq!(Grid::new(3, 1_000_000_000).floor(1), 1_090_507_732);
        assert_eq!(Grid::new(3, 1_000_000_000_000_000_000).floor(1), 1_090_507_732_665_257_659);
        assert_eq!(Grid::new(1, 1_000_000_000_000_000_000).floor(1), 1_414_213_562_373_095_048);
        // 2^-20 s = 953.674... ns; 16 s; powers of two of counts are exact.
        assert_eq!(Grid::new(0, 1_000_000_000).floor(-20), 953);
        assert_eq!(Grid::new(3, 1_000_000_000).floor(32), 16_000_000_000);
        for k in 0..=62 {
            assert_eq!(Grid::new(5, 1).floor(k * 32), 1 << k);
        }
        assert_eq!(Grid::new(5, 1).floor(-1), 0);
    }

    #[test]
    fn neighbours_of_a_value_include_it_only_where_they_say_so() {
        let grid = Grid::new(3, 1);
        assert_eq!((grid.at_or_below(8), grid.below(8), grid.at_or_above(8)), (24, 23, 24));
        assert_eq!((grid.at_or_below(9), grid.below(9), grid.at_or_above(9)), (25, 25, 26));
        assert_eq!(Grid::new(0, 1_000_000_000).at_or_below(1000), -20);
    }

    #[test]
    fn powers_are_the_doubles_of_the_prometheus_tables() {
        // exponentialBounds[3] of prometheus/client_golang, times two.
        let table = [
            1.0,
            2.0 * 0.5452538663326288,
            2.0 * 0.5946035575013605,
            2.0 * 0.6484197773255048,
            2.0 * 0.7071067811865475,
            2.0 * 0.7711054127039704,
            2.0 * 0.8408964152537144,
            2.0 * 0.9170040432046711,
        ];
        for (k, &bound) in table.iter().enumerate() {
            let rounded = power_of_two(3, k as i32);
            assert!((rounded - bound).abs() <= f64::EPSILON, "{k}: {rounded} {bound}");
        }
        assert_eq!(power_of_two(0, -20), 2f64.powi(-20));
        assert_eq!(power_of_two(3, -160), 2f64.powi(-20));
        assert_eq!(power_of_two(3, 36), 2f64.powf(4.5));
    }

    #[test]
    fn decimals_are_exact() {
        let floor = |text: &str, factor| Decimal::parse(text).expect(text).floor_of_product(factor);
        assert_eq!(floor("2.5e-06", 1_000_000_000), Some(2500));
        assert_eq!(floor("0.0000025", 1_000_000_000), Some(2500));
        assert_eq!(floor("0.3", 10), Some(3));
        assert_eq!(floor("0.0000000019", 1_000_000_000), Some(1));
        assert_eq!(floor("1e40", 1), None);
        assert_eq!(floor("1e-40", u64::MAX), Some(0));
        assert_eq!(floor("0", 7), Some(0));
        assert_eq!(floor("18446744073709551615", 1), Some(u64::MAX));
        assert_eq!(Decimal::parse("2.50e-06"), Decimal::parse("0.0000025"));
        assert_eq!(Decimal::parse("100"), Decimal::parse("1E+2"));
        for bad in ["", ".", "e5", "-1", "+Inf", "1e", "1.2.3", "0x10", "1_0", "99999999999999999999", "1e99"] {
            assert_eq!(Decimal::parse(bad), None, "{bad}");
        }
        let ascending = ["0", "1e-40", "1e-9", "0.1", "0.25", "1", "2", "10", "1e40"];
        for pair in ascending.windows(2) {
            assert!(Decimal::parse(pair[0]) < Decimal::parse(pair[1]), "{pair:?}");
        }
    }
}
