//! What both versions write alike.

use super::{MAX_PAGE_BYTES, Options, Version, id, texts, write_v6, write_v7};
use crate::format::EventFormat;
use crate::trace::{Buffer, CpuPages, Trace};
use std::collections::{HashMap, HashSet};
use std::io::{self, Seek, SeekFrom, Write};

/// Writes a trace as a file. Pages are written as they are, one piece at a time: nothing of them is held twice.
///
/// The file begins where `out` stands. An empty top buffer is added when the trace has none, as readers want one.
pub fn write(trace: &Trace, options: &Options, out: impl Write + Seek) -> io::Result<()> {
    let mut out = Sink::new(out)?;
    match options.version {
        Version::V6 => write_v6::write(trace, options, &mut out)?,
        Version::V7 => write_v7::write(trace, options, &mut out)?,
    }
    out.out.flush()
}

/// Where the file goes, with the offset at hand.
pub(super) struct Sink<W> {
    out: W,
    start: u64,
    /// Bytes from the file's beginning.
    pub(super) at: u64,
}

impl<W: Write + Seek> Sink<W> {
    fn new(mut out: W) -> io::Result<Sink<W>> {
        let start = out.stream_position()?;
        Ok(Sink { out, start, at: 0 })
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Zeros up to an offset.
    pub(super) fn fill_up_to(&mut self, at: u64) -> io::Result<()> {
        let mut missing = at.saturating_sub(self.at);
        while missing > 0 {
            let now = missing.min(4096);
            self.put(&[0; 4096][..now as usize])?;
            missing -= now;
        }
        Ok(())
    }

    /// Writes a number again that was not known before.
    pub(super) fn put_at(&mut self, at: u64, number: u64) -> io::Result<()> {
        self.out.seek(SeekFrom::Start(self.start + at))?;
        self.out.write_all(&number.to_le_bytes())?;
        self.out.seek(SeekFrom::Start(self.start + self.at))?;
        Ok(())
    }
}

/// What a file begins with, up to the size of a page.
pub(super) fn head(version: &str, page_bytes: u64) -> Vec<u8> {
    let mut head = super::MAGIC.to_vec();
    head.extend(version.as_bytes());
    // Little endian, eight bytes to a `long`.
    head.extend([0, 0, 8]);
    head.extend((page_bytes as u32).to_le_bytes());
    head
}

/// Bytes of a page. Readers map pages into memory: their place in the file is a multiple of a machine's page.
pub(super) fn page_and_alignment(trace: &Trace) -> io::Result<(u64, u64)> {
    let page_bytes = trace.page.page_bytes();
    if page_bytes == 0 || page_bytes > MAX_PAGE_BYTES {
        return Err(invalid(format!("no ring buffer has pages of {page_bytes} bytes")));
    }
    Ok((page_bytes as u64, page_bytes.next_power_of_two().max(4096) as u64))
}

pub(super) fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// The contents of the sections from [`id::HEADER_INFO`] to [`id::CMDLINES`], in this order: also that of version 6.
pub(super) const TEXT_SECTIONS: [(u16, &str); 6] = [
    (id::HEADER_INFO, "headers"),
    (id::FTRACE_EVENTS, "ftrace events"),
    (id::EVENT_FORMATS, "events format"),
    (id::KALLSYMS, "kallsyms"),
    (id::PRINTK, "printk"),
    (id::CMDLINES, "command lines"),
];

/// The contents of one of [`TEXT_SECTIONS`].
pub(super) fn text_section(trace: &Trace, section: u16) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    match section {
        id::HEADER_INFO => {
            contents.extend(b"header_page\0");
            long_text(&mut contents, &trace.page.text);
            contents.extend(b"header_event\0");
            long_text(&mut contents, &trace.header_event);
        }
        id::FTRACE_EVENTS => {
            formats(&mut contents, trace.formats.all().iter().filter(|format| format.system == "ftrace"))
        }
        id::EVENT_FORMATS => {
            // The order of systems, and of the events of one, is that of the trace.
            let mut systems: Vec<(&str, Vec<&EventFormat>)> = Vec::new();
            let mut place = HashMap::new();
            for format in trace.formats.all().iter().filter(|format| format.system != "ftrace") {
                let at = *place.entry(&*format.system).or_insert(systems.len());
                if at == systems.len() {
                    systems.push((&format.system, Vec::new()));
                }
                systems[at].1.push(format);
            }
            contents.extend((systems.len() as u32).to_le_bytes());
            for (system, of_system) in systems {
                c_text(&mut contents, system);
                formats(&mut contents, of_system.into_iter());
            }
        }
        id::KALLSYMS => short_text(&mut contents, &texts::kallsyms(&trace.symbols))?,
        id::PRINTK => short_text(&mut contents, &texts::printk_formats(&trace.printk))?,
        _ => long_text(&mut contents, &texts::cmdlines(&trace.comms)),
    }
    Ok(contents)
}

