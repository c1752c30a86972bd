//! Traces in the format of [Perfetto](https://perfetto.dev), whose user interface and `trace_processor` read it.
//!
//! Each buffer is a sequence of packets; a packet is a bundle of some events of one CPU. Calls of the function_graph tracer become
//! nested slices of their thread there. Events that Perfetto knows are written as its own messages, all others with their fields by
//! name. Only some bundles are in memory at a time.
//!
//! Perfetto's time is that of `CLOCK_BOOTTIME`. Traces of other clocks do not say how far they are from it, so both are taken to be the
//! same when the trace begins: exact for `boot`, and for `mono` until the machine first slept; of `local`, `global` and the rest only
//! differences of times mean something. The wall clock is right whenever [`About::epoch_offset_ns`](crate::trace::About) is.
//!
//! Recordings of several machines become one trace when they are written one behind the other, each as a [`Machine`].

mod events;
mod fields;
mod machine;
mod preamble;
mod proto;
#[cfg(test)]
mod tests;

pub use machine::Machine;

use crate::format::EventFormat;
use crate::page::Lost;
use crate::trace::{Event, Trace};
use events::{Generic, Kind, Reader};
use fields::{Fields, Interned};
use prost::Message;
use proto::{Bundle, File, FtraceClock, InternedData, NEEDS_STATE, Packet, STATE_CLEARED};
use std::collections::HashMap;
use std::io::{self, Write};

/// Events of a bundle, at most.
const BUNDLE_EVENTS: usize = 128;
/// Bytes of records in a bundle, about: what makes a bundle of long records end earlier.
const BUNDLE_BYTES: usize = 16 << 10;
/// Sequence of the packets that tell about the whole trace; those of buffers follow.
const WHOLE: u32 = 1;

/// What was written, and what could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub bytes: u64,
    /// Bundles of events.
    pub bundles: u64,
    /// Events written as messages of their own.
    pub typed: u64,
    /// Events written with their fields by name.
    pub generic: u64,
    /// Events whose format the trace does not have: their type is written, and nothing of what they say.
    pub unknown: u64,
    /// Fields left out as their record is too short for them.
    pub unreadable_fields: u64,
    /// Pages that could not be read to their end.
    pub unreadable_pages: u64,
    /// Records that the kernel says it lost between those written; those it lost without a count are one each.
    pub lost: u64,
    /// Buffers whose clock does not count nanoseconds (`counter`, `x86-tsc`, `uptime`): Perfetto shows their ticks as nanoseconds.
    pub ticking_buffers: u64,
}

impl Summary {
    /// Events written in whatever way.
    pub fn events(&self) -> u64 {
        self.typed + self.generic + self.unknown
    }
}

/// Writes a trace as Perfetto protobuf.
pub fn write(trace: &Trace, out: &mut impl Write) -> io::Result<Summary> {
    write_machine(trace, Machine::default(), out)
}

/// Writes a trace as that of one machine among several, which are written one behind the other.
pub fn write_machine(trace: &Trace, machine: Machine<'_>, out: &mut impl Write) -> io::Result<Summary> {
    let start = trace.events().next().map_or(0, |event| event.time);
    let mut writer = Writer::new(trace, machine, start, out);
    for packet in preamble::packets(trace, machine, start) {
        writer.packet(packet)?;
    }
    let mut events = trace.events();
    for event in events.by_ref() {
        writer.event(event)?;
    }
    writer.summary.unreadable_pages = events.unreadable().len() as u64;
    writer.end()
}

struct Writer<'a, W> {
    trace: &'a Trace,
    machine: Machine<'a>,
    out: &'a mut W,
    sequences: Vec<Sequence>,
    /// By buffer and CPU.
    open: HashMap<(usize, u32), Open>,
    /// How events of each type are read.
    readers: HashMap<u16, Option<Reader>>,
    bytes: Vec<u8>,
    summary: Summary,
}

/// The packets of one buffer.
struct Sequence {
    clock: Option<FtraceClock>,
    /// When the trace began by the buffer's clock and by Perfetto's.
    start: u64,
    begun: bool,
    interned: Interned,
}

/// A bundle that takes more events.
#[derive(Default)]
struct Open {
    events: Vec<proto::Event>,
    bytes: usize,
    lost: bool,
}

