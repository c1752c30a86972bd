//! Traces as text, like the kernel's own `trace` file.

pub mod events;
pub mod graph;
mod system_calls;

use crate::page::Lost;
use crate::trace::{Event, Trace, Unreadable};
use events::Lines;
use std::fmt::Write as _;
use std::io::{self, Write};

/// How a trace is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Times in nanoseconds instead of microseconds.
    pub nanoseconds: bool,
    /// Fields as they are instead of the text that the kernel makes of them.
    pub raw: bool,
    /// Without the column of interrupt and preemption flags.
    pub no_flags: bool,
    /// With the time since the line before, in the unit of the times.
    pub delta: bool,
    /// Columns of the function_graph tracer; its buffer is that which has calls.
    pub graph: graph::Options,
}

/// What was written, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub events: u64,
    /// Events whose print format was not understood, with the reason: they are there as `name=value`.
    pub not_understood: Vec<String>,
    /// Records to which their print format does not apply: they are there as `name=value`.
    pub incomplete: u64,
    /// Pages that could not be read to their end.
    pub unreadable: Vec<Unreadable>,
}

/// Text is handed on in pieces of about this many bytes.
const PIECE_BYTES: usize = 1 << 16;

/// Writes a whole trace.
///
/// A buffer with calls of the function_graph tracer is written as that tracer does, the events between the calls as comments. All other
/// buffers are one text: the header, then events by time.
pub fn write(trace: &Trace, options: Options, out: &mut dyn Write) -> io::Result<Written> {
    let mut seen = vec![Seen::default(); trace.buffers.len()];
    let mut events = trace.events();
    for event in events.by_ref() {
        seen[event.buffer].event(&event);
    }
    let mut written = Written { unreadable: events.unreadable().to_vec(), ..Written::default() };
    let mut lines = Lines::new(trace, options);
    for buffer in (0..seen.len()).filter(|buffer| seen[*buffer].calls) {
        let options = graph::Options { buffer, ..options.graph };
        graph::write(trace, options, &mut |event, text| lines.comment(event, text), out)?;
    }
    // A trace without anything has a header.
    if seen.iter().all(|seen| !seen.calls) || seen.iter().any(|seen| !seen.calls && seen.entries > 0) {
        lines_of(trace, &seen, &mut lines, out)?;
    }
    written.events = seen.iter().map(|seen| seen.entries).sum();
    written.not_understood = lines.printer().not_understood().to_vec();
    written.incomplete = lines.printer().incomplete();
    Ok(written)
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    entries: u64,
    lost: u64,
    /// Records of the function_graph tracer.
    calls: bool,
    /// Records of the function tracer.
    functions: bool,
}

impl Seen {
    fn event(&mut self, event: &Event<'_>) {
        self.entries += 1;
        self.lost = self.lost.saturating_add(match event.lost {
            Lost::Nothing => 0,
            Lost::Count(count) => count,
            Lost::Unknown => 1,
        });
        if let Some(format) = event.format.filter(|format| format.system == "ftrace") {
            self.calls |= matches!(format.name.as_str(), "funcgraph_entry" | "funcgraph_exit" | "fgraph_retaddr_entry");
            self.functions |= format.name == "function";
        }
    }
}

/// Writes the buffers without calls.
fn lines_of(trace: &Trace, seen: &[Seen], lines: &mut Lines<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut text = String::with_capacity(2 * PIECE_BYTES);
    header(trace, seen, &mut text);
    lines.header(&mut text);
    for event in trace.events().filter(|event| !seen[event.buffer].calls) {
        let _ = match event.lost {
            Lost::Nothing => Ok(()),
            Lost::Count(count) => writeln!(text, "CPU:{} [LOST {count} EVENTS]", event.cpu),
            Lost::Unknown => writeln!(text, "CPU:{} [LOST EVENTS]", event.cpu),
        };
        lines.event(&event, &mut text);
        if text.len() >= PIECE_BYTES {
            out.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    out.write_all(text.as_bytes())
}

/// Appends the tracer, how many records there are and were written, and how many CPUs the machine has.
fn header(trace: &Trace, seen: &[Seen], out: &mut String) {
    let shown = || trace.buffers.iter().zip(seen).filter(|(_, seen)| !seen.calls);
    let tracer = if shown().any(|(_, seen)| seen.functions) { "function" } else { "nop" };
    let entries: u64 = shown().map(|(_, seen)| seen.entries).sum();
    // What the kernel counts is better than what the pages tell: they do not say how much was lost before the first.
    let counted: Option<u64> =
        shown().flat_map(|(buffer, _)| &buffer.cpus).map(|cpu| cpu.stats.map(|stats| stats.overrun)).sum();
    let lost = counted.unwrap_or_else(|| shown().map(|(_, seen)| seen.lost).fold(0, u64::saturating_add));
    let present = match trace.about.cpus {
        0 => trace.buffers.iter().flat_map(|buffer| &buffer.cpus).map(|cpu| cpu.cpu.saturating_add(1)).max(),
        cpus => Some(cpus),
    };
    let (total, present) = (entries.saturating_add(lost), present.unwrap_or_default());
    let _ = writeln!(out, "# tracer: {tracer}\n#");
    let _ = writeln!(out, "# entries-in-buffer/entries-written: {entries}/{total}   #P:{present}\n#");
}
