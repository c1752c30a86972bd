//! Periodic work: polls, expiry of keys, and short windows of the kernel's run-time statistics.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::task::{self, Task};
use super::{App, stacks};
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::kernel::sys::prog as sys;
use crate::probe::budget::{Cost, Shares};
use crate::probe::lock::ProbeLock;

/// Counting run time costs each program two readings of the clock per event (20 to 120 ns, see
/// [`sys::empty_run_ns`]): it is on for a tenth of the time.
const EVERY: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(100);
/// Until the next window when a probe seems to be above its budget.
const SOON: Duration = Duration::from_millis(300);
/// Retry interval after EPERM.
const AFTER_A_REFUSAL: Duration = Duration::from_secs(3600);
/// Longest pause: a reload adds probes without waking this thread.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Life of a process snapshot.
const SNAPSHOT_LIFE: Duration = Duration::from_secs(1);

/// Starts the housekeeping thread, which lives as long as the agent.
pub(super) fn start(app: Arc<App>) -> std::io::Result<()> {
    let (windows, cache) = (Windows::new(), SnapshotCache::default());
    task::spawn(move || Housekeeping { app, windows, cache, next: Instant::now() }).map(drop)
}

struct Housekeeping {
    app: Arc<App>,
    windows: Windows,
    cache: SnapshotCache,
    next: Instant,
}

impl Task for Housekeeping {
    const NAME: &'static str = "housekeeping";

    fn run(&mut self) {
        let next = tick_all(&self.app, &mut self.cache);
        let window = self.windows.turn(&self.app);
        self.next = next.map_or(window, |next| next.min(window));
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

/// The windows of run-time statistics, for all probes at once.
struct Windows {
    /// `BPF_ENABLE_STATS` lasts as long as this descriptor is open.
    on: Option<OwnedFd>,
    open: bool,
    next: Instant,
    /// Run time that the kernel counts for an empty program, in nanoseconds, once measured.
    clock_ns: Option<u64>,
}

impl Windows {
    fn new() -> Windows {
        // The first window comes later: the load at the start is not typical.
        Windows { on: None, open: false, next: Instant::now() + EVERY, clock_ns: None }
    }

    /// Opens or closes a window when it is due. Returns when the next change is due.
    fn turn(&mut self, app: &App) -> Instant {
        if Instant::now() < self.next {
            return self.next;
        }
        let pause = if std::mem::take(&mut self.open) {
            let clock_ns = self.clock_ns.unwrap_or(0);
            let probes = app.probes();
            let costs: Vec<Option<Cost>> = probes.iter().map(|probe| probe.lock().close_window(clock_ns)).collect();
            let used = || probes.iter().zip(&costs).filter_map(|(probe, cost)| Some((probe, cost.as_ref()?)));
            let shared = used().filter(|(probe, _)| probe.lock().shares_budget()).map(|(_, cost)| cost.ppm());
            let shares = Shares::of(app.budget_ppm.load(Relaxed), shared.collect());
            used().for_each(|(probe, cost)| probe.lock().keep_budget(cost, &shares));
            self.on = None;
            let soon = probes.iter().any(|probe| probe.lock().suspects());
            if soon { SOON } else { EVERY - WINDOW }
        } else {
            app.probes().iter().for_each(|probe| probe.lock().resume());
            self.begin(app)
        };
        self.next = Instant::now() + pause;
        self.next
    }

    fn begin(&mut self, app: &App) -> Duration {
        let probes = app.probes();
        if !probes.iter().any(|probe| probe.lock().is_metered()) {
            return EVERY;
        }
        match sys::enable_stats() {
            Ok(on) => self.on = Some(on),
            Err(_) if sys::stats_are_always_on() => {}
            Err(reason) => {
                tracing::warn!(
                    %reason,
                    "program cost is not measured and budgets are not enforced: run-time statistics need CAP_SYS_ADMIN or \
                     kernel.bpf_stats_enabled=1"
                );
                return AFTER_A_REFUSAL;
            }
        }
        if self.clock_ns.is_none() {
            self.clock_ns = Some(sys::empty_run_ns().unwrap_or(0));
            tracing::debug!(clock_ns = self.clock_ns, "run time of an empty program");
        }
        probes.iter().for_each(|probe| probe.lock().open_window());
        self.open = true;
        WINDOW
    }
}
