//! Profiles of running probes: what is collected of a stacks metric from one moment to another, with names for its addresses.

use crate::probe::lock::{NamesLock, ProbeLock};
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::session::Alone;
use super::{App, lock, unwind};
use super::{ProfileError, ProfileRequest, StacksStatus};
use crate::config::compile;
use crate::config::plan::{Metric, ProbePlan};
use crate::metrics::profiles::collector::Collector;
use crate::metrics::profiles::processes::{Look, Processes};
use crate::metrics::profiles::{Addresses, Profile, Resolved, Sample, Unit, symbols};
use crate::probe::error::ReadError;
use crate::probe::kernel::KernelEngine;
use kstrobe_export::snapshot::{Descriptor, Moment};

/// Processes that run for less than this may end without having been looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A metric that is found is one of its probe's.
fn no_such() -> ProfileError {
    ProfileError::Failed("the probe has no such metric".to_owned())
}

fn failed(error: ReadError) -> ProfileError {
    ProfileError::Failed(error.to_string())
}

/// Stands for no limit: `Instant` overflows with `Duration::MAX`.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A stacks metric of a running probe.
#[derive(Clone)]
pub(super) struct Wanted {
    probe: Arc<ProbeLock>,
    /// Its place among the probe's metrics.
    index: usize,
    metric: Metric,
}

impl App {
    /// All stacks metrics.
    pub(super) fn stacks(&self) -> Vec<StacksStatus> {
        let of = |probe: &Arc<ProbeLock>| {
            let running = probe.lock();
            let status = running.status();
            let metrics = running.meta.metrics.iter().filter(|m| m.stacks.is_some());
            let metrics = metrics.map(|m| StacksStatus {
                name: plain_name(&m.about).to_owned(),
                probe: status.name.clone(),
                help: m.about.help.clone(),
                unit: unit(&m.about).name(),
                labels: m.about.label_names.clone(),
                attached: status.attached,
                reason: status.reason.clone(),
            });
            metrics.collect::<Vec<_>>()
        };
        self.probes().iter().flat_map(of).collect()
    }

