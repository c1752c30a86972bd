//! Folding in-kernel buckets into the two exported forms.

use super::bounds::power_of_two;

/// How in-kernel buckets fold into classic ones.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassicFold {
    /// The bounds as the user wrote them, and as numbers; `+Inf` is implied.
    pub bounds: Vec<(String, f64)>,
    /// For each in-kernel bucket the classic bucket it lies in; `bounds.len()` is `+Inf`.
    pub of: Vec<u16>,
}

impl ClassicFold {
    pub(super) fn new(texts: &[String], floors: &[u64], upper: &[u64]) -> ClassicFold {
        let bounds = texts.iter().map(|text| (text.clone(), text.parse().unwrap_or(f64::NAN))).collect();
        let mut of: Vec<u16> = upper.iter().map(|&end| floors.partition_point(|&floor| floor < end) as u16).collect();
        of.push(floors.len() as u16);
        ClassicFold { bounds, of }
    }

    /// Counts of the classic buckets, not cumulative; the last is `+Inf`.
    pub fn fold(&self, counts: &[u64]) -> Vec<u64> {
        let mut folded = vec![0u64; self.bounds.len() + 1];
        for (&bucket, &count) in self.of.iter().zip(counts) {
            let sum = &mut folded[usize::from(bucket)];
            *sum = sum.wrapping_add(count);
        }
        folded
    }
}

/// A bucket of a native histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NativeBucket {
    /// `[0, zero_threshold]`
    Zero,
    /// `(2^((i - 1) / 2^schema), 2^(i / 2^schema)]`
    Index(i32),
}

/// How in-kernel buckets fold into native ones.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeFold {
    /// `2^schema` buckets per power of two.
    pub schema: u8,
    /// End of the zero bucket, inclusive, in the exported unit: a native bound.
    pub zero_threshold: f64,
    /// For each in-kernel bucket the native bucket it lies in. In-kernel buckets above the last native bound are put into
    /// the native bucket right above it.
    pub of: Vec<NativeBucket>,
}

impl NativeFold {
    /// `floors` are the bounds `first, first + 1, ...` in raw units.
    pub(super) fn new(schema: u8, first: i32, floors: &[u64], upper: &[u64]) -> NativeFold {
        let bucket = |position: usize| match position {
            0 => NativeBucket::Zero,
            p => NativeBucket::Index(first + p as i32),
        };
        // Several native bounds may share an integer; no integer lies between them, so the first one is the value's own.
        let mut of: Vec<_> = upper.iter().map(|&end| bucket(floors.partition_point(|&floor| floor < end))).collect();
        of.push(bucket(floors.len()));
        NativeFold { schema, zero_threshold: power_of_two(schema, first), of }
    }

    /// The zero bucket's count, and the counts of the populated buckets by ascending index.
    pub fn fold(&self, counts: &[u64]) -> (u64, Vec<(i32, u64)>) {
        let mut zero = 0u64;
        let mut populated: Vec<(i32, u64)> = Vec::new();
        for (&bucket, &count) in self.of.iter().zip(counts).filter(|(_, count)| **count != 0) {
            match (bucket, populated.last_mut()) {
                (NativeBucket::Zero, _) => zero = zero.wrapping_add(count),
                (NativeBucket::Index(i), Some((last, sum))) if *last == i => *sum = sum.wrapping_add(count),
                (NativeBucket::Index(i), _) => populated.push((i, count)),
            }
        }
        (zero, populated)
    }
}
