//! Where the rows of a histogram end in a terminal: powers of two of nanoseconds, microseconds, milliseconds and seconds, or of one.

/// Raw units of a second.
const SECOND: u64 = 1_000_000_000;
/// Largest bound: values of histograms are below 2^62.
const MAX_BOUND: u64 = 1 << 61;

/// What the raw values of a metric are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Nanoseconds.
    Time,
    /// Bytes, packets and all others.
    Count,
}

impl Scale {
    /// By the raw units in an exported one.
    pub fn of(raw_per_unit: u64) -> Scale {
        if raw_per_unit == SECOND { Scale::Time } else { Scale::Count }
    }

    /// Where rows begin, ascending; the first begins at 0.
    pub fn bounds(self) -> Vec<u64> {
        match self {
            Scale::Count => (0..=61).map(|power| 1 << power).collect(),
            Scale::Time => {
                let of_unit = |unit: u64| (0..10).map(move |power| unit << power);
                let whole = (0..).map(|power| SECOND << power).take_while(|bound| *bound < MAX_BOUND);
                [1, 1_000, 1_000_000].into_iter().flat_map(of_unit).chain(whole.take(30)).collect()
            }
        }
    }
}

/// A raw value in exported units, as exact decimal text.
pub(super) fn decimal(raw: u64, raw_per_unit: u64) -> String {
    match raw_per_unit {
        SECOND => format!("{}.{:09}", raw / SECOND, raw % SECOND),
        _ => raw.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_time_begin_anew_with_each_unit() {
        let bounds = Scale::Time.bounds();
        assert!(bounds.is_sorted() && bounds.iter().all(|bound| *bound <= MAX_BOUND));
        assert_eq!(bounds[8..12], [256, 512, 1_000, 2_000]);
        assert_eq!(bounds[28..32], [256_000_000, 512_000_000, 1_000_000_000, 2_000_000_000]);
    }

    #[test]
    fn rows_of_counts_are_powers_of_two() {
        let bounds = Scale::Count.bounds();
        assert_eq!((bounds[0], bounds[12], bounds.last()), (1, 4096, Some(&MAX_BOUND)));
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(decimal(999, SECOND), "0.000000999");
        assert_eq!(decimal(15_999_999_999, SECOND), "15.999999999");
        assert_eq!(decimal(4095, 1), "4095");
    }
}
