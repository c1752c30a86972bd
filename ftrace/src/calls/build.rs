//! Calls from the records of the function_graph tracer.

use super::pair::{Match, Span, Stack};
use super::{Call, CallId, Calls, Ends, Mark, NameId, marks};
use crate::format::{EventFormat, Field};
use crate::page::Lost;
use crate::trace::{Event, Trace};
use crate::value::Value;
use std::collections::hash_map::Entry as Place;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Other events between the calls, as marks.
    pub marks: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { marks: true }
    }
}

/// Pairs the entries and exits of functions, by task.
pub fn build(trace: &Trace, options: Options) -> Calls {
    let kinds: HashMap<u16, Kind<'_>> =
        trace.formats.all().iter().map(|format| (format.id, Kind::of(format))).collect();
    let mut builder = Builder::new(trace, options);
    let mut events = trace.events();
    for event in events.by_ref() {
        let kind = event.format.and_then(|format| kinds.get(&format.id));
        builder.event(&event, kind);
    }
    builder.calls.damage.not_understood += events.unreadable().len() as u64;
    builder.end()
}

/// What an event means here.
#[derive(Clone, Debug)]
enum Kind<'a> {
    Entry(Entry<'a>),
    Exit(Exit<'a>),
    Mark(Arc<str>),
}

/// Fields of an entry; `fgraph_retaddr_entry` has the same and more.
#[derive(Clone, Debug)]
struct Entry<'a> {
    function: &'a Field,
    depth: &'a Field,
    /// Registers that may hold arguments, to the record's end; recorded with the option `funcgraph-args`.
    arguments: Option<&'a Field>,
}

/// Fields of an exit.
#[derive(Clone, Debug)]
struct Exit<'a> {
    function: &'a Field,
    depth: &'a Field,
    /// When it was entered and left, by the clock `local` whatever the buffer's clock is. Not in every kernel.
    span: Option<(&'a Field, &'a Field)>,
    /// The register of the result.
    returned: Option<&'a Field>,
}

