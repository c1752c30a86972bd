//! Errors of reading a file.

use super::compress::UnpackError;
use crate::format::FormatError;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("trace.dat, byte {at}: {error}")]
pub struct DatError {
    /// Byte of the file; of what was compressed, where the compressed piece begins.
    pub at: u64,
    /// What is wrong there.
    #[source]
    pub error: ContentError,
}

impl DatError {
    /// The same, with the section in front.
    pub(super) fn within(self, section: &'static str) -> DatError {
        DatError { error: ContentError::Within { section, error: Box::new(self.error) }, ..self }
    }
}

/// What is wrong at a byte of a file.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    #[error("{what}: {needed} bytes are needed, {left} are there")]
    TooShort { what: &'static str, needed: u64, left: usize },
    #[error("{0}: no NUL ends the text")]
    NoNul(&'static str),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("version `{}`; only 6 and 7 are known", .0.escape_ascii())]
    Version(Vec<u8>),
    #[error("from a big-endian machine; only little-endian files are read")]
    BigEndian,
    #[error("byte order is {0}, neither 0 (little) nor 1 (big)")]
    ByteOrder(u8),
    #[error("from a 32-bit system; only files of 64-bit systems are read")]
    System32,
    #[error("a `long` of {0} bytes; only 8 are read")]
    LongBytes(u8),
    #[error("from a 32-bit kernel; only files of 64-bit kernels are read")]
    Kernel32,
    #[error("header_page: no ring buffer has pages of {0} bytes")]
    PageBytes(usize),
    #[error("header_page: {0}")]
    HeaderPage(#[from] FormatError),
    #[error("no `header_page` says how pages are read")]
    NoHeaderPage,
    #[error("{bytes} bytes of {of}: more than a file of this size can hold")]
    TooMuch { bytes: u64, of: &'static str },
    #[error("compressed with `{}`; only none, zlib and zstd are known", .0.escape_ascii())]
    Compression(Vec<u8>),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error("{what} at {offset}, behind the end of the file")]
    Outside { what: String, offset: u64 },
    #[error("section {found} where {name} ({expected}) should be")]
    WrongSection { found: u16, name: &'static str, expected: u16 },
    #[error("options at {0} a second time")]
    OptionsAgain(u64),
    #[error("{section}: {error}")]
    Within {
        section: &'static str,
        #[source]
        error: Box<ContentError>,
    },
}
