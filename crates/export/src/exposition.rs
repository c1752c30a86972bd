//! The forms Prometheus can ask for, and one exposition in any of them, piece by piece.

use crate::gzip::{self, Fragment, Gzip, KeptBytes};
use crate::reading::{Block, PackedFamily, Reading};
use crate::snapshot::{Exemplar, Snapshot};
use crate::{protobuf, text};
use bytes::Bytes;
use std::sync::Arc;

/// Forms of an exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `text/plain; version=0.0.4`
    Text004,
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics100,
    /// `application/vnd.google.protobuf`, delimited `io.prometheus.client.MetricFamily`: the only one with native histograms.
    Protobuf,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 3] = [Format::Text004, Format::OpenMetrics100, Format::Protobuf];

    /// Value of the Content-Type header.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text004 => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics100 => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// Last line of OpenMetrics.
pub const END: &[u8] = b"# EOF\n";

/// Bytes from which a piece is packed or sent: each piece that is sent wakes the thread that writes to the client.
const PIECE_BYTES: usize = 56 << 10;
/// Series of a block from which it is packed by itself, so that it can be kept.
const MIN_KEPT_SERIES: usize = 8;

/// All that decides what is written of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub format: Format,
    /// Native histograms have at most so many populated buckets; 0: as many as there are.
    pub native_bucket_limit: usize,
}

/// The client takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client takes no more")]
pub struct Gone;

/// Takes a piece.
pub type Send<'a> = dyn FnMut(Bytes) -> Result<(), Gone> + 'a;

/// Writes a whole exposition: the reading, then the agent's own metrics, given in the same format. Text 0.0.4 has no exemplars.
/// With `gzip`, packed; the packed form of blocks that the next reading may share is kept, and counted there.
pub fn write(
    reading: &Reading,
    own: &[u8],
    form: Form,
    gzip: Option<&KeptBytes>,
    send: &mut Send<'_>,
) -> Result<(), Gone> {
    let mut output = Output {
        form,
        plain: Vec::with_capacity(PIECE_BYTES * 5 / 4),
        packed: gzip.map(|kept| Packed { gzip: Gzip::new(), kept, bytes: gzip::HEADER.to_vec(), scratch: Vec::new() }),
        send,
    };
    for family in reading.families.iter().filter(|family| !family.is_empty()) {
        output.family(family, &reading.exemplars)?;
    }
    if form.format == Format::OpenMetrics100 {
        output.plain(own.strip_suffix(END).unwrap_or(own))?;
        output.plain(END)?;
    } else {
        output.plain(own)?;
    }
    output.end()
}

/// A whole exposition in memory.
pub fn exposition(
    snapshot: &Snapshot,
    exemplars: &[Exemplar],
    own: &[u8],
    format: Format,
    native_bucket_limit: usize,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut send = |piece: Bytes| {
        out.extend_from_slice(&piece);
        Ok(())
    };
    let written = write(&Reading::of(snapshot, exemplars), own, Form { format, native_bucket_limit }, None, &mut send);
    debug_assert_eq!(written, Ok(()), "a vector takes all");
    out
}

/// How series of a family are written.
pub(crate) trait Body {
    /// Appends all series of a block.
    fn write(&mut self, out: &mut Vec<u8>, block: &Block);
    /// Whether nothing is written of the block but the block.
    fn is_plain(&self, block: &Block) -> bool;
}

struct Output<'a, 's> {
    form: Form,
    /// Not yet packed or sent.
    plain: Vec<u8>,
    packed: Option<Packed<'a>>,
    send: &'a mut Send<'s>,
}

/// What is packed on its way out.
struct Packed<'a> {
    gzip: Gzip,
    kept: &'a KeptBytes,
    /// Not yet sent.
    bytes: Vec<u8>,
    /// A block of which only the packed form matters.
    scratch: Vec<u8>,
}

impl Output<'_, '_> {
    fn family(&mut self, family: &PackedFamily, exemplars: &[Exemplar]) -> Result<(), Gone> {
        match self.form.format {
            Format::Protobuf => {
                let mut body = protobuf::Body::new(family, exemplars, self.form.native_bucket_limit);
                let mut head = protobuf::head(&family.about);
                // The length of a family stands at its beginning.
                let mut bytes = head.len();
                for block in &family.blocks {
                    bytes += match self.kept(block, &mut body) {
                        Some(fragment) => fragment.unpacked_bytes() as usize,
                        None => body.length(block),
                    };
                }
                protobuf::prepend_length(&mut head, bytes);
                self.plain(&head)?;
                family.blocks.iter().try_for_each(|block| self.block(block, &mut body))
            }
            format => {
                let open = format == Format::OpenMetrics100;
                let mut body = text::Body::new(family, if open { exemplars } else { &[] }, open);
                text::write_metadata(&mut self.plain, &family.about, open);
                family.blocks.iter().try_for_each(|block| self.block(block, &mut body))
            }
        }
    }

