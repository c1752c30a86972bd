//! The bucket of a value in a few loads: one table maps the value's leading bits to the first bucket they can be in, and
//! a known number of comparisons finishes.
//!
//! Values are grouped by their top bits, as HDR histograms do it, except that one *row* of groups spans `row` octaves and
//! not always one. With `t = v >> shift` and `e` the smallest multiple of `row` for which `t >> e` has at most
//! `mantissa + row` bits:
//!
//! ```text
//! group = e / row * (2^(mantissa + row) - 2^mantissa) + (t >> e)        index = start[group] + #{ j < compares : v > upper[start[group] + j] }
//! ```
//!
//! A wide row costs table bytes and saves *steps*, the conditional shifts that find `e`: the last of them depend on the
//! lowest bits of the logarithm and are the ones a branch predictor cannot learn.

/// Tables and constants of the index. Valid for values up to the last upper bound; larger ones are in the last bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fast {
    /// Leading bits kept besides the first: groups are at most `2^-mantissa` of their values wide.
    pub mantissa: u8,
    /// Octaves in a row: 1, 2 or 4.
    pub row: u8,
    /// Low bits that all groups ignore, because the zero bucket covers such differences.
    pub shift: u8,
    /// Conditional shifts, in order: if `t >= 2^(mantissa + step)` then shift `t` right by `step`.
    pub steps: Vec<u8>,
    /// Comparisons after the lookup.
    pub compares: u8,
    /// First bucket of each group. The length is a power of two, so that a mask proves the access in bounds.
    pub start: Vec<u16>,
    /// The upper bounds, padded with `i64::MAX` for every masked start value.
    pub upper: Vec<u64>,
    /// `upper.last()` of the scheme.
    pub last: u64,
    /// The bucket of what is above.
    pub overflow: u16,
}

/// Largest start table, in entries. It is read at one place per event, but by all histograms of a program.
const MAX_GROUPS: usize = 2048;

impl Fast {
    /// Picks the cheapest shape: a comparison and a step cost about the same (four instructions without a branch, against
    /// two with one), and tables of equal cost are better small. `upper` ascends and is not empty.
    pub(super) fn new(upper: &[u64]) -> Fast {
        let shapes = (3..=6u8).flat_map(|mantissa| [1, 2, 4].map(|row| Shape::new(mantissa, row, upper)));
        let best = shapes
            .filter(|s| s.groups().next_power_of_two() <= MAX_GROUPS)
            .map(|s| (s.starts_and_compares(upper), s))
            .min_by_key(|((start, compares), s)| (compares + s.steps.len(), start.len()));
        let ((mut start, compares), shape) = best.expect("3 bits and rows of one octave make at most 8 * 64 groups");

        start.resize(start.len().next_power_of_two(), upper.len() as u16);
        let mut padded = upper.to_vec();
        padded.resize(start_values(upper.len() + 1) + compares, i64::MAX as u64);
        Fast {
            mantissa: shape.mantissa,
            row: shape.row,
            shift: shape.shift,
            steps: shape.steps,
            compares: compares as u8,
            start,
            upper: padded,
            last: shape.last,
            overflow: upper.len() as u16,
        }
    }

    /// The index as the tables give it; what the emitted code computes.
    pub fn index(&self, v: u64) -> usize {
        if v > self.last {
            return self.overflow.into();
        }
        let mut t = v >> self.shift;
        let mut group = 0;
        for &step in &self.steps {
            if t >= self.threshold(step) {
                t >>= step;
                group += self.groups_skipped(step);
            }
        }
        group = (group + t) & self.group_mask();
        let start = usize::from(self.start[group as usize]);
        start + self.upper[start..start + usize::from(self.compares)].iter().filter(|&&upper| upper < v).count()
    }

    /// `t` at or above this is shifted by `step`.
    pub(super) fn threshold(&self, step: u8) -> u64 {
        1 << (self.mantissa + step)
    }

    /// Groups below the rows that a shift by `step` leads to.
    pub(super) fn groups_skipped(&self, step: u8) -> u64 {
        u64::from(step / self.row) * row_groups(self.mantissa, self.row)
    }

    /// Keeps a group inside the start table; true groups are never changed.
    pub(super) fn group_mask(&self) -> u64 {
        self.start.len() as u64 - 1
    }

    /// Start values as bytes, or as 16 bits?
    pub(super) fn wide(&self) -> bool {
        self.upper.len() - usize::from(self.compares) > 256
    }

    /// Keeps a 16-bit start value inside `upper`.
    pub(super) fn start_mask(&self) -> u64 {
        (self.upper.len() - usize::from(self.compares) - 1) as u64
    }
}

/// How many start values a load can give, as far as the kernel's verifier knows: any byte, or any number below a mask.
fn start_values(buckets: usize) -> usize {
    buckets.next_power_of_two().max(256)
}

/// Groups in every row but the first, which also has the values below `2^mantissa`.
fn row_groups(mantissa: u8, row: u8) -> u64 {
    (1 << (mantissa + row)) - (1 << mantissa)
}

struct Shape {
    mantissa: u8,
    row: u8,
    shift: u8,
    steps: Vec<u8>,
    last: u64,
}

impl Shape {
    fn new(mantissa: u8, row: u8, upper: &[u64]) -> Shape {
        let (first, last) = (upper[0], upper[upper.len() - 1]);
        // Below the first bound there is one bucket: its lowest bits are beyond the wanted precision.
        let shift = ((first + 1).ilog2() as u8).saturating_sub(mantissa);
        let bits = (u64::BITS - (last >> shift).leading_zeros()) as u8;
        let rows_above = bits.saturating_sub(mantissa + row).div_ceil(row);
        // Steps of row * (2^(n-1), ..., 2, 1) reach every row up to 2^n - 1.
        let count = (u8::BITS - rows_above.leading_zeros()) as u8;
        let steps = (0..count).rev().map(|i| row << i).collect();
        Shape { mantissa, row, shift, steps, last }
    }

    /// Where the largest value lies: row and top bits.
    fn last_place(&self) -> (u8, u64) {
        let mut t = self.last >> self.shift;
        let mut rows = 0;
        while t >= 1 << (self.mantissa + self.row) {
            t >>= self.row;
            rows += 1;
        }
        (rows, t)
    }

    fn groups(&self) -> usize {
        let (rows, t) = self.last_place();
        (u64::from(rows) * row_groups(self.mantissa, self.row) + t + 1) as usize
    }

    fn starts_and_compares(&self, upper: &[u64]) -> (Vec<u16>, usize) {
        let (last_row, last_top) = self.last_place();
        let index = |v: u64| upper.partition_point(|&u| u < v);
        let mut start = Vec::with_capacity(self.groups());
        let mut compares = 0;
        for row in 0..=last_row {
            let low = if row == 0 { 0 } else { 1u64 << self.mantissa };
            let high = if row == last_row { last_top } else { (1 << (self.mantissa + self.row)) - 1 };
            let scale = self.shift + row * self.row;
            for top in low..=high {
                let lowest = index(top << scale);
                let highest = index(((top << scale) + ((1 << scale) - 1)).min(self.last));
                start.push(lowest as u16);
                compares = compares.max(highest - lowest);
            }
        }
        (start, compares)
    }
}
