//! The history of the metrics: a thread that reads all probes once a second, and what it keeps.

mod disk;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kstrobe_export::snapshot::Moment;
use kstrobe_history::disk::{Archive, DiskUsage, Retention};
use kstrobe_history::{
    Answer, Cursor, DiskOverview, History, Limits, Mark, MarkKind, Overview, ProbeChanges, Query, QueryError, Second,
    SecondSummary, Usage,
};
use tokio::sync::watch;

use super::pace::{AT_REST, EARLY, Pace, Seen, until_near_end, until_second_ends};
use super::task::{self, Task};
use super::{App, SharedProbe, lock};
use crate::config::files::HistoryConfig;
use crate::metrics::labels::Names;
use crate::probe::Throttling;
use disk::Disk;

/// Time between two walks of iterators: without a scraper nothing else would start any.
const WALK_EVERY: Duration = Duration::from_secs(15);

/// Longest time that a query waits for the seconds of a rest.
const CATCH_UP: Duration = Duration::from_millis(500);

/// What readers that follow wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// One more than the number of the newest record.
    pub end: u64,
    /// There will be no more.
    pub closed: bool,
}

/// The seconds that are kept, for requests.
#[derive(Debug)]
pub struct HistoryStore {
    /// `None` while the configuration has it off.
    history: Mutex<Option<History>>,
    /// `None` while the configuration names no directory.
    disk: Mutex<Option<Disk>>,
    /// What is shown instead, without an agent.
    view: Option<Archive>,
    /// Held by the one query that reads files: each takes the memory of a segment.
    reading: Mutex<()>,
    recorded: watch::Sender<Recorded>,
    pub(super) pace: Arc<Pace>,
}

/// The configuration has the history off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent keeps no history: `history.enabled` is false")]
pub struct HistoryOff;

impl HistoryStore {
    pub fn new(config: &HistoryConfig) -> HistoryStore {
        let store = HistoryStore::empty(None);
        store.configure(config);
        store
    }

    /// Of seconds that were recorded elsewhere.
    pub fn of(archive: Archive) -> HistoryStore {
        let store = HistoryStore::empty(Some(archive));
        *lock(&store.history) = Some(History::new(limits(&HistoryConfig::default())));
        store
    }

    fn empty(view: Option<Archive>) -> HistoryStore {
        HistoryStore {
            history: Mutex::default(),
            disk: Mutex::default(),
            view,
            reading: Mutex::default(),
            recorded: watch::Sender::default(),
            pace: Arc::default(),
        }
    }

    /// Applies the configuration. A history that is off is forgotten, but for its files.
    pub(super) fn configure(&self, config: &HistoryConfig) {
        self.configure_disk(config);
        let mut history = lock(&self.history);
        let limits = limits(config);
        match (&mut *history, config.enabled) {
            // Readers that follow end, and one that comes later finds no number of before.
            (_, false) => {
                *history = None;
                self.recorded.send_replace(Recorded { end: 0, closed: true });
            }
            (Some(history), true) => history.set_limits(limits),
            (none, true) => {
                *none = Some(History::new(limits));
                self.recorded.send_replace(Recorded::default());
            }
        }
    }

    fn configure_disk(&self, config: &HistoryConfig) {
        let mut disk = lock(&self.disk);
        let directory = config.dir.as_deref().filter(|_| config.enabled).map(Path::new);
        let retention = Retention { seconds: config.keep_ns / 1_000_000_000, bytes: config.max_bytes };
        match (&mut *disk, directory) {
            (Some(disk), Some(directory)) if disk.directory() == directory => disk.set_retention(retention),
            (disk, directory) => {
                // The old one first: both may be the same folder by other names.
                *disk = None;
                let started = directory.map(|directory| Disk::start(directory.to_owned(), retention)).transpose();
                *disk = started.unwrap_or_else(|error| {
                    tracing::error!(%error, "no thread can be started that writes the history");
                    None
                });
            }
        }
    }

    fn is_written(&self) -> bool {
        lock(&self.disk).is_some()
    }

