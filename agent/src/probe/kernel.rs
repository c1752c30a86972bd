//! Programs in the kernel: the series of their tables, their periodic work, and what they cost.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use kstrobe_ebpf::Layout;
use kstrobe_ebpf::layout::{Index, Loss, MapId, Table};
use kstrobe_ebpf::typed::Attach;

use super::budget::Cost;
use super::drain::Drain;
use super::engine::{Engine, Scrape, Tick};
use super::error::{ControlError, NotAttached, ReadError};
use super::event_buffer::EventBuffer;
use super::meter::{self, Meter, Reading};
use super::running::Probe;
use super::user_hooks::{LOOK_EVERY, UserHooks, log_changes};
use crate::config::plan::ProbeMeta;
use crate::kernel::attach::Attacher;
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::kernel::hooks::entry::EntryCost;
use crate::kernel::hooks::{Slicing, Use};
use crate::kernel::load::{Loaded, ProgInfo};
use crate::kernel::read::{ProbeMaps, TableView};
use crate::kernel::sys::monotonic_ns;
use crate::metrics::fold::{Area, FoldError};
use crate::metrics::labels::Names;
use crate::metrics::profiles::processes::Processes;
use crate::metrics::series::TableSeries;
use crate::metrics::telemetry::{EventCount, Lost, MapUse, Observed, ProgramUse, SeriesUse};
use kstrobe_export::reading::PackedFamily;
use kstrobe_export::snapshot::{Family, Moment};

/// Life of open spans in hashes: longer calls are rare, and the map needs the room.
const OPEN_SPAN_LIFE: Duration = Duration::from_secs(3600);
/// Shortest and longest interval of sweeps.
const SWEEP_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The same where cgroups end: their slots are needed for those that come.
const SWEEP_CGROUPS_EVERY: Duration = Duration::from_secs(15);

/// A probe whose programs are loaded.
pub struct KernelEngine {
    // Dropped before the programs: links refer to them.
    user: Option<UserHooks>,
    /// Next check of the hooks per CPU; `None` without such hooks.
    cpus_due: Option<Instant>,
    /// The last error of that check; empty without one.
    cpus_failure: String,
    loaded: Loaded,
    tables: Vec<TableSeries>,
    /// By table: keys added when they were last read.
    learned: Vec<Option<u64>>,
    /// Spans that were swept without an end, and states that a pause of the budget discarded.
    abandoned: u64,
    pub(super) drain: Option<Drain>,
    /// Processes that occur in stack keys.
    processes: Processes,
    /// Last read of the stack keys' processes.
    looked: Instant,
    /// New processes since the last sweep, whose memory maps are not read yet.
    unseen: HashSet<u32>,
    /// Single events that were taken from the kernel.
    unread: EventBuffer,
    /// Reasons for which single events were lost so far.
    lost_events: HashSet<Loss>,
    /// Before the first event.
    born: Moment,
    /// Time between two sweeps; `None` when no entry of this probe expires.
    every: Option<Duration>,
    swept: Instant,
    /// The next sweep is due at once.
    hurried: bool,
    meter: Meter,
    /// Spans that began at or before are not measured.
    since_ns: u64,
}

impl KernelEngine {
    /// `born` is a moment before the programs were attached.
    pub fn new(
        meta: &ProbeMeta,
        layout: &Layout,
        loaded: Loaded,
        user: Option<UserHooks>,
        born: Moment,
    ) -> KernelEngine {
        let tables: Vec<TableSeries> = layout.tables.iter().map(|t| series_of(meta, t, born)).collect();
        let others = layout.spans.is_some() || layout.stacks.is_some();
        let mut every = sweep_period(tables.iter().filter_map(TableSeries::ttl).min(), others);
        if tables.iter().any(TableSeries::is_of_cgroups) {
            every = every.map(|every| every.min(SWEEP_CGROUPS_EVERY));
        }
        let (processes, unseen) = Default::default();
        let (unread, swept) = (EventBuffer::of(meta), born.mono);
        KernelEngine {
            user,
            cpus_due: loaded.is_of_cpus().then(|| born.mono + LOOK_EVERY),
            cpus_failure: String::new(),
            loaded,
            learned: vec![None; tables.len()],
            tables,
            abandoned: 0,
            drain: Drain::of(meta, layout),
            processes,
            looked: born.mono,
            unseen,
            unread,
            lost_events: HashSet::new(),
            born,
            every,
            swept,
            hurried: false,
            meter: Meter::default(),
            since_ns: 1,
        }
    }