    fn block(&mut self, block: &Block, body: &mut impl Body) -> Result<(), Gone> {
        let Some(fragment) = self.kept(block, body) else {
            body.write(&mut self.plain, block);
            return self.send_full();
        };
        if let Some(packed) = &mut self.packed {
            packed.append(&mut self.plain);
            packed.gzip.append_fragment(&mut packed.bytes, &fragment);
        }
        self.send_full()
    }

    /// The packed form of a block that is worth keeping.
    fn kept(&mut self, block: &Block, body: &mut impl Body) -> Option<Arc<Fragment>> {
        let Packed { gzip, kept, scratch, .. } = self.packed.as_mut()?;
        if !block.is_shared() || block.series().len() < MIN_KEPT_SERIES || !body.is_plain(block) {
            return None;
        }
        if let Some(fragment) = block.fragments.get(self.form) {
            return Some(fragment);
        }
        if !block.fragments.is_free() || kept.is_full() {
            return None;
        }
        scratch.clear();
        body.write(scratch, block);
        let fragment = Arc::new(gzip.pack(scratch));
        block.fragments.keep(self.form, &fragment, kept);
        Some(fragment)
    }

    fn plain(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.plain.extend_from_slice(bytes);
        self.send_full()
    }

    /// Packs and sends pieces that are full.
    fn send_full(&mut self) -> Result<(), Gone> {
        let full = |bytes: &Vec<u8>| bytes.len() >= PIECE_BYTES;
        if let Some(packed) = &mut self.packed {
            if full(&self.plain) {
                packed.append(&mut self.plain);
            }
            if full(&packed.bytes) { self.send() } else { Ok(()) }
        } else if full(&self.plain) {
            self.send()
        } else {
            Ok(())
        }
    }

    fn end(&mut self) -> Result<(), Gone> {
        if let Some(packed) = &mut self.packed {
            packed.append(&mut self.plain);
            packed.bytes.extend_from_slice(&packed.gzip.end());
        }
        self.send()
    }

    /// Sends what is ready.
    fn send(&mut self) -> Result<(), Gone> {
        let ready = self.packed.as_mut().map_or(&mut self.plain, |packed| &mut packed.bytes);
        if ready.is_empty() {
            return Ok(());
        }
        // The next piece is about as long as this one.
        let next = Vec::with_capacity(ready.capacity());
        (self.send)(std::mem::replace(ready, next).into())
    }
}

impl Packed<'_> {
    /// Packs a piece, and leaves it empty.
    fn append(&mut self, plain: &mut Vec<u8>) {
        if !plain.is_empty() {
            self.gzip.append(&mut self.bytes, plain);
            plain.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Kind, Values};
    use crate::text::tests::{descriptor, family};
    use flate2::read::GzDecoder;
    use std::io::Read;

    fn packed(reading: &Reading, form: Form, kept: &KeptBytes) -> Vec<u8> {
        let (mut file, mut text) = (Vec::new(), Vec::new());
        let mut send = |piece: Bytes| {
            file.extend_from_slice(&piece);
            Ok(())
        };
        write(reading, b"", form, Some(kept), &mut send).unwrap();
        GzDecoder::new(file.as_slice()).read_to_end(&mut text).unwrap();
        text
    }

    #[test]
    fn packed_is_what_is_written_plain_whatever_is_kept() {
        let names: Vec<String> = (0..5000).map(|number| format!("name{number:05}")).collect();
        let labels: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
        let labels: Vec<&[&str]> = labels.iter().map(|label| label.as_slice()).collect();
        let about = descriptor("kstrobe_calls", Kind::Counter, "", &["comm"]);
        let families = vec![family(about, &labels, Values::Counters((0..5000).collect()))];
        let snapshot = Snapshot { at: std::time::UNIX_EPOCH, families };
        for format in Format::ALL {
            let form = Form { format, native_bucket_limit: 0 };
            let (plain, kept) = (exposition(&snapshot, &[], b"", format, 0), KeptBytes::default());
            let reading = Reading::of(&snapshot, &[]);
            assert!(packed(&reading, form, &kept) == plain, "{format:?}");
            assert_eq!(kept.now(), 0, "no block is shared yet");
            // Kept pieces beside others, and runs of both.
            for block in reading.families[0].blocks.iter().enumerate().filter(|(at, _)| at % 7 < 3) {
                block.1.share();
            }
            assert!(packed(&reading, form, &kept) == plain, "{format:?}, some are kept");
            let now = kept.now();
            assert!(now > 0 && packed(&reading, form, &kept) == plain && kept.now() == now, "{format:?}, sent again");
        }
    }
}