    pub fn is_on(&self) -> bool {
        lock(&self.history).is_some()
    }

    fn with<T>(&self, read: impl FnOnce(&History) -> T) -> Result<T, HistoryOff> {
        self.pace.read_history(CATCH_UP);
        lock(&self.history).as_ref().map(read).ok_or(HistoryOff)
    }

    fn archive(&self) -> Option<Archive> {
        self.view.clone().or_else(|| lock(&self.disk).as_ref().and_then(Disk::archive))
    }

    /// With `heat`, also with counts by bucket.
    pub fn overview(&self, heat: bool) -> Result<Overview, HistoryOff> {
        let mut overview = match &self.view {
            Some(archive) => {
                archive.last().map_or_else(|| self.with(|own| own.overview(heat)), |last| Ok(last.overview(heat)))?
            }
            None => self.with(|history| history.overview(heat))?,
        };
        let segments = self.archive().and_then(|archive| archive.segments().ok()).unwrap_or_default();
        let oldest = segments.first().map(|segment| segment.start);
        overview.oldest = overview.oldest.into_iter().chain(oldest).min();
        overview.disk = lock(&self.disk).as_ref().map(|disk| DiskOverview {
            dir: disk.directory().display().to_string(),
            oldest,
            bytes: disk.usage().bytes,
            max_bytes: disk.max_bytes(),
            segments: segments.len(),
            stopped: disk.stopped(),
        });
        Ok(overview)
    }

    /// Answers from memory, or from files where the range begins before that.
    pub fn query(&self, query: &Query) -> Result<Result<Answer, QueryError>, HistoryOff> {
        let now = unix(SystemTime::now()) as u64;
        let Some(archive) = self.archive() else { return self.with(|history| history.query(query, now)) };
        if !self.with(|history| history.begins_before(query, now))? {
            return self.with(|history| history.query(query, now));
        }
        let _one = lock(&self.reading);
        // Files are read for seconds, in which the recorder must not wait. One copy at a time.
        let recent = self.with(History::clone)?;
        Ok(recent.query_with(&archive, query, now))
    }

    /// Why nothing is written to the disk, if something should be.
    pub(super) fn stopped(&self) -> Option<String> {
        lock(&self.disk).as_ref().and_then(Disk::stopped)
    }

    pub(super) fn disk_usage(&self) -> Option<DiskUsage> {
        lock(&self.disk).as_ref().map(Disk::usage)
    }

    /// One second of all metrics; `None` when it is not kept.
    pub fn summary(&self, number: u64) -> Result<Option<SecondSummary>, HistoryOff> {
        self.with(|history| history.summary(number))
    }

    /// One second of one metric; `None` when it is not kept.
    pub fn query_second(&self, query: &Query, number: u64) -> Result<Result<Option<Answer>, QueryError>, HistoryOff> {
        self.with(|history| history.query_second(query, number))
    }

    /// Whether a reader waits for the next second.
    pub(super) fn is_followed(&self) -> bool {
        self.recorded.receiver_count() > 0
    }

    /// Wakes readers once a second.
    pub fn follow(&self) -> watch::Receiver<Recorded> {
        self.pace.read();
        self.recorded.subscribe()
    }

    /// Ends the readers that follow.
    pub fn close(&self) {
        self.recorded.send_modify(|recorded| recorded.closed = true);
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        lock(&self.history).as_ref().map(History::usage)
    }

    /// Puts a mark on the time line.
    pub fn mark(&self, kind: MarkKind, at: SystemTime, text: String, link: Option<String>) {
        let mark = Mark { time: unix(at), kind, text, link };
        if let Some(disk) = &mut *lock(&self.disk) {
            disk.mark(mark.clone());
        }
        if let Some(history) = &mut *lock(&self.history) {
            history.mark(mark);
        }
    }

    /// Adds a reading that was to cover so many seconds.
    pub fn push(&self, second: Second, planned: u64, changes: &[ProbeChanges]) {
        let end = lock(&self.history).as_mut().map(|history| {
            history.push_planned(planned, second, changes);
            history.end()
        });
        if let Some(end) = end {
            self.recorded.send_modify(|recorded| recorded.end = end);
        }
        if let Some(disk) = &mut *lock(&self.disk) {
            disk.append(second, changes);
        }
    }
}

