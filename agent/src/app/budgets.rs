//! The budgets of all probes, and the pace of the agent, which goes by the same counts.

use std::io::{PipeReader, Read};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::App;
use super::pace::{QUIET_EVENTS, QUIET_FOR, Quiet, until_second_ends};
use super::task::{self, Task};
use crate::kernel::events::{Buffers, wait};
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
    let rests = match rest {
        Rest::Allowed => Rests::new(&app),
        Rest::Never => None,
    };
    // The first windows come later: the load at the start is not typical.
    task::spawn(move || Budgets {
        app,
        rests,
        looked: Instant::now(),
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
    rests: Option<Rests>,
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

/// When the agent rests.
struct Rests {
    quiet: Quiet,
    /// Readable when many events have come.
    alarm: Buffers,
    /// Readable when a rest has ended.
    ended: PipeReader,
}

impl Rests {
    /// `None` where nothing could end a rest when many events come.
    fn new(app: &App) -> Option<Rests> {
        let hooks = &app.shared.hooks;
        let alarm = hooks.alarm()?.reader().inspect_err(|error| tracing::error!(%error, "the agent cannot rest"));
        let pipe = std::io::pipe().inspect_err(|error| tracing::error!(%error, "the agent cannot rest"));
        let (alarm, (ended, end)) = (alarm.ok()?, pipe.ok()?);
        app.pace.write_ends(end);
        Some(Rests { quiet: Quiet::new(hooks.events(), Instant::now()), alarm, ended })
    }

    /// Looks at the events and reads so far. Where there are few, and no probe keeps the agent awake, it rests, and this returns when it
    /// has. Costs are not looked at meanwhile: few events cost little.
    fn look(&mut self, app: &App, may_rest: bool) -> Option<Rested> {
        let hooks = &app.shared.hooks;
        let (last_read, now) = (app.pace.last_read(), Instant::now());
        let read = if app.history.is_followed() { now } else { last_read };
        let is_unread = self.quiet.may_rest(hooks.events(), read, now);
        let alarm = hooks.alarm().filter(|_| is_unread && may_rest)?;
        // Of a rest before, whose end was written while a program was about to give it.
        self.alarm.drain(|_| {});
        alarm.set(QUIET_EVENTS, QUIET_FOR);
        let rested = app.pace.set_rests(true, last_read).then(|| self.wait());
        alarm.clear();
        app.pace.set_rests(false, last_read);
        let rested = rested?;
        // Each rest's end is written once.
        let _ = self.ended.read(&mut [0; 64]);
        if rested == Rested::UntilFlood {
            self.quiet = Quiet::new(hooks.events(), Instant::now());
        }
        Some(rested)
    }

    /// Waits until the rest has ended or many events have come.
    fn wait(&self) -> Rested {
        let alarm = self.alarm.ready().iter().map(|file| file.as_fd());
        let files: Vec<_> = [self.ended.as_fd()].into_iter().chain(alarm).collect();
        loop {
            match wait(&files, Duration::MAX).as_deref() {
                Ok([true, ..]) => return Rested::UntilRead,
                Ok(files) if files.contains(&true) => return Rested::UntilFlood,
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for the end of a rest");
                    std::thread::sleep(Duration::from_secs(1));
                    return Rested::UntilFlood;
                }
            }
        }
    }
}

/// Why a rest is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rested {
    UntilRead,
    UntilFlood,
}

impl Task for Budgets {
    const NAME: &'static str = "budgets";

    fn run(&mut self) {
        let may_rest = self.is_calm && self.all_allow_rest && !self.suspects;
        if let Some(rested) = self.rests.as_mut().and_then(|rests| rests.look(&self.app, may_rest)) {
            return self.begin_anew(rested);
        }
        let every = if self.suspects { meter::SHORT_WINDOW } else { meter::WINDOW };
        if self.looked.elapsed() >= every {
            self.look();
        }
    }

    fn wait(&mut self) -> ControlFlow<()> {
        std::thread::sleep(match self {
            Budgets { suspects: true, .. } => meter::SHORT_WINDOW,
            Budgets { is_calm: true, .. } => until_second_ends(),
            // A probe that is off its hooks for a second is off them for no longer.
            _ => Duration::from_secs(1).saturating_sub(self.looked.elapsed()),
        });
        ControlFlow::Continue(())
    }
}

impl Budgets {
    /// Begins windows after a rest: in those of the rest a flood would be hidden by the time before it.
    fn begin_anew(&mut self, rested: Rested) {
        self.app.probes().iter().for_each(|probe| probe.lock().forget_window());
        self.look();
        if rested == Rested::UntilFlood {
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
