//! The budgets of all probes, and the pace of the agent, which goes by the same counts.

use std::error::Error;
use std::io::{PipeReader, Read};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::App;
use super::pace::{AT_REST, QUIET_EVENTS, QUIET_FOR, Quiet, until_second_ends};
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
        Rest::Allowed => Rests::new(&app)
            .inspect_err(|error| tracing::info!(%error, "the agent does not rest when nothing reads it"))
            .ok(),
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
    /// Fails where nothing could end a rest when many events come.
    fn new(app: &App) -> Result<Rests, Box<dyn Error + '_>> {
        let hooks = &app.shared.hooks;
        let alarm = hooks.alarm()?.reader()?;
        let (ended, end) = std::io::pipe()?;
        app.pace.write_ends(end);
        Ok(Rests { quiet: Quiet::new(hooks.events(), Instant::now()), alarm, ended })
    }

    /// Begins a rest where there are few events and reads, and no probe keeps the agent awake. Returns whether it has.
    fn begin(&mut self, app: &App, may_rest: bool) -> bool {
        let hooks = &app.shared.hooks;
        let (last_read, now) = (app.pace.last_read(), Instant::now());
        let read = if app.history.is_followed() { now } else { last_read };
        // At each look: it goes by the looks before.
        let is_quiet = self.quiet.may_rest(hooks.events(), read, now);
        let (true, Ok(alarm)) = (is_quiet && may_rest, hooks.alarm()) else { return false };
        let begins = app.pace.set_rests(true, last_read);
        if begins {
            // Of a rest that ended while a program was about to give it.
            self.alarm.drain(|_| {});
            alarm.set(QUIET_EVENTS, QUIET_FOR);
        }
        begins
    }

    /// Waits until the rest has ended or many events have come; `None` when the time is over.
    fn wait(&self, time: Duration) -> Option<Rested> {
        let alarm = self.alarm.ready().iter().map(|file| file.as_fd());
        let files: Vec<_> = [self.ended.as_fd()].into_iter().chain(alarm).collect();
        match wait(&files, time).as_deref() {
            Ok([true, ..]) => Some(Rested::UntilRead),
            Ok(files) => files.contains(&true).then_some(Rested::UntilFlood),
            Err(error) => {
                tracing::error!(%error, "cannot wait for the end of a rest");
                std::thread::sleep(Duration::from_secs(1));
                Some(Rested::UntilFlood)
            }
        }
    }

    /// Ends the rest, if there is one.
    fn end(&mut self, app: &App, rested: Rested) {
        if let Ok(alarm) = app.shared.hooks.alarm() {
            alarm.clear();
        }
        app.pace.set_rests(false, app.pace.last_read());
        if wait(&[self.ended.as_fd()], Duration::ZERO).is_ok_and(|ready| ready == [true]) {
            let _ = self.ended.read(&mut [0; 64]);
        }
        if rested == Rested::UntilFlood {
            self.quiet = Quiet::new(app.shared.hooks.events(), Instant::now());
        }
    }
}

/// Why a rest is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rested {
    UntilRead,
    /// Or a probe seems to be above its budget.
    UntilFlood,
}

impl Task for Budgets {
    const NAME: &'static str = "budgets";

    fn run(&mut self) {
        if let Some(rested) = self.rest() {
            return self.begin_anew(rested);
        }
        let every = if self.suspects { meter::SHORT_WINDOW } else { meter::WINDOW };
        if self.looked.elapsed() >= every {
            self.look();
        }
    }

    fn panicked(&mut self) {
        if let Some(rests) = &mut self.rests {
            rests.end(&self.app, Rested::UntilFlood);
        }
        std::thread::sleep(task::AFTER_A_PANIC);
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
    /// As far as the probes go.
    fn may_rest(&self) -> bool {
        self.is_calm && self.all_allow_rest && !self.suspects
    }

    /// Rests where that is allowed, until something is read, many events come or a probe seems to be above its budget.
    fn rest(&mut self) -> Option<Rested> {
        let may_rest = self.may_rest();
        if !self.rests.as_mut()?.begin(&self.app, may_rest) {
            return None;
        }
        let rested = loop {
            if let Some(rested) = self.rests.as_ref()?.wait(AT_REST) {
                break rested;
            }
            self.look();
            if !self.may_rest() {
                break Rested::UntilFlood;
            }
        };
        self.rests.as_mut()?.end(&self.app, rested);
        // Their thread looks seldom at rest.
        self.app.wake_events();
        Some(rested)
    }

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
