//! Profiles of running probes: two readings of a stacks metric, the time between them, and names for what lies between.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use kstrobe_ebpf::layout::Loss;
use kstrobe_ebpf::program::{Every, PerfEvent, Sampling};
use kstrobe_ebpf::typed::Attach;

use super::attached::Attached;
use super::capturing::Around;
use super::probe::Running;
use super::{App, lock, workloads};
use crate::http::{Access, Captures, Denied, ProfileError, ProfileRequest, StacksStatus};
use crate::metrics::labels::Names;
use crate::metrics::stacks::{self as sums, NO_FRAMES, StackSums};
use crate::plan::{Draft, Metric};
use crate::sources::AgentConfig;
use crate::stacks::processes::{Look, Processes};
use crate::stacks::{Addresses, Profile, Resolved, Sample, Unit, symbols};
use kstrobe_export::snapshot::{Descriptor, Moment};

/// Processes that run for less than this may end without having been looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Longer than anybody waits, and what clocks can still add.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A stacks metric of a running probe.
#[derive(Clone)]
pub(super) struct Wanted {
    probe: Arc<Mutex<Running>>,
    /// Its place among the probe's metrics.
    index: usize,
    metric: Metric,
}

impl App {
    /// All stacks metrics.
    pub(super) fn stacks(&self) -> Vec<StacksStatus> {
        let of = |probe: &Arc<Mutex<Running>>| {
            let running = lock(probe);
            let status = running.status();
            let metrics = running.outline.metrics.iter().filter(|m| m.stacks.is_some());
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
            let running = lock(probe);
            let index = running.outline.metrics.iter().position(fits)?;
            Some(Wanted { probe: probe.clone(), index, metric: running.outline.metrics[index].clone() })
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

    /// What a client of the agent asks for.
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
        let (of_before, varied) = lock(&wanted.probe).one_of();
        let before = time.map(|time| {
            wanted.is_attached()?;
            let before = wanted.read(&self.names)?;
            wanted.watch(before.at.mono + time, stop)?;
            wanted.is_attached()?;
            Ok::<_, ProfileError>(before)
        });
        let before = before.transpose()?;
        let after = wanted.read(&self.names)?;
        let (began, missed_before, summed) = match before {
            Some(before) => (before.at, before.missed, sums::difference(after.sums, &before.sums)),
            None => (after.born, 0, after.sums),
        };
        let about = &wanted.metric.about;
        let events = wanted.metric.stacks.is_some_and(|s| s.events);
        let (samples, processes, period_ns) = wanted.attached(|a| {
            let (samples, processes) = samples(a, summed)?;
            Ok((samples, processes, events.then(|| period_ns(a)).flatten()))
        })?;
        // Of a probe that its budget thins out, an event stands for more time; for how much is not known when that has changed.
        let (one_of, _) = lock(&wanted.probe).one_of();
        let as_ever = one_of == of_before && (time.is_some() || !varied);
        let period_ns = period_ns.filter(|_| as_ever).map(|ns| ns.saturating_mul(one_of));
        let profile = Profile {
            metric: plain_name(about).to_owned(),
            unit: unit(about),
            period_ns,
            start_unix_ns: nanoseconds(began.wall.duration_since(UNIX_EPOCH).unwrap_or_default()),
            duration_ns: nanoseconds(after.at.mono - began.mono),
            samples,
        };
        let missed = after.missed.saturating_sub(missed_before);
        Ok(Recording { profile: symbols::resolve(profile, processes), missed })
    }
}

/// The sums of a metric at one moment.
struct Reading {
    at: Moment,
    /// When its probe began to count.
    born: Moment,
    sums: StackSums,
    /// Stacks that the kernel could not keep so far.
    missed: u64,
}

impl Wanted {
    /// Does something with the probe, if it is attached.
    fn attached<T>(&self, work: impl FnOnce(&mut Attached) -> Result<T, String>) -> Result<T, ProfileError> {
        let mut running = lock(&self.probe);
        match running.attached() {
            Ok(attached) => work(attached).map_err(ProfileError::Failed),
            Err(reason) => Err(ProfileError::NotAttached(reason)),
        }
    }

    /// What its budget keeps off its hooks counts nothing, which must not look as if there was nothing.
    fn is_attached(&self) -> Result<(), ProfileError> {
        lock(&self.probe).held_back().map_or(Ok(()), |reason| Err(ProfileError::NotAttached(reason)))
    }

    fn read(&self, names: &Mutex<Names>) -> Result<Reading, ProfileError> {
        let mut names = lock(names);
        let (reading, unseen) = self.attached(|a| {
            let at = Moment::now();
            let sums = read(a, self.index, &self.metric.about, &mut names, at)?;
            let losses = a.loaded.maps().losses().map_err(|e| format!("cannot read what was lost: {e}"))?;
            let missed = losses.iter().filter(|(loss, _)| *loss == Loss::StackCollision).map(|(_, n)| n).sum();
            let unseen = a.processes.unseen(sums.keys().map(|key| key.pid).filter(|pid| *pid != 0));
            Ok((Reading { at, born: a.born, sums, missed }, unseen))
        })?;
        drop(names);
        learn(&self.probe, unseen);
        Ok(reading)
    }

