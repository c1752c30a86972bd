//! Unsigned integers of any size: as much of them as comparing `v^n` with `2^k * r^n` takes.

use std::cmp::Ordering;

/// Little-endian limbs without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Big(Vec<u64>);

impl Big {
    pub(super) fn from_limbs(mut limbs: Vec<u64>) -> Big {
        while limbs.last() == Some(&0) {
            limbs.pop();
        }
        Big(limbs)
    }

    pub(super) fn mul(&self, other: &Big) -> Big {
        let mut limbs = vec![0u64; self.0.len() + other.0.len()];
        for (i, &a) in self.0.iter().enumerate() {
            let mut carry = 0u128;
            for (j, &b) in other.0.iter().enumerate() {
                // (2^64 - 1)^2 + 2 * (2^64 - 1) = 2^128 - 1: the sum cannot overflow.
                let sum = u128::from(a) * u128::from(b) + u128::from(limbs[i + j]) + carry;
                limbs[i + j] = sum as u64;
                carry = sum >> 64;
            }
            limbs[i + other.0.len()] = carry as u64;
        }
        Big::from_limbs(limbs)
    }

    /// `self^(2^times)`.
    pub(super) fn squared(&self, times: u8) -> Big {
        (0..times).fold(self.clone(), |b, _| b.mul(&b))
    }

    /// `self * 2^bits`.
    pub(super) fn shl(&self, bits: u32) -> Big {
        let mut limbs = vec![0u64; (bits / 64) as usize];
        let shift = bits % 64;
        let mut carry = 0u128;
        for &a in &self.0 {
            let wide = (u128::from(a) << shift) | carry;
            limbs.push(wide as u64);
            carry = wide >> 64;
        }
        limbs.push(carry as u64);
        Big::from_limbs(limbs)
    }
}

impl From<u64> for Big {
    fn from(v: u64) -> Big {
        Big::from_limbs(vec![v])
    }
}

impl Ord for Big {
    fn cmp(&self, other: &Big) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

impl PartialOrd for Big {
    fn partial_cmp(&self, other: &Big) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::Big;
    use proptest::prelude::*;

    fn wide(v: u128) -> Big {
        Big::from_limbs(vec![v as u64, (v >> 64) as u64])
    }

    proptest! {
        #[test]
        fn agrees_with_u128(a: u64, b: u64, c: u128, d: u128, shift in 0u32..64) {
            prop_assert_eq!(Big::from(a).mul(&Big::from(b)), wide(u128::from(a) * u128::from(b)));
            prop_assert_eq!(Big::from(a).shl(shift), wide(u128::from(a) << shift));
            prop_assert_eq!(wide(c).cmp(&wide(d)), c.cmp(&d));
            prop_assert_eq!(Big::from(a >> 48).squared(3), wide(u128::from(a >> 48).pow(8)));
        }

        #[test]
        fn multiplication_distributes_over_limbs(a in any::<[u64; 4]>(), b: u64, shift in 0u32..200) {
            let a = Big::from_limbs(a.to_vec());
            // (a * 2^shift) * b = (a * b) * 2^shift, across limb borders.
            prop_assert_eq!(a.shl(shift).mul(&Big::from(b)), a.mul(&Big::from(b)).shl(shift));
        }
    }
}
