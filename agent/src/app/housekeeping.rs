//! Periodic work: polls, expiry of keys, and budgets.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::task::{self, Task};
use super::{App, stacks};
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::probe::budget::{Cost, Share, Shares};
use crate::probe::lock::ProbeLock;
use crate::probe::meter;

/// Longest pause: a reload adds probes without waking this thread.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Life of a process snapshot.
const SNAPSHOT_LIFE: Duration = Duration::from_secs(1);

/// Starts the housekeeping thread, which lives as long as the agent.
pub(super) fn start(app: Arc<App>) -> std::io::Result<()> {
    let (budgets, cache) = (Budgets::new(), SnapshotCache::default());
    task::spawn(move || Housekeeping { app, budgets, cache, next: Instant::now() }).map(drop)
}

struct Housekeeping {
    app: Arc<App>,
    budgets: Budgets,
    cache: SnapshotCache,
    next: Instant,
}

impl Task for Housekeeping {
    const NAME: &'static str = "housekeeping";

    fn run(&mut self) {
        let next = tick_all(&self.app, &mut self.cache);
        let look = self.budgets.look(&self.app);
        self.next = next.map_or(look, |next| next.min(look));
    }

    fn wait(&mut self) -> ControlFlow<()> {
        std::thread::sleep(self.next.saturating_duration_since(Instant::now()).min(LONGEST_PAUSE));
        ControlFlow::Continue(())
    }
}

/// Runs the periodic work of probes that are due. Returns when the next one is.
fn tick_all(app: &App, cache: &mut SnapshotCache) -> Option<Instant> {
    app.probes().iter().filter_map(|probe| tick(app, probe, cache)).min()
}

fn tick(app: &App, probe: &ProbeLock, cache: &mut SnapshotCache) -> Option<Instant> {
    let looks = {
        let running = probe.lock();
        let due = running.due()?;
        if Instant::now() < due {
            return Some(due);
        }
        running.needs_processes()
    };
    // Before anything is locked that a scrape waits for.
    let processes = looks.map(|by_name| cache.look(by_name));
    let mut names = app.names.lock();
    let mut running = probe.lock();
    running.tick(&mut names, processes, &app.telemetry);
    let (due, unseen) = (running.due(), running.take_unseen());
    drop((running, names));
    stacks::learn(probe, unseen);
    due
}

/// One process snapshot for all probes.
#[derive(Default)]
struct SnapshotCache(Option<(ProcessSnapshot, Instant)>);

impl SnapshotCache {
    fn look(&mut self, by_name: bool) -> &ProcessSnapshot {
        let seen = match self.0.take() {
            Some((processes, at)) if at.elapsed() < SNAPSHOT_LIFE => (processes, at),
            Some((processes, _)) => (processes.look_again(), Instant::now()),
            None => (ProcessSnapshot::look(), Instant::now()),
        };
        let (processes, _) = self.0.insert(seen);
        if by_name {
            processes.read_code();
        }
        processes
    }
}

/// The budgets of all probes.
struct Budgets {
    next: Instant,
}

impl Budgets {
    fn new() -> Budgets {
        // The first windows come later: the load at the start is not typical.
        Budgets { next: Instant::now() + meter::WINDOW }
    }

    /// Looks at the costs when that is due. Returns when it is the next time.
    fn look(&mut self, app: &App) -> Instant {
        if Instant::now() < self.next {
            return self.next;
        }
        app.shared.hooks.measure();
        let probes = app.probes();
        probes.iter().for_each(|probe| probe.lock().resume());
        // Of the windows that end now.
        let costs: Vec<Option<Cost>> = probes.iter().map(|probe| probe.lock().cost(app.entry_ns)).collect();
        let shared: Vec<Share> = probes.iter().filter_map(|probe| probe.lock().share()).collect();
        let over = probes.iter().filter(|probe| probe.lock().is_over_its_share()).count();
        let shares = Shares::of(app.budget_ppm.load(Relaxed), &shared, over as u64);
        for (probe, cost) in probes.iter().zip(&costs) {
            if let Some(cost) = cost {
                probe.lock().keep_budget(cost, &shares);
            }
        }
        let soon = probes.iter().any(|probe| probe.lock().suspects());
        self.next = Instant::now() + if soon { meter::SHORT_WINDOW } else { meter::WINDOW };
        self.next
    }
}