impl<'a, W: Write> Writer<'a, W> {
    fn new(trace: &'a Trace, machine: Machine<'a>, start: u64, out: &'a mut W) -> Writer<'a, W> {
        let sequence = |(number, buffer): (usize, &crate::trace::Buffer)| Sequence {
            clock: clock(&buffer.clock),
            // Readers take a pair of times that they have seen before for one of the same buffer.
            start: machine.time(start).saturating_add(number as u64),
            begun: false,
            interned: Interned::default(),
        };
        let ticking = trace.buffers.iter().filter(|buffer| matches!(&*buffer.clock, "counter" | "x86-tsc" | "uptime"));
        Writer {
            summary: Summary { ticking_buffers: ticking.count() as u64, ..Summary::default() },
            sequences: trace.buffers.iter().enumerate().map(sequence).collect(),
            trace,
            machine,
            out,
            open: HashMap::new(),
            readers: HashMap::new(),
            bytes: Vec::new(),
        }
    }

    fn event(&mut self, event: Event<'a>) -> io::Result<()> {
        let key = (event.buffer, event.cpu);
        if event.lost != Lost::Nothing {
            // What is lost is lost before a bundle, so it begins here.
            self.close(key)?;
            self.summary.lost += if let Lost::Count(count) = event.lost { count } else { 1 };
            self.open.entry(key).or_default().lost = true;
        }
        let message = proto::Event {
            timestamp: Some(self.machine.time(event.time)),
            pid: Some(event.pid() as u32),
            common_flags: Some(event.flags().into()),
            kind: Some(self.kind(event)),
        };
        let open = self.open.entry(key).or_default();
        open.events.push(message);
        open.bytes += event.data.len();
        if open.events.len() >= BUNDLE_EVENTS || open.bytes >= BUNDLE_BYTES {
            self.close(key)?;
        }
        Ok(())
    }

    fn kind(&mut self, event: Event<'a>) -> Kind {
        let Some(format) = event.format else {
            self.summary.unknown += 1;
            let number = event.data.get(..2).map_or(0, crate::value::unsigned);
            return Kind::Generic(Generic { event_name: Some(format!("unknown_type_{number}")), field: Vec::new() });
        };
        let known = self.readers.entry(format.id).or_insert_with(|| reader(format));
        let mut fields = Fields {
            trace: self.trace,
            event,
            format,
            interned: &mut self.sequences[event.buffer].interned,
            unreadable: &mut self.summary.unreadable_fields,
        };
        match known {
            Some(read) => {
                self.summary.typed += 1;
                read(&mut fields)
            }
            None => {
                self.summary.generic += 1;
                fields.generic()
            }
        }
    }

    /// Writes the events that are waiting of a buffer and CPU.
    fn close(&mut self, key: (usize, u32)) -> io::Result<()> {
        let Some(open) = self.open.get_mut(&key).map(std::mem::take).filter(|open| !open.events.is_empty()) else {
            return Ok(());
        };
        let sequence = &mut self.sequences[key.0];
        let new = std::mem::take(&mut sequence.interned.new);
        let flags =
            if std::mem::replace(&mut sequence.begun, true) { NEEDS_STATE } else { STATE_CLEARED | NEEDS_STATE };
        let start = sequence.clock.map(|_| i64::try_from(sequence.start).unwrap_or(i64::MAX));
        let bundle = Bundle {
            cpu: Some(key.1),
            event: open.events,
            lost_events: open.lost.then_some(true),
            ftrace_clock: sequence.clock.map(i32::from),
            ftrace_timestamp: start,
            boot_timestamp: start,
        };
        self.summary.bundles += 1;
        self.packet(Packet {
            ftrace_events: Some(bundle),
            interned_data: (!new.is_empty()).then_some(InternedData { kernel_symbols: new }),
            sequence_flags: Some(flags),
            trusted_packet_sequence_id: Some(WHOLE + 1 + key.0 as u32),
            ..Packet::default()
        })
    }

    fn packet(&mut self, packet: Packet) -> io::Result<()> {
        self.bytes.clear();
        File { packet: vec![self.machine.own(packet)] }.encode(&mut self.bytes).map_err(io::Error::other)?;
        self.summary.bytes += self.bytes.len() as u64;
        self.out.write_all(&self.bytes)
    }

    fn end(mut self) -> io::Result<Summary> {
        let mut keys: Vec<_> = self.open.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            self.close(key)?;
        }
        for packet in preamble::stats(self.trace) {
            self.packet(packet)?;
        }
        Ok(self.summary)
    }
}

fn reader(format: &EventFormat) -> Option<Reader> {
    events::reader(&format.system, &format.name)
}

/// What a bundle says about a clock; `None` for what Perfetto takes for `CLOCK_BOOTTIME`.
fn clock(name: &str) -> Option<FtraceClock> {
    match name {
        // Perfetto has no word for `mono`, and does not read what it has none for.
        "boot" | "mono" => None,
        "mono_raw" => Some(FtraceClock::MonoRaw),
        // Those that differ a little from CPU to CPU.
        "local" | "perf" | "x86-tsc" => Some(FtraceClock::Local),
        _ => Some(FtraceClock::Global),
    }
}
