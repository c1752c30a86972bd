//! Seconds as bytes of a file: segments, each complete in itself.
//!
//! A segment is a header (`MAGIC`, the start of its first second, a checksum) and frames. A frame is the length of its packed
//! bytes, their length when unpacked, a checksum, and the bytes: one step of a deflate stream that goes through the whole segment
//! and is flushed at the end of each frame. A frame has one second, with the definitions of metrics and series that are new in
//! the segment; the first frame also has the values of all gauges. All numbers of headers are little-endian, 32 bits wide but for
//! the start. What follows a frame that is cut short or has another checksum is not read.

mod body;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use read::whole;
pub use read::{Decoded, decode};
pub use write::{Encoder, Frame};

/// Begins a segment; the last byte is the version of the format. As a frame's length it would be beyond [`MAX_FRAME`].
pub(crate) const MAGIC: [u8; 8] = *b"KSTROBE1";
/// `MAGIC`, start, checksum.
pub(crate) const HEADER: usize = 20;
/// Lengths and checksum of a frame.
pub(crate) const FRAME_HEADER: usize = 12;
/// Bytes of a frame, packed or not.
pub(crate) const MAX_FRAME: usize = 64 << 20;
/// Seconds from the start of a segment's first second within which all of its seconds start.
pub const SPAN: u64 = 600;

/// The header of a segment whose first second starts then.
pub(crate) fn header(start: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&start.to_le_bytes());
    let sum = crc32fast::hash(&header[..16]);
    header[16..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The start of a segment's first second; `None` when this is no header.
pub(crate) fn start_of(header: &[u8; HEADER]) -> Option<u64> {
    let sum = u32::from_le_bytes(*header[16..].first_chunk()?);
    let start = u64::from_le_bytes(*header[8..].first_chunk()?);
    (header.starts_with(&MAGIC) && crc32fast::hash(&header[..16]) == sum).then_some(start)
}

/// The head of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHeader {
    pub packed: usize,
    pub unpacked: usize,
    sum: u32,
}

impl FrameHeader {
    /// `None` when these bytes are no such head: no frame is empty.
    pub fn read(bytes: [u8; FRAME_HEADER]) -> Option<FrameHeader> {
        let [packed, unpacked, sum] =
            [0, 4, 8].map(|at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
        let (packed, unpacked) = (packed as usize, unpacked as usize);
        let fits = |length: usize| (1..=MAX_FRAME).contains(&length);
        (fits(packed) && fits(unpacked)).then_some(FrameHeader { packed, unpacked, sum })
    }

    /// The head of a frame with these bytes.
    pub fn write(packed: &[u8], unpacked: usize) -> [u8; FRAME_HEADER] {
        let mut head = [0; FRAME_HEADER];
        head[..4].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&(unpacked as u32).to_le_bytes());
        let sum = checksum(&head[..8], packed);
        head[8..].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// Whether these are its bytes.
    pub fn is_of(&self, packed: &[u8]) -> bool {
        let lengths = [(self.packed as u32).to_le_bytes(), (self.unpacked as u32).to_le_bytes()].concat();
        packed.len() == self.packed && checksum(&lengths, packed) == self.sum
    }
}

fn checksum(lengths: &[u8], packed: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(lengths);
    sum.update(packed);
    sum.finalize()
}
