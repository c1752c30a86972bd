//! Traces as text, like the kernel's own `trace` file.

pub mod events;
mod system_calls;

use crate::page::Lost;
use crate::trace::{Trace, Unreadable};
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
}

/// What was written, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Events.
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

/// Writes a whole trace: the header, then all events by time.
pub fn write(trace: &Trace, options: Options, out: &mut dyn Write) -> io::Result<Written> {
    let mut lines = Lines::new(trace, options);
    let mut text = String::with_capacity(2 * PIECE_BYTES);
    header(trace, &mut text);
    lines.header(&mut text);
    let mut written = Written::default();
    let mut events = trace.events();
    for event in events.by_ref() {
        lost(event.cpu, event.lost, &mut text);
        lines.event(&event, &mut text);
        written.events += 1;
        if text.len() >= PIECE_BYTES {
            out.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    out.write_all(text.as_bytes())?;
    written.not_understood = lines.printer().not_understood().to_vec();
    written.incomplete = lines.printer().incomplete();
    written.unreadable = events.unreadable().to_vec();
    Ok(written)
}

/// Appends the tracer, how many records there are and were written, and how many CPUs the machine has.
fn header(trace: &Trace, out: &mut String) {
    let mut tracer = "nop";
    let (mut entries, mut lost) = (0u64, 0u64);
    for event in trace.events() {
        entries += 1;
        lost = lost.saturating_add(match event.lost {
            Lost::Nothing => 0,
            Lost::Count(count) => count,
            Lost::Unknown => 1,
        });
        match event.format {
            Some(format) if format.system == "ftrace" && format.name.starts_with("funcgraph_") => {
                tracer = "function_graph"
            }
            Some(format) if format.system == "ftrace" && format.name == "function" => tracer = "function",
            _ => {}
        }
    }
    let cpus = trace.buffers.iter().flat_map(|buffer| &buffer.cpus);
    // What the kernel counts is better than what the pages tell: they do not say how much was lost before the first.
    let counted: Option<u64> = cpus.clone().map(|cpu| cpu.stats.map(|stats| stats.overrun)).sum();
    let present = match trace.about.cpus {
        0 => cpus.map(|cpu| cpu.cpu + 1).max().unwrap_or_default(),
        cpus => cpus,
    };
    let total = entries.saturating_add(counted.unwrap_or(lost));
    let _ = writeln!(out, "# tracer: {tracer}\n#");
    let _ = writeln!(out, "# entries-in-buffer/entries-written: {entries}/{total}   #P:{present}\n#");
}

/// Appends a line that says what is missing on a CPU.
fn lost(cpu: u32, lost: Lost, out: &mut String) {
    let _ = match lost {
        Lost::Nothing => Ok(()),
        Lost::Count(count) => writeln!(out, "CPU:{cpu} [LOST {count} EVENTS]"),
        Lost::Unknown => writeln!(out, "CPU:{cpu} [LOST EVENTS]"),
    };
}
