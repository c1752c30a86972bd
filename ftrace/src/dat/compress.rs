//! The ways in which version 7 is compressed.

use flate2::{Compression as Level, read::ZlibDecoder, write::ZlibEncoder};
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::{self, Read, Write};

/// A way to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// Deflate; read by a trace-cmd that was built with zlib. Debian's is not.
    Zlib,
    /// Zstandard; read by a trace-cmd that was built with libzstd, as Debian's is.
    Zstd,
}

/// What a zstd frame may ask to be kept of what was unpacked before: what the format's text advises every reader to support.
const ZSTD_WINDOW_BYTES: u64 = 8 << 20;

impl Compression {
    /// The name and version that a file gives. trace-cmd compares no more of the version than its first number.
    pub(super) fn name_and_version(self) -> (&'static str, &'static str) {
        match self {
            Compression::None => ("none", ""),
            Compression::Zlib => ("zlib", "1.2.13"),
            Compression::Zstd => ("zstd", "1.5.4"),
        }
    }

    pub(super) fn named(name: &[u8]) -> Option<Compression> {
        match name {
            b"none" => Some(Compression::None),
            b"zlib" => Some(Compression::Zlib),
            b"zstd" => Some(Compression::Zstd),
            _ => None,
        }
    }

    pub(super) fn pack(self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Compression::None => Ok(bytes.to_vec()),
            Compression::Zlib => {
                let mut packed = ZlibEncoder::new(Vec::with_capacity(bytes.len() / 4), Level::default());
                packed.write_all(bytes)?;
                packed.finish()
            }
            Compression::Zstd => Ok(compress_to_vec(bytes, CompressionLevel::Fastest)),
        }
    }
}

/// Why a piece cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("{found} bytes were packed here, not {size}")]
    Size { found: usize, size: usize },
    #[error("no zlib data: {0}")]
    Zlib(#[from] io::Error),
    #[error("no zstd data: {0}")]
    Zstd(#[from] FrameDecoderError),
}

/// Unpacks one piece after another, with the same memory.
pub(super) struct Unpacker {
    compression: Compression,
    zstd: FrameDecoder,
}

impl Unpacker {
    pub(super) fn new(compression: Compression) -> Unpacker {
        let mut zstd = FrameDecoder::new();
        zstd.set_max_window_size(ZSTD_WINDOW_BYTES);
        Unpacker { compression, zstd }
    }

    /// Appends what was packed, which must have exactly `size` bytes.
    pub(super) fn unpack(&mut self, packed: &[u8], size: usize, into: &mut Vec<u8>) -> Result<(), UnpackError> {
        let start = into.len();
        match self.compression {
            Compression::None => into.extend_from_slice(packed),
            Compression::Zlib => {
                // One more than expected: longer contents are found out without being unpacked.
                let mut all = ZlibDecoder::new(packed).take(size as u64 + 1);
                all.read_to_end(into)?;
            }
            Compression::Zstd => {
                into.resize(start + size, 0);
                let found = self.zstd.decode_all(packed, &mut into[start..])?;
                into.truncate(start + found);
            }
        }
        match into.len() - start {
            found if found == size => Ok(()),
            found => Err(UnpackError::Size { found, size }),
        }
    }
}
