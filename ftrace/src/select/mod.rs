//! A part of a trace: chosen events, as a trace of its own.

mod filter;
mod pages;

pub use filter::{Filter, FilterError};

use crate::format::Formats;
use crate::page::Lost;
use crate::trace::{Buffer, CpuPages, Event, Trace};
use pages::PageWriter;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use thiserror::Error;
use wildmatch::WildMatch;

/// Which events of a trace. What is empty chooses nothing, so that all are taken.
#[derive(Clone, Debug)]
pub struct Selection {
    pub events: Option<Events>,
    pub cpus: Vec<u32>,
    /// Threads.
    pub pids: Vec<i32>,
    /// Names of threads, with `*` and `?`.
    pub comms: Vec<WildMatch>,
    /// In units of the trace's clock.
    pub times: RangeInclusive<u64>,
    pub fields: Option<Filter>,
    /// Without what happens in hardware interrupts.
    pub no_hardirqs: bool,
    /// Without what happens in softirqs.
    pub no_softirqs: bool,
}

impl Default for Selection {
    fn default() -> Selection {
        Selection {
            events: None,
            cpus: Vec::new(),
            pids: Vec::new(),
            comms: Vec::new(),
            times: 0..=u64::MAX,
            fields: None,
            no_hardirqs: false,
            no_softirqs: false,
        }
    }
}

/// Ids of events that have one of some names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events(BTreeSet<u16>);

/// A name that no event of the trace has.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("no event of this recording is named `{0}`: a name is SYSTEM, EVENT or SYSTEM:EVENT, with * for any letters")]
pub struct UnknownEvent(pub String);

impl Events {
    /// Those that fit one of these: `sched`, `sched_switch`, `sched:sched_*`.
    pub fn named(names: &[impl AsRef<str>], formats: &Formats) -> Result<Events, UnknownEvent> {
        let mut ids = BTreeSet::new();
        for name in names.iter().map(AsRef::as_ref) {
            let before = ids.len();
            let (system, event) = match name.split_once(':') {
                Some((system, event)) => (Some(WildMatch::new(system)), WildMatch::new(event)),
                None => (None, WildMatch::new(name)),
            };
            let fits = |of: &str, called: &str| match &system {
                Some(system) => system.matches(of) && event.matches(called),
                None => event.matches(called) || event.matches(of),
            };
            let fitting: Vec<u16> =
                formats.all().iter().filter(|one| fits(&one.system, &one.name)).map(|one| one.id).collect();
            let known = fitting.iter().any(|id| ids.contains(id));
            ids.extend(fitting);
            if ids.len() == before && !known {
                return Err(UnknownEvent(name.to_owned()));
            }
        }
        Ok(Events(ids))
    }

    pub fn has(&self, id: u16) -> bool {
        self.0.contains(&id)
    }
}

/// `common_flags` of what happens in a hardware interrupt, or in one that cannot be masked.
const HARDIRQ: u8 = 8 | 64;
const SOFTIRQ: u8 = 16;

impl Selection {
    /// Whether an event is taken. Stacks go with the event that they follow: see [`part`].
    pub fn takes(&self, event: &Event<'_>, trace: &Trace) -> bool {
        let of = |chosen: bool, fits: &dyn Fn() -> bool| chosen || fits();
        let comm = || trace.comms.get(&event.pid()).map_or("", String::as_str);
        let named = || self.comms.iter().any(|name| name.matches(comm()));
        self.is_when_and_where(event)
            && of(self.events.is_none(), &|| {
                self.events.iter().any(|events| event.format.is_some_and(|one| events.has(one.id)))
            })
            && of(self.pids.is_empty(), &|| self.pids.contains(&event.pid()))
            && of(self.comms.is_empty(), &named)
            && !(self.no_hardirqs && event.flags() & HARDIRQ != 0)
            && !(self.no_softirqs && event.flags() & SOFTIRQ != 0)
            && self.fields.as_ref().is_none_or(|filter| filter.holds(event, comm()))
    }

    fn is_when_and_where(&self, event: &Event<'_>) -> bool {
        self.times.contains(&event.time) && (self.cpus.is_empty() || self.cpus.contains(&event.cpu))
    }
}

/// What was chosen.
#[derive(Clone, Debug)]
pub struct Part {
    pub trace: Trace,
    /// Taken events.
    pub taken: u64,
    /// Events that were read.
    pub of: u64,
    /// Pages of the whole that could not be read to their end.
    pub unreadable: usize,
}

/// The chosen events of a trace, in pages of their own.
///
/// Records that the kernel lost between events of these times and CPUs stay lost ones before the event that follows. The kernel's own
/// counts (`stats`) are of the whole trace: they go, as they would say that the part has lost more than it has.
pub fn part(trace: &Trace, selection: &Selection) -> Part {
    let writer =
        |cpu: &CpuPages| (cpu.cpu, Cpu { pages: PageWriter::new(&trace.page), lost: Lost::Nothing, took: None });
    let mut cpus: Vec<Vec<(u32, Cpu<'_>)>> =
        trace.buffers.iter().map(|buffer| buffer.cpus.iter().map(writer).collect()).collect();
    let (mut taken, mut of) = (0, 0);
    let mut events = trace.events();
    for event in events.by_ref() {
        of += 1;
        let Some((_, cpu)) = cpus[event.buffer].iter_mut().find(|(cpu, _)| *cpu == event.cpu) else { continue };
        if selection.is_when_and_where(&event) {
            cpu.lost = cpu.lost.and(event.lost);
        }
        let is_stack = event.is("ftrace", "kernel_stack") || event.is("ftrace", "user_stack");
        let before = cpu.took.filter(|_| is_stack && event.lost == Lost::Nothing);
        let takes = match before {
            Some(took) => took && selection.times.contains(&event.time),
            None => selection.takes(&event, trace),
        };
        cpu.took = Some(takes);
        if takes {
            taken += 1;
            cpu.pages.push(event.time, std::mem::take(&mut cpu.lost), event.data);
        }
    }
    let unreadable = events.unreadable().len();
    let buffers = trace.buffers.iter().zip(cpus).map(|(buffer, cpus)| Buffer {
        name: buffer.name.clone(),
        clock: buffer.clock.clone(),
        cpus: cpus.into_iter().map(|(cpu, of)| CpuPages { cpu, pages: of.pages.finish(), stats: None }).collect(),
    });
    let trace = Trace { buffers: buffers.collect(), ..without_pages(trace) };
    Part { trace, taken, of, unreadable }
}

/// A CPU of a part.
struct Cpu<'a> {
    pages: PageWriter<'a>,
    /// Before the next event.
    lost: Lost,
    /// Whether the event before was taken; `None` where none is known.
    took: Option<bool>,
}

/// All but what the CPUs wrote.
fn without_pages(trace: &Trace) -> Trace {
    Trace {
        page: trace.page.clone(),
        header_event: trace.header_event.clone(),
        formats: trace.formats.clone(),
        symbols: trace.symbols.clone(),
        printk: trace.printk.clone(),
        comms: trace.comms.clone(),
        tgids: trace.tgids.clone(),
        buffers: Vec::new(),
        about: trace.about.clone(),
    }
}
