//! Events as lines like those of the kernel's `trace` file.

use super::{Options, system_calls};
use crate::digits::{Digits, decimal, fill, prefixed_hexadecimal, signed_to_the_left};
use crate::print::Printer;
use crate::symbols::Symbols;
use crate::trace::{About, Event, Trace};
use crate::value::unsigned;
use std::fmt::Write;

/// Writes lines of events.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    trace: &'a Trace,
    options: Options,
    printer: Printer<'a>,
    /// When the event of the last line was.
    last: Option<u64>,
    /// The kernel shows how often migration is disabled (since 5.15).
    migrate: bool,
    /// The kernel writes the arguments of system calls without `0x` (before 6.18).
    bare: bool,
}

/// Time a function spends in hardware or software interrupts and whether it can be preempted: `common_flags` of the kernel.
mod flag {
    pub const IRQS_OFF: u8 = 1;
    pub const NEED_RESCHED_LAZY: u8 = 2;
    pub const NEED_RESCHED: u8 = 4;
    pub const HARDIRQ: u8 = 8;
    pub const SOFTIRQ: u8 = 16;
    pub const PREEMPT_RESCHED: u8 = 32;
    pub const NMI: u8 = 64;
    pub const BH_OFF: u8 = 128;
}

/// Where the kernel has put the address of a trampoline of its own tracers into a stack (since 6.11).
const TRAMPOLINE: u64 = i32::MAX as u64;
/// A function is not longer: what is further behind the last symbol is not part of it.
const LONGEST_FUNCTION_BYTES: u64 = 1 << 20;

impl<'a> Lines<'a> {
    /// For the events of a trace.
    pub fn new(trace: &'a Trace, options: Options) -> Lines<'a> {
        Lines {
            trace,
            options,
            printer: Printer::new(trace),
            last: None,
            migrate: migrate(trace),
            bare: release(&trace.about).is_some_and(|release| release < (6, 18)),
        }
    }

    /// What printed the events.
    pub fn printer(&self) -> &Printer<'a> {
        &self.printer
    }

    /// Appends what explains the columns, with the `#` of each line.
    pub fn header(&self, out: &mut String) {
        let all = [
            "                                _-----=> irqs-off",
            "                               / _----=> need-resched",
            "                              | / _---=> hardirq/softirq",
            "                              || / _--=> preempt-depth",
            "                              ||| / _-=> migrate-disable",
            "                              |||| /     delay",
        ];
        let rows: &[&str] = match (self.options.no_flags, self.migrate) {
            (true, _) => &[
                "           TASK-PID     CPU#     TIMESTAMP  FUNCTION",
                "              | |         |         |         |",
            ],
            (false, true) => &[
                "           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION",
                "              | |         |   |||||     |         |",
            ],
            (false, false) => &[
                "           TASK-PID     CPU#  ||||   TIMESTAMP  FUNCTION",
                "              | |         |   ||||      |         |",
            ],
        };
        let explained = match (self.options.no_flags, self.migrate) {
            (true, _) => 0,
            (false, true) => 6,
            (false, false) => 4,
        };
        for (number, row) in all[..explained].iter().enumerate() {
            let more = if number == 0 && self.migrate { "/BH-disabled" } else { "" };
            let _ = writeln!(out, "#{row}{more}");
        }
        if explained == 4 {
            out.push_str("#                              ||| /     delay\n");
        }
        for row in rows {
            let _ = writeln!(out, "#{row}");
        }
    }

    /// Appends an event's line, or its lines when it is a stack.
    pub fn event(&mut self, event: &Event<'_>, out: &mut String) {
        self.context(event, out);
        self.last = Some(event.time);
        self.text(event, out);
        // What a program wrote into the trace may end its line itself.
        if !out.ends_with('\n') {
            out.push('\n');
        }
    }

    /// Appends task, CPU, flags and time.
    fn context(&self, event: &Event<'_>, out: &mut String) {
        let pid = event.pid();
        let comm = self.comm(pid);
        fill(' ', 16usize.saturating_sub(comm.chars().count()), out);
        out.push_str(comm);
        out.push('-');
        signed_to_the_left(pid.into(), 7, out);
        out.push_str(" [");
        decimal(event.cpu.into(), 3, '0', out);
        out.push_str("] ");
        if !self.options.no_flags {
            self.flags(event, out);
        }
        out.push(' ');
        self.time(event, out);
        if self.options.delta {
            let ago = self.last.map_or(0, |last| event.time.wrapping_sub(last));
            out.push_str(" (+");
            let start = out.len();
            self.time(&Event { time: ago, ..*event }, out);
            let blanks = out[start..].len() - out[start..].trim_start().len();
            out.replace_range(start..start + blanks, "");
            out.push(')');
        }
        out.push_str(": ");
    }

