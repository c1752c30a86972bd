//! Gzip of pieces that are packed each by itself, so that the packed form of a piece can be sent again.
//!
//! A deflate stream is a row of blocks. A piece that is kept is packed without a look at what comes before it and ends on a whole
//! byte, so that it can stand anywhere; the checksum of all is computed from those of the pieces.

use crate::exposition::Form;
use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Magic number, deflate, no flags, no time, no hint, unknown system.
pub(crate) const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// The last block of deflate, an empty one.
const LAST_BLOCK: [u8; 2] = [3, 0];
/// Most bytes of a packed block, in the usual.
const MAX_USUAL_BYTES: usize = 16 << 10;

/// A packed piece, with the checksum and length of what was packed.
#[derive(Debug)]
pub(crate) struct Fragment {
    pub bytes: Bytes,
    crc: Crc,
}

impl Fragment {
    /// Bytes before packing, modulo 2^32.
    pub(crate) fn unpacked_bytes(&self) -> u32 {
        self.crc.amount()
    }
}

/// Packs pieces and ends the file.
pub(crate) struct Gzip {
    compress: Compress,
    /// All that was sent.
    total: Crc,
    /// What was packed last was sent last: the next piece may refer to it.
    continues: bool,
}

impl Gzip {
    pub(crate) fn new() -> Gzip {
        // The fastest level: expositions repeat themselves so much that it already takes off more than nine tenths.
        Gzip { compress: Compress::new(Compression::fast(), false), total: Crc::new(), continues: false }
    }

    /// Packs a piece that stands for itself.
    pub(crate) fn pack(&mut self, piece: &[u8]) -> Fragment {
        self.continues = false;
        let mut bytes = Vec::new();
        self.pack_to(&mut bytes, piece);
        bytes.shrink_to_fit();
        self.continues = false;
        let mut crc = Crc::new();
        crc.update(piece);
        Fragment { bytes: bytes.into(), crc }
    }

    /// Appends a piece that stands after all others.
    pub(crate) fn append(&mut self, out: &mut Vec<u8>, piece: &[u8]) {
        self.pack_to(out, piece);
        self.total.update(piece);
    }

    /// Appends a piece that was packed before.
    pub(crate) fn append_fragment(&mut self, out: &mut Vec<u8>, fragment: &Fragment) {
        out.extend_from_slice(&fragment.bytes);
        self.total.combine(&fragment.crc);
        self.continues = false;
    }

    /// Packs a piece to a whole byte.
    fn pack_to(&mut self, out: &mut Vec<u8>, piece: &[u8]) {
        if !std::mem::replace(&mut self.continues, true) {
            self.compress.reset();
        }
        let start = self.compress.total_in();
        out.reserve(piece.len() / 8 + 128);
        loop {
            let done = (self.compress.total_in() - start) as usize;
            // Writing to memory does not fail.
            let _ = self.compress.compress_vec(&piece[done..], out, FlushCompress::Sync);
            // Room that is left says that all was written.
            if out.len() < out.capacity() && (self.compress.total_in() - start) as usize == piece.len() {
                break;
            }
            out.reserve(out.len());
        }
    }

    /// The end of the file.
    pub(crate) fn end(&self) -> Vec<u8> {
        [LAST_BLOCK.as_slice(), &self.total.sum().to_le_bytes(), &self.total.amount().to_le_bytes()].concat()
    }
}

/// How many bytes of packed pieces are kept, of all readings together.
#[derive(Clone, Debug, Default)]
pub struct KeptBytes(Arc<AtomicUsize>);

impl KeptBytes {
    /// Most of them: as much as 60,000 idle histograms take.
    pub const MAX: usize = 8 << 20;

    /// As many as there are.
    pub fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether there is hardly room for another.
    pub(crate) fn is_full(&self) -> bool {
        self.now() > Self::MAX - MAX_USUAL_BYTES
    }
}

/// The packed form of a block, in one form of an exposition.
#[derive(Debug, Default)]
pub(crate) struct Fragments(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    form: Form,
    fragment: Arc<Fragment>,
    all: KeptBytes,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.fragment.bytes.len(), Ordering::Relaxed);
    }
}

impl Fragments {
    pub(crate) fn get(&self, form: Form) -> Option<Arc<Fragment>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|kept| kept.form == form).map(|kept| kept.fragment.clone())
    }

    /// Whether none is kept.
    pub(crate) fn is_free(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Keeps it, when there is room and no other form is kept.
    pub(crate) fn keep(&self, form: Form, fragment: &Arc<Fragment>, all: &KeptBytes) {
        let bytes = fragment.bytes.len();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_some() {
            return;
        }
        if all.0.fetch_add(bytes, Ordering::Relaxed) + bytes > KeptBytes::MAX {
            all.0.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        *kept = Some(Kept { form, fragment: fragment.clone(), all: all.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use proptest::prelude::*;
    use std::io::Read;

    fn unpack(packed: &[u8]) -> Vec<u8> {
        let mut decoder = GzDecoder::new(packed);
        let mut out = Vec::new();
        decoder.read_to_end(&mut out).expect("gzip");
        assert!(decoder.into_inner().is_empty(), "nothing after the end");
        out
    }

    proptest! {
        #[test]
        fn pieces_can_be_sent_in_any_order_and_again(
            pieces in proptest::collection::vec("[ab\\n]{0,300}", 1..5),
            order in proptest::collection::vec(any::<(prop::sample::Index, bool)>(), 0..12),
        ) {
            let mut gzip = Gzip::new();
            let packed: Vec<Fragment> = pieces.iter().map(|piece| gzip.pack(piece.as_bytes())).collect();
            let (mut file, mut expected) = (HEADER.to_vec(), Vec::new());
            for (index, again) in order {
                let at = index.index(pieces.len());
                if again {
                    gzip.append_fragment(&mut file, &packed[at]);
                } else {
                    gzip.append(&mut file, pieces[at].as_bytes());
                }
                expected.extend_from_slice(pieces[at].as_bytes());
            }
            file.extend_from_slice(&gzip.end());
            prop_assert_eq!(unpack(&file), expected);
        }
    }

    #[test]
    fn a_piece_that_does_not_shrink_is_packed_whole() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(300_000)
        .collect();
        let (mut gzip, mut file) = (Gzip::new(), HEADER.to_vec());
        let fragment = gzip.pack(&noise);
        assert_eq!(fragment.unpacked_bytes(), 300_000);
        gzip.append_fragment(&mut file, &fragment);
        gzip.append(&mut file, &noise);
        file.extend_from_slice(&gzip.end());
        assert!(unpack(&file) == noise.repeat(2));
    }

    #[test]
    fn what_is_kept_is_bounded_and_of_one_form() {
        let (all, form) = (KeptBytes::default(), Form { format: crate::Format::Text004, native_bucket_limit: 0 });
        let fragment = |bytes: usize| Arc::new(Fragment { bytes: vec![0; bytes].into(), crc: Crc::new() });
        let (one, two, three) = (Fragments::default(), Fragments::default(), Fragments::default());
        one.keep(form, &fragment(KeptBytes::MAX - 10), &all);
        two.keep(form, &fragment(11), &all);
        three.keep(form, &fragment(10), &all);
        assert!(one.get(form).is_some() && two.get(form).is_none() && three.get(form).is_some());
        assert!(three.get(Form { native_bucket_limit: 1, ..form }).is_none());
        assert_eq!(all.now(), KeptBytes::MAX);
        drop(one);
        assert_eq!(all.now(), 10, "a block that is gone takes its packed form with it");
    }
}
