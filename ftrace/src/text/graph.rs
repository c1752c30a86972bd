//! The text of the function_graph tracer, byte for byte as the kernel's `trace` file has it.
//!
//! Not as the kernel has it are arguments (it knows the names of the parameters), and records of the function tracer and stacks between the
//! calls, which are comments here.

use crate::digits::{decimal, fill};
use crate::format::{EventFormat, Field};
use crate::page::Lost;
use crate::symbols::Symbol;
use crate::trace::{Event, Trace, Unreadable};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;

/// Columns and their contents, by the names of the tracer's options (`funcgraph-cpu` and so on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which of [`Trace::buffers`].
    pub buffer: usize,
    /// The CPU's column.
    pub cpu: bool,
    /// The column of durations.
    pub duration: bool,
    /// A mark before durations that are long.
    pub overhead: bool,
    /// The column of times.
    pub abstime: bool,
    /// The column of tasks.
    pub proc: bool,
    /// Names at all closing braces, not only where the opening one is missing.
    pub tail: bool,
}

impl Default for Options {
    /// The kernel's.
    fn default() -> Options {
        Options { buffer: 0, cpu: true, duration: true, overhead: true, abstime: false, proc: false, tail: false }
    }
}

impl Options {
    /// Everything that [`crate::calls`] can use.
    pub fn full() -> Options {
        Options { abstime: true, proc: true, tail: true, ..Options::default() }
    }
}

/// Writes one buffer of a trace. `comment` appends the text of an event that stands between calls.
///
/// Returns the pages that could not be read to their end.
pub fn write(
    trace: &Trace,
    options: Options,
    comment: &mut dyn FnMut(&Event<'_>, &mut String),
    out: &mut dyn Write,
) -> io::Result<Vec<Unreadable>> {
    let mut writer = Writer::new(trace, options);
    let mut text = String::new();
    writer.header(&mut text);
    let mut events = trace.events();
    while let Some(event) = events.next() {
        if event.buffer == options.buffer {
            writer.event(&event, events.next_on_cpu(), comment, &mut text);
        }
        if text.len() >= PIECE_BYTES {
            out.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    out.write_all(text.as_bytes())?;
    Ok(events.unreadable().to_vec())
}

/// Text is handed on in pieces of about this many bytes.
const PIECE_BYTES: usize = 1 << 16;
/// The kernel remembers so many open functions of a CPU.
const REMEMBERED: usize = 50;
/// Blanks of a level. Depths beyond those that the kernel has come from damaged records.
const INDENT: usize = 2;
const DEEPEST: i64 = 512;

/// An entry or an exit.
#[derive(Clone, Copy, Debug)]
struct Side {
    enters: bool,
    function: u64,
    depth: i64,
    /// Of an exit in a kernel that records it.
    duration_ns: Option<u64>,
}

/// What the lines of a CPU depend on.
#[derive(Clone, Debug)]
struct Cpu {
    /// Whose line the last one was.
    pid: Option<i32>,
    /// Where comments stand.
    depth: i64,
    /// Functions whose opening brace was written, by depth; 0 is none.
    open: Vec<u64>,
    /// The next event was written with the one before.
    merged: bool,
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu { pid: None, depth: 0, open: vec![0; REMEMBERED], merged: false }
    }
}

struct Writer<'a> {
    trace: &'a Trace,
    options: Options,
    /// By event id.
    sides: BTreeMap<u16, Fields<'a>>,
    cpus: BTreeMap<u32, Cpu>,
    /// Names with their modules, by address.
    functions: HashMap<u64, Arc<str>>,
    /// When calls were entered, by task, CPU of idle tasks and depth: for kernels whose exits do not say how long the call lasted.
    entered: HashMap<(i32, u32, i64), u64>,
    cpu_digits: usize,
    interrupts: Option<std::ops::Range<u64>>,
}

#[derive(Clone, Debug)]
struct Fields<'a> {
    enters: bool,
    function: &'a Field,
    depth: &'a Field,
    span: Option<(&'a Field, &'a Field)>,
}