fn formats<'a>(contents: &mut Vec<u8>, formats: impl Iterator<Item = &'a EventFormat> + Clone) {
    contents.extend((formats.clone().count() as u32).to_le_bytes());
    formats.for_each(|format| long_text(contents, &format.text));
}

/// A text behind its length in eight bytes.
pub(super) fn long_text(contents: &mut Vec<u8>, text: &str) {
    contents.extend((text.len() as u64).to_le_bytes());
    contents.extend(text.as_bytes());
}

/// A text behind its length in four bytes.
fn short_text(contents: &mut Vec<u8>, text: &str) -> io::Result<()> {
    let length = u32::try_from(text.len())
        .map_err(|_| invalid(format!("a text of {} bytes has no place in trace.dat", text.len())))?;
    contents.extend(length.to_le_bytes());
    contents.extend(text.as_bytes());
    Ok(())
}

/// A text with a NUL behind it, up to the first that it has itself.
pub(super) fn c_text(contents: &mut Vec<u8>, text: &str) {
    contents.extend(text.bytes().take_while(|byte| *byte != 0));
    contents.push(0);
}

/// Adds an option: id, size, contents.
pub(super) fn option(options: &mut Vec<u8>, id: u16, contents: &[u8]) {
    options.extend(id.to_le_bytes());
    options.extend((contents.len() as u32).to_le_bytes());
    options.extend(contents);
}

pub(super) fn text_option(options: &mut Vec<u8>, id: u16, text: &str) {
    let mut contents = Vec::new();
    c_text(&mut contents, text);
    option(options, id, &contents);
}

/// The options that both versions have, but those of buffers and clocks.
pub(super) fn common_options(trace: &Trace, options: &Options) -> Vec<u8> {
    let mut all = Vec::new();
    let about = &trace.about;
    if let Some(offset_ns) = about.epoch_offset_ns.filter(|_| options.wall_clock) {
        // Readers add microseconds of the one and nanoseconds of the other.
        text_option(&mut all, id::DATE, &offset_ns.div_euclid(1000).to_string());
        text_option(&mut all, id::OFFSET, &offset_ns.rem_euclid(1000).to_string());
    }
    for buffer in &trace.buffers {
        if !buffer.name.is_empty() && buffer.cpus.iter().any(|cpu| cpu.stats.is_some()) {
            text_option(&mut all, id::CPUSTAT, &format!("\nBuffer: {}\n", buffer.name));
        }
        for (cpu, stats) in buffer.cpus.iter().filter_map(|cpu| Some((cpu.cpu, cpu.stats?))) {
            text_option(&mut all, id::CPUSTAT, &format!("CPU: {cpu}\n{}", texts::cpu_stats(&stats)));
        }
    }
    if !about.uname.is_empty() {
        text_option(&mut all, id::UNAME, &about.uname);
    }
    if !about.recorder.is_empty() {
        text_option(&mut all, id::VERSION, &about.recorder);
    }
    if about.trace_id != 0 {
        option(&mut all, id::TRACEID, &about.trace_id.to_le_bytes());
    }
    for (id, contents) in &about.other_options {
        option(&mut all, *id, contents);
    }
    all
}

/// The buffers, the top one first.
pub(super) fn buffers(trace: &Trace) -> io::Result<Vec<BufferRef<'_>>> {
    let mut names = HashSet::new();
    for buffer in &trace.buffers {
        if !names.insert(&buffer.name) {
            return Err(invalid(format!("two buffers are named `{}`", buffer.name)));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = buffer.cpus.iter().find(|cpu| !seen.insert(cpu.cpu)) {
            return Err(invalid(format!("buffer `{}` has CPU {} twice", buffer.name, twice.cpu)));
        }
        if buffer.name.contains('\0') {
            return Err(invalid(format!("a buffer cannot be named {:?}", buffer.name)));
        }
    }
    let mut all: Vec<_> = trace.buffers.iter().map(BufferRef::of).collect();
    match trace.buffers.iter().position(|buffer| buffer.name.is_empty()) {
        Some(top) => all.swap(0, top),
        None => all.insert(
            0,
            BufferRef { name: "", clock: trace.buffers.first().map_or("local", |one| &one.clock), cpus: &[] },
        ),
    }
    Ok(all)
}

/// A buffer of the trace, or the empty one that readers want.
pub(super) struct BufferRef<'a> {
    pub(super) name: &'a str,
    pub(super) clock: &'a str,
    pub(super) cpus: &'a [CpuPages],
}

impl<'a> BufferRef<'a> {
    fn of(buffer: &'a Buffer) -> BufferRef<'a> {
        BufferRef { name: &buffer.name, clock: &buffer.clock, cpus: &buffer.cpus }
    }
}

/// Bytes that the last page lacks.
pub(super) fn missing(pages: &[u8], page_bytes: u64) -> usize {
    ((pages.len() as u64).next_multiple_of(page_bytes) - pages.len() as u64) as usize
}
