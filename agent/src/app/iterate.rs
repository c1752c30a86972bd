//! Probes at iterators: their programs run once per object when somebody reads the metrics.
//!
//! A thread of its own reads them, so that a scrape waits for it only so long: a machine with a million sockets takes longer
//! to walk than a scraper waits. What was read is held for the scrapes that come soon after.

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

/// Objects are walked at most so often.
const EVERY: Duration = Duration::from_secs(1);
/// A scrape waits so long for the walk; then it shows what the one before had.
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
    /// Why it failed, if it did; then nothing is shown, as old counts are not true now.
    failure: Option<String>,
    begun: Option<Instant>,
    took: Duration,
}

impl Iterated {
    /// Ready for its first walk.
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

    /// Its maps.
    pub fn maps(&self) -> &ProbeMaps {
        self.loaded.maps()
    }

    /// The last walk, and in `observed` what this probe says of itself. Also what went wrong.
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

    /// Why it shows nothing, empty when it does.
    pub fn failure(&self) -> String {
        lock(&self.held).failure.clone().unwrap_or_default()
    }
}

/// Who wants a walk, and when the last one began.
#[derive(Default)]
pub(super) struct Demand {
    turn: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Default)]
struct Turn {
    wanted: bool,
    last: Option<Instant>,
    /// There is something to walk over, and somebody who does.
    served: bool,
    /// Which probes there are to walk over: a number that grows.
    round: u64,
}

impl Turn {
    fn is_fresh(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() < EVERY)
    }
}

impl Demand {
    /// Asks for a walk, unless one began within the last second, and waits for it, but not for long.
    pub fn fresh(&self) {
        let mut turn = lock(&self.turn);
        if !turn.served || turn.is_fresh() {
            return;
        }
        turn.wanted = true;
        self.changed.notify_all();
        let waiting = |turn: &mut Turn| turn.served && !turn.is_fresh();
        drop(self.changed.wait_timeout_while(turn, PATIENCE, waiting).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until a walk is wanted, and says in which round.
    fn next(&self) -> u64 {
        let idle = |turn: &mut Turn| !turn.wanted;
        let mut turn = self.changed.wait_while(lock(&self.turn), idle).unwrap_or_else(PoisonError::into_inner);
        turn.wanted = false;
        turn.round
    }

    fn done(&self, begun: Instant, round: u64) {
        let mut turn = lock(&self.turn);
        match round == turn.round {
            true => turn.last = Some(begun),
            // Meanwhile there are others, and somebody may wait for them.
            false => turn.wanted = true,
        }
        self.changed.notify_all();
    }

    /// Whether there is anything to walk over from now on. The last walk was over something else.
    pub fn serve(&self, served: bool) {
        let mut turn = lock(&self.turn);
        (turn.served, turn.last) = (served, None);
        turn.round += 1;
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
        let round = app.demand.next();
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
        app.demand.done(begun, round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_waits_for_a_walk_but_not_for_long() {
        let demand = Arc::new(Demand::default());
        let begun = Instant::now();
        demand.fresh();
        assert!(begun.elapsed() < PATIENCE, "nobody walks, so nobody waits");
        demand.serve(true);
        demand.fresh();
        assert!(begun.elapsed() >= PATIENCE, "nobody answers");
        let walker = demand.clone();
        let walks = Arc::new(AtomicU64::default());
        let walked = walks.clone();
        std::thread::spawn(move || {
            loop {
                let round = walker.next();
                walked.fetch_add(1, Ordering::SeqCst);
                walker.done(Instant::now(), round);
            }
        });
        // The first is the one that nobody answered; it may be done before we ask again.
        for _ in 0..5 {
            demand.fresh();
            assert!(lock(&demand.turn).is_fresh());
        }
        assert_eq!(walks.load(Ordering::SeqCst), 1, "within a second all see the same walk");
    }

    #[test]
    fn a_walk_over_other_probes_is_no_answer() {
        let demand = Demand::default();
        demand.serve(true);
        demand.fresh();
        let round = demand.next();
        demand.serve(true);
        demand.done(Instant::now(), round);
        assert!(!lock(&demand.turn).is_fresh());
        let round = demand.next();
        demand.done(Instant::now(), round);
        assert!(lock(&demand.turn).is_fresh());
    }
}
