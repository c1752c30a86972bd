//! Periodic work: polls, expiry of keys, and new files to hook.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pace::Seen;
use super::task::{self, Task};
use super::{App, stacks};
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::probe::lock::ProbeLock;

/// Polls that are due within this time are made at once: each pause ends with a wake of the CPU.
const TOGETHER: Duration = Duration::from_millis(50);

/// Life of a process snapshot.
const SNAPSHOT_LIFE: Duration = Duration::from_secs(1);

/// Starts the housekeeping thread, which lives as long as the agent.
pub(super) fn start(app: Arc<App>) -> std::io::Result<()> {
    let (cache, seen) = (SnapshotCache::default(), Seen::default());
    task::spawn(move || Housekeeping { app, cache, next: None, seen }).map(drop)
}

struct Housekeeping {
    app: Arc<App>,
    cache: SnapshotCache,
    /// When something is due, if ever.
    next: Option<Instant>,
    seen: Seen,
}

impl Task for Housekeeping {
    const NAME: &'static str = "housekeeping";

    fn run(&mut self) {
        self.next = tick_all(&self.app, &mut self.cache);
    }

    fn panicked(&mut self) {
        std::thread::sleep(task::AFTER_A_PANIC);
        self.next = Some(Instant::now());
    }

    fn wait(&mut self) -> ControlFlow<()> {
        self.app.pace.wait(&mut self.seen, self.next);
        ControlFlow::Continue(())
    }
}

impl App {
    /// Ends the agent's rest before a read, with the work that it has put off.
    pub(super) fn end_rest(&self) {
        self.pace.read();
        self.catch_up();
    }

    /// Does the work that a rest has put off.
    pub(super) fn catch_up(&self) {
        for probe in self.probes().iter().filter(|probe| probe.lock().is_put_off()) {
            tick(self, probe, &mut SnapshotCache::default(), false);
        }
    }
}

/// Runs the periodic work of probes that are due. Returns when the next one is.
fn tick_all(app: &App, cache: &mut SnapshotCache) -> Option<Instant> {
    let rests = app.pace.rests();
    app.probes().iter().filter_map(|probe| tick(app, probe, cache, rests)).min()
}

fn tick(app: &App, probe: &ProbeLock, cache: &mut SnapshotCache, rests: bool) -> Option<Instant> {
    let looks = {
        let running = probe.lock();
        let due = running.due(rests)?;
        if Instant::now() + TOGETHER < due {
            return Some(due);
        }
        running.needs_processes()
    };
    // Before anything is locked that a scrape waits for.
    let processes = looks.map(|by_name| cache.look(by_name));
    let mut names = app.names.lock();
    let mut running = probe.lock();
    // Another thread may have done it meanwhile.
    if let Some(due) = running.due(rests).filter(|due| Instant::now() + TOGETHER < *due) {
        return Some(due);
    }
    let is_replaced = running.tick(&mut names, processes, &app.telemetry);
    let (due, unseen, has_events) = (running.due(rests), running.take_unseen(), running.has_unread_events());
    drop((running, names));
    if is_replaced {
        // The new probe may not allow a rest.
        app.pace.read();
    }
    if is_replaced || has_events {
        app.wake_events();
    }
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
