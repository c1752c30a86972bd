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

/// Bytes of a piece, before packing. An allocation of this size is used again; one of more than 128 KiB would be new memory of the
/// kernel's each time.
const PIECE_BYTES: usize = 48 << 10;
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
        gzip: gzip.map(|kept| (Gzip::new(), kept)),
        scratch: Vec::new(),
        send,
    };
    if output.gzip.is_some() {
        output.send(Bytes::from_static(&gzip::HEADER))?;
    }
    for family in reading.families.iter().filter(|family| !family.is_empty()) {
        output.family(family, &reading.exemplars)?;
    }
    if form.format == Format::OpenMetrics100 {
        output.plain(own.strip_suffix(END).unwrap_or(own))?;
        output.plain(END)?;
    } else {
        output.plain(own)?;
    }
    output.flush()?;
    if let Some((gzip, _)) = &output.gzip {
        let end = gzip.end();
        output.send(end.into())?;
    }
    Ok(())
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
    gzip: Option<(Gzip, &'a KeptBytes)>,
    /// A block, of which only the packed form or the length matters.
    scratch: Vec<u8>,
    send: &'a mut Send<'s>,
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
                    bytes += self.bytes(block, &mut body);
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

    /// Bytes of a block before packing.
    fn bytes(&mut self, block: &Block, body: &mut impl Body) -> usize {
        if let Some(fragment) = self.kept(block, body) {
            return fragment.unpacked_bytes() as usize;
        }
        self.scratch.clear();
        body.write(&mut self.scratch, block);
        self.scratch.len()
    }

    fn block(&mut self, block: &Block, body: &mut impl Body) -> Result<(), Gone> {
        if let Some(fragment) = self.kept(block, body) {
            self.pack()?;
            return self.fragment(&fragment);
        }
        body.write(&mut self.plain, block);
        self.flush_full()
    }

    /// The packed form of a block that is worth keeping.
    fn kept(&mut self, block: &Block, body: &mut impl Body) -> Option<Arc<Fragment>> {
        let (gzip, kept) = self.gzip.as_mut()?;
        if !block.is_shared() || block.series().len() < MIN_KEPT_SERIES || !body.is_plain(block) {
            return None;
        }
        if let Some(fragment) = block.fragments.get(self.form) {
            return Some(fragment);
        }
        if !block.fragments.is_free() || kept.is_full() {
            return None;
        }
        self.scratch.clear();
        body.write(&mut self.scratch, block);
        let fragment = Arc::new(gzip.pack(&self.scratch));
        block.fragments.keep(self.form, &fragment, kept);
        Some(fragment)
    }

    fn plain(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.plain.extend_from_slice(bytes);
        self.flush_full()
    }

    fn flush_full(&mut self) -> Result<(), Gone> {
        if self.plain.len() < PIECE_BYTES { Ok(()) } else { self.flush() }
    }

    /// Sends what is not sent yet.
    fn flush(&mut self) -> Result<(), Gone> {
        if self.gzip.is_some() {
            return self.pack();
        }
        let next = Vec::with_capacity(self.plain.capacity());
        let piece = std::mem::replace(&mut self.plain, next);
        self.send(piece.into())
    }

    fn pack(&mut self) -> Result<(), Gone> {
        let Some((gzip, _)) = self.gzip.as_mut().filter(|_| !self.plain.is_empty()) else { return Ok(()) };
        let fragment = gzip.pack(&self.plain);
        self.plain.clear();
        self.fragment(&fragment)
    }

    fn fragment(&mut self, fragment: &Fragment) -> Result<(), Gone> {
        if let Some((gzip, _)) = &mut self.gzip {
            gzip.add(fragment);
        }
        self.send(fragment.bytes.clone())
    }

    fn send(&mut self, piece: Bytes) -> Result<(), Gone> {
        if piece.is_empty() { Ok(()) } else { (self.send)(piece) }
    }
}