    /// The name of a thread.
    pub fn comm(&self, pid: i32) -> &'a str {
        match pid {
            0 => "<idle>",
            i32::MIN..0 => "<XXX>",
            _ => self.trace.comms.get(&pid).map_or("<...>", String::as_str),
        }
    }

    /// Appends the column of flags, e.g. `dNh1.`
    pub fn flags(&self, event: &Event<'_>, out: &mut String) {
        let flags = event.flags();
        let has = |bits: u8| flags & bits == bits;
        out.push(match () {
            () if has(flag::IRQS_OFF | flag::BH_OFF) => 'D',
            () if has(flag::IRQS_OFF) => 'd',
            () if has(flag::BH_OFF) => 'b',
            () => '.',
        });
        let (now, lazy, preempt) = (has(flag::NEED_RESCHED), has(flag::NEED_RESCHED_LAZY), has(flag::PREEMPT_RESCHED));
        out.push(match (now, lazy, preempt) {
            (true, true, true) => 'B',
            (true, false, true) => 'N',
            (false, true, true) => 'L',
            (true, true, false) => 'b',
            (true, false, false) => 'n',
            (false, false, true) => 'p',
            (false, true, false) => 'l',
            (false, false, false) => '.',
        });
        out.push(match () {
            () if has(flag::NMI | flag::HARDIRQ) => 'Z',
            () if has(flag::NMI) => 'z',
            () if has(flag::HARDIRQ | flag::SOFTIRQ) => 'H',
            () if has(flag::HARDIRQ) => 'h',
            () if has(flag::SOFTIRQ) => 's',
            () => '.',
        });
        let count = event.preempt_count();
        // The count of preemption has the low four bits since the other one has the high ones.
        let counts = if self.migrate { &[count & 15, count >> 4][..] } else { &[count][..] };
        for count in counts {
            match count {
                0 => out.push('.'),
                _ => out.push_str(Digits::hexadecimal(u64::from(*count)).text()),
            }
        }
    }

    /// Appends an event's time: seconds, or what the clock counts.
    pub fn time(&self, event: &Event<'_>, out: &mut String) {
        let clock = self.trace.buffers.get(event.buffer).map_or("", |buffer| &buffer.clock);
        if matches!(clock, "counter" | "x86-tsc" | "ppc-tb") {
            return decimal(event.time, 12, ' ', out);
        }
        let (units, second, places) = match self.options.nanoseconds {
            true => (event.time, 1_000_000_000, 9),
            false => (event.time / 1000 + u64::from(event.time % 1000 >= 500), 1_000_000, 6),
        };
        decimal(units / second, 5, ' ', out);
        out.push('.');
        decimal(units % second, places, '0', out);
    }

    /// Appends what stands between calls: the same, but what was written into the trace without the function that wrote it.
    pub fn comment(&mut self, event: &Event<'_>, out: &mut String) {
        let start = out.len();
        self.text(event, out);
        let written = ["print", "bprint", "bputs"].iter().any(|name| event.is("ftrace", name));
        if !written || self.options.raw {
            return;
        }
        if let Some(end) = out[start..].find(": ") {
            out.replace_range(start..start + end + 2, "");
        }
    }

    /// Appends what stands behind the time: name and text of an event, `func <-parent`, or a stack with its lines.
    pub fn text(&mut self, event: &Event<'_>, out: &mut String) {
        let Some(format) = event.format else {
            let id = event.data.get(..2).map_or(0, unsigned);
            let _ = write!(out, "unknown event {id}: ");
            return self.printer.fields(event, out);
        };
        if self.options.raw {
            let _ = write!(out, "{}: ", format.name);
            return self.printer.fields(event, out);
        }
        let done = match format.system.as_str() {
            "ftrace" => self.internal(event, &format.name, out),
            "syscalls" => system_calls::line(event, self.bare, out),
            _ => false,
        };
        if !done {
            out.push_str(&format.name);
            out.push_str(": ");
            self.printer.print(event, out);
        }
    }

    /// Events of the tracers themselves, which the kernel prints in ways of their own; `false` for others and for damaged ones.
    fn internal(&mut self, event: &Event<'_>, name: &str, out: &mut String) -> bool {
        let symbols = &self.trace.symbols;
        let contents = |field: &str| event.format?.field(field)?.contents(event.data);
        match name {
            "function" | "func_repeats" => {
                let (Some(ip), Some(parent)) = (event.number("ip"), event.number("parent_ip")) else { return false };
                self.function(event, ip, parent, out);
                if name == "func_repeats" {
                    let (high, low) = (event.number("top_delta_ts"), event.number("bottom_delta_ts"));
                    let ago = high.unwrap_or_default() << 32 | low.unwrap_or_default();
                    let _ = write!(out, " (repeats: {}, last_ts: ", event.number("count").unwrap_or_default());
                    self.time(&Event { time: event.time.wrapping_sub(ago), ..*event }, out);
                    out.push(')');
                }
            }
            "kernel_stack" => {
                let Some(caller) = contents("caller") else { return false };
                // The field has eight addresses in the format and as many as there were in the record.
                let start = event.format.and_then(|format| format.field("caller")).map_or(0, |field| field.offset);
                let all = event.data.get(start..).unwrap_or(caller).chunks_exact(8).map(unsigned);
                out.push_str("<stack trace>\n");
                for address in all.take_while(|address| *address != u64::MAX) {
                    out.push_str(" => ");
                    if address == TRAMPOLINE {
                        out.push_str("[FTRACE TRAMPOLINE]")
                    } else {
                        function(symbols, address, out)
                    }
                    out.push('\n');
                }
            }
            "user_stack" => {
                let Some(caller) = contents("caller") else { return false };
                out.push_str("<user stack trace>\n");
                for address in caller.chunks_exact(8).map(unsigned).take_while(|address| *address != 0) {
                    let _ = writeln!(out, " =>  <{address:016x}>");
                }
            }
            "print" => {
                let (Some(ip), Some(text)) = (event.number("ip"), contents("buf")) else { return false };
                function(symbols, ip, out);
                out.push_str(": ");
                out.push_str(&String::from_utf8_lossy(text.split(|byte| *byte == 0).next().unwrap_or_default()));
            }
            "bputs" => {
                let (Some(ip), Some(text)) = (event.number("ip"), event.number("str")) else { return false };
                function(symbols, ip, out);
                match self.trace.printk.get(&text) {
                    Some(text) => out.extend([": ", text]),
                    None => {
                        let _ = write!(out, ": [text at {text:#x}]");
                    }
                }
            }
            "bprint" => {
                let (Some(ip), Some(format)) = (event.number("ip"), event.number("fmt")) else { return false };
                let Some(arguments) = contents("buf") else { return false };
                function(symbols, ip, out);
                out.push_str(": ");
                self.printer.printk(format, arguments, out);
            }
            "raw_data" => {
                let (Some(id), Some(bytes)) = (event.number("id"), contents("buf")) else { return false };
                let _ = write!(out, "# {id:x} buf:");
                for byte in bytes {
                    let _ = write!(out, " {byte:02x}");
                }
            }
            _ => return false,
        }
        true
    }

    fn function(&self, event: &Event<'_>, ip: u64, parent: u64, out: &mut String) {
        let symbols = &self.trace.symbols;
        function(symbols, ip, out);
        // Recorded with the option `func-args`; their types are not in a trace.
        let mut arguments = event.value("args").into_iter().flat_map(|value| value.elements()).peekable();
        if arguments.peek().is_some() {
            for (place, argument) in arguments.enumerate() {
                let _ = write!(out, "{}{argument:#x}", if place > 0 { ", " } else { "(" });
            }
            out.push(')');
        }
        if parent != 0 {
            out.push_str(" <-");
            function(symbols, parent, out);
        }
    }
}

/// Whether the kernel shows how often migration is disabled: those that do also have the events of these tracers. Without any formats
/// of tracers it is a new kernel.
fn migrate(trace: &Trace) -> bool {
    let formats = &trace.formats;
    ["timerlat", "osnoise", "func_repeats"].iter().any(|name| formats.named("ftrace", name).is_some())
        || formats.named("ftrace", "function").is_none()
}

/// The first two numbers of a kernel's release: no format tells how it writes system calls.
fn release(about: &About) -> Option<(u32, u32)> {
    let mut numbers = about.uname.split_ascii_whitespace().nth(1)?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Appends the name of the function at an address.
pub(super) fn function(symbols: &Symbols, address: u64, out: &mut String) {
    // Trampolines stand in the list, but the kernel does not find them by address.
    let found = symbols.find(address).filter(|symbol| {
        address - symbol.address < LONGEST_FUNCTION_BYTES && symbol.module.as_deref() != Some("__builtin__ftrace")
    });
    match found {
        Some(symbol) => out.push_str(&symbol.name),
        None if address == 0 => out.push('0'),
        None => prefixed_hexadecimal(address, out),
    }
}