    /// Whether its programs can sample events.
    pub fn can_sample(&self) -> bool {
        self.loaded.maps().layout().control.is_some()
    }

    /// Samples one of 2^`halvings` events from now on.
    pub fn sample(&self, halvings: u32) -> Result<(), ControlError> {
        let Some(control) = self.loaded.maps().control() else { return Ok(()) };
        control.sample(halvings, self.since_ns).map_err(ControlError::Control)
    }

    /// Says whether its measurements may begin for a share of the time alone.
    pub fn slice(&self, slicing: Slicing) {
        self.loaded.slice(slicing);
    }

    /// Lets the programs not run. Counts stay.
    pub fn detach(&mut self) {
        self.loaded.detach();
        self.meter.forget();
        if let Some(user) = &mut self.user {
            user.rest();
        }
    }

    /// Lets the programs run again, to sample one of 2^`halvings` events.
    pub fn attach(&mut self, halvings: u32) -> Result<(), ControlError> {
        // A span that began before the pause may have ended in it: its duration would be wrong.
        self.abandoned += self.loaded.maps().forget_open().map_err(ControlError::Spans)?;
        self.since_ns = monotonic_ns();
        self.sample(halvings)?;
        self.loaded.attach(&mut Attacher::new())?;
        if let Some(user) = &mut self.user {
            user.wake(&self.loaded, &ProcessSnapshot::look());
        }
        Ok(())
    }

    /// What the programs have cost in the window that ends now, and takes `least` or longer; `None` while it goes on.
    pub fn cost(&mut self, entry_cost: EntryCost, least: Duration) -> Option<Cost> {
        let control = self.loaded.maps().control();
        let (times, ends_rest) = control.map_or((1, false), |control| (control.times(), control.ends_rest()));
        self.meter.set_slicing((times, ends_rest));
        let now = Instant::now();
        if !self.meter.is_due(now, least) {
            return None;
        }
        let reading = |(name, attach, used): (&str, &Attach, Use)| {
            (
                name.to_owned(),
                Reading { used, entry_ns: entry_cost.at(attach), breakpoint_ns: meter::breakpoint_ns(attach) },
            )
        };
        let readings = self.loaded.used().map(reading).collect();
        let cost = self.meter.window(now, readings)?;
        Some(Cost { times, ends_rest, ..cost })
    }

    /// Whether a sweep has taken events out of the kernel that were not handed over yet.
    pub fn has_unread_events(&self) -> bool {
        !self.unread.records.is_empty()
    }

    /// When the next sweep is due.
    pub fn sweep_due(&self) -> Option<Instant> {
        let drain = self.drain.as_ref().map(Drain::period);
        let every = self.every.into_iter().chain(drain).min()?;
        Some(if self.hurried { self.swept } else { self.swept + every })
    }

    /// When it looks for new files to hook, or for other CPUs, next.
    fn look_due(&self) -> Option<Instant> {
        [self.user.as_ref().map(UserHooks::due), self.cpus_due].into_iter().flatten().min()
    }

    /// Whether the agent may rest: not where a series may go within four minutes, nor where stacks are walked, for which few events cost much
    /// and which have to be swept.
    pub fn allows_rest(&self) -> bool {
        self.loaded.maps().layout().stacks.is_none() && self.every.is_none_or(|every| every >= SWEEP_EVERY.1)
    }

    /// Makes the next sweep due now: ids of cgroups were reused.
    pub fn sweep_soon(&mut self) {
        self.hurried = self.tables.iter().any(TableSeries::is_of_cgroups);
    }

