//! Probes at iterators: a scrape runs their programs once per kernel object.
//!
//! A thread walks the objects, so that a scrape can give up waiting: a walk over a million sockets takes longer than a
//! scraper's timeout. The result is kept for the scrapes of the next second.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kstrobe_ebpf::layout::{Layout, Loss, Table};

use super::{App, lock};
use crate::config::plan::Outline;
use crate::kernel::load::Loaded;
use crate::kernel::read::ProbeMaps;
use crate::metrics::labels::Names;
use crate::metrics::series::TableSeries;
use crate::metrics::telemetry::{IterationUse, MapUse, Observed, SeriesUse};
use kstrobe_export::snapshot::{Descriptor, Family, Moment};

/// Shortest interval between two walks.
const EVERY: Duration = Duration::from_secs(1);
/// A scrape waits so long for a walk, then shows the last one.
const PATIENCE: Duration = Duration::from_millis(250);

/// A probe at iterators.
pub(super) struct Iterated {
    loaded: Loaded,
    /// With the metrics of their cells.
    tables: Vec<(Table, Vec<Arc<Descriptor>>)>,
    held: Mutex<Held>,
    /// Scrapes that showed an older walk.
    late: AtomicU64,
}

/// The last walk.
#[derive(Default)]
struct Held {
    families: Vec<Family>,
    /// The error of the walk. Nothing is exported then: the counts of an older walk would be wrong.
    failure: Option<String>,
    begun: Option<Instant>,
    took: Duration,
}

impl Iterated {
    pub fn new(outline: &Outline, layout: &Layout, loaded: Loaded) -> Iterated {
        let about = |t: &Table| t.cells.iter().map(|c| outline.metrics[c.metric as usize].about.clone()).collect();
        let tables = layout.tables.iter().map(|t| (t.clone(), about(t))).collect();
        Iterated { loaded, tables, held: Mutex::default(), late: AtomicU64::new(0) }
    }