impl<'a> Fields<'a> {
    fn of(format: &'a EventFormat) -> Option<Fields<'a>> {
        let enters = match (format.system.as_str(), format.name.as_str()) {
            ("ftrace", "funcgraph_entry" | "fgraph_retaddr_entry") => true,
            ("ftrace", "funcgraph_exit") => false,
            _ => return None,
        };
        let span = format.field("calltime").zip(format.field("rettime"));
        Some(Fields { enters, function: format.field("func")?, depth: format.field("depth")?, span })
    }
}

impl<'a> Writer<'a> {
    fn new(trace: &'a Trace, options: Options) -> Writer<'a> {
        let sides = trace.formats.all().iter().filter_map(|format| Some((format.id, Fields::of(format)?)));
        let cpus = trace.buffers.iter().flat_map(|buffer| &buffer.cpus).map(|cpu| cpu.cpu).max().unwrap_or_default();
        let last_cpu = cpus.max(trace.about.cpus.saturating_sub(1));
        let place = |name: &str| {
            let symbol = trace.symbols.all().iter().find(|symbol| &*symbol.name == name);
            symbol.map(|symbol| symbol.address)
        };
        let interrupts = place("__irqentry_text_start").zip(place("__irqentry_text_end"));
        Writer {
            trace,
            options,
            sides: sides.collect(),
            cpus: BTreeMap::new(),
            functions: HashMap::new(),
            entered: HashMap::new(),
            cpu_digits: last_cpu.to_string().len(),
            interrupts: interrupts.map(|(from, to)| from..to),
        }
    }

    fn header(&self, out: &mut String) {
        let columns = [
            (self.options.abstime, "     TIME       ", "      |         "),
            (self.options.cpu, " CPU", " |  "),
            (self.options.proc, "  TASK/PID       ", "   |    |        "),
            (self.options.duration, "  DURATION   ", "   |   |      "),
        ];
        let shown = || columns.iter().filter(|(shown, ..)| *shown);
        out.push_str("# tracer: function_graph\n#\n#");
        shown().for_each(|(_, names, _)| out.push_str(names));
        out.push_str("               FUNCTION CALLS\n#");
        shown().for_each(|(.., bars)| out.push_str(bars));
        out.push_str("               |   |   |   |\n");
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        next: Option<Event<'_>>,
        comment: &mut dyn FnMut(&Event<'_>, &mut String),
        out: &mut String,
    ) {
        if std::mem::take(&mut self.cpu(event).merged) {
            return;
        }
        // The kernel does not report records overwritten before the first event either.
        let lost = if self.cpu(event).pid.is_some() { event.lost } else { Lost::Nothing };
        match lost {
            Lost::Nothing => {}
            Lost::Unknown => _ = writeln!(out, "CPU:{} [LOST EVENTS]", event.cpu),
            Lost::Count(count) => _ = writeln!(out, "CPU:{} [LOST {count} EVENTS]", event.cpu),
        }
        match self.side(event) {
            Some(side) if side.enters => {
                let exit = next.and_then(|next| Some((self.side(&next)?, next)));
                let exit = exit.filter(|(exit, next)| {
                    !exit.enters
                        && exit.function == side.function
                        && next.pid() == event.pid()
                        && next.lost == Lost::Nothing
                });
                self.entry(event, side, exit, out);
            }
            Some(side) => self.exit(event, side, out),
            None => {
                self.prologue(event, out);
                self.duration(None, out);
                let depth = self.cpu(event).depth;
                if depth > 0 {
                    indent(depth + 1, out);
                }
                out.push_str("/* ");
                comment(event, out);
                out.truncate(out.trim_end_matches('\n').len());
                out.push_str(" */\n");
            }
        }
    }

    fn entry(&mut self, event: &Event<'_>, side: Side, exit: Option<(Side, Event<'_>)>, out: &mut String) {
        self.task_line(event, out);
        self.interrupt(event, side, out);
        self.columns(event, out);
        let cpu = self.cpu(event);
        let leaf = exit.is_some();
        cpu.merged = leaf;
        cpu.depth = if leaf { side.depth - 1 } else { side.depth };
        if let Some(open) = usize::try_from(side.depth).ok().and_then(|depth| cpu.open.get_mut(depth)) {
            *open = if leaf { 0 } else { side.function };
        }
        let column = match &exit {
            Some((exit, last)) => Some(exit.duration_ns.unwrap_or(last.time.saturating_sub(event.time))),
            None => {
                self.entered.insert(place(event, side.depth), event.time);
                None
            }
        };
        self.duration(column, out);
        indent(side.depth, out);
        self.function(side.function, out);
        out.push_str(if leaf { "();\n" } else { "() {\n" });
    }

    fn exit(&mut self, event: &Event<'_>, side: Side, out: &mut String) {
        self.prologue(event, out);
        let entered = self.entered.remove(&place(event, side.depth));
        let duration_ns = side.duration_ns.or_else(|| event.time.checked_sub(entered?));
        self.duration(duration_ns, out);
        indent(side.depth, out);
        let cpu = self.cpu(event);
        cpu.depth = side.depth - 1;
        let open = usize::try_from(side.depth).ok().and_then(|depth| cpu.open.get_mut(depth));
        // The kernel does not look at what is deeper than it remembers.
        let known = open.is_none_or(|open| std::mem::take(open) == side.function);
        if known && !self.options.tail {
            out.push_str("}\n");
        } else {
            out.push_str("} /* ");
            self.function(side.function, out);
            out.push_str(" */\n");
        }
        self.interrupt(event, side, out);
    }

    fn side(&self, event: &Event<'_>) -> Option<Side> {
        let fields = self.sides.get(&event.format?.id)?;
        let bits = |field: &Field| field.value(event.data)?.bits();
        let span = fields.span.and_then(|(from, to)| Some((bits(from)?, bits(to)?)));
        Some(Side {
            enters: fields.enters,
            function: bits(fields.function)?,
            depth: i64::from(bits(fields.depth)? as u32 as i32),
            duration_ns: span.map(|(from, to)| to.wrapping_sub(from)),
        })
    }

    fn cpu(&mut self, event: &Event<'_>) -> &mut Cpu {
        self.cpus.entry(event.cpu).or_default()
    }

    /// What is before the duration.
    fn prologue(&mut self, event: &Event<'_>, out: &mut String) {
        self.task_line(event, out);
        self.columns(event, out);
    }

    /// Three lines where a CPU has another task than before.
    fn task_line(&mut self, event: &Event<'_>, out: &mut String) {
        const RULE: &str = " ------------------------------------------\n";
        let pid = event.pid();
        let Some(before) = self.cpu(event).pid.replace(pid).filter(|before| *before != pid) else { return };
        out.push_str(RULE);
        self.cpu_column(event.cpu, out);
        self.task(before, out);
        out.push_str(" => ");
        self.task(pid, out);
        out.push('\n');
        out.push_str(RULE);
        out.push('\n');
    }

    fn columns(&self, event: &Event<'_>, out: &mut String) {
        if self.options.abstime {
            decimal(event.time / 1_000_000_000, 5, ' ', out);
            out.push('.');
            decimal(event.time / 1000 % 1_000_000, 6, '0', out);
            out.push_str(" |  ");
        }
        if self.options.cpu {
            self.cpu_column(event.cpu, out);
        }
        if self.options.proc {
            self.task(event.pid(), out);
            out.push_str(" | ");
        }
    }

    fn cpu_column(&self, cpu: u32, out: &mut String) {
        out.push(' ');
        decimal(cpu.into(), self.cpu_digits, ' ', out);
        out.push_str(") ");
    }

    /// Seven characters of the name and the number, in the middle of fourteen.
    fn task(&self, pid: i32, out: &mut String) {
        let comm = match pid {
            0 => "<idle>",
            ..0 => "<XXX>",
            _ => self.trace.comms.get(&pid).map_or("<...>", String::as_str),
        };
        let comm: String = comm.chars().take(7).collect();
        let _ = write!(out, "{:^14}", format!("{comm}-{pid}"));
    }

    /// The column of durations, which may be empty.
    fn duration(&self, column: Option<u64>, out: &mut String) {
        if !self.options.duration {
            return;
        }
        match column {
            None => out.push_str("              |  "),
            Some(ns) => {
                out.push(if self.options.overhead { mark(ns) } else { ' ' });
                out.push(' ');
                let before = out.len();
                decimal(ns / 1000, 0, ' ', out);
                // Fewer decimals, so that it does not have more than seven digits.
                let decimals = 7usize.saturating_sub(out.len() - before).min(3);
                if decimals > 0 {
                    out.push('.');
                    let point = out.len();
                    decimal(ns % 1000, 3, '0', out);
                    out.truncate(point + decimals);
                }
                let width = out.len() - before;
                out.push_str(" us ");
                fill(' ', 8usize.saturating_sub(width), out);
                out.push_str("|  ");
            }
        }
    }

    /// An arrow before the first function of an interrupt and after its end.
    fn interrupt(&mut self, event: &Event<'_>, side: Side, out: &mut String) {
        if !self.interrupts.as_ref().is_some_and(|range| range.contains(&side.function)) {
            return;
        }
        self.columns(event, out);
        let arrow = if side.enters { "==========>" } else { "<==========" };
        if self.options.duration {
            let _ = writeln!(out, "  {arrow} |");
        } else {
            let _ = writeln!(out, "{arrow}");
        }
    }

    fn function(&mut self, address: u64, out: &mut String) {
        let name = self.functions.entry(address).or_insert_with(|| match self.trace.symbols.find(address) {
            Some(Symbol { name, module: Some(module), .. }) => format!("{name} [{module}]").into(),
            Some(symbol) => symbol.name.clone(),
            None => format!("0x{address:x}").into(),
        });
        out.push_str(name);
    }
}

fn place(event: &Event<'_>, depth: i64) -> (i32, u32, i64) {
    let pid = event.pid();
    (pid, if pid == 0 { event.cpu } else { 0 }, depth)
}

fn indent(depth: i64, out: &mut String) {
    fill(' ', INDENT * depth.clamp(0, DEEPEST) as usize, out);
}

/// The sign of a duration's size.
fn mark(ns: u64) -> char {
    let signs =
        [(1_000_000_000, '$'), (100_000_000, '@'), (10_000_000, '*'), (1_000_000, '#'), (100_000, '!'), (10_000, '+')];
    signs.iter().find(|(above, _)| ns > *above).map_or(' ', |(_, sign)| *sign)
}
