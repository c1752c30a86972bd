//! Version 7: sections, and options that say where they are.

use super::compress::Unpacker;
use super::error::{ContentError, DatError};
use super::input::Input;
use super::read::{Dat, Reading};
use super::{COMPRESSED, Compression, MAX_PAGE_BYTES, SECTION_HEAD_BYTES, Version, id};
use crate::trace::{Buffer, CpuPages};
use std::borrow::Cow;
use std::collections::HashSet;

pub(super) fn read(file: Reading<'_>, mut input: Input<'_>) -> Result<Dat, DatError> {
    let before = input;
    let name = input.text("name of the compression")?;
    let Some(compression) = Compression::named(name) else {
        return before.error(ContentError::Compression(name.to_vec()));
    };
    input.text("version of the compression")?;
    let options_at = input.at();
    let first_options = input.u64("offset of the options")?;
    let mut sections = Sections {
        bytes: file.bytes,
        file,
        unpacker: Unpacker::new(compression),
        pointers: Vec::new(),
        buffers: Vec::new(),
    };
    sections.skip_unknown(input)?;
    sections.options(first_options, options_at)?;
    let mut seen = HashSet::new();
    // Pages come last: they need `header_page`.
    for (section, at, offset) in std::mem::take(&mut sections.pointers) {
        if !seen.insert(section) {
            sections.file.skip(at, format!("a second option {}", id::name(section).unwrap_or_default()));
            continue;
        }
        let (contents, start) = sections.contents(section, offset, at)?;
        let mut input = match contents {
            Cow::Borrowed(bytes) => Input::new(bytes, start),
            Cow::Owned(ref bytes) => Input::unpacked(bytes, start),
        };
        sections.file.text_section(section, &mut input)?;
    }
    for (at, contents) in std::mem::take(&mut sections.buffers) {
        sections.buffer(Input::unpacked(&contents, at))?;
    }
    sections.file.finish(Version::V7, compression)
}

struct Sections<'a> {
    bytes: &'a [u8],
    file: Reading<'a>,
    unpacker: Unpacker,
    /// Options that say where a section is: its id, where the option is, and the section's offset.
    pointers: Vec<(u16, u64, u64)>,
    /// Options that describe a buffer, and where they are.
    buffers: Vec<(u64, Vec<u8>)>,
}

/// What a section begins with.
struct Head {
    id: u16,
    compressed: bool,
    size: u64,
}

