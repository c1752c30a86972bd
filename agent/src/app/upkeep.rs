//! What has to be done without anybody asking: polls that are due, keys whose time has come, and short windows in which
//! the kernel counts what our programs cost.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::probe::Engine;
use super::{App, lock};
use crate::kernel::sys::prog as sys;
use crate::metrics::snapshot::Moment;

/// How often keys are looked at: well below any sensible time to live.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Counting run time costs each program two clock reads per event: it is on for a moment in every half minute.
const STATS_EVERY: Duration = Duration::from_secs(30);
const STATS_FOR: Duration = Duration::from_secs(1);

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

pub(super) fn start(app: Arc<App>) -> Upkeep {
    let (stop, stopped) = channel();
    let thread = std::thread::spawn(move || run(&app, &stopped));
    Upkeep { stop, thread }
}

fn run(app: &App, stopped: &Receiver<()>) {
    let mut sweep = Instant::now() + SWEEP_EVERY;
    let mut stats = Stats::new();
    loop {
        let polls = poll_due(app);
        if Instant::now() >= sweep {
            sweep = Instant::now() + SWEEP_EVERY;
            sweep_all(app);
        }
        let next = polls.into_iter().chain([sweep, stats.turn()]).min().unwrap_or(sweep);
        match stopped.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Reads the polls that are due, and says when the next one is.
fn poll_due(app: &App) -> Option<Instant> {
    let mut next = None;
    for probe in &app.probes {
        let mut running = lock(probe);
        let Engine::Poll(poll) = &mut running.engine else { continue };
        if Instant::now() >= poll.due {
            let failed_before = poll.failure.is_some();
            poll.read(&mut lock(&app.names));
            if let Some(reason) = &poll.failure {
                app.telemetry.poll_failed(poll.source());
                if !failed_before {
                    tracing::error!(source = poll.source(), reason, "poll failed");
                }
            }
        }
        next = Some(next.map_or(poll.due, |n: Instant| n.min(poll.due)));
    }
    next
}

fn sweep_all(app: &App) {
    let now = Moment::now();
    for probe in &app.probes {
        let mut names = lock(&app.names);
        let mut running = lock(probe);
        let name = running.outline.name.clone();
        if let Engine::Attached(attached) = &mut running.engine {
            for reason in attached.sweep(&mut names, now) {
                tracing::error!(probe = name, reason, "cannot sweep");
            }
        }
    }
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
