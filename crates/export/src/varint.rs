//! Unsigned numbers of variable length: LEB128, which protobuf calls varint.

/// Most bytes of one.
pub(crate) const MAX_BYTES: usize = 10;

pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that [`put`] appends: one for every seven bits.
pub(crate) fn length(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Reads what [`put`] wrote. Bytes that end early, or are no such number, are read as far as they go.
pub fn get(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    while let Some((&byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
        shift = (shift + 7).min(63);
    }
    value
}

/// Signed numbers near zero are short, as `sint32` and `sint64`.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_of_any_size_are_read_back(shifted in proptest::collection::vec((any::<u64>(), 0u32..64), 0..40)) {
            let values: Vec<u64> = shifted.into_iter().map(|(value, bits)| value >> bits).collect();
            let mut bytes = Vec::new();
            values.iter().for_each(|value| put(&mut bytes, *value));
            prop_assert_eq!(values.iter().map(|value| length(*value)).sum::<usize>(), bytes.len());
            let mut rest = bytes.as_slice();
            prop_assert_eq!(values.iter().map(|_| get(&mut rest)).collect::<Vec<_>>(), values);
            prop_assert!(rest.is_empty());
        }
    }
}
