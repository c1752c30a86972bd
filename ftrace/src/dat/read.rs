//! What both versions are read alike.

use super::error::{ContentError, DatError};
use super::input::Input;
use super::{Compression, MAGIC, MAX_PAGE_BYTES, Version, id, read_v6, read_v7, texts};
use crate::format::{EventFormat, Formats, PageFormat};
use crate::symbols::Symbols;
use crate::trace::{About, Buffer, CpuPages, CpuStats, Trace};
use std::collections::{BTreeMap, HashMap};

/// A file that was read.
#[derive(Clone, Debug)]
pub struct Dat {
    /// What it holds.
    pub trace: Trace,
    /// Its form.
    pub version: Version,
    /// How it is compressed.
    pub compression: Compression,
    /// What in it was not understood or is not used, in the order in which it was met.
    pub skipped: Vec<Skipped>,
}

/// Something in a file that is not in the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Byte of the file.
    pub at: u64,
    /// What stands there.
    pub what: String,
}

/// A file may unpack to so many times its own size: of texts, which compress by 5 to 30, and of pages, which may be empty but for
/// one record. What is above that was made to fill memory.
const TEXTS_TIMES: u64 = 32;
const PAGES_TIMES: u64 = 128;
/// Small files may unpack to this in any case: one nearly empty page of 64 KiB for each of sixteen CPUs.
const ALWAYS_BYTES: u64 = 1 << 20;
/// All symbols and formats of a kernel with all its modules are below 32 MiB.
const TEXTS_BYTES: u64 = 64 << 20;

/// Reads a file.
///
/// Of a file of `n` bytes, texts of at most 32 `n` (and of at most 64 MiB), and pages of at most 128 `n` are unpacked, each plus
/// 1 MiB; what is made of the texts has about twenty times their size at worst.
pub fn read(bytes: &[u8]) -> Result<Dat, DatError> {
    let mut input = Input::new(bytes, 0);
    input.expect(MAGIC, "what trace.dat files begin with (17 08 44 `tracing`)")?;
    let at_version = input;
    let version = match input.text("version")? {
        b"6" => Version::V6,
        b"7" => Version::V7,
        other => return at_version.error(ContentError::Version(other.to_vec())),
    };
    let at_order = input;
    match input.byte("byte order")? {
        0 => {}
        1 => return at_order.error(ContentError::BigEndian),
        other => return at_order.error(ContentError::ByteOrder(other)),
    }
    let at_long = input;
    match input.byte("size of a long")? {
        8 => {}
        4 => return at_long.error(ContentError::System32),
        other => return at_long.error(ContentError::LongBytes(other)),
    }
    input.u32("page size")?;
    let file = Reading::new(bytes);
    match version {
        Version::V6 => read_v6::read(file, input),
        Version::V7 => read_v7::read(file, input),
    }
}

/// A file that is being read: what is known so far.
pub(super) struct Reading<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) texts_left: u64,
    pages_left: u64,
    page: Option<PageFormat>,
    header_event: String,
    formats: Formats,
    symbols: Symbols,
    printk: BTreeMap<u64, String>,
    comms: BTreeMap<i32, String>,
    pub(super) about: About,
    pub(super) top_clock: String,
    buffers: Vec<Buffer>,
    stats: Vec<StatsOf>,
    date_us: Option<i64>,
    /// Where the option is, its contents, nanoseconds.
    offset_ns: Option<(u64, Vec<u8>, i64)>,
    skipped: Vec<Skipped>,
}

/// What options tell of the CPUs of one buffer.
#[derive(Default)]
struct StatsOf {
    buffer: String,
    /// Where the option is, the CPU, and its counts.
    cpus: Vec<(u64, u32, CpuStats)>,
}

