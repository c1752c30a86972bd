//! Runs a request to its end.

use super::error::RequestError;
use super::request::Request;
use super::settings::{self, Ready};
use super::spool::{Spool, Taken};
use super::unfinished::Unfinished;
use super::{Error, collect, scope};
use crate::kernel::instance::Instance;
use crate::kernel::sys::{self, launch::Held};
use crate::kernel::tracefs::Tracefs;
use kstrobe_fleet::node_session::TraceClock;
use kstrobe_ftrace::trace::{CpuPages, CpuStats, Trace};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Interval of the check whether the recording has ended by itself.
const TICK: Duration = Duration::from_millis(20);
/// Interval of the search for new threads.
const LOOK_FOR_THREADS: Duration = Duration::from_millis(200);
/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Folders of a recording.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Folder for pages until they are put together, of this recording alone.
    pub spool: PathBuf,
}

/// Ends a recording from elsewhere. Clones are of one.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Ends it: what was recorded is kept.
    pub fn stop(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Whether it was ended.
    pub fn is_stopped(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is stopped, or so long. Returns whether it is.
    fn wait(&self, limit: Duration) -> bool {
        let stopped = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.0.1.wait_timeout_while(stopped, limit, |stopped| !*stopped);
        *wait.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// How far a recording is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// Records so far, lost ones apart.
    pub records: u64,
    /// Bytes of pages that were taken out of the ring buffer.
    pub bytes: u64,
    /// Records that were lost.
    pub lost: u64,
}

/// Why a recording ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its time was over.
    Time,
    Cancelled,
    /// The command ended.
    Command(ExitStatus),
    /// It has all the bytes that it may have.
    Full,
    /// A trigger switched it off.
    Trigger,
    /// Pages could not be kept.
    Fault(String),
    /// Its recorder was killed; the rest was put together afterwards.
    Killed,
}

#[derive(Debug)]
pub struct Recorded {
    /// What was recorded.
    pub trace: Trace,
    /// Why it ended.
    pub ended: Ended,
    /// How long it took.
    pub elapsed: Duration,
    pub records: u64,
    /// Records that were overwritten before they were read, or written nowhere: the kernel's own count.
    pub lost: u64,
    /// Records that were left behind as there was no room for them.
    pub left: u64,
    /// How its times and the wall clock belong together.
    pub clock: TraceClock,
    /// Notes for the user about choices of the recorder.
    pub notes: Vec<String>,
}

/// Runs the request to its end. Calls `progress` once a second.
pub fn run(
    request: &Request,
    paths: &Paths,
    stop: &Stop,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recorded, Error> {
    let tracefs = Arc::new(Tracefs::open()?);
    let page = collect::page_format(&tracefs)?;
    let ready = settings::prepare(&tracefs, request)?;
    let command = match &request.scope.command[..] {
        [] => None,
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments);
            let started = Held::start(command);
            Some(started.map_err(|error| Error::Start { program: program.clone(), error })?)
        }
    };
    let most_bytes = request.max_bytes.unwrap_or(u64::MAX);
    // A flight recorder leaves all in the ring buffer until it ends.
    let spool = |most| Spool::start(&ready.instance, page.page_bytes(), &paths.spool, most);
    let mut spooling = if request.flight.is_none() { Some(spool(most_bytes)?) } else { None };

    let mut running = Running { request, ready: &ready, threads: BTreeSet::new(), own: BTreeSet::new(), child: None };
    running.set_threads(command.as_ref().map(Held::pid))?;
    if request.start_at.is_some_and(|start| !wait_until(start, stop)) {
        return Err(Error::Stopped);
    }
    let _unfinished = Unfinished::describe(&paths.spool, &ready)?;
    ready.instance.set_on(true)?;
    let epoch_offset_start_ns = sys::epoch_offset_ns(&ready.clock);
    if let Some(watch) = &ready.watch {
        watch.set_on(true)?;
    }
    let begin = Instant::now();
    if let Some(held) = command {
        let program = request.scope.command[0].clone();
        running.child = Some(held.release().map_err(|error| RequestError::Command { program, error })?);
    }
    let ended = running.watch(begin, spooling.as_ref(), stop, progress)?;
    let elapsed = begin.elapsed();
    ready.instance.set_on(false)?;
    // A record that was begun before is finished then.
    sys::wait_for_running_programs();
    let spool = match spooling.take() {
        Some(spool) => spool,
        None => spool(most_bytes)?,
    };
    let taken = spool.finish()?;
    let mut recorded = put_together(&ready, page, taken, (ended, elapsed))?;
    recorded.clock.epoch_offset_start_ns = epoch_offset_start_ns;
    Ok(recorded)
}

/// Waits for a time of the wall clock; false when it was stopped before.
fn wait_until(start: SystemTime, stop: &Stop) -> bool {
    // The wall clock may be set meanwhile: read it again each tick.
    loop {
        let left = start.duration_since(SystemTime::now()).unwrap_or_default();
        if left.is_zero() {
            return true;
        }
        if stop.wait(left.min(TICK)) {
            return false;
        }
    }
}

