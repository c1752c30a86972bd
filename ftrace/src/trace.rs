//! What a recorder took out of the kernel.

use crate::format::{EventFormat, Formats, PageFormat};
use crate::page::{self, Lost, PageError, Records};
use crate::symbols::Symbols;
use crate::value::{Value, unsigned};
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap};

/// A recorded trace: pages of the ring buffer, and what is needed to read them.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Where things stand in a page.
    pub page: PageFormat,
    /// The text of `events/header_event`.
    pub header_event: String,
    /// Formats of all events that may occur.
    pub formats: Formats,
    /// The kernel's functions.
    pub symbols: Symbols,
    /// Texts that records refer to by address (`printk_formats`).
    pub printk: BTreeMap<u64, String>,
    /// Names of threads (`saved_cmdlines`).
    pub comms: BTreeMap<i32, String>,
    /// Process of threads (`saved_tgids`).
    pub tgids: BTreeMap<i32, i32>,
    /// What was recorded: the top buffer first, named by an empty text, when it was used.
    pub buffers: Vec<Buffer>,
    /// Where and how it was recorded.
    pub about: About,
}

/// One buffer: that of the tracefs root or of an instance.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    /// The instance's name.
    pub name: String,
    /// Its clock, e.g. `local` or `mono`.
    pub clock: String,
    /// What each CPU wrote.
    pub cpus: Vec<CpuPages>,
}

/// What one CPU wrote.
#[derive(Clone, Debug, Default)]
pub struct CpuPages {
    /// Its number.
    pub cpu: u32,
    /// Whole pages, side by side.
    pub pages: Vec<u8>,
    /// Its `stats` file at the end, when it was read.
    pub stats: Option<CpuStats>,
}

/// The kernel's own count of what one CPU wrote (`per_cpu/cpuN/stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Records still in the buffer.
    pub entries: u64,
    /// Records overwritten before they were read.
    pub overrun: u64,
    /// Records not written as an interrupt filled the buffer.
    pub commit_overrun: u64,
    /// Bytes in the buffer.
    pub bytes: u64,
    /// Records not written as the buffer was full and not to be overwritten.
    pub dropped_events: u64,
    /// Records that were read.
    pub read_events: u64,
}

impl CpuStats {
    /// Reads the text of a `stats` file; what is missing is zero.
    pub fn parse(text: &str) -> CpuStats {
        let number = |key: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
        };
        CpuStats {
            entries: number("entries"),
            overrun: number("overrun"),
            commit_overrun: number("commit overrun"),
            bytes: number("bytes"),
            dropped_events: number("dropped events"),
            read_events: number("read events"),
        }
    }

    /// Records that were written nowhere or overwritten before they were read.
    pub fn lost(&self) -> u64 {
        self.overrun + self.commit_overrun + self.dropped_events
    }
}

/// Where and how a trace was recorded. What is not known is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Of the machine.
    pub hostname: String,
    /// `uname -snrm`, as trace-cmd writes it: system, node, release, machine.
    pub uname: String,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Nanoseconds to add to the trace's clock for those since the Unix epoch.
    pub epoch_offset_ns: Option<i64>,
    /// An id that tells recordings of one machine apart.
    pub trace_id: u64,
    /// Version of the recorder.
    pub recorder: String,
    /// Options of a trace.dat that nothing here needs, by id (`HOOK`, `PROCMAPS`, `TIME_SHIFT`, `GUEST`, ...), with their contents.
    pub other_options: Vec<(u16, Vec<u8>)>,
}

impl About {
    /// Calls the machine so, whatever the recorder found: in a container that is the container's name.
    pub fn name_machine(&mut self, name: &str) {
        name.clone_into(&mut self.hostname);
        let mut words: Vec<&str> = self.uname.split(' ').collect();
        if let Some(node) = words.get_mut(1) {
            *node = name;
            self.uname = words.join(" ");
        }
    }
}

/// One event of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Which of [`Trace::buffers`] it is from.
    pub buffer: usize,
    /// Where it happened.
    pub cpu: u32,
    /// When, in units of the buffer's clock.
    pub time: u64,
    /// What is missing before it on this CPU.
    pub lost: Lost,
    /// Its bytes.
    pub data: &'a [u8],
    /// Its format; `None` when the trace does not have it.
    pub format: Option<&'a EventFormat>,
}

impl<'a> Event<'a> {
    /// The thread it happened in (`common_pid`).
    pub fn pid(&self) -> i32 {
        self.data.get(4..8).map_or(-1, |bytes| unsigned(bytes) as i32)
    }

    /// `common_flags`: 1 interrupts off, 4 needs to be scheduled, 8 in an interrupt, 16 in a softirq.
    pub fn flags(&self) -> u8 {
        self.data.get(2).copied().unwrap_or_default()
    }

    /// `common_preempt_count`.
    pub fn preempt_count(&self) -> u8 {
        self.data.get(3).copied().unwrap_or_default()
    }