    /// Attaches to CPUs that came online, when that is due, and logs the result when it differs from the last one.
    fn follow_cpus(&mut self, probe: &str) {
        if self.cpus_due.is_none_or(|due| due > Instant::now()) {
            return;
        }
        self.cpus_due = Some(Instant::now() + LOOK_EVERY);
        let (failure, changed) = match self.loaded.follow_cpus() {
            Ok(changed) => (String::new(), changed),
            Err(error) => (error.to_string(), false),
        };
        let before = std::mem::replace(&mut self.cpus_failure, failure);
        match self.cpus_failure.as_str() {
            "" if changed => tracing::info!(probe, "follows the CPUs that are online"),
            reason if reason != before && !reason.is_empty() => {
                tracing::error!(probe, reason, "cannot follow the CPUs");
            }
            _ => {}
        }
    }

    /// Its hooks in files of user space.
    pub fn user(&self) -> Option<&UserHooks> {
        self.user.as_ref()
    }

    /// A moment before the first event.
    pub fn born(&self) -> Moment {
        self.born
    }

    /// Its programs in the kernel.
    pub fn programs(&self) -> io::Result<Vec<ProgInfo>> {
        self.loaded.programs()
    }

    /// Processes that occur in keys of stacks, as far as they were looked at.
    pub fn processes(&mut self) -> &mut Processes {
        &mut self.processes
    }

    /// What collects its sums by stack.
    pub fn drain(&mut self) -> Option<&mut Drain> {
        self.drain.as_mut()
    }

    /// Evicts keys that have not changed for their time to live, and spans that never ended. Returns the errors.
    pub fn sweep(&mut self, names: &mut Names, now: Moment) -> Vec<ReadError> {
        (self.swept, self.hurried) = (now.mono, false);
        let mut errors = Vec::new();
        let aging = |table: &TableSeries| table.ttl().is_some() && table.table().stack_key().is_none();
        for (i, table) in self.tables.iter_mut().enumerate().filter(|(_, table)| aging(table)) {
            // The time to live counts from the last change, which is seen only by reading.
            let look = |table: &mut TableSeries, view: &View<'_>| table.look(view.area, view.keys(), names, now);
            let looked = read_table(&self.loaded, i, table, &mut self.learned[i], look);
            if let Err(e) = looked {
                errors.push(e);
                continue;
            }
            let victims: BTreeMap<u32, Box<[u8]>> =
                table.tick(now.mono).into_iter().chain(table.ended(names, now.mono)).map(|e| (e.slot, e.key)).collect();
            if victims.is_empty() {
                continue;
            }
            let victims: Vec<_> = victims.into_iter().map(|(slot, key)| (key, slot)).collect();
            if let Err(e) = self.loaded.maps().evict(i, &victims, |slots, values| table.evict(slots, values)) {
                errors.push(ReadError::Evict { table: i, error: e });
            }
        }
        match self.loaded.maps().sweep_spans(OPEN_SPAN_LIFE.as_nanos() as u64) {
            Ok(n) => self.abandoned += n,
            Err(e) => errors.push(ReadError::Spans(e)),
        }
        errors.extend(self.sweep_stacks(names, now).err());
        errors
    }

    /// Takes sums by stack out of the kernel, and frees stacks that nothing refers to: after keys and spans, so that stacks of
    /// removed ones are freed at once.
    fn sweep_stacks(&mut self, names: &mut Names, now: Moment) -> Result<(), ReadError> {
        self.drain_stacks(names, now, false)?;
        let none = HashSet::new();
        let (unread, (maps, events)) = (&mut self.unread, self.loaded.maps_and_events());
        let recent = self.drain.as_ref().map_or(&none, Drain::recent);
        let swept = maps.sweep_stacks(recent, || _ = events.map(|events| unread.take(maps, events, names)));
        let fullness = swept.map_err(ReadError::Stacks)?;
        if let Some(drain) = &mut self.drain {
            drain.swept(fullness);
        }
        Ok(())
    }

