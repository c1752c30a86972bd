//! Values of fields in the bytes of a record.

use crate::format::{Contents, Field, Shape};
use std::borrow::Cow;

/// What a field holds. Bytes are little endian, as on every machine that the agent runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An unsigned integer, a pointer or a boolean.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// Characters without their NUL.
    Text(&'a [u8]),
    /// Numbers side by side.
    Array {
        /// Bytes of each.
        element: usize,
        /// Whether they are signed.
        signed: bool,
        bytes: &'a [u8],
    },
    /// Anything else.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The number, when it is one; signed numbers as their 64 bits.
    pub fn bits(self) -> Option<u64> {
        match self {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => Some(number as u64),
            _ => None,
        }
    }

    /// The text, when it is one.
    pub fn text(self) -> Option<Cow<'a, str>> {
        match self {
            Value::Text(bytes) => Some(String::from_utf8_lossy(bytes)),
            _ => None,
        }
    }

    /// The numbers of an array.
    pub fn elements(self) -> impl Iterator<Item = u64> + 'a {
        let (element, bytes) = match self {
            Value::Array { element, bytes, .. } => (element, bytes),
            _ => (8, &[][..]),
        };
        bytes.chunks_exact(element.max(1)).map(unsigned)
    }
}

impl Field {
    /// Its value in a record; `None` when the record is too short for it.
    pub fn value<'a>(&self, record: &'a [u8]) -> Option<Value<'a>> {
        let bytes = self.contents(record)?;
        let array = |element: usize| Value::Array { element, signed: self.signed, bytes };
        Some(match self.shape {
            Shape::Integer if self.signed => Value::Signed(signed(bytes)),
            Shape::Integer => Value::Unsigned(unsigned(bytes)),
            Shape::Text => Value::Text(until_nul(bytes)),
            Shape::Array(element) => array(element),
            Shape::Bytes => Value::Bytes(bytes),
            Shape::Located(Contents::Text) | Shape::RelativelyLocated(Contents::Text) => Value::Text(until_nul(bytes)),
            Shape::Located(Contents::Array(element)) | Shape::RelativelyLocated(Contents::Array(element)) => {
                array(element)
            }
        })
    }

    /// Its own bytes in a record: of a located field those that say where its contents are.
    pub fn bytes<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        let end = if self.size == 0 { record.len() } else { self.offset.checked_add(self.size)? };
        // Stacks and texts at the end of a record may be shorter or longer than their format says.
        let last = matches!(self.shape, Shape::Text | Shape::Array(_));
        match record.get(self.offset..end) {
            Some(bytes) => Some(bytes),
            None if last => record.get(self.offset..),
            None => None,
        }
    }

    /// The bytes it holds: of a located field those that it leads to.
    pub fn contents<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        let bytes = self.bytes(record)?;
        let base = match self.shape {
            Shape::Located(_) => 0,
            Shape::RelativelyLocated(_) => self.offset.checked_add(self.size)?,
            _ => return Some(bytes),
        };
        let word = unsigned(bytes);
        let (start, length) = ((word & 0xffff) as usize + base, (word >> 16 & 0xffff) as usize);
        record.get(start..start.checked_add(length)?)
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Up to eight bytes as a number.
#[inline]
pub(crate) fn unsigned(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    }
}

fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
    (unsigned(bytes) << unused) as i64 >> unused
}