impl<'a> Sections<'a> {
    /// The file from an offset on.
    fn input_at(&self, offset: u64, named_at: u64, what: &str) -> Result<Input<'a>, DatError> {
        let bytes = usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..));
        let outside = || DatError { at: named_at, error: ContentError::Outside { what: what.to_owned(), offset } };
        bytes.map(|bytes| Input::new(bytes, offset)).ok_or_else(outside)
    }

    fn head(input: &mut Input<'_>) -> Result<Head, DatError> {
        let id = input.u16("id of a section")?;
        let flags = input.u16("flags of a section")?;
        input.u32("description of a section")?;
        Ok(Head { id, compressed: flags & COMPRESSED != 0, size: input.u64("size of a section")? })
    }

    /// Lists sections with an unknown id. They lie one behind the other up to the end.
    fn skip_unknown(&mut self, mut input: Input<'_>) -> Result<(), DatError> {
        while input.left() as u64 >= SECTION_HEAD_BYTES {
            let at = input.at();
            let head = Self::head(&mut input)?;
            if id::name(head.id).is_none() {
                self.file.skip(at, format!("unknown section {} of {} bytes", head.id, head.size));
            }
            if head.size > input.left() as u64 {
                self.file.skip(at, format!("section {} is cut off", id::name(head.id).unwrap_or("unknown")));
                break;
            }
            input.take(head.size, "section")?;
        }
        Ok(())
    }

    /// Contents of the section at an offset, which an option names, and where they stand.
    fn contents(&mut self, section: u16, offset: u64, named_at: u64) -> Result<(Cow<'a, [u8]>, u64), DatError> {
        let name = id::name(section).unwrap_or_default();
        let mut input = self.input_at(offset, named_at, name)?;
        let head = Self::head(&mut input)?;
        if head.id != section {
            let error = ContentError::WrongSection { found: head.id, name, expected: section };
            return Err(DatError { at: offset, error });
        }
        let start = input.at();
        if !head.compressed {
            let contents = input.take(head.size, name)?;
            self.file.count_text(start, head.size)?;
            return Ok((Cow::Borrowed(contents), start));
        }
        let packed_bytes = input.u32(name)?;
        let bytes = input.u32(name)?;
        let packed = input.take(packed_bytes.into(), name)?;
        // What is not unpacked at all has to be looked at, too.
        self.file.count_text(start, u64::from(bytes.max(packed_bytes)))?;
        let mut contents = Vec::new();
        let unpacked = self.unpacker.unpack(packed, bytes as usize, &mut contents);
        unpacked.map_err(|error| DatError { at: start, error: error.into() }.within(name))?;
        Ok((Cow::Owned(contents), start))
    }

    /// Reads the sections of options, each of which names the next.
    fn options(&mut self, mut offset: u64, mut named_at: u64) -> Result<(), DatError> {
        let mut seen = HashSet::new();
        loop {
            if !seen.insert(offset) {
                return Err(DatError { at: named_at, error: ContentError::OptionsAgain(offset) });
            }
            let contents = self.contents(id::DONE, offset, named_at);
            let (contents, start) = contents.map_err(|error| error.within("options"))?;
            let mut input = match contents {
                Cow::Borrowed(bytes) => Input::new(bytes, start),
                Cow::Owned(ref bytes) => Input::unpacked(bytes, start),
            };
            let next = loop {
                let at = input.at();
                let option = input.u16("id of an option")?;
                let length = input.u32("size of an option")?;
                let contents = input.take(length.into(), "option")?;
                match option {
                    id::DONE => break Input::new(contents, at).u64("offset of more options")?,
                    id::BUFFER => self.buffers.push((at, contents.to_vec())),
                    id::BUFFER_TEXT => self.file.skip(at, "option BUFFER_TEXT: the text of a latency tracer"),
                    id::HEADER_INFO..=id::CMDLINES => {
                        self.pointers.push((option, at, Input::new(contents, at).u64("offset of a section")?));
                    }
                    other => self.file.option(other, at, contents),
                }
            };
            if next == 0 {
                return Ok(());
            }
            (offset, named_at) = (next, start);
        }
    }

    fn buffer(&mut self, mut option: Input<'_>) -> Result<(), DatError> {
        let at = option.at();
        let offset = option.u64("offset of a buffer")?;
        let name = String::from_utf8_lossy(option.text("name of a buffer")?).into_owned();
        let mut clock = super::read::clock(option.text("clock of a buffer")?);
        if clock.is_empty() && name.is_empty() {
            clock.clone_from(&self.file.top_clock);
        }
        let page_bytes = option.u32("page size of a buffer")? as usize;
        let rows = option.u32("number of CPUs of a buffer")?;
        let mut head_at = self.input_at(offset, at, "buffer")?;
        let head = Self::head(&mut head_at)?;
        if head.id != id::BUFFER {
            let error = ContentError::WrongSection { found: head.id, name: "a buffer", expected: id::BUFFER };
            return Err(DatError { at: offset, error });
        }
        let page = self.file.page()?;
        if page_bytes != page.page_bytes() && rows > 0 {
            if page_bytes <= page.data_offset || page_bytes > MAX_PAGE_BYTES || self.file.has_pages() {
                let what = format!("buffer `{name}`, whose pages have {page_bytes} bytes, not {}", page.page_bytes());
                self.file.skip(at, what);
                return Ok(());
            }
            self.file.set_page_bytes(page_bytes);
        }
        let mut cpus = Vec::new();
        for _ in 0..rows {
            let cpu = option.u32("CPU of a buffer")?;
            let offset = option.u64("offset of a CPU's pages")?;
            let size = option.u64("size of a CPU's pages")?;
            let mut input = self.input_at(offset, at, "pages")?;
            let pages = match (size, head.compressed) {
                (0, _) => Vec::new(),
                // Pieces say themselves how long they are; trace-cmd does not count their number into the size.
                (_, true) => self.chunks(input)?,
                (_, false) => {
                    let pages = input.take(size, "pages of a CPU")?;
                    self.file.count_pages(offset, size)?;
                    pages.to_vec()
                }
            };
            cpus.push(CpuPages { cpu, pages, stats: None });
        }
        self.file.add_buffer(Buffer { name, clock, cpus });
        Ok(())
    }

    fn chunks(&mut self, mut input: Input<'_>) -> Result<Vec<u8>, DatError> {
        let mut pages = Vec::new();
        for _ in 0..input.u32("number of compressed pieces")? {
            let at = input.at();
            let packed_bytes = input.u32("size of a compressed piece")?;
            let bytes = input.u32("size of a piece")?;
            let packed = input.take(packed_bytes.into(), "compressed piece")?;
            self.file.count_pages(at, u64::from(bytes.max(packed_bytes)))?;
            let unpacked = self.unpacker.unpack(packed, bytes as usize, &mut pages);
            unpacked.map_err(|error| DatError { at, error: error.into() })?;
        }
        Ok(pages)
    }
}
