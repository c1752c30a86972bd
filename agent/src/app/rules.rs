//! The thread that evaluates rules.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use super::App;
use super::pace::Seen;
use super::task::{self, Task};
use crate::capture::rules::engine::RuleEngine;
use crate::metrics::telemetry::Observed;
use kstrobe_export::snapshot::Moment;

/// Starts the thread of the rules, which lives as long as the agent. It sleeps while no rule has a condition.
pub(super) fn start(app: &Arc<App>) -> std::io::Result<()> {
    let app = app.clone();
    task::spawn(move || Rules { app, next: None, seen: Seen::default() }).map(drop)
}

struct Rules {
    app: Arc<App>,
    next: Option<Instant>,
    seen: Seen,
}

impl Task for Rules {
    const NAME: &'static str = "rules";

    fn run(&mut self) {
        self.next = None;
        let Some(rules) = self.app.rules() else { return };
        let (next, metrics) = rules.due(Instant::now());
        self.next = next;
        if !metrics.is_empty() {
            self.app.show(&rules, &metrics);
            self.next = rules.due(Instant::now()).0;
        }
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
    /// Reads the probes that have these metrics, and no others.
    fn show(&self, rules: &RuleEngine, metrics: &[String]) {
        self.end_rest();
        let wanted = |probe: &super::Probe| probe.metrics().any(|name| metrics.iter().any(|wanted| wanted == name));
        let walks = |probe: &super::Probe| wanted(probe) && probe.iterator().is_some();
        if self.probes().iter().any(|probe| walks(&probe.lock())) {
            self.iter_trigger.refresh();
        }
        let now = Moment::now();
        let mut families = Vec::new();
        {
            let mut names = self.names.lock();
            // The agent's own metrics are observed by scrapes only.
            let mut unused = Observed::default();
            for probe in self.probes().iter() {
                let mut running = probe.lock();
                if wanted(&running) {
                    families.append(&mut running.scrape(&mut names, now, &mut unused, &self.telemetry));
                }
            }
        }
        families.retain(|family| metrics.contains(&family.about.name));
        rules.look(&families, now);
    }
}