impl<'a> Kind<'a> {
    fn of(format: &'a EventFormat) -> Kind<'a> {
        let graph = match (format.system.as_str(), format.name.as_str()) {
            ("ftrace", "funcgraph_entry" | "fgraph_retaddr_entry") => Entry::of(format).map(Kind::Entry),
            ("ftrace", "funcgraph_exit") => Exit::of(format).map(Kind::Exit),
            _ => None,
        };
        graph.unwrap_or_else(|| Kind::Mark(marks::name(format)))
    }
}

impl<'a> Entry<'a> {
    fn of(format: &'a EventFormat) -> Option<Entry<'a>> {
        let (function, depth) = (format.field("func")?, format.field("depth")?);
        Some(Entry { function, depth, arguments: format.field("args") })
    }
}

impl<'a> Exit<'a> {
    fn of(format: &'a EventFormat) -> Option<Exit<'a>> {
        let (function, depth) = (format.field("func")?, format.field("depth")?);
        let span = format.field("calltime").zip(format.field("rettime"));
        Some(Exit { function, depth, span, returned: format.field("retval") })
    }
}

/// One task of one buffer. Every CPU has an idle task, and all of them are number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    buffer: usize,
    pid: i32,
    idle_cpu: u32,
}

#[derive(Clone, Debug, Default)]
struct State {
    stack: Stack,
    /// Where it was seen last.
    cpu: u32,
    /// How often that CPU had lost records then.
    losses: u64,
    /// How often any CPU had.
    all_losses: u64,
}

struct Builder<'a> {
    trace: &'a Trace,
    options: Options,
    /// By address.
    functions: HashMap<u64, (NameId, Option<NameId>)>,
    tasks: HashMap<Key, State>,
    /// By buffer and CPU: how often records were lost there.
    losses: HashMap<(usize, u32), u64>,
    /// By buffer and CPU: how many.
    lost: HashMap<(usize, u32), u64>,
    all_losses: u64,
    /// CPUs whose buffer overwrote itself: what is there of them comes after a loss. Those that were not seen yet.
    wrapped: HashSet<(usize, u32)>,
    /// Of each call: whether it was made in a hard interrupt.
    hard: Vec<bool>,
    calls: Calls,
}

impl<'a> Builder<'a> {
    fn new(trace: &'a Trace, options: Options) -> Builder<'a> {
        let buffers = trace.buffers.iter().enumerate();
        let cpus = buffers.flat_map(|(buffer, source)| source.cpus.iter().map(move |cpu| (buffer, cpu)));
        let overwritten = cpus.filter(|(_, cpu)| cpu.stats.is_some_and(|stats| stats.overrun > 0));
        Builder {
            trace,
            options,
            functions: HashMap::new(),
            tasks: HashMap::new(),
            losses: HashMap::new(),
            lost: HashMap::new(),
            all_losses: 0,
            wrapped: overwritten.map(|(buffer, cpu)| (buffer, cpu.cpu)).collect(),
            hard: Vec::new(),
            calls: Calls::default(),
        }
    }

    fn event(&mut self, event: &Event<'a>, kind: Option<&Kind<'a>>) {
        self.count_loss(event);
        let understood = match kind {
            Some(Kind::Entry(fields)) => self.entry(event, fields),
            Some(Kind::Exit(fields)) => self.exit(event, fields),
            Some(Kind::Mark(name)) => self.mark(event, name),
            None => None,
        };
        self.calls.damage.not_understood += u64::from(understood.is_none());
    }

    fn count_loss(&mut self, event: &Event<'_>) {
        let cpu = (event.buffer, event.cpu);
        let count = match event.lost {
            Lost::Nothing if self.wrapped.is_empty() || !self.wrapped.remove(&cpu) => return,
            // Its number is in the CPU's own counts.
            Lost::Nothing => 0,
            Lost::Count(count) => count,
            Lost::Unknown => 1,
        };
        let lost = self.lost.entry(cpu).or_default();
        *lost = lost.saturating_add(count);
        *self.losses.entry(cpu).or_default() += 1;
        self.all_losses += 1;
    }

    fn entry(&mut self, event: &Event<'a>, fields: &Entry<'a>) -> Option<()> {
        let (address, depth) = (bits(fields.function, event)?, depth(fields.depth, event)?);
        let (function, module) = self.function(address);
        let call = Call {
            start_ns: Some(event.time),
            arguments: fields.arguments.and_then(|field| arguments(field.value(event.data)?)),
            ends: Ends::Entry,
            ..self.call(event, function, module)
        };
        let key = self.task(event);
        let state = self.tasks.entry(key).or_default();
        state.stack.enter(depth, call, &mut self.calls);
        self.hard.push(in_hard_interrupt(event));
        Some(())
    }

    fn exit(&mut self, event: &Event<'a>, fields: &Exit<'a>) -> Option<()> {
        let (address, depth) = (bits(fields.function, event)?, depth(fields.depth, event)?);
        let span = fields.span.and_then(|(from, to)| Some((bits(from, event)?, bits(to, event)?)));
        let duration_ns = span.and_then(|(from, to)| to.checked_sub(from));
        let returned = fields.returned.and_then(|field| bits(field, event)).map(returned);
        let (function, module) = self.function(address);
        let local = self.trace.buffers.get(event.buffer).is_some_and(|buffer| buffer.clock == "local");
        let (began_ns, ended_ns) = match span {
            Some((from, to)) if local => (Some(from), Some(to)),
            _ => (duration_ns.and_then(|duration| event.time.checked_sub(duration)), None),
        };
        let unknown = Call {
            start_ns: began_ns,
            duration_ns,
            returned: returned.clone(),
            ends: Ends::Exit,
            ..self.call(event, function, module)
        };
        let same = |open: &Call| match (open.function == Some(function), span, open.start_ns) {
            (false, ..) => Match::No,
            // The entry was recorded after the time that the kernel remembers for it.
            (true, Some((from, _)), Some(entered)) if local && from <= entered => Match::Certain,
            _ => Match::Likely,
        };
        let key = self.task(event);
        let state = self.tasks.entry(key).or_default();
        let (call, ends) = state.stack.exit(depth, Span { began_ns, ended_ns }, same, unknown, &mut self.calls);
        match ends {
            Ends::Exit => self.hard.push(in_hard_interrupt(event)),
            _ => {
                let call = &mut self.calls.calls[call.0 as usize];
                call.ends = ends;
                // The entry is recorded a little after it was timed; with an interrupt between, a lot.
                call.start_ns = call.start_ns.min(began_ns.or(call.start_ns));
                call.duration_ns = duration_ns.or_else(|| event.time.checked_sub(call.start_ns?));
                call.returned = returned;
            }
        }
        Some(())
    }

    fn mark(&mut self, event: &Event<'a>, name: &Arc<str>) -> Option<()> {
        if self.options.marks {
            let key = self.task(event);
            let call = self.tasks.get(&key).and_then(|state| state.stack.innermost());
            let text = marks::text(self.trace, event).into();
            let (time_ns, cpu) = (Some(event.time), Some(event.cpu));
            self.calls.marks.push(Mark { call, time_ns, cpu, event: name.clone(), text });
        }
        Some(())
    }

    /// What all calls have.
    fn call(&mut self, event: &Event<'a>, function: NameId, module: Option<NameId>) -> Call {
        Call {
            function: Some(function),
            module,
            task: Some(self.calls.names.task(self.trace, event.pid())),
            cpu: Some(event.cpu),
            start_ns: None,
            duration_ns: None,
            parent: None,
            children: Vec::new(),
            ends: Ends::Both,
            interrupt: false,
            arguments: None,
            returned: None,
        }
    }

    /// Name and module of the function at an address.
    fn function(&mut self, address: u64) -> (NameId, Option<NameId>) {
        let names = &mut self.calls.names;
        *self.functions.entry(address).or_insert_with(|| names.function(&self.trace.symbols, address))
    }

    /// The task that an event is of, which doubts its open calls when its records may have been lost since it was seen last.
    fn task(&mut self, event: &Event<'_>) -> Key {
        let pid = event.pid();
        let key = Key { buffer: event.buffer, pid, idle_cpu: if pid == 0 { event.cpu } else { 0 } };
        let losses = |cpu| self.losses.get(&(event.buffer, cpu)).copied().unwrap_or_default();
        let now = State { cpu: event.cpu, losses: losses(event.cpu), all_losses: self.all_losses, ..State::default() };
        match self.tasks.entry(key) {
            Place::Vacant(place) => drop(place.insert(now)),
            Place::Occupied(mut place) => {
                let state = place.get_mut();
                // It was on its last CPU, here, or on others in between.
                let stayed = state.cpu == event.cpu && state.losses == now.losses;
                if !stayed && state.all_losses != now.all_losses {
                    state.stack.doubt();
                }
                *state = State { stack: std::mem::take(&mut state.stack), ..now };
            }
        }
        key
    }

    fn end(mut self) -> Calls {
        let calls = &mut self.calls;
        for state in self.tasks.values_mut() {
            state.stack.end(calls);
        }
        for at in 0..calls.calls.len() {
            let call = &calls.calls[at];
            let from_soft = !call.parent.is_some_and(|parent| self.hard[parent.0 as usize]);
            let around = call.function.is_some_and(|function| AROUND_INTERRUPTS.contains(&&*calls.names[function]));
            calls.calls[at].interrupt |= self.hard[at] && from_soft || around;
            if calls.calls[at].parent.is_none() {
                calls.roots.push(CallId(at as u32));
            }
        }
        calls.damage.lost += lost(self.trace, &self.lost);
        self.calls
    }
}

/// What the kernel calls before and after the handler of an interrupt, from code that is not traced: it is not yet, or no longer, "in an
/// interrupt" there.
const AROUND_INTERRUPTS: [&str; 7] = [
    "irq_enter",
    "irq_enter_rcu",
    "irq_exit",
    "irq_exit_rcu",
    "irqentry_exit_cond_resched",
    "raw_irqentry_exit_cond_resched",
    "preempt_schedule_irq",
];

/// `common_flags`: in the handler of an interrupt, or of one that cannot be masked.
fn in_hard_interrupt(event: &Event<'_>) -> bool {
    const HARDIRQ: u8 = 8;
    const NMI: u8 = 64;
    event.flags() & (HARDIRQ | NMI) != 0
}

/// Records that were lost by the pages or by the CPUs' own counts: both count overwritten ones, but the pages only those between two readings.
fn lost(trace: &Trace, reported: &HashMap<(usize, u32), u64>) -> u64 {
    let buffers = trace.buffers.iter().enumerate();
    let cpus = buffers.flat_map(|(buffer, source)| source.cpus.iter().map(move |cpu| (buffer, cpu)));
    cpus.fold(0, |sum: u64, (buffer, cpu)| {
        let reported = reported.get(&(buffer, cpu.cpu)).copied().unwrap_or_default();
        sum.saturating_add(reported.max(cpu.stats.map_or(0, |stats| stats.lost())))
    })
}

fn bits(field: &Field, event: &Event<'_>) -> Option<u64> {
    field.value(event.data)?.bits()
}

/// Newer kernels store it in 64 bits, of which the low 32 are the depth; it is negative in functions that are not to be traced.
fn depth(field: &Field, event: &Event<'_>) -> Option<i64> {
    Some(i64::from(bits(field, event)? as u32 as i32))
}

/// Registers as the kernel prints them when it does not know the function's parameters.
fn arguments(value: Value<'_>) -> Option<Arc<str>> {
    let mut text = String::new();
    for (at, register) in value.elements().enumerate() {
        let _ = write!(text, "{}0x{register:x}", if at > 0 { ", " } else { "" });
    }
    (!text.is_empty()).then(|| text.into())
}

/// A register as the kernel prints it: errors in decimal, all else in hexadecimal.
fn returned(register: u64) -> Arc<str> {
    const MAX_ERRNO: i64 = 4095;
    // An `int` has nothing in the upper half.
    let number = if register >> 32 == 0 { i64::from(register as u32 as i32) } else { register as i64 };
    if (-MAX_ERRNO..0).contains(&number) { number.to_string().into() } else { format!("0x{register:x}").into() }
}