    /// Takes sums by stack out of the kernel's tables, see `Drain::drain`. Forgets processes that have no stacks any more.
    pub fn drain_stacks(&mut self, names: &mut Names, now: Moment, at_once: bool) -> Result<(), ReadError> {
        let Some(drain) = &mut self.drain else { return Ok(()) };
        let mut pids = self.loaded.maps().stack_pids().map_err(ReadError::Processes)?;
        self.unseen.extend(self.processes.unseen(pids.iter().copied()));
        let drained = drain.drain(self.loaded.maps(), names, now, at_once);
        pids.extend(drain.pids());
        self.processes.keep(&pids);
        drained
    }

    /// Processes that are new in the keys of stacks. Empty when they were read lately: several profiles may run at once.
    pub fn find_unseen(&mut self, every: Duration) -> Result<HashSet<u32>, ReadError> {
        if self.looked.elapsed() < every {
            return Ok(HashSet::new());
        }
        self.looked = Instant::now();
        Ok(self.processes.unseen(self.loaded.maps().stack_pids().map_err(ReadError::Processes)?))
    }

    /// Takes the processes that the last sweep found. Their memory maps are read without locks.
    pub fn take_unseen(&mut self) -> HashSet<u32> {
        std::mem::take(&mut self.unseen)
    }

    /// File descriptors to poll, and the single events since the last call.
    pub fn events(&mut self, names: &mut Names) -> (Vec<Arc<OwnedFd>>, EventBuffer) {
        let (maps, events) = self.loaded.maps_and_events();
        let Some(events) = events else { return Default::default() };
        self.unread.take(maps, events, names);
        (events.ready().to_vec(), self.unread.hand_over())
    }

    /// Reasons of loss that are new, each with the number of lost events.
    pub fn new_losses(&mut self) -> Vec<(Loss, u64)> {
        let maps = self.loaded.maps();
        if maps.layout().events.is_none() {
            return Vec::new();
        }
        // The next scrape reports a map that cannot be read.
        let lost = [Loss::EventsLimited, Loss::EventsFull].map(|reason| (reason, maps.lost(reason).unwrap_or(0)));
        lost.into_iter().filter(|(reason, n)| *n > 0 && self.lost_events.insert(*reason)).collect()
    }

    /// Events that were not measured, by reason. The next scrape reports counters that cannot be read.
    pub fn lost(&self) -> BTreeMap<&'static str, u64> {
        let losses = self.loaded.maps().losses().unwrap_or_default();
        // What overflows is measured, in another series.
        let gone = losses.into_iter().filter(|(loss, n)| *loss != Loss::SeriesOverflow && *n > 0);
        gone.map(|(loss, n)| (loss.name(), n)).collect()
    }

    /// Adds statistics of programs and maps to the agent's own metrics.
    fn observe(&self, scrape: &mut Scrape<'_>) {
        let probe = scrape.probe;
        if let Some(programs) = scrape.note(self.loaded.programs(), ReadError::Cost) {
            scrape.observed.programs.extend(programs.into_iter().map(|p| {
                let used = p.used.unwrap_or_default();
                ProgramUse {
                    probe: probe.to_string(),
                    program: p.name,
                    run_ns: used.run_ns as u64,
                    runs: used.runs as u64,
                    missed: p.misses,
                }
            }));
        }
        if self.loaded.maps().layout().events.is_some() {
            scrape.observed.events.push(EventCount { probe: probe.to_string(), events: self.unread.total() });
        }
        observe_fill(self.loaded.maps(), scrape, |map| self.entries(map));
        if let Some(losses) = scrape.note(self.loaded.maps().losses(), ReadError::Losses) {
            self.observe_losses(probe, &losses, scrape.observed);
        }
    }

    /// Entries of an index as they were just read.
    fn entries(&self, map: MapId) -> Option<usize> {
        let exported = self.tables.iter().filter(|table| table.table().stack_key().is_none());
        let is_index =
            |table: &TableSeries| matches!(table.table().index, Index::Hash { map: index, .. } if index == map);
        let mut of_map = exported.filter(|table| is_index(table));
        of_map.next().map(|table| table.keys() + table.waiting())
    }

    fn observe_losses(&self, probe: &str, losses: &[(Loss, u64)], all: &mut Observed) {
        let lost = |reason, events| Lost { probe: probe.to_string(), reason, events };
        // What overflows is measured, in another series.
        let (merged, gone): (Vec<_>, Vec<_>) = losses.iter().partition(|(loss, _)| *loss == Loss::SeriesOverflow);
        all.losses.extend(gone.into_iter().map(|(loss, n)| lost(loss.name(), n)));
        let layout = self.loaded.maps().layout();
        if layout.spans.is_some() || layout.state.is_some() {
            all.losses.push(lost("never_ended", self.abandoned));
        }
        all.series.push(SeriesUse {
            probe: probe.to_string(),
            overflowed: merged.into_iter().map(|(_, n)| n).sum(),
            evicted: self.tables.iter().map(TableSeries::evicted).sum(),
            waiting: self.tables.iter().any(TableSeries::is_of_cgroups).then(|| {
                let of_stacks = self.drain.as_ref().map_or(0, Drain::waiting);
                self.tables.iter().map(TableSeries::waiting).sum::<usize>() + of_stacks
            }),
        });
    }
}

