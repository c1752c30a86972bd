//! The thread that lets rules look at what is measured.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{App, lock};
use crate::rules::desk::Desk;
use crate::telemetry::Observed;
use kstrobe_export::snapshot::Moment;

/// After a fault of our own, which may last; also the longest pause, as rules come with a new configuration.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The thread.
pub(super) struct Rules {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Rules {
    /// Ends it.
    pub fn stop(self) {
        // A thread that is gone already needs no telling.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// Starts it. It does little while no rule looks.
pub(super) fn start(app: &Arc<App>) -> std::io::Result<Rules> {
    let (stop, stopped) = channel();
    let app = app.clone();
    let thread = std::thread::Builder::new().name("rules".into()).spawn(move || run(&app, &stopped))?;
    Ok(Rules { stop, thread })
}

fn run(app: &App, stopped: &Receiver<()>) {
    loop {
        let next = catch_unwind(AssertUnwindSafe(|| {
            let desk = app.desk()?;
            let (next, metrics) = desk.due(Instant::now());
            if metrics.is_empty() {
                return next;
            }
            app.show(&desk, &metrics);
            desk.due(Instant::now()).0
        }));
        let next = next.unwrap_or_else(|_| {
            tracing::error!("rules failed: this is an error in kstrobe, please report it with the lines above");
            None
        });
        let pause = next.map_or(LONGEST_PAUSE, |next| next.saturating_duration_since(Instant::now()));
        match stopped.recv_timeout(pause.min(LONGEST_PAUSE)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl App {
    /// Reads the probes that have these metrics, and no others.
    fn show(&self, desk: &Desk, metrics: &[String]) {
        let wanted = |probe: &super::Running| probe.metrics().any(|name| metrics.iter().any(|wanted| wanted == name));
        let walks = |probe: &super::Running| wanted(probe) && probe.iterated().is_some();
        if self.probes().iter().any(|probe| walks(&lock(probe))) {
            self.demand.fresh();
        }
        let now = Moment::now();
        let mut families = Vec::new();
        {
            let mut names = lock(&self.names);
            // What probes say of themselves belongs into expositions.
            let mut unused = Observed::default();
            for probe in self.probes().iter() {
                let mut running = lock(probe);
                if wanted(&running) {
                    families.append(&mut running.scrape(&mut names, now, &mut unused, &self.telemetry));
                }
            }
        }
        families.retain(|family| metrics.contains(&family.about.name));
        desk.look(&families, now);
    }
}
