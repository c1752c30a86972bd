//! The budgets of all probes, and the pace of the agent, which goes by the same counts.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::App;
use super::pace::{AT_REST, EARLY, GLANCE_EVERY, Quiet, Slack, until_second_ends};
use super::task::{self, Task};
use crate::probe::budget::{Cost, Share, Shares};
use crate::probe::meter;

/// Whether the agent may rest while it is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Allowed,
    Never,
}

/// Starts the thread that keeps budgets, which lives as long as the agent.
pub(super) fn start(app: Arc<App>, rest: Rest) -> std::io::Result<()> {
    let now = Instant::now();
    let quiet = (rest == Rest::Allowed).then(|| Quiet::new(app.shared.hooks.events(), now));
    // The first windows come later: the load at the start is not typical.
    task::spawn(move || Budgets {
        app,
        quiet,
        rests: false,
        slack: Slack::default(),
        looked: now,
        is_calm: true,
        all_allow_rest: true,
        suspects: false,
        least: meter::WINDOW,
    })
    .map(drop)
}

struct Budgets {
    app: Arc<App>,
    /// `None` for an agent that never rests.
    quiet: Option<Quiet>,
    rests: bool,
    slack: Slack,
    looked: Instant,
    /// No probe is sampled or suspended.
    is_calm: bool,
    /// See [`Probe::allows_rest`](crate::probe::Probe::allows_rest).
    all_allow_rest: bool,
    /// A probe seems to be above its budget, or may be: the next window is a short one.
    suspects: bool,
    /// Shortest window of probes that do not seem to be above theirs.
    least: Duration,
}

impl Task for Budgets {
    const NAME: &'static str = "budgets";

    fn run(&mut self) {
        let rested = self.rests;
        self.set_rests();
        if rested && !self.rests {
            return self.begin_anew();
        }
        let every = match (self.rests, self.suspects) {
            (true, _) => AT_REST - EARLY,
            (false, true) => meter::SHORT_WINDOW,
            (false, false) => meter::WINDOW,
        };
        if self.looked.elapsed() >= every {
            self.look();
            self.rests &= !self.suspects;
        }
    }

    fn wait(&mut self) -> ControlFlow<()> {
        self.slack.set(self.rests);
        std::thread::sleep(match self {
            Budgets { rests: true, .. } => GLANCE_EVERY,
            Budgets { suspects: true, .. } => meter::SHORT_WINDOW,
            Budgets { is_calm: true, .. } => until_second_ends(),
            // A probe that is off its hooks for a second is off them for no longer.
            _ => Duration::from_secs(1).saturating_sub(self.looked.elapsed()),
        });
        ControlFlow::Continue(())
    }
}

impl Budgets {
    fn set_rests(&mut self) {
        let Some(quiet) = &mut self.quiet else { return };
        let App { history, pace, shared, .. } = &*self.app;
        let (last_read, now) = (pace.last_read(), Instant::now());
        let read = if history.is_followed() { now } else { last_read };
        let may_rest = quiet.may_rest(shared.hooks.events(), read, now);
        self.rests = may_rest && self.is_calm && self.all_allow_rest && !self.suspects;
        pace.set_rests(self.rests, last_read);
    }

    /// Begins windows after a rest: in those of the rest a flood would be hidden by the time before it.
    fn begin_anew(&mut self) {
        self.app.probes().iter().for_each(|probe| probe.lock().forget_window());
        self.look();
        if self.quiet.as_ref().is_some_and(|quiet| !quiet.is_quiet()) {
            (self.suspects, self.least) = (true, meter::SHORT_WINDOW);
        }
    }

    /// Looks at the costs of all probes.
    fn look(&mut self) {
        let app = &self.app;
        app.shared.hooks.measure();
        let probes = app.probes();
        probes.iter().for_each(|probe| probe.lock().resume());
        // Of the windows that end now.
        let costs: Vec<Option<Cost>> = probes.iter().map(|probe| probe.lock().cost(app.entry_ns, self.least)).collect();
        let shared: Vec<Share> = probes.iter().filter_map(|probe| probe.lock().share()).collect();
        let over = probes.iter().filter(|probe| probe.lock().is_over_its_share()).count();
        let shares = Shares::of(app.budget_ppm.load(Relaxed), &shared, over as u64);
        for (probe, cost) in probes.iter().zip(&costs) {
            if let Some(cost) = cost {
                probe.lock().keep_budget(cost, &shares);
            }
        }
        self.suspects = probes.iter().any(|probe| probe.lock().suspects());
        self.is_calm = !probes.iter().any(|probe| probe.lock().is_over_its_budget());
        self.all_allow_rest = probes.iter().all(|probe| probe.lock().allows_rest());
        (self.least, self.looked) = (meter::WINDOW, Instant::now());
    }
}