/// A recording while it goes on.
struct Running<'a> {
    request: &'a Request,
    ready: &'a Ready,
    /// Threads that it is restricted to.
    threads: BTreeSet<i32>,
    /// Our own.
    own: BTreeSet<i32>,
    child: Option<Child>,
}

impl Running<'_> {
    fn set_threads(&mut self, command: Option<i32>) -> Result<(), Error> {
        let scope = &self.request.scope;
        self.own = own_threads();
        self.threads = scope.threads();
        self.threads.extend(command.filter(|_| scope.only_command));
        let only = scope.restricts().then_some(&self.threads);
        self.ready.set_threads(only, &self.own, scope.children)
    }

    /// Adds threads that began since.
    fn look_for_threads(&mut self) -> Result<(), Error> {
        let scope = &self.request.scope;
        let own = &own_threads() - &self.own;
        let threads = if scope.looks_again() { &scope.threads() - &self.threads } else { BTreeSet::new() };
        self.ready.add_threads(&threads, &own)?;
        self.own.extend(own);
        self.threads.extend(threads);
        Ok(())
    }

    /// Waits for an end, and looks after threads and progress until then.
    fn watch(
        &mut self,
        begin: Instant,
        spool: Option<&Spool>,
        stop: &Stop,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Ended, Error> {
        let instance = &self.ready.instance;
        let (mut look, mut next_progress) = (begin + LOOK_FOR_THREADS, begin + PROGRESS_INTERVAL);
        let end = self.request.duration.map(|duration| begin + duration);
        let mut seen: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let left = end.map_or(TICK, |end| end.saturating_duration_since(now).min(TICK));
            if stop.wait(left) {
                return Ok(Ended::Cancelled);
            }
            if let Some(status) = self.child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                return Ok(Ended::Command(status));
            }
            if let Some(spool) = spool {
                if spool.has_failed() {
                    // The reader says at the end why.
                    return Ok(Ended::Fault("pages could not be kept".into()));
                }
                if spool.is_full() {
                    return Ok(Ended::Full);
                }
            }
            if !instance.is_on()? {
                return Ok(if spool.is_some_and(Spool::is_full) { Ended::Full } else { Ended::Trigger });
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Ok(Ended::Time);
            }
            if let (Some(watch), Some(flight)) = (&self.ready.watch, &self.request.flight) {
                if seen.is_none() && has_records(watch)? {
                    seen = Some(now);
                }
                if seen.is_some_and(|seen| now >= seen + flight.after) {
                    return Ok(Ended::Trigger);
                }
            }
            if now >= look {
                self.look_for_threads()?;
                look = now + LOOK_FOR_THREADS;
            }
            if now >= next_progress {
                let stats = all_stats(instance)?;
                progress(Progress {
                    elapsed: begin.elapsed(),
                    records: stats.iter().map(|stats| stats.read_events + stats.entries).sum(),
                    bytes: spool.map_or(0, Spool::bytes),
                    lost: stats.iter().map(CpuStats::lost).sum(),
                });
                next_progress += PROGRESS_INTERVAL;
            }
        }
    }
}

impl Drop for Running<'_> {
    /// A command that is still running goes on without us; one that ended is taken off the kernel's list.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.try_wait();
        }
    }
}

fn own_threads() -> BTreeSet<i32> {
    scope::numbers("/proc/self/task").into_iter().collect()
}

fn has_records(instance: &Instance) -> std::io::Result<bool> {
    Ok(all_stats(instance)?.iter().any(|stats| stats.entries + stats.overrun > 0))
}

fn all_stats(instance: &Instance) -> std::io::Result<Vec<CpuStats>> {
    instance.cpus()?.into_iter().map(|cpu| instance.stats(cpu)).collect()
}

fn put_together(
    ready: &Ready,
    page: kstrobe_ftrace::format::PageFormat,
    taken: Vec<Taken>,
    (mut ended, elapsed): (Ended, Duration),
) -> Result<Recorded, Error> {
    let mut cpus = Vec::new();
    let (mut records, mut lost, mut left) = (0, 0, 0);
    for Taken { cpu, pages, fault } in taken {
        let stats = ready.instance.stats(cpu)?;
        records += stats.read_events;
        lost += stats.lost();
        left += stats.entries;
        if let Some(fault) = fault {
            ended = Ended::Fault(format!("pages of CPU {cpu} could not be kept: {fault}"));
        }
        cpus.push(CpuPages { cpu, pages, stats: Some(stats) });
    }
    let trace = collect::trace(ready.instance.tracefs(), page, &ready.events, ready.clock.clone(), cpus)?;
    let epoch_offset_end_ns = trace.about.epoch_offset_ns;
    let clock = TraceClock { name: ready.clock.clone(), epoch_offset_start_ns: None, epoch_offset_end_ns };
    Ok(Recorded { trace, ended, elapsed, records, lost, left, clock, notes: ready.notes.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_beginning_is_waited_for() {
        let stop = Stop::default();
        let start = SystemTime::now() + Duration::from_millis(50);
        assert!(wait_until(start, &stop));
        assert!(SystemTime::now() >= start, "not before its time");
        assert!(wait_until(SystemTime::UNIX_EPOCH, &stop), "what is over is not waited for");
        stop.stop();
        assert!(!wait_until(SystemTime::now() + Duration::from_secs(600), &stop));
    }
}