impl KernelEngine {
    /// Reads the tables that are exported.
    fn read_tables<T>(
        &mut self,
        scrape: &mut Scrape<'_>,
        mut read: impl FnMut(&mut TableSeries, &View<'_>, &mut Scrape<'_>) -> Result<Vec<T>, FoldError>,
    ) -> Vec<T> {
        let mut families = Vec::new();
        let tables = self.tables.iter_mut().zip(&mut self.learned).enumerate();
        for (i, (table, learned)) in tables.filter(|(_, (table, _))| table.table().stack_key().is_none()) {
            match read_table(&self.loaded, i, table, learned, |table, view| read(table, view, scrape)) {
                Ok(mut f) => families.append(&mut f),
                Err(e) => scrape.errors.push(e),
            }
        }
        families
    }
}

impl Engine for KernelEngine {
    fn scrape(&mut self, scrape: &mut Scrape<'_>) -> Vec<Family> {
        let families = self.read_tables(scrape, |table, view, scrape| {
            table.read_known(view.area, view.keys(), scrape.names, scrape.now)
        });
        self.observe(scrape);
        families
    }

    fn read(&mut self, scrape: &mut Scrape<'_>) -> Vec<PackedFamily> {
        let families = self.read_series(scrape);
        self.observe(scrape);
        families
    }

    fn read_series(&mut self, scrape: &mut Scrape<'_>) -> Vec<PackedFamily> {
        self.read_tables(scrape, |table, view, scrape| {
            table.read_blocks(view.area, view.keys(), scrape.names, scrape.now)
        })
    }

