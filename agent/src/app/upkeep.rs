//! What has to be done without anybody asking: polls that are due, keys whose time has come, and short windows in which
//! the kernel counts what our programs cost.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::probe::Running;
use super::{App, lock};
use crate::binaries::find::World;
use crate::kernel::sys::prog as sys;

/// Counting run time costs each program two clock reads per event: it is on for a moment in every half minute.
const STATS_EVERY: Duration = Duration::from_secs(30);
const STATS_FOR: Duration = Duration::from_secs(1);
/// After a fault of our own: not at once, it may last.
const AFTER_A_FAULT: Duration = Duration::from_secs(5);

/// The thread that does it.
pub(super) struct Upkeep {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Upkeep {
    /// Ends it.
    pub fn stop(self) {
        // A thread that is gone already needs no telling.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

pub(super) fn start(app: Arc<App>) -> std::io::Result<Upkeep> {
    let (stop, stopped) = channel();
    let thread = std::thread::Builder::new().name("upkeep".into()).spawn(move || run(&app, &stopped))?;
    Ok(Upkeep { stop, thread })
}

fn run(app: &App, stopped: &Receiver<()>) {
    let mut stats = Stats::new();
    loop {
        // Polls that silently stop would go on showing their last values as if they were new.
        let turn = catch_unwind(AssertUnwindSafe(|| attend_all(app)));
        let next = turn.unwrap_or_else(|_| {
            tracing::error!("upkeep failed: this is an error in kstrobe, please report it with the lines above");
            Some(Instant::now() + AFTER_A_FAULT)
        });
        let stats = stats.turn();
        let next = next.map_or(stats, |next| next.min(stats));
        match stopped.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Attends to the probes that are due, and says when the next one is.
fn attend_all(app: &App) -> Option<Instant> {
    // The processes that run now, looked at once for all probes that ask.
    let mut world = None;
    app.probes.iter().filter_map(|probe| attend(app, probe, &mut world)).min()
}

fn attend(app: &App, probe: &Mutex<Running>, world: &mut Option<World>) -> Option<Instant> {
    let due = lock(probe).due()?;
    if Instant::now() < due {
        return Some(due);
    }
    let mut names = lock(&app.names);
    let mut running = lock(probe);
    running.attend(&mut names, world, &app.telemetry);
    running.due()
}

/// The windows in which run time is counted.
struct Stats {
    on: Option<OwnedFd>,
    next: Instant,
    refused: bool,
}

impl Stats {
    fn new() -> Stats {
        // Not at once: what runs at the start is not typical of what runs later.
        Stats { on: None, next: Instant::now() + STATS_EVERY / 2, refused: false }
    }

    /// Opens or closes a window when it is time, and says when it will be again.
    fn turn(&mut self) -> Instant {
        if Instant::now() < self.next {
            return self.next;
        }
        let pause = if self.on.take().is_some() || self.refused {
            STATS_EVERY - STATS_FOR
        } else {
            match sys::enable_stats() {
                Ok(on) => self.on = Some(on),
                Err(reason) => {
                    self.refused = true;
                    tracing::warn!(%reason, "program run times are not measured: it takes CAP_SYS_ADMIN");
                }
            }
            STATS_FOR
        };
        self.next = Instant::now() + pause;
        self.next
    }
}
