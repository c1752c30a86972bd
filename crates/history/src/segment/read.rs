//! Frames to seconds.

use super::body::Body;
use super::{FRAME_HEADER, FrameHeader, HEADER, start_of};
use crate::registry::Registry;
use crate::store::History;
use flate2::{Decompress, FlushDecompress};

/// What a segment's bytes hold.
#[derive(Debug)]
pub struct Decoded {
    pub history: History,
    /// Bytes from the segment's beginning that could be read. Those after them are of another segment, cut short or damaged.
    pub valid: usize,
}

/// Reads a segment as far as it is whole.
pub fn decode(bytes: &[u8]) -> Decoded {
    let mut registry = Registry::default();
    let (mut records, mut marks) = (Vec::new(), Vec::new());
    let mut valid = 0;
    if bytes.first_chunk::<HEADER>().and_then(start_of).is_some() {
        valid = HEADER;
        let mut stream = Decompress::new(false);
        while let Some((frame, length)) = frame(&bytes[valid..], &mut stream) {
            let Some((record, of_record)) = Body(&frame).read(&mut registry, records.len() as u64) else { break };
            records.push(record);
            marks.extend(of_record);
            valid += length;
        }
    }
    Decoded { history: History::of(registry, records, marks), valid }
}

/// The next frame, unpacked, and its length in the file.
fn frame(bytes: &[u8], stream: &mut Decompress) -> Option<(Vec<u8>, usize)> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER>()?;
    let head = FrameHeader::read(*head)?;
    let packed = rest.get(..head.packed).filter(|packed| head.is_of(packed))?;
    // A little more room than it needs: the flush at its end takes some of it.
    let mut unpacked = Vec::with_capacity(head.unpacked + 64);
    let mut left = packed;
    while !left.is_empty() {
        let before = (stream.total_in(), unpacked.len());
        stream.decompress_vec(left, &mut unpacked, FlushDecompress::Sync).ok()?;
        left = left.get((stream.total_in() - before.0) as usize..)?;
        if (stream.total_in(), unpacked.len()) == before {
            break;
        }
    }
    (left.is_empty() && unpacked.len() == head.unpacked).then_some((unpacked, FRAME_HEADER + head.packed))
}

/// Bytes of a segment's file up to the end of its last whole frame, by checksums alone.
pub(crate) fn whole(bytes: &[u8]) -> usize {
    if bytes.first_chunk::<HEADER>().and_then(start_of).is_none() {
        return 0;
    }
    let mut valid = HEADER;
    while let Some((head, rest)) = bytes[valid..].split_first_chunk::<FRAME_HEADER>()
        && let Some(head) = FrameHeader::read(*head)
        && rest.get(..head.packed).is_some_and(|packed| head.is_of(packed))
    {
        valid += FRAME_HEADER + head.packed;
    }
    valid
}