fn limits(config: &HistoryConfig) -> Limits {
    let bytes = usize::try_from(config.max_memory).unwrap_or(usize::MAX);
    Limits { seconds: config.keep_in_memory_ns() / 1_000_000_000, bytes }
}

/// Seconds since 1970.
fn unix(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What the last second has left of each probe. Locked before `names`.
#[derive(Default)]
pub(super) struct Sampler {
    followed: Vec<Followed>,
    /// The last changes of probes that have ended since.
    pending: Vec<ProbeChanges>,
    /// When the last reading was, and the end of its second.
    last: Option<(Instant, u64)>,
    walked: Option<Instant>,
    /// By probe.
    throttled: HashMap<String, Throttling>,
}

struct Followed {
    probe: SharedProbe,
    cursor: Cursor,
}

impl Followed {
    fn new(probe: &SharedProbe) -> Followed {
        Followed { probe: probe.clone(), cursor: Cursor::default() }
    }

    fn changes(&mut self, app: &App, names: &mut Names, now: Moment) -> (ProbeChanges, Option<Throttling>) {
        let (name, throttling, families) = {
            let mut running = self.probe.lock();
            let families = running.read_series(names, now, &app.telemetry);
            (running.meta.name.clone(), running.throttling(), families)
        };
        let sampled = throttling.as_ref().is_some_and(|throttling| throttling.is_over);
        (ProbeChanges { probe: name.into(), sampled, metrics: self.cursor.advance(families) }, throttling)
    }
}

impl Sampler {
    /// Reads all probes, and returns the time and the changes since the last reading.
    fn sample(&mut self, app: &App) -> (Second, Vec<ProbeChanges>) {
        if self.walked.is_none_or(|walked| walked.elapsed() >= WALK_EVERY) {
            self.walked = Some(Instant::now());
            app.iter_trigger.refresh();
        }
        let mut changes = std::mem::take(&mut self.pending);
        let mut throttlings = Vec::new();
        let now = {
            let mut names = app.names.lock();
            let now = Moment::now();
            let probes = app.probes();
            let mut before = std::mem::take(&mut self.followed);
            for probe in probes.iter() {
                let known = before.iter().position(|followed| Arc::ptr_eq(&followed.probe, probe));
                let mut followed = known.map_or_else(|| Followed::new(probe), |at| before.swap_remove(at));
                let (of_probe, throttling) = followed.changes(app, &mut names, now);
                throttlings.extend(throttling.map(|throttling| (of_probe.probe.to_string(), throttling)));
                changes.push(of_probe);
                self.followed.push(followed);
            }
            now
        };
        self.mark_budgets(app, throttlings);
        let end = unix(now.wall + EARLY) as u64;
        let seconds = self
            .last
            .replace((now.mono, end))
            .map_or(1, |(last, last_end)| seconds_since(now.mono.saturating_duration_since(last), last_end, end));
        (Second { start: end.saturating_sub(1), seconds }, changes)
    }

    /// Marks probes whose sampling has changed.
    fn mark_budgets(&mut self, app: &App, now: Vec<(String, Throttling)>) {
        for (probe, throttling) in &now {
            let before = self.throttled.get(probe).filter(|before| before.is_over);
            let change = match before {
                Some(before) => before.one_of != throttling.one_of || !throttling.is_over,
                None => throttling.is_over,
            };
            if change {
                let text = if throttling.is_over { &throttling.text } else { "measures all events again" };
                app.history.mark(MarkKind::Budget, SystemTime::now(), format!("{probe}: {text}"), None);
            }
        }
        self.throttled = now.into_iter().collect();
    }

    /// A reload replaces probes: takes the last counts of those that end, each with the probe that takes its place, if any. An event
    /// that both have counted is left out of those of the new one. `names` is held, so that no other reading is under way.
    pub fn hand_over(&mut self, app: &App, names: &mut Names, ending: &[(SharedProbe, Option<SharedProbe>)]) {
        let now = Moment::now();
        for (old, new) in ending {
            let Some(at) = self.followed.iter().position(|followed| Arc::ptr_eq(&followed.probe, old)) else {
                continue;
            };
            let mut followed = self.followed.swap_remove(at);
            let mut next = new.as_ref().map(Followed::new);
            let (mut last, _) = followed.changes(app, names, now);
            if let Some(next) = &mut next {
                let counted = next.probe.lock().read_series(names, now, &app.telemetry);
                next.cursor.skip(counted, |name| followed.cursor.metrics().any(|old| old == name));
            }
            last.metrics.extend(followed.cursor.end());
            self.pending.push(last);
            self.followed.extend(next);
        }
    }
}

/// The seconds between the ends of two readings' seconds; where the wall clock was set meanwhile, those that have passed.
fn seconds_since(elapsed: Duration, last_end: u64, end: u64) -> u64 {
    let passed = (elapsed.as_secs_f64().round() as u64).max(1);
    let seconds = end.saturating_sub(last_end);
    if seconds > 0 && seconds.abs_diff(passed) <= 1 { seconds } else { passed }
}

/// Starts the thread that samples, which lives as long as the agent.
pub(super) fn start(app: Arc<App>) -> std::io::Result<()> {
    task::spawn(move || Recorder { app, has_begun: false, rested: false, seen: Seen::default() }).map(drop)
}

struct Recorder {
    app: Arc<App>,
    has_begun: bool,
    /// The agent rested before this reading.
    rested: bool,
    seen: Seen,
}

impl Task for Recorder {
    const NAME: &'static str = "history";

    fn run(&mut self) {
        // The second in which the agent starts is its first one: that before may be on the disk, written by an agent before.
        if !std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        // While the agent rests, a history that is written to disk has readings each second, too.
        if self.rested || self.app.pace.rests() {
            self.app.catch_up();
        }
        let mut sampler = lock(&self.app.sampler);
        if !self.app.history.is_on() {
            *sampler = Sampler::default();
            self.app.pace.caught_up();
            return;
        }
        let (second, changes) = sampler.sample(&self.app);
        // What is due at rest takes a while before the reading.
        let planned = if self.rested { AT_REST.as_secs() + 1 } else { 1 };
        self.app.history.push(second, planned, &changes);
        self.app.pace.caught_up();
    }

    fn panicked(&mut self) {
        self.app.pace.caught_up();
        std::thread::sleep(task::AFTER_A_PANIC);
    }

    /// Until the second ends, or for as long as the agent rests. On the disk each second is written when it is over.
    fn wait(&mut self) -> ControlFlow<()> {
        let pace = &self.app.pace;
        let second = Instant::now() + until_second_ends();
        self.rested = !self.app.history.is_written() && pace.begin_rest();
        if self.rested {
            let until = second + AT_REST - Duration::from_secs(1);
            while pace.rests() && Instant::now() < until {
                pace.wait(&mut self.seen, Some(until));
            }
            std::thread::sleep(until_near_end());
            if Instant::now() < second {
                // It has all that are over.
                pace.caught_up();
            }
        }
        std::thread::sleep(second.saturating_duration_since(Instant::now()));
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_cover_each_second_once() {
        for (elapsed_ms, last_end, end, seconds) in [
            (1_000, 100, 101, 1),
            (2_000, 100, 102, 2),
            (60_000, 100, 160, 60),
            // Half a second after a rest of ten and a half, and the next one late.
            (10_500, 100, 110, 10),
            (500, 110, 111, 1),
            (1_750, 110, 112, 2),
            (59_750, 100, 160, 60),
            // The wall clock was set.
            (1_000, 100, 3700, 1),
            (5_000, 100, 50, 5),
            (300, 100, 100, 1),
        ] {
            assert_eq!(seconds_since(Duration::from_millis(elapsed_ms), last_end, end), seconds, "{elapsed_ms} ms");
        }
    }
}
