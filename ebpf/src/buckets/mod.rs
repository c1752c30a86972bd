//! Bucket schemes: bounds, the index of a value, the IR that computes it, and the fold to classic and native form.
//!
//! The in-kernel partition of a histogram is the union of the native bounds `2^(k / 2^schema)` and the classic bounds,
//! both in the exported unit and stored as integers of the raw unit. Every in-kernel bucket therefore lies in exactly one
//! native and in exactly one classic bucket, and both forms fold out of the same counts without error. Semantics are
//! those of Prometheus: `(lower, upper]`.
//!
//! The ends: bucket 0 is `[0, upper[0]]` and is the native zero bucket; its end is a native bound, the zero threshold.
//! Native bounds stop at the first one at or above `max`. Larger values share the native bucket right above it (a clamp:
//! the native form then understates them), while classic bounds beyond `max` stay exact.

mod big;
mod bounds;
mod emit;
mod fast;
mod fold;
#[cfg(test)]
mod tests;

pub use emit::Tables;
pub use fast::Fast;
pub use fold::{ClassicFold, NativeBucket, NativeFold};

use bounds::{Decimal, Grid};
use std::fmt;

/// Largest `max` and classic bound in raw units. It keeps every bound below 2^63, where the sign bit of a difference
/// tells which of two values is larger.
pub const MAX_RAW: u64 = 1 << 62;

/// Most in-kernel buckets: 8 KiB per series and shard.
pub const MAX_BUCKETS: usize = 1024;

/// What the user asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketSpec {
    /// Native schema: 2^schema buckets per power of two, 0..=5.
    pub schema: u8,
    /// Exported = raw / `raw_per_unit` (1e9 for seconds from nanoseconds, 1 for counts and bytes).
    pub raw_per_unit: u64,
    /// Values at or below this are in the zero bucket; raw units. The scheme uses the next native bound at or below it;
    /// with 0 and 1 the zero bucket holds the value 0 alone.
    pub min: u64,
    /// Values above this are in the last bucket; raw units. The scheme uses the next native bound at or above it.
    pub max: u64,
    /// Classic upper bounds in the exported unit, as decimal text ("0.0025"), ascending; +Inf is implied.
    pub classic: Vec<String>,
}

/// A computed partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheme {
    /// What it was made from.
    pub spec: BucketSpec,
    /// Upper bounds of the in-kernel buckets in raw units, ascending, inclusive; the last bucket is `(upper[n-1], +inf)`.
    pub upper: Vec<u64>,
    fast: Fast,
    classic: ClassicFold,
    native: NativeFold,
}

/// Why a [`BucketSpec`] makes no scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketError {
    /// What is wrong, one line, no trailing full stop.
    pub message: String,
    /// What to do, one line.
    pub hint: String,
}

impl BucketError {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> BucketError {
        BucketError { message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for BucketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
    }
}

impl std::error::Error for BucketError {}

impl Scheme {
    /// Computes the partition.
    pub fn new(spec: &BucketSpec) -> Result<Scheme, BucketError> {
        check_ranges(spec)?;
        let grid = Grid::new(spec.schema, spec.raw_per_unit);
        let first = if spec.min <= 1 { grid.below(1) } else { grid.at_or_below(spec.min) };
        // The maximum may lie in the zero bucket's own step (min 9, max 9 at schema 0): keep one bucket above zero.
        let last = grid.at_or_above(spec.max).max(first + 1);
        let natives: Vec<u64> = (first..=last).map(|k| grid.floor(k)).collect();
        let classics = classic_floors(spec, natives[0], bounds::power_of_two(spec.schema, first))?;

        let mut upper: Vec<u64> = natives.iter().chain(&classics).copied().collect();
        upper.sort_unstable();
        upper.dedup();
        if upper.len() >= MAX_BUCKETS {
            return Err(BucketError::new(
                format!("{} buckets in one histogram; at most {MAX_BUCKETS} are allowed", upper.len() + 1),
                "use a smaller `schema`, or bring `min` and `max` closer together",
            ));
        }
        Ok(Scheme {
            fast: Fast::new(&upper),
            classic: ClassicFold::new(&spec.classic, &classics, &upper),
            native: NativeFold::new(spec.schema, first, &natives, &upper),
            spec: spec.clone(),
            upper,
        })
    }