    /// The stacks metric of that name, with or without our prefix.
    pub(super) fn find_stacks(&self, name: &str) -> Result<Wanted, ProfileError> {
        let found = self.probes().iter().find_map(|probe| {
            let fits = |m: &Metric| m.stacks.is_some() && (m.about.name == name || plain_name(&m.about) == name);
            let running = probe.lock();
            let index = running.meta.metrics.iter().position(fits)?;
            Some(Wanted { probe: probe.clone(), index, metric: running.meta.metrics[index].clone() })
        });
        found.ok_or_else(|| {
            let names: Vec<String> = self.stacks().into_iter().map(|m| m.name).collect();
            let known = match names.as_slice() {
                [] => "no probe that runs has any".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            ProfileError::NoSuch(format!("there is no stacks metric `{name}`: {known}"))
        })
    }

    /// A profile for a client, in the requested format.
    pub(super) fn profile_as(&self, request: &ProfileRequest) -> Result<Vec<u8>, ProfileError> {
        let wanted = self.find_stacks(&request.metric)?;
        let time = (request.seconds > 0).then_some(Duration::from_secs(request.seconds));
        let Recording { profile, .. } = self.profile(&wanted, time, &request.cancelled)?;
        request.format.write(&profile).map_err(|e| ProfileError::Failed(format!("cannot be written: {e}")))
    }

    /// What a metric summed over `time`, or since the start when that is `None`. Blocks as long; `stop` ends it early, with
    /// what there is by then.
    pub(super) fn profile(
        &self,
        wanted: &Wanted,
        time: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Recording, ProfileError> {
        let begun = time.map(|time| {
            wanted.is_attached()?;
            let begun = wanted.begin(&self.names)?;
            wanted.watch(&self.names, begun.at.mono + time, stop)?;
            wanted.is_attached()?;
            Ok::<_, ProfileError>(begun)
        });
        let begun = begun.transpose()?;
        let Reading { began, at, samples, processes, period_ns } = wanted.end(&self.names, begun)?;
        let about = &wanted.metric.about;
        let events = wanted.metric.stacks.is_some_and(|s| s.events);
        let period_ns = period_ns.filter(|_| events);
        let missed = Share::of(&samples);
        let profile = Profile {
            metric: plain_name(about).to_owned(),
            node: lock(&self.node).clone(),
            unit: unit(about),
            period_ns,
            start_unix_ns: nanoseconds(began.wall.duration_since(UNIX_EPOCH).unwrap_or_default()),
            duration_ns: nanoseconds(at.mono.saturating_duration_since(began.mono)),
            samples,
        };
        // One at a time: naming addresses reads the symbols of the kernel and of many files, which takes seconds.
        let _turn = lock(&self.resolving);
        Ok(Recording { profile: symbols::resolve(profile, processes), missed })
    }
}

/// A profile that is being taken.
struct Begun {
    at: Moment,
    collector: Arc<Mutex<Collector>>,
}

/// The sums of a metric.
struct Reading {
    began: Moment,
    at: Moment,
    samples: Vec<Sample>,
    processes: Processes,
    /// Time that one event stands for.
    period_ns: Option<u64>,
}

impl Wanted {
    /// Does something with the probe, if it is attached.
    fn attached<T>(&self, work: impl FnOnce(&mut KernelEngine) -> Result<T, ProfileError>) -> Result<T, ProfileError> {
        let mut running = self.probe.lock();
        match running.kernel() {
            Ok(kernel) => work(kernel),
            Err(reason) => Err(ProfileError::NotAttached(reason.to_string())),
        }
    }

    /// What its budget keeps off its hooks counts nothing, which must not look as if there was nothing.
    fn is_attached(&self) -> Result<(), ProfileError> {
        self.probe.lock().held_back().map_or(Ok(()), |reason| Err(ProfileError::NotAttached(reason)))
    }

    /// Collects from now on.
    fn begin(&self, names: &NamesLock) -> Result<Begun, ProfileError> {
        self.drained(names, |a, at| {
            let collector = a.drain().and_then(|drain| drain.begin(self.index)).ok_or_else(no_such)?;
            Ok(Begun { at, collector })
        })
    }

    /// What was collected since `begun`, or since the start.
    fn end(&self, names: &NamesLock, begun: Option<Begun>) -> Result<Reading, ProfileError> {
        // After the last drain, which finds processes that are to be looked at.
        let (began, at, samples, period_ns) = self.drained(names, |a, at| {
            let (began, samples) = match begun {
                Some(Begun { at, collector }) => (at, lock(&collector).samples()),
                None => {
                    let born = a.born();
                    (born, a.drain().and_then(|d| d.total(self.index)).ok_or_else(no_such)?.samples())
                }
            };
            Ok((began, at, samples, period_ns(a)))
        })?;
        let processes = self.attached(|a| Ok(a.processes().clone()))?;
        Ok(Reading { began, at, samples, processes, period_ns })
    }

    /// Empties the kernel's tables, then calls `work`, then reads the maps of new processes.
    fn drained<T>(
        &self,
        names: &NamesLock,
        work: impl FnOnce(&mut KernelEngine, Moment) -> Result<T, ProfileError>,
    ) -> Result<T, ProfileError> {
        let mut names = names.lock();
        let (done, unseen) = self.attached(|a| {
            let at = Moment::now();
            a.drain_stacks(&mut names, at, true).map_err(failed)?;
            Ok((work(a, at)?, a.take_unseen()))
        })?;
        drop(names);
        learn(&self.probe, unseen);
        Ok(done)
    }

    /// Waits until the end of a profile, reads the maps of new processes meanwhile, and sweeps where no housekeeping thread
    /// runs.
    fn watch(&self, names: &NamesLock, until: Instant, stop: &AtomicBool) -> Result<(), ProfileError> {
        while !stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK_EVERY));
            learn(&self.probe, self.attached(|a| a.find_unseen(LOOK_EVERY).map_err(failed))?);
            self.sweep(names)?;
        }
        Ok(())
    }

    /// Sweeps when that is due.
    fn sweep(&self, names: &NamesLock) -> Result<(), ProfileError> {
        let is_due = |a: &KernelEngine| a.sweep_due().is_some_and(|due| due <= Instant::now());
        if !self.attached(|a| Ok(is_due(a)))? {
            return Ok(());
        }
        let mut names = names.lock();
        let mut sweep = |a: &mut KernelEngine| if is_due(a) { a.sweep(&mut names, Moment::now()) } else { Vec::new() };
        let (errors, unseen) = self.attached(|a| Ok((sweep(a), a.take_unseen())))?;
        drop(names);
        learn(&self.probe, unseen);
        errors.into_iter().next().map_or(Ok(()), |error| Err(failed(error)))
    }
}

