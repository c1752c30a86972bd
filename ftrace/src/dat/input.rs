//! Bytes of a file, read from front to end with their offset at hand.

use super::error::{ContentError, DatError};

/// Bytes, and where they stand in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset of the first byte in the file.
    base: u64,
    /// The bytes were compressed: all of them stand at `base`.
    unpacked: bool,
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8], base: u64) -> Input<'a> {
        Input { bytes, at: 0, base, unpacked: false }
    }

    pub(super) fn unpacked(bytes: &'a [u8], base: u64) -> Input<'a> {
        Input { bytes, at: 0, base, unpacked: true }
    }

    /// Where the next byte stands in the file.
    pub(super) fn at(&self) -> u64 {
        if self.unpacked { self.base } else { self.base + self.at as u64 }
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn error<T>(&self, error: ContentError) -> Result<T, DatError> {
        Err(DatError { at: self.at(), error })
    }

    /// The next bytes, which are `what`.
    pub(super) fn take(&mut self, needed: u64, what: &'static str) -> Result<&'a [u8], DatError> {
        let left = self.left();
        match usize::try_from(needed).ok().filter(|length| *length <= left) {
            Some(length) => {
                let bytes = &self.bytes[self.at..self.at + length];
                self.at += length;
                Ok(bytes)
            }
            None => self.error(ContentError::TooShort { what, needed, left }),
        }
    }

    fn number<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DatError> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N as u64, what)?);
        Ok(number)
    }

    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, DatError> {
        self.number(what).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, DatError> {
        self.number(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, DatError> {
        self.number(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, DatError> {
        self.number(what).map(u64::from_le_bytes)
    }

    /// The next bytes up to a NUL, which is left behind.
    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a [u8], DatError> {
        match self.bytes[self.at..].iter().position(|byte| *byte == 0) {
            Some(length) => {
                let text = self.take(length as u64, what)?;
                self.at += 1;
                Ok(text)
            }
            None => self.error(ContentError::NoNul(what)),
        }
    }

    /// The next bytes, which must be these.
    pub(super) fn expect(&mut self, expected: &[u8], what: &'static str) -> Result<(), DatError> {
        let before = *self;
        match self.take(expected.len() as u64, what)? == expected {
            true => Ok(()),
            false => before.error(ContentError::Missing(what)),
        }
    }
}