    /// Number of in-kernel buckets: one more than bounds.
    pub fn buckets(&self) -> usize {
        self.upper.len() + 1
    }

    /// The bucket of `v`, by definition: how many upper bounds are below it.
    pub fn index(&self, v: u64) -> usize {
        self.upper.partition_point(|&upper| upper < v)
    }

    /// The tables that give the same index in a few loads.
    pub fn fast(&self) -> &Fast {
        &self.fast
    }

    /// End of the native zero bucket, inclusive, in the exported unit.
    pub fn zero_threshold(&self) -> f64 {
        self.native.zero_threshold
    }

    /// How in-kernel buckets fold into classic ones.
    pub fn classic(&self) -> &ClassicFold {
        &self.classic
    }

    /// How in-kernel buckets fold into native ones.
    pub fn native(&self) -> &NativeFold {
        &self.native
    }

    /// Counts of the classic buckets, not cumulative; the last is `+Inf`. `counts` has one count per in-kernel bucket.
    pub fn fold_classic(&self, counts: &[u64]) -> Vec<u64> {
        self.classic.fold(counts)
    }

    /// The zero bucket's count and the counts of the populated native buckets by ascending index. `counts` has one count
    /// per in-kernel bucket.
    pub fn fold_native(&self, counts: &[u64]) -> (u64, Vec<(i32, u64)>) {
        self.native.fold(counts)
    }
}

fn check_ranges(spec: &BucketSpec) -> Result<(), BucketError> {
    if spec.schema > 5 {
        return Err(BucketError::new(
            format!("bucket schema {} is out of range", spec.schema),
            "use 0 (one bucket per power of two) to 5 (32 buckets)",
        ));
    }
    if spec.raw_per_unit == 0 {
        return Err(BucketError::new("the exported unit is 0 raw units", "use at least 1"));
    }
    if spec.max == 0 || spec.min > spec.max {
        return Err(BucketError::new(
            format!("buckets range from {} to {}", spec.min, spec.max),
            "`max` must be above 0 and not below `min`",
        ));
    }
    if spec.max > MAX_RAW {
        return Err(BucketError::new(format!("`max` is {}", spec.max), format!("the largest possible is {MAX_RAW}")));
    }
    Ok(())
}

/// The classic bounds in raw units, rounded down.
fn classic_floors(spec: &BucketSpec, zero_end: u64, zero_threshold: f64) -> Result<Vec<u64>, BucketError> {
    let mut floors = Vec::with_capacity(spec.classic.len());
    let mut before: Option<(Decimal, &str)> = None;
    for text in &spec.classic {
        let bound = Decimal::parse(text).ok_or_else(|| {
            BucketError::new(
                format!("classic bound `{text}` is not a plain decimal number"),
                "write bounds such as 0.0025 or 2.5e-3, at most 19 digits; +Inf is implied",
            )
        })?;
        if let Some((_, previous)) = before.filter(|(previous, _)| *previous >= bound) {
            return Err(BucketError::new(
                format!("classic bound `{text}` is not above `{previous}` before it"),
                "list the bounds in ascending order, each once",
            ));
        }
        before = Some((bound, text));
        let floor = bound.floor_of_product(spec.raw_per_unit).filter(|&floor| floor <= MAX_RAW).ok_or_else(|| {
            BucketError::new(
                format!("classic bound `{text}` is too large"),
                format!("the largest possible is {MAX_RAW} raw units ({} per unit)", spec.raw_per_unit),
            )
        })?;
        // What is exactly 0 lies in the zero bucket of the native form, whatever else does.
        if floor < zero_end && !bound.is_zero() {
            return Err(BucketError::new(
                format!("classic bound `{text}` lies inside the zero bucket, which ends at {zero_threshold:e}"),
                format!("remove it, or set `min` to {floor} raw units or less"),
            ));
        }
        floors.push(floor);
    }
    Ok(floors)
}