    /// Hooks that are not attached, with the reasons.
    fn reason(&self) -> String {
        let files = self.user.as_ref().map(UserHooks::reason).unwrap_or_default();
        let refused = self.loaded.not_accepted().map(|program| {
            format!("the kernel takes program {program} neither with the others of its hook nor beside them")
        });
        let parts = [files, self.cpus_failure.clone(), refused.unwrap_or_default()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// A sweep, or a look for files or CPUs to hook.
    fn due(&self) -> Option<Instant> {
        [self.sweep_due(), self.look_due()].into_iter().flatten().min()
    }

    fn due_at_rest(&self) -> Option<Instant> {
        // Ids of cgroups that are reused have series of others.
        let sweep = self.sweep_due().filter(|_| self.hurried);
        [sweep, self.look_due()].into_iter().flatten().min()
    }

    fn needs_processes(&self) -> Option<bool> {
        self.user.as_ref().filter(|user| user.due() <= Instant::now()).map(UserHooks::by_name)
    }

    fn tick(&mut self, tick: &mut Tick<'_>) -> Option<Probe> {
        if let (Some(user), Some(processes)) = (&mut self.user, tick.processes)
            && user.due() <= Instant::now()
        {
            log_changes(tick.probe, &user.look(&self.loaded, processes));
        }
        self.follow_cpus(tick.probe);
        if self.sweep_due().is_some_and(|due| due <= Instant::now()) {
            tick.errors = Some(self.sweep(tick.names, Moment::now()));
        }
        None
    }

    fn layout(&self) -> Option<&Layout> {
        Some(self.loaded.maps().layout())
    }

    fn maps(&self) -> Option<&ProbeMaps> {
        Some(self.loaded.maps())
    }

    fn kernel(&mut self) -> Result<&mut KernelEngine, NotAttached> {
        Ok(self)
    }

    fn as_kernel(&self) -> Option<&KernelEngine> {
        Some(self)
    }
}

/// Adds how full the maps are to the agent's own metrics.
pub(super) fn observe_fill(maps: &ProbeMaps, scrape: &mut Scrape<'_>, known: impl Fn(MapId) -> Option<usize>) {
    let probe = scrape.probe;
    let Some(maps) = scrape.note(maps.fill(known), ReadError::Fill) else { return };
    scrape.observed.maps.extend(maps.into_iter().map(|f| MapUse {
        probe: probe.to_string(),
        map: f.name,
        entries: f.entries.into(),
        capacity: f.capacity.into(),
    }));
}

/// A table with the keys that its series may not know.
struct View<'a> {
    area: Area<'a, [AtomicU64]>,
    /// `None` when no key came since the last reading.
    index: Option<Vec<(Box<[u8]>, u32)>>,
}

impl View<'_> {
    fn keys(&self) -> Option<impl Iterator<Item = (&[u8], u32)>> {
        self.index.as_ref().map(|index| index.iter().map(|(key, slot)| (&**key, *slot)))
    }
}

/// `learned` is the number of keys that had been added when the series learned them last. Only the agent takes keys away.
fn read_table<T>(
    loaded: &Loaded,
    i: usize,
    table: &mut TableSeries,
    learned: &mut Option<u64>,
    read: impl FnOnce(&mut TableSeries, &View<'_>) -> Result<T, FoldError>,
) -> Result<T, ReadError> {
    let (maps, failed) = (loaded.maps(), |error| ReadError::Table { table: i, error });
    // Before the keys: what is added between the two is read again.
    let added = maps.keys_added(i).map_err(failed)?;
    let changes = maps.changes(i).map_err(failed)?;
    let view = if added.is_some() && added == *learned && table.waiting() == 0 {
        View { area: Area { words: maps.values(i).map_err(failed)?, changes }, index: None }
    } else {
        let TableView { values, index } = maps.table(i).map_err(failed)?;
        View { area: Area { words: values, changes }, index: Some(index) }
    };
    let value = read(table, &view).map_err(|error| ReadError::Series { table: i, error })?;
    *learned = added;
    Ok(value)
}

/// The series of a table of a probe's. `born` is a moment before the first event.
pub(super) fn series_of(meta: &ProbeMeta, table: &Table, born: Moment) -> TableSeries {
    let metrics = || table.cells.iter().map(|c| &meta.metrics[c.metric as usize]);
    // Metrics that share a table share their keys' fate: the longest wish wins, zero being for ever.
    let for_ever = metrics().any(|m| m.ttl.is_zero());
    let ttl = metrics().map(|m| m.ttl).max().filter(|_| !for_ever).unwrap_or_default();
    TableSeries::new(table.clone(), metrics().map(|m| m.about.clone()).collect(), ttl, born)
}

/// Often enough that a key goes soon after its time has come.
fn sweep_period(shortest_ttl: Option<Duration>, spans: bool) -> Option<Duration> {
    let (shortest, longest) = SWEEP_EVERY;
    let of_keys = shortest_ttl.map(|ttl| (ttl / 4).clamp(shortest, longest));
    of_keys.or(spans.then_some(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_follow_the_shortest_time_to_live() {
        let period = |ttl: u64| sweep_period(Some(Duration::from_secs(ttl)), true).unwrap().as_secs();
        assert_eq!([1, 4, 60, 900].map(period), [1, 1, 15, 60]);
        assert_eq!(sweep_period(None, true), Some(Duration::from_secs(60)), "spans that never end");
        assert_eq!(sweep_period(None, false), None, "nothing ever goes");
    }
}