    /// Waits, and meanwhile looks at processes that come and go.
    fn watch(&self, until: Instant, stop: &AtomicBool) -> Result<(), ProfileError> {
        while !stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK_EVERY));
            let failed = |e| format!("cannot read which processes have stacks: {e}");
            learn(&self.probe, self.attached(|a| a.find_unseen().map_err(failed))?);
        }
        Ok(())
    }
}

/// Looks at processes for a probe that has stacks of them. Nothing is locked meanwhile that a scrape waits for: the kernel shows a
/// memory map when nobody holds its lock, which a process in trouble may do for long.
pub(super) fn learn(probe: &Mutex<Running>, unseen: HashSet<u32>) {
    for look in unseen.into_iter().filter_map(Look::at) {
        // A probe that has ended meanwhile shows no stacks.
        match lock(probe).attached() {
            Ok(attached) => attached.processes.add(look),
            Err(_) => return,
        }
    }
}

fn read(
    a: &mut Attached,
    metric: usize,
    about: &Descriptor,
    names: &mut Names,
    now: Moment,
) -> Result<StackSums, String> {
    let found = a.tables.iter().enumerate().find_map(|(i, series)| {
        let table = series.table();
        Some((i, table.cells.iter().position(|c| c.metric as usize == metric)?, table))
    });
    let (i, cell, table) = found.ok_or("the probe has no such metric")?;
    let said = |e: &dyn std::fmt::Display| format!("cannot read table {i}: {e}");
    let view = a.loaded.maps().table(i).map_err(|e| said(&e))?;
    let index = view.index.iter().map(|(key, slot)| (&**key, *slot));
    sums::read(table, cell, about, view.values, index, names, now).map_err(|e| said(&e))
}

/// Sums with addresses instead of ids, and the processes these are of.
fn samples(a: &Attached, sums: StackSums) -> Result<(Vec<Sample>, Processes), String> {
    let mut known: HashMap<i32, Addresses> = HashMap::new();
    let mut half = |id: Option<i32>| -> Result<Addresses, String> {
        let id = match id {
            None | Some(NO_FRAMES) => return Ok(Addresses::default()),
            Some(id) => id,
        };
        if let Some(addresses) = known.get(&id) {
            return Ok(addresses.clone());
        }
        let stack = u32::try_from(id).ok().map(|id| a.loaded.maps().stack(id)).transpose();
        let stack = stack.map_err(|e| format!("cannot read stack {id}: {e}"))?.flatten();
        let addresses = stack.map_or(Addresses::Missed, Addresses::Known);
        known.insert(id, addresses.clone());
        Ok(addresses)
    };
    let samples = sums.into_iter().map(|(key, value)| {
        let (kernel, user) = (half(key.kernel)?, half(key.user)?);
        Ok(Sample { labels: key.labels, pid: key.pid, kernel, user, value })
    });
    Ok((samples.collect::<Result<_, String>>()?, a.processes.clone()))
}

/// What one event stands for, when all of them come from one timer.
fn period_ns(a: &Attached) -> Option<u64> {
    let programs = a.loaded.programs().ok()?;
    let mut periods = programs.iter().map(|p| match &p.attach {
        Attach::Interval { period_ns } => Some(*period_ns),
        Attach::Sample(Sampling { event: PerfEvent::CpuClock, every }) => match every {
            Every::Hertz(n) => 1_000_000_000u64.checked_div(*n),
            Every::Nanoseconds(ns) => Some(*ns),
            Every::Events(_) => None,
        },
        _ => None,
    });
    let first = periods.next()??;
    periods.all(|period| period == Some(first)).then_some(first)
}

/// As the user wrote it: it is no metric of Prometheus, so that our prefix says nothing.
fn plain_name(about: &Descriptor) -> &str {
    about.name.strip_prefix(crate::plan::PREFIX).unwrap_or(&about.name)
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
    /// The profile.
    pub profile: Resolved,
    /// Stacks that the kernel could not keep.
    pub missed: u64,
}

/// Runs probes for `time`, or until SIGINT or SIGTERM, and gives the profile of one of their metrics.
pub fn record(drafts: &[Draft], btf: Option<&Path>, metric: &str, time: Option<Duration>) -> Result<Recording, String> {
    let said = |e: io::Error| format!("cannot wait: {e}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(said)?;
    let asked = runtime.block_on(async { super::stop_signal() }).map_err(said)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    runtime.spawn(async move {
        asked.await;
        stopped.store(true, Ordering::Relaxed);
    });
    let captures = Captures { desk: Err(Denied::off()), access: Access::Local };
    let (asks, news) = workloads::asks();
    let app = Arc::new(App::start(drafts, btf, captures, &Around::nobody(), asks));
    let following = workloads::start(&app, news, &AgentConfig::default(), runtime.handle()).map_err(said)?;
    let said = |e: ProfileError| e.to_string();
    let profile = app.find_stacks(metric).and_then(|w| app.profile(&w, Some(time.unwrap_or(A_YEAR)), &stop));
    following.stop();
    profile.map_err(said)
}