/// Looks at processes for a probe that has stacks of them. Nothing is locked meanwhile that a scrape waits for: the kernel shows a
/// memory map when its lock is free; a process that is short of memory may hold it for long.
pub(super) fn learn(probe: &ProbeLock, unseen: HashSet<u32>) {
    for look in unseen.into_iter().filter_map(Look::at) {
        // A probe that has ended meanwhile shows no stacks.
        match probe.lock().kernel() {
            Ok(kernel) => kernel.processes().add(look),
            Err(_) => return,
        }
    }
}

/// What one event stands for, when all of them come from one timer.
fn period_ns(a: &KernelEngine) -> Option<u64> {
    let programs = a.programs().ok()?;
    let mut periods = programs.iter().map(|p| p.attach.period_ns());
    let first = periods.next()??;
    periods.all(|period| period == Some(first)).then_some(first)
}

/// As the user wrote it: it is no metric of Prometheus, so that our prefix says nothing.
fn plain_name(about: &Descriptor) -> &str {
    about.name.strip_prefix(crate::config::plan::PREFIX).unwrap_or(&about.name)
}

fn unit(about: &Descriptor) -> Unit {
    match about.unit.as_str() {
        "seconds" if about.raw_per_unit == 1_000_000_000 => Unit::Nanoseconds,
        "bytes" => Unit::Bytes,
        _ => Unit::Count,
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A profile, and what is not in it.
pub struct Recording {
    pub profile: Resolved,
    /// How much of it is without frames, as the kernel's tables had no room for the stacks.
    pub missed: Share,
}

/// A part of a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub part: u64,
    pub whole: u64,
}

impl Share {
    /// Of samples without frames among all.
    fn of(samples: &[Sample]) -> Share {
        let missed = |s: &&Sample| [&s.kernel, &s.user].contains(&&Addresses::Missed);
        let part = samples.iter().filter(missed).map(|s| s.value).fold(0, u64::saturating_add);
        Share { part, whole: samples.iter().map(|s| s.value).fold(0, u64::saturating_add) }
    }

    /// In per cent.
    pub fn percent(self) -> f64 {
        100.0 * self.part as f64 / self.whole.max(1) as f64
    }
}

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Signals and threads.
    #[error("cannot wait: {0}")]
    Wait(#[from] io::Error),
    /// The metric, or its probe.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// Runs probes for `time`, or until SIGINT or SIGTERM, and gives the profile of one of their metrics.
pub fn record(
    plans: &[ProbePlan],
    btf: Option<&Path>,
    metric: &str,
    time: Option<Duration>,
) -> Result<Recording, RecordError> {
    let alone = Alone::start(&compile::look(plans, btf), plans, btf)?;
    let Alone { app, stop, .. } = &alone;
    unwind::start(app)?;
    Ok(app.find_stacks(metric).and_then(|w| app.profile(&w, Some(time.unwrap_or(A_YEAR)), stop))?)
}
