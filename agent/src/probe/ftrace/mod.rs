//! A probe with `engine: ftrace`: the kernel records its events in a tracefs instance, and the agent runs the probe's IR
//! over the records.

mod interpreted;
mod threads;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kstrobe_ebpf::Artifact;
use kstrobe_ebpf::ir::interp::Environment;
use kstrobe_ebpf::layout::{Layout, Loss};
use kstrobe_ebpf::typed::Attach;

use super::engine::{Engine, Scrape, Tick};
use super::error::{NotAttached, ReadError, SessionError};
use super::kernel::KernelEngine;
use super::running::Probe;
use crate::config::plan::ProbeMeta;
use crate::kernel::event_stream::{EventStream, Wanted};
use crate::kernel::sys::monotonic_ns;
use crate::metrics::telemetry::{Lost, SeriesUse};
use interpreted::Interpreted;
use kstrobe_export::snapshot::{Family, Moment};
use threads::Threads;

/// Interval of reads of the ring buffer: short enough that it does not fill.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// See [`super::kernel`].
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const OPEN_SPAN_LIFE: Duration = Duration::from_secs(3600);

/// A running probe.
pub struct FtraceEngine {
    probe: Interpreted,
    stream: EventStream,
    /// Programs to run, by what a record begins with.
    programs: HashMap<u16, Vec<usize>>,
    threads: Threads,
    events: u64,
    runs_failed: u64,
    drained: Instant,
    swept: Instant,
    /// The error of the last read of the ring buffer.
    failure: Option<Arc<ReadError>>,
}

impl FtraceEngine {
    /// Begins to record.
    pub fn start(meta: &ProbeMeta, artifact: Artifact) -> Result<FtraceEngine, SessionError> {
        let born = Moment::now();
        let filters: HashMap<Attach, String> = artifact.filters.into_iter().collect();
        let probe = Interpreted::new(meta, artifact.module, born)?;
        let mut wanted: Vec<(Wanted, Vec<usize>)> = Vec::new();
        for (number, func) in probe.funcs().iter().enumerate() {
            let Some((system, event)) = func.attach.as_ref().and_then(Attach::perf_tracepoint) else {
                return Err(SessionError::NoEvent(func.name.clone()));
            };
            match wanted.iter_mut().find(|(w, _)| w.system == system && w.event == event) {
                Some((_, programs)) => programs.push(number),
                None => {
                    let filter = func.attach.as_ref().and_then(|attach| filters.get(attach)).cloned();
                    let event = Wanted { system: system.to_owned(), event: event.to_owned(), filter };
                    wanted.push((event, vec![number]));
                }
            }
        }
        let (events, programs): (Vec<Wanted>, Vec<Vec<usize>>) = wanted.into_iter().unzip();
        let stream = EventStream::open(&events).map_err(SessionError::Session)?;
        let programs = stream.ids().iter().copied().zip(programs).collect();
        let (drained, swept) = (born.mono, born.mono);
        let threads = Threads::default();
        Ok(FtraceEngine { probe, stream, programs, threads, events: 0, runs_failed: 0, drained, swept, failure: None })
    }

    fn drain(&mut self) {
        self.drained = Instant::now();
        let taken = match self.stream.drain() {
            Ok(taken) => taken,
            Err(error) => {
                self.failure = Some(Arc::new(ReadError::Session(error)));
                return;
            }
        };
        self.failure = None;
        let (asks_comm, asks_pid) = self.probe.asks();
        self.threads.begin();
        let mut environment = Environment::default();
        for event in &taken {
            let Some(id) = event.record.first_chunk().map(|bytes| u16::from_le_bytes(*bytes)) else { continue };
            let Some(programs) = self.programs.get(&id) else { continue };
            let tid = event.record.get(4..8).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
            environment.now_ns = event.time_ns;
            environment.cpu = event.cpu;
            environment.pid_tgid = u64::from(tid);
            if asks_comm {
                environment.comm = self.threads.comm(tid, event.cpu);
            }
            if asks_pid {
                environment.pid_tgid |= u64::from(self.threads.process(tid)) << 32;
            }
            self.events += 1;
            for &program in programs {
                if self.probe.run(program, &environment, &event.record).is_err() {
                    self.runs_failed += 1;
                }
            }
        }
    }

    /// Adds its statistics to the agent's own metrics.
    fn observe(&self, scrape: &mut Scrape<'_>) {
        let probe = scrape.probe;
        let lost = |reason, events| Lost { probe: probe.to_string(), reason, events };
        let (merged, gone): (Vec<_>, Vec<_>) =
            self.probe.losses().into_iter().partition(|(loss, _)| *loss == Loss::SeriesOverflow);
        scrape.observed.losses.extend(gone.into_iter().map(|(loss, n)| lost(loss.name(), n)));
        scrape.observed.losses.extend(self.probe.abandoned().map(|n| lost("never_ended", n)));
        scrape.observed.losses.push(lost("not_understood", self.runs_failed));
        scrape.observed.series.push(SeriesUse {
            probe: probe.to_string(),
            overflowed: merged.into_iter().map(|(_, n)| n).sum(),
            evicted: self.probe.evicted(),
            waiting: None,
        });
        if let Some((events, pages)) = scrape.note(self.stream.lost(), ReadError::SessionLosses) {
            scrape.observed.losses.push(lost("ring_buffer_full", events));
            scrape.observed.losses.push(lost("page_not_understood", pages));
        }
    }
}

impl Engine for FtraceEngine {
    /// All series of the records until now.
    fn scrape(&mut self, scrape: &mut Scrape<'_>) -> Vec<Family> {
        self.drain();
        let families = self.probe.families(scrape);
        scrape.errors.extend(self.failure.clone().map(ReadError::Last));
        self.observe(scrape);
        families
    }

    /// The error of the last read of the ring buffer.
    fn reason(&self) -> String {
        self.failure.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    fn due(&self) -> Option<Instant> {
        Some(self.drained + DRAIN_EVERY)
    }

    /// Runs the probe over what was recorded since.
    fn tick(&mut self, tick: &mut Tick<'_>) -> Option<Probe> {
        self.drain();
        if self.swept.elapsed() >= SWEEP_EVERY {
            self.swept = Instant::now();
            self.probe.sweep(tick.names, Moment::now(), monotonic_ns(), OPEN_SPAN_LIFE);
        }
        None
    }

    fn layout(&self) -> Option<&Layout> {
        Some(self.probe.layout())
    }

    fn kernel(&mut self) -> Result<&mut KernelEngine, NotAttached> {
        Err(NotAttached("an ftrace session measures it".into()))
    }

    fn outlives_the_process(&self) -> bool {
        true
    }
}
