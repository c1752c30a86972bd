//! Bytes of a file, read from front to end with their offset at hand.

use std::fmt;

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatError {
    /// Byte of the file; of what was compressed, where the compressed piece begins.
    pub at: u64,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for DatError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "trace.dat, byte {}: {}", self.at, self.what)
    }
}

impl std::error::Error for DatError {}

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

    pub(super) fn error<T>(&self, what: impl Into<String>) -> Result<T, DatError> {
        Err(DatError { at: self.at(), what: what.into() })
    }

    /// The next bytes, which are `what`.
    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], DatError> {
        let left = self.left();
        match usize::try_from(length).ok().filter(|length| *length <= left) {
            Some(length) => {
                let bytes = &self.bytes[self.at..self.at + length];
                self.at += length;
                Ok(bytes)
            }
            None => self.error(format!("{what}: {length} bytes are needed, {left} are there")),
        }
    }

    fn number<const N: usize>(&mut self, what: &str) -> Result<[u8; N], DatError> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N as u64, what)?);
        Ok(number)
    }

    pub(super) fn byte(&mut self, what: &str) -> Result<u8, DatError> {
        self.number(what).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, what: &str) -> Result<u16, DatError> {
        self.number(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, DatError> {
        self.number(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, DatError> {
        self.number(what).map(u64::from_le_bytes)
    }

    /// The next bytes up to a NUL, which is left behind.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a [u8], DatError> {
        match self.bytes[self.at..].iter().position(|byte| *byte == 0) {
            Some(length) => {
                let text = self.take(length as u64, what)?;
                self.at += 1;
                Ok(text)
            }
            None => self.error(format!("{what}: no NUL ends the text")),
        }
    }

    /// The next bytes, which must be these.
    pub(super) fn expect(&mut self, expected: &[u8], what: &str) -> Result<(), DatError> {
        let before = *self;
        match self.take(expected.len() as u64, what)? == expected {
            true => Ok(()),
            false => before.error(format!("{what} is missing")),
        }
    }
}
