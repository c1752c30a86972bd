//! Version 7: sections, and options that say where they are.

use super::compress::Compression;
use super::write::{self, BufferRef, Sink, invalid, missing};
use super::{COMPRESSED, Options, id};
use crate::trace::Trace;
use std::io::{self, Seek, Write};

/// Pages that are compressed in one piece: readers unpack all of a piece for one record of it. At least one page.
const CHUNK_BYTES: u64 = 128 << 10;

pub(super) fn write(trace: &Trace, options: &Options, out: &mut Sink<impl Write + Seek>) -> io::Result<()> {
    let (page_bytes, alignment) = write::page_and_alignment(trace)?;
    let compression = options.compression;
    out.put(&write::head("7", page_bytes))?;
    let (name, version) = compression.name_and_version();
    out.put(format!("{name}\0{version}\0").as_bytes())?;
    let first_options = out.at;
    out.put(&0_u64.to_le_bytes())?;

    let mut strings = Vec::new();
    let mut all = write::common_options(trace, options);
    for (section, description) in write::TEXT_SECTIONS {
        let at = out.at;
        let description = describe(&mut strings, description);
        text_section(out, section, description, compression, &write::text_section(trace, section)?)?;
        write::option(&mut all, section, &at.to_le_bytes());
    }
    for buffer in write::buffers(trace)? {
        let description = describe(&mut strings, if buffer.name.is_empty() { "flyrecord" } else { buffer.name });
        let contents = buffer_section(out, &buffer, description, compression, page_bytes, alignment)?;
        write::option(&mut all, id::BUFFER, &contents);
        if buffer.name.is_empty() {
            write::text_option(&mut all, id::TRACECLOCK, &format!("[{}]", buffer.clock));
        }
    }
    if trace.about.cpus != 0 {
        write::option(&mut all, id::CPUCOUNT, &trace.about.cpus.to_le_bytes());
    }
    let description = describe(&mut strings, "options");
    let own = describe(&mut strings, "strings");
    text_section(out, id::STRINGS, own, compression, &strings)?;
    // Offset of more options: there are none.
    write::option(&mut all, id::DONE, &0_u64.to_le_bytes());
    out.put_at(first_options, out.at)?;
    // `trace-cmd dump` cannot find the end of compressed options.
    text_section(out, id::DONE, description, Compression::None, &all)
}

/// Adds a section's description to the file's strings and says where it stands among them.
fn describe(strings: &mut Vec<u8>, description: &str) -> u32 {
    // Names of a few buffers: they stay far below four thousand million bytes.
    let at = strings.len() as u32;
    write::c_text(strings, description);
    at
}

fn section_head(section: u16, description: u32, compressed: bool, size: u64) -> Vec<u8> {
    let mut head = section.to_le_bytes().to_vec();
    head.extend(if compressed { COMPRESSED } else { 0 }.to_le_bytes());
    head.extend(description.to_le_bytes());
    head.extend(size.to_le_bytes());
    head
}

fn text_section(
    out: &mut Sink<impl Write + Seek>,
    section: u16,
    description: u32,
    compression: Compression,
    contents: &[u8],
) -> io::Result<()> {
    if compression == Compression::None {
        out.put(&section_head(section, description, false, contents.len() as u64))?;
        return out.put(contents);
    }
    let piece = packed(compression, contents)?;
    out.put(&section_head(section, description, true, piece.len() as u64))?;
    out.put(&piece)
}

/// A compressed piece behind its two sizes.
fn packed(compression: Compression, contents: &[u8]) -> io::Result<Vec<u8>> {
    let packed = compression.pack(contents)?;
    let size = |bytes: &[u8]| {
        u32::try_from(bytes.len()).map_err(|_| invalid(format!("{} bytes are too many for one piece", bytes.len())))
    };
    let mut piece = Vec::with_capacity(8 + packed.len());
    piece.extend(size(&packed)?.to_le_bytes());
    piece.extend(size(contents)?.to_le_bytes());
    piece.extend(packed);
    Ok(piece)
}

/// Writes the pages of a buffer, and returns its option.
fn buffer_section(
    out: &mut Sink<impl Write + Seek>,
    buffer: &BufferRef<'_>,
    description: u32,
    compression: Compression,
    page_bytes: u64,
    alignment: u64,
) -> io::Result<Vec<u8>> {
    let compressed = compression != Compression::None;
    let start = out.at;
    out.put(&section_head(id::BUFFER, description, compressed, 0))?;
    let mut option = start.to_le_bytes().to_vec();
    write::c_text(&mut option, buffer.name);
    write::c_text(&mut option, buffer.clock);
    option.extend((page_bytes as u32).to_le_bytes());
    option.extend((buffer.cpus.len() as u32).to_le_bytes());
    for cpu in buffer.cpus {
        out.fill_up_to(out.at.next_multiple_of(alignment))?;
        option.extend(cpu.cpu.to_le_bytes());
        option.extend(out.at.to_le_bytes());
        let size = match compressed && !cpu.pages.is_empty() {
            true => chunks(out, &cpu.pages, compression, page_bytes)?,
            false => {
                let at = out.at;
                out.put(&cpu.pages)?;
                // A last page that was cut off.
                out.put(&vec![0; missing(&cpu.pages, page_bytes)])?;
                out.at - at
            }
        };
        option.extend(size.to_le_bytes());
    }
    out.put_at(start + 8, out.at - start - super::SECTION_HEAD_BYTES)?;
    Ok(option)
}

/// Writes the number of pieces, and the pieces, and returns their size: as with trace-cmd, without that of the number.
fn chunks(
    out: &mut Sink<impl Write + Seek>,
    pages: &[u8],
    compression: Compression,
    page_bytes: u64,
) -> io::Result<u64> {
    let chunk_bytes = (CHUNK_BYTES / page_bytes).max(1) * page_bytes;
    let pieces = pages.chunks(chunk_bytes as usize);
    let count =
        u32::try_from(pieces.len()).map_err(|_| invalid(format!("{} bytes of one CPU are too many", pages.len())))?;
    out.put(&count.to_le_bytes())?;
    let start = out.at;
    for chunk in pieces {
        match missing(chunk, page_bytes) {
            0 => out.put(&packed(compression, chunk)?)?,
            missing => out.put(&packed(compression, &[chunk, &vec![0; missing]].concat())?)?,
        }
    }
    Ok(out.at - start)
}