    /// Walks over all objects.
    fn walk(&self, names: &Mutex<Names>) {
        let begun = Instant::now();
        let read = self.read(names);
        let took = begun.elapsed();
        let (families, failure) = match read {
            Ok(families) => (families, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        *lock(&self.held) = Held { families, failure, begun: Some(begun), took };
    }

    fn read(&self, names: &Mutex<Names>) -> Result<Vec<Family>, String> {
        let maps = self.loaded.maps();
        for i in 0..self.tables.len() {
            maps.clear(i).map_err(|e| format!("cannot clear table {i}: {e}"))?;
        }
        self.loaded.run_iterators().map_err(|e| format!("cannot read the iterator: {e}"))?;
        let now = Moment::now();
        let mut families = Vec::new();
        for (i, (table, about)) in self.tables.iter().enumerate() {
            let view = maps.table(i).map_err(|e| format!("cannot read table {i}: {e}"))?;
            let index = view.index.iter().map(|(key, slot)| (&**key, *slot));
            // A table of one walk: nothing lasts from one to the next.
            let mut once = TableSeries::once(table.clone(), about.clone(), now);
            let read = once.read(view.values, index, &mut lock(names), now);
            families.extend(read.map_err(|e| format!("cannot read table {i}: {e}"))?);
        }
        Ok(families)
    }

    pub fn maps(&self) -> &ProbeMaps {
        self.loaded.maps()
    }

    /// Series of the last walk, and its errors. Adds the agent's own metrics of this probe to `observed`.
    pub fn scrape(&self, probe: &str, observed: &mut Observed) -> (Vec<Family>, Vec<String>) {
        let held = lock(&self.held);
        if held.begun.is_none_or(|begun| begun.elapsed() > EVERY + PATIENCE) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        let mut errors: Vec<String> = held.failure.iter().cloned().collect();
        let probe = || probe.to_owned();
        observed.iterations.push(IterationUse {
            probe: probe(),
            took: held.took,
            late: self.late.load(Ordering::Relaxed),
        });
        let maps = self.loaded.maps();
        match maps.fill() {
            Ok(maps) => observed.maps.extend(maps.into_iter().map(|f| MapUse {
                probe: probe(),
                map: f.name,
                entries: f.entries.into(),
                capacity: f.capacity.into(),
            })),
            Err(e) => errors.push(format!("cannot read how full its maps are: {e}")),
        }
        match maps.losses() {
            Ok(losses) => observed.series.push(SeriesUse {
                probe: probe(),
                overflowed: losses.iter().filter(|(l, _)| *l == Loss::SeriesOverflow).map(|(_, n)| n).sum(),
                evicted: 0,
                waiting: None,
            }),
            Err(e) => errors.push(format!("cannot read what was lost: {e}")),
        }
        (held.families.clone(), errors)
    }

    /// The error of the last walk; empty without one.
    pub fn failure(&self) -> String {
        lock(&self.held).failure.clone().unwrap_or_default()
    }
}

/// Requests for walks, from scrapes to the thread that walks.
#[derive(Default)]
pub(super) struct IterTrigger {
    state: Mutex<TriggerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TriggerState {
    wanted: bool,
    last: Option<Instant>,
    /// There are probes at iterators.
    active: bool,
    /// Generation of the list of probes.
    round: u64,
}

impl TriggerState {
    fn is_fresh(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() < EVERY)
    }
}

impl IterTrigger {
    /// Requests a walk, unless one began within the last second, and waits for it up to `PATIENCE`.
    pub fn refresh(&self) {
        let mut state = lock(&self.state);
        if !state.active || state.is_fresh() {
            return;
        }
        state.wanted = true;
        self.changed.notify_all();
        let waiting = |state: &mut TriggerState| state.active && !state.is_fresh();
        drop(self.changed.wait_timeout_while(state, PATIENCE, waiting).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for a request. Returns the generation.
    fn next(&self) -> u64 {
        let idle = |state: &mut TriggerState| !state.wanted;
        let mut state = self.changed.wait_while(lock(&self.state), idle).unwrap_or_else(PoisonError::into_inner);
        state.wanted = false;
        state.round
    }

    fn done(&self, begun: Instant, round: u64) {
        let mut state = lock(&self.state);
        match round == state.round {
            true => state.last = Some(begun),
            // A reload replaced the probes during the walk: a scrape may wait for the new ones.
            false => state.wanted = true,
        }
        self.changed.notify_all();
    }

    /// Sets whether there are probes to walk, and discards the last walk, which was of other probes.
    pub fn set_active(&self, active: bool) {
        let mut state = lock(&self.state);
        (state.active, state.last) = (active, None);
        state.round += 1;
        self.changed.notify_all();
    }
}

/// Starts the thread that runs iterators, which lives as long as the agent. It sleeps while no probe needs it.
pub(super) fn start(app: &Arc<App>) -> std::io::Result<()> {
    let app = app.clone();
    std::thread::Builder::new().name("iterate".into()).spawn(move || run(&app))?;
    Ok(())
}

fn run(app: &App) {
    loop {
        let round = app.iter_trigger.next();
        let begun = Instant::now();
        let walk = || {
            let probes: Vec<Arc<Iterated>> = app.probes().iter().filter_map(|probe| lock(probe).iterated()).collect();
            probes.iter().for_each(|probe| probe.walk(&app.names));
        };
        if catch_unwind(AssertUnwindSafe(walk)).is_err() {
            tracing::error!(
                "reading iterators failed: this is an error in kstrobe, please report it with the lines above"
            );
        }
        app.iter_trigger.done(begun, round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_waits_for_a_walk_but_not_for_long() {
        let iter_trigger = Arc::new(IterTrigger::default());
        let begun = Instant::now();
        iter_trigger.refresh();
        assert!(begun.elapsed() < PATIENCE, "no probes, no wait");
        iter_trigger.set_active(true);
        iter_trigger.refresh();
        assert!(begun.elapsed() >= PATIENCE, "no walker runs");
        let walker = iter_trigger.clone();
        let walks = Arc::new(AtomicU64::default());
        let walked = walks.clone();
        std::thread::spawn(move || {
            loop {
                let round = walker.next();
                walked.fetch_add(1, Ordering::SeqCst);
                walker.done(Instant::now(), round);
            }
        });
        // The first request was not answered yet: its walk may end before the next one.
        for _ in 0..5 {
            iter_trigger.refresh();
            assert!(lock(&iter_trigger.state).is_fresh());
        }
        assert_eq!(walks.load(Ordering::SeqCst), 1, "within a second all see the same walk");
    }

    #[test]
    fn a_walk_over_other_probes_is_no_answer() {
        let iter_trigger = IterTrigger::default();
        iter_trigger.set_active(true);
        iter_trigger.refresh();
        let round = iter_trigger.next();
        iter_trigger.set_active(true);
        iter_trigger.done(Instant::now(), round);
        assert!(!lock(&iter_trigger.state).is_fresh());
        let round = iter_trigger.next();
        iter_trigger.done(Instant::now(), round);
        assert!(lock(&iter_trigger.state).is_fresh());
    }
}