impl<'a> Reading<'a> {
    fn new(bytes: &'a [u8]) -> Reading<'a> {
        let times = |times| ALWAYS_BYTES.saturating_add(times * bytes.len() as u64);
        Reading {
            bytes,
            texts_left: times(TEXTS_TIMES).min(TEXTS_BYTES),
            pages_left: times(PAGES_TIMES),
            page: None,
            header_event: String::new(),
            formats: Formats::default(),
            symbols: Symbols::default(),
            printk: BTreeMap::new(),
            comms: BTreeMap::new(),
            about: About::default(),
            top_clock: String::new(),
            buffers: Vec::new(),
            stats: vec![StatsOf::default()],
            date_us: None,
            offset_ns: None,
            skipped: Vec::new(),
        }
    }

    pub(super) fn skip(&mut self, at: u64, what: impl Into<String>) {
        self.skipped.push(Skipped { at, what: what.into() });
    }

    /// Counts texts that will be held; too many are an error.
    pub(super) fn count_text(&mut self, at: u64, bytes: u64) -> Result<(), DatError> {
        count(&mut self.texts_left, at, bytes, "texts")
    }

    /// Counts pages that will be held; too many are an error.
    pub(super) fn count_pages(&mut self, at: u64, bytes: u64) -> Result<(), DatError> {
        count(&mut self.pages_left, at, bytes, "pages")
    }

    /// Reads one of the sections of texts.
    pub(super) fn text_section(&mut self, section: u16, input: &mut Input<'_>) -> Result<(), DatError> {
        match section {
            id::HEADER_INFO => {
                input.expect(b"header_page\0", "`header_page`")?;
                let before = *input;
                let text = long_text(input, "header_page")?;
                let page = match PageFormat::parse(&text) {
                    Ok(page) if page.page_bytes() > MAX_PAGE_BYTES => {
                        return before.error(ContentError::PageBytes(page.page_bytes()));
                    }
                    Ok(page) if page.commit_bytes == 8 => page,
                    Ok(_) => return before.error(ContentError::Kernel32),
                    Err(error) => return before.error(error.into()),
                };
                self.page = Some(page);
                input.expect(b"header_event\0", "`header_event`")?;
                self.header_event = long_text(input, "header_event")?;
            }
            id::FTRACE_EVENTS => self.formats_of("ftrace", input)?,
            id::EVENT_FORMATS => {
                for _ in 0..input.u32("number of event systems")? {
                    let system = String::from_utf8_lossy(input.text("name of an event system")?).into_owned();
                    self.formats_of(&system, input)?;
                }
            }
            id::KALLSYMS => self.symbols = Symbols::parse(&short_text(input, "kallsyms")?),
            id::PRINTK => {
                let at = input.at();
                let (printk, other) = texts::parse_printk_formats(&short_text(input, "printk formats")?);
                self.printk = printk;
                self.skip_lines(at, other, "printk formats");
            }
            _ => {
                let at = input.at();
                let (comms, other) = texts::parse_cmdlines(&long_text(input, "saved command lines")?);
                self.comms = comms;
                self.skip_lines(at, other, "saved command lines");
            }
        }
        Ok(())
    }

    fn skip_lines(&mut self, at: u64, lines: u64, what: &str) {
        if lines > 0 {
            self.skip(at, format!("{lines} lines of the {what} that are not understood"));
        }
    }

    fn formats_of(&mut self, system: &str, input: &mut Input<'_>) -> Result<(), DatError> {
        for _ in 0..input.u32("number of event formats")? {
            let at = input.at();
            // Each holds the name.
            self.count_text(at, system.len() as u64)?;
            match EventFormat::parse(system, &long_text(input, "event format")?) {
                Ok(format) => self.formats.add(format),
                Err(error) => self.skip(at, format!("a format of `{system}`: {error}")),
            }
        }
        Ok(())
    }

    /// Takes an option that both versions have alike.
    pub(super) fn option(&mut self, id: u16, at: u64, contents: &[u8]) {
        let text =
            || String::from_utf8_lossy(contents.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
        let number = |bytes: usize| contents.get(..bytes).map(crate::value::unsigned);
        let understood = match id {
            id::DATE => texts::number(&text()).map(|us| self.date_us = Some(us)).is_some(),
            id::OFFSET => texts::number(&text()).map(|ns| self.offset_ns = Some((at, contents.to_vec(), ns))).is_some(),
            id::CPUSTAT => self.cpu_stats(at, &text()),
            id::TRACECLOCK => {
                self.top_clock = clock(contents);
                true
            }
            id::UNAME => {
                self.about.uname = text();
                true
            }
            id::VERSION => {
                self.about.recorder = text();
                true
            }
            id::CPUCOUNT => number(4).map(|cpus| self.about.cpus = cpus as u32).is_some(),
            id::TRACEID => number(8).map(|id| self.about.trace_id = id).is_some(),
            id::HOOK | id::PROCMAPS | id::GUEST => {
                self.about.other_options.push((id, contents.to_vec()));
                true
            }
            id::TIME_SHIFT | id::TSC2NSEC => {
                self.about.other_options.push((id, contents.to_vec()));
                self.skip(
                    at,
                    format!("option {}: times are left as they were recorded", id::name(id).unwrap_or_default()),
                );
                true
            }
            _ => {
                self.skip(at, format!("unknown option {id} of {} bytes", contents.len()));
                true
            }
        };
        if !understood {
            let name = id::name(id).unwrap_or_default();
            self.skip(
                at,
                format!("option {name}: `{}` is not understood", contents[..contents.len().min(40)].escape_ascii()),
            );
        }
    }

    /// `CPU: N` and a `stats` file; or `Buffer: NAME` for those that follow.
    fn cpu_stats(&mut self, at: u64, text: &str) -> bool {
        let text = text.trim_start();
        if let Some(name) = text.strip_prefix("Buffer:") {
            self.stats.push(StatsOf { buffer: name.trim().to_owned(), cpus: Vec::new() });
            return true;
        }
        let cpu = text.lines().next().and_then(|line| line.strip_prefix("CPU:")?.trim().parse().ok());
        let (Some(cpu), Some(of)) = (cpu, self.stats.last_mut()) else { return false };
        of.cpus.push((at, cpu, CpuStats::parse(text)));
        true
    }

    /// Bytes of a page, once the format of pages is known.
    pub(super) fn page(&self) -> Result<&PageFormat, DatError> {
        self.page.as_ref().ok_or(DatError { at: 0, error: ContentError::NoHeaderPage })
    }

    /// Pages are longer or shorter than `header_page` says, which is about another buffer.
    pub(super) fn set_page_bytes(&mut self, page_bytes: usize) {
        if let Some(page) = self.page.as_mut() {
            page.data_bytes = page_bytes.saturating_sub(page.data_offset).max(1);
        }
    }

    pub(super) fn add_buffer(&mut self, buffer: Buffer) {
        self.buffers.push(buffer);
    }

    pub(super) fn has_pages(&self) -> bool {
        self.buffers.iter().flat_map(|buffer| &buffer.cpus).any(|cpu| !cpu.pages.is_empty())
    }

    /// All was read.
    pub(super) fn finish(mut self, version: Version, compression: Compression) -> Result<Dat, DatError> {
        let page = self.page()?.clone();
        self.add_stats();
        let unused = |buffer: &Buffer| buffer.cpus.iter().all(|cpu| cpu.pages.is_empty() && cpu.stats.is_none());
        // Files always have a top buffer.
        if self.buffers.len() > 1 && self.buffers[0].name.is_empty() && unused(&self.buffers[0]) {
            self.buffers.remove(0);
        }
        // System, node, release, machine.
        if let [_, node, _, _] = self.about.uname.split(' ').collect::<Vec<_>>()[..] {
            self.about.hostname = node.to_owned();
        }
        match (self.date_us, self.offset_ns) {
            (Some(us), offset) => {
                let ns = offset.map_or(0, |(.., ns)| ns);
                self.about.epoch_offset_ns = Some(us.saturating_mul(1000).saturating_add(ns));
            }
            (None, Some((at, contents, _))) => {
                self.about.other_options.push((id::OFFSET, contents));
                self.skipped.push(left_alone(at, id::OFFSET));
            }
            (None, None) => {}
        }
        let trace = Trace {
            page,
            header_event: self.header_event,
            formats: self.formats,
            symbols: self.symbols,
            printk: self.printk,
            comms: self.comms,
            tgids: BTreeMap::new(),
            buffers: self.buffers,
            about: self.about,
        };
        Ok(Dat { trace, version, compression, skipped: self.skipped })
    }

    /// Puts the counts of CPUs where they belong.
    fn add_stats(&mut self) {
        let mut buffers: HashMap<&str, usize> = HashMap::new();
        let mut cpus: HashMap<(usize, u32), usize> = HashMap::new();
        for (at, buffer) in self.buffers.iter().enumerate() {
            buffers.entry(&buffer.name).or_insert(at);
            buffer.cpus.iter().enumerate().for_each(|(row, cpu)| {
                cpus.insert((at, cpu.cpu), row);
            });
        }
        let found: Vec<_> = self.stats.iter().map(|of| buffers.get(&*of.buffer).copied()).collect();
        for (of, buffer) in std::mem::take(&mut self.stats).into_iter().zip(found) {
            let Some(buffer) = buffer else {
                if let Some((at, ..)) = of.cpus.first() {
                    let number = of.cpus.len();
                    self.skip(
                        *at,
                        format!("{number} options CPUSTAT of a buffer that the file does not have: `{}`", of.buffer),
                    );
                }
                continue;
            };
            let rows = &mut self.buffers[buffer].cpus;
            for (_, cpu, stats) in of.cpus {
                let row = *cpus.entry((buffer, cpu)).or_insert(rows.len());
                if row == rows.len() {
                    rows.push(CpuPages { cpu, ..CpuPages::default() });
                }
                rows[row].stats = Some(stats);
            }
        }
        self.buffers.iter_mut().for_each(|buffer| buffer.cpus.sort_by_key(|cpu| cpu.cpu));
    }
}

/// An option that says how times are to be changed.
fn left_alone(at: u64, id: u16) -> Skipped {
    let name = id::name(id).unwrap_or_default();
    Skipped { at, what: format!("option {name}: times are left as they were recorded") }
}

fn count(left: &mut u64, at: u64, bytes: u64, of: &'static str) -> Result<(), DatError> {
    *left = left.checked_sub(bytes).ok_or(DatError { at, error: ContentError::TooMuch { bytes, of } })?;
    Ok(())
}

/// A text behind its length in eight bytes.
pub(super) fn long_text(input: &mut Input<'_>, what: &'static str) -> Result<String, DatError> {
    let length = input.u64(what)?;
    Ok(String::from_utf8_lossy(input.take(length, what)?).into_owned())
}

/// A text behind its length in four bytes.
fn short_text(input: &mut Input<'_>, what: &'static str) -> Result<String, DatError> {
    let length = input.u32(what)?;
    Ok(String::from_utf8_lossy(input.take(length.into(), what)?).into_owned())
}

/// The clock of a text like `[local] global counter`: the one in brackets, or all there is.
pub(super) fn clock(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text.split(|byte| *byte == 0).next().unwrap_or_default());
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or(&*text, |(clock, _)| clock).trim().to_owned()
}
