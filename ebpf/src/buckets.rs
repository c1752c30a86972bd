//! Bucket schemes: bounds, the index of a value, and the fold to classic and native form.
//!
//! STUB signatures; see the design section "Buckets".

/// What the user asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketSpec {
    /// Native schema: 2^schema buckets per power of two, 0..=5.
    pub schema: u8,
    /// Exported = raw / `raw_per_unit` (1e9 for seconds from nanoseconds, 1 for counts and bytes).
    pub raw_per_unit: u64,
    /// Values at or below this are in the zero bucket; raw units. The scheme uses the next native bound at or below it.
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
}

impl Scheme {
    /// Number of in-kernel buckets: one more than bounds.
    pub fn buckets(&self) -> usize {
        self.upper.len() + 1
    }
}
