//! The bucket tables of the hand-written C, computed here and not by the compiler under test: the same partition (native
//! schema 3 from 1 us to 16 s, and the classic bounds 1, 2.5, 5 x 10^k), found the same way.

use std::fmt::Write as _;

/// Buckets per power of two are 2^3.
const SCHEMA: i32 = 3;
/// Mantissa bits that choose a cell of the first table.
const MANTISSA: u32 = 3;
/// Cells of the first table: a power of two, so that one mask satisfies the kernel's verifier.
const CELLS: usize = 512;
/// Buckets of a record in memory; more than the partition has, so that a test can read records of a fixed size.
pub const RECORD_BUCKETS: usize = 231;

/// Inclusive upper bounds in nanoseconds, ascending.
fn upper_bounds() -> Vec<u64> {
    let steps_per_octave = f64::from(1 << SCHEMA);
    let first = (1e-6_f64.log2() * steps_per_octave).floor() as i32;
    let last = (16_f64.log2() * steps_per_octave).ceil() as i32;
    let native = (first..=last).map(|k| (1e9 * (f64::from(k) / steps_per_octave).exp2()).floor() as u64);
    let classic =
        (3..=10).flat_map(|k| [10, 25, 50].map(|digits| digits * 10_u64.pow(k) / 10)).filter(|&b| b <= 10_000_000_000);
    let mut bounds: Vec<u64> = native.chain(classic).collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds
}

/// The smallest and largest value of a cell, or `None` for cells that no value can reach.
fn cell_range(cell: usize) -> Option<(u64, u64)> {
    let log2 = (cell >> MANTISSA) as u32;
    let mantissa = (cell & ((1 << MANTISSA) - 1)) as u64;
    if !(MANTISSA..63).contains(&log2) {
        return None;
    }
    let width = 1_u64 << (log2 - MANTISSA);
    let low = (1_u64 << log2) + mantissa * width;
    // Values below 2^MANTISSA are lifted into the first octave before the lookup.
    Some((if log2 == MANTISSA { 0 } else { low }, low + width - 1))
}

/// The index of a value: the number of bounds below it.
fn index(bounds: &[u64], v: u64) -> usize {
    bounds.partition_point(|&b| b < v)
}

/// Text of `buckets.h`.
pub fn header(cpus: u32, slots: u32) -> String {
    let bounds = upper_bounds();
    let first: Vec<usize> =
        (0..CELLS).map(|c| cell_range(c).map_or(0, |(low, _)| index(&bounds, low).min(bounds.len()))).collect();
    let compares = (0..CELLS)
        .filter_map(cell_range)
        .map(|(low, high)| index(&bounds, high) - index(&bounds, low))
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    let last = bounds.last().copied().unwrap_or(0);
    let _ = writeln!(out, "#define CPUS {cpus}\n#define SLOTS {slots}\n#define RECORD_BUCKETS {RECORD_BUCKETS}");
    let _ = writeln!(out, "#define MANTISSA {MANTISSA}\n#define CELLS {CELLS}\n#define COMPARES {compares}");
    let _ = writeln!(out, "#define LAST_UPPER {last}ULL");
    let _ = writeln!(out, "static const __u8 first_bucket[CELLS] = {{ {} }};", join(&first));
    // The table is longer than any index the verifier can think of: 255 and the compares.
    let mut padded = bounds;
    padded.resize(256 + compares, u64::MAX);
    let _ = writeln!(out, "static const __u64 upper[{}] = {{ {} }};", padded.len(), join(&padded));
    out
}

fn join<T: std::fmt::Display>(values: &[T]) -> String {
    values.iter().map(|v| format!("{v}ULL")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_fits_the_record_and_holds_both_kinds_of_bound() {
        let bounds = upper_bounds();
        assert!(bounds.len() < RECORD_BUCKETS, "{} bounds", bounds.len());
        assert!(bounds.contains(&2_500_000), "classic 2.5 ms");
        assert!(bounds.contains(&1_000_000_000), "1 s is both");
        assert!(bounds.contains(&953), "2^-20 s is the native bound below 1 us");
        assert_eq!(bounds.last(), Some(&16_000_000_000));
    }

    #[test]
    fn cell_table_and_compares_find_the_bucket_of_every_value() {
        let bounds = upper_bounds();
        let near = bounds.iter().flat_map(|&b| [b - 1, b, b + 1]);
        for v in near.chain(0..40).chain([u64::from(u32::MAX), 20_000_000_000]) {
            let lifted = v.max(if v < 8 { v | 8 } else { v });
            let log2 = lifted.ilog2();
            let cell = ((log2 as usize) << MANTISSA) | ((lifted >> (log2 - MANTISSA)) as usize & 7);
            let (low, high) = cell_range(cell).expect("reachable");
            assert!((low..=high).contains(&v), "{v} in {low}..={high}");
            assert!(index(&bounds, v) >= index(&bounds, low) && index(&bounds, v) <= index(&bounds, high));
        }
    }
}