    pub fn value(&self, field: &str) -> Option<Value<'a>> {
        self.format?.field(field)?.value(self.data)
    }

    pub fn number(&self, field: &str) -> Option<u64> {
        self.value(field)?.bits()
    }

    /// Whether it is the event of a subsystem and name.
    pub fn is(&self, system: &str, name: &str) -> bool {
        self.format.is_some_and(|format| format.name == name && format.system == system)
    }
}

/// A place in a trace that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Which of [`Trace::buffers`].
    pub buffer: usize,
    pub cpu: u32,
    pub page: usize,
    /// What is wrong there.
    pub error: PageError,
}

impl Trace {
    /// All events by time; those of one CPU in the order in which they were written.
    pub fn events(&self) -> Events<'_> {
        let mut streams: Vec<Stream<'_>> = Vec::new();
        for (buffer, source) in self.buffers.iter().enumerate() {
            streams.extend(source.cpus.iter().map(|cpu| Stream::new(buffer, cpu, &self.page)));
        }
        let mut events = Events { trace: self, streams, next: BinaryHeap::new(), last: 0, unreadable: Vec::new() };
        for (at, stream) in events.streams.iter_mut().enumerate() {
            stream.advance(&mut events.unreadable);
            events.next.extend(stream.time.map(|time| Reverse((time, at))));
        }
        events
    }
}

/// Events by time; see [`Trace::events`].
#[derive(Clone, Debug)]
pub struct Events<'a> {
    trace: &'a Trace,
    streams: Vec<Stream<'a>>,
    next: BinaryHeap<Reverse<(u64, usize)>>,
    /// The stream of the last event.
    last: usize,
    unreadable: Vec<Unreadable>,
}

impl<'a> Events<'a> {
    /// Pages that could not be read to their end, so far.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    /// The event that follows the last one on its CPU.
    pub fn next_on_cpu(&self) -> Option<Event<'a>> {
        let stream = self.streams.get(self.last)?;
        Some(stream.event(stream.time?, stream.lost, self.trace))
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        let mut next = self.next.peek_mut()?;
        let Reverse((time, at)) = *next;
        self.last = at;
        let stream = &mut self.streams[at];
        let lost = std::mem::take(&mut stream.lost);
        let event = stream.event(time, lost, self.trace);
        stream.advance(&mut self.unreadable);
        match stream.time {
            Some(time) => *next = Reverse((time, at)),
            None => drop(PeekMut::pop(next)),
        }
        Some(event)
    }
}

/// The records of one CPU, one ahead.
#[derive(Clone, Debug)]
struct Stream<'a> {
    buffer: usize,
    cpu: u32,
    format: &'a PageFormat,
    pages: std::iter::Enumerate<std::slice::Chunks<'a, u8>>,
    page: usize,
    records: Option<Records<'a>>,
    /// The next record.
    data: &'a [u8],
    /// When it was; `None` when there is none.
    time: Option<u64>,
    lost: Lost,
}

impl<'a> Stream<'a> {
    fn new(buffer: usize, source: &'a CpuPages, format: &'a PageFormat) -> Stream<'a> {
        let pages = source.pages.chunks(format.page_bytes()).enumerate();
        let cpu = source.cpu;
        Stream { buffer, cpu, format, pages, page: 0, records: None, data: &[], time: None, lost: Lost::Nothing }
    }

    /// The next record as an event.
    #[inline]
    fn event(&self, time: u64, lost: Lost, trace: &'a Trace) -> Event<'a> {
        let id = self.data.get(..2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        let format = trace.formats.by_id(id);
        Event { buffer: self.buffer, cpu: self.cpu, time, lost, data: self.data, format }
    }

    /// Goes to the next record.
    fn advance(&mut self, unreadable: &mut Vec<Unreadable>) {
        self.time = None;
        loop {
            let error = match self.records.as_mut().and_then(Iterator::next) {
                Some(Ok(record)) => {
                    (self.data, self.time) = (record.data, Some(record.time));
                    return;
                }
                Some(Err(error)) => error,
                None => {
                    let Some((number, bytes)) = self.pages.next() else { return };
                    self.page = number;
                    match page::page(bytes, self.format) {
                        Ok(page) => {
                            self.lost = self.lost.and(page.lost);
                            self.records = Some(page.records);
                            continue;
                        }
                        Err(error) => error,
                    }
                }
            };
            // The rest of the page is lost; the number of its records is unknown.
            self.lost = Lost::Unknown;
            self.records = None;
            unreadable.push(Unreadable { buffer: self.buffer, cpu: self.cpu, page: self.page, error });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_called_as_its_node() {
        let uname = "Linux kstrobe-x7k2p 6.12.1 #1 SMP Debian x86_64".to_owned();
        let mut about = About { hostname: "kstrobe-x7k2p".into(), uname, ..About::default() };
        about.name_machine("node-a");
        assert_eq!((&*about.hostname, &*about.uname), ("node-a", "Linux node-a 6.12.1 #1 SMP Debian x86_64"));
        let mut unknown = About::default();
        unknown.name_machine("node-a");
        assert_eq!((&*unknown.hostname, &*unknown.uname), ("node-a", ""));
    }
}
