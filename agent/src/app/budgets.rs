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

/// Events a second that take a millionth of a CPU, if each takes 200 ns: reaching its hook, and a probe that measures it. Probes that take
/// more are noticed at the next look.
const MAX_EVENTS_PER_PPM: u64 = 5;
/// A flood is noticed within twice this time.
const FLOOD_FOR: Duration = Duration::from_millis(100);
/// Between two alarms: bursts that take less than the budget may come all the time.
const ALARM_EVERY: Duration = Duration::from_secs(10);

/// Whether the agent may rest while it is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Allowed,
    Never,
}

/// Starts the thread that keeps budgets, which lives as long as the agent.
pub(super) fn start(app: Arc<App>, rest: Rest) -> std::io::Result<()> {
    let alarm = AlarmReader::new(&app)
        .inspect_err(|error| tracing::info!(%error, "floods are noticed once a second, and the agent never rests"))
        .ok();
    let rests = match (rest, &alarm) {
        (Rest::Allowed, Some(_)) => Some(Rests::new(&app)?),
        _ => None,
    };
    // The first windows come later: the load at the start is not typical.
    task::spawn(move || Budgets {
        app,
        alarm,
        rests,
        looked: Instant::now(),
        expects_flood: false,
        alarmed: None,
        is_flood: false,
        is_calm: true,
        all_allow_rest: true,
        suspects: false,
        least: meter::WINDOW,
    })
    .map(drop)
}

struct Budgets {
    app: Arc<App>,
    /// `None` on kernels without ring buffers.
    alarm: Option<AlarmReader>,
    /// `None` for an agent that never rests.
    rests: Option<Rests>,
    looked: Instant,
    /// The alarm is set.
    expects_flood: bool,
    /// When it was given last.
    alarmed: Option<Instant>,
    /// It was given since the last look.
    is_flood: bool,
    /// No probe is sampled or suspended.
    is_calm: bool,
    /// See [`Probe::allows_rest`](crate::probe::Probe::allows_rest).
    all_allow_rest: bool,
    /// A probe seems to be above its budget, or may be: the next window is a short one.
    suspects: bool,
    /// Shortest window of probes that do not seem to be above theirs.
    least: Duration,
}

/// What the programs send when many events have come.
struct AlarmReader(Buffers);

impl AlarmReader {
    fn new(app: &App) -> Result<AlarmReader, Box<dyn Error + '_>> {
        Ok(AlarmReader(app.shared.hooks.alarm()?.reader()?))
    }

    /// Lets the programs give the alarm, once.
    fn set(&mut self, app: &App, events: u64, within: Duration) {
        if let Ok(alarm) = app.shared.hooks.alarm() {
            // One that a program was about to give.
            self.0.drain(|_| {});
            alarm.set(events, within);
        }
    }

    fn clear(app: &App) {
        if let Ok(alarm) = app.shared.hooks.alarm() {
            alarm.clear();
        }
    }

    /// Waits until the alarm is given or this file is readable; `None` when the time is over.
    fn wait(&self, ended: Option<&PipeReader>, time: Duration) -> Option<Rested> {
        let alarm = self.0.ready().iter().map(|file| file.as_fd());
        let files: Vec<_> = alarm.chain(ended.map(|file| file.as_fd())).collect();
        match wait(&files, time).as_deref() {
            Ok([.., true]) if ended.is_some() => Some(Rested::UntilRead),
            Ok(files) => files.contains(&true).then_some(Rested::UntilFlood),
            Err(error) => {
                tracing::error!(%error, "cannot wait for events");
                std::thread::sleep(Duration::from_secs(1));
                Some(Rested::UntilFlood)
            }
        }
    }
}

/// When the agent rests.
struct Rests {
    quiet: Quiet,
    /// Readable when a rest has ended.
    ended: PipeReader,
}

impl Rests {
    fn new(app: &App) -> std::io::Result<Rests> {
        let (ended, end) = std::io::pipe()?;
        app.pace.write_ends(end);
        Ok(Rests { quiet: Quiet::new(app.shared.hooks.events(), Instant::now()), ended })
    }

    /// Begins a rest where there are few events and reads, and no probe keeps the agent awake. Returns whether it has.
    fn begin(&mut self, app: &App, alarm: &mut AlarmReader, may_rest: bool) -> bool {
        let hooks = &app.shared.hooks;
        let (last_read, now) = (app.pace.last_read(), Instant::now());
        let read = if app.history.is_followed() { now } else { last_read };
        // At each look: it goes by the looks before.
        let is_quiet = self.quiet.may_rest(hooks.events(), read, now);
        let begins = is_quiet && may_rest && app.pace.set_rests(true, last_read);
        if begins {
            alarm.set(app, QUIET_EVENTS, QUIET_FOR);
        }
        begins
    }

    /// Ends the rest, if there is one.
    fn end(&mut self, app: &App, rested: Rested) {
        AlarmReader::clear(app);
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
        if std::mem::take(&mut self.is_flood) {
            self.alarmed = Some(Instant::now());
            return self.begin_anew(Rested::UntilFlood);
        }
        let every = if self.suspects { meter::SHORT_WINDOW } else { meter::WINDOW };
        if self.looked.elapsed() >= every {
            self.look();
            self.set_alarm();
        }
    }

    fn panicked(&mut self) {
        if let Some(rests) = &mut self.rests {
            rests.end(&self.app, Rested::UntilFlood);
        }
        std::thread::sleep(task::AFTER_A_PANIC);
    }

    fn wait(&mut self) -> ControlFlow<()> {
        let time = match self {
            Budgets { suspects: true, .. } => meter::SHORT_WINDOW,
            Budgets { is_calm: true, .. } => until_second_ends(),
            // A probe that is off its hooks for a second is off them for no longer.
            _ => Duration::from_secs(1).saturating_sub(self.looked.elapsed()),
        };
        match &self.alarm {
            Some(alarm) if self.expects_flood => self.is_flood = alarm.wait(None, time).is_some(),
            _ => std::thread::sleep(time),
        }
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
        let (rests, alarm) = (self.rests.as_mut()?, self.alarm.as_mut()?);
        if !rests.begin(&self.app, alarm, may_rest) {
            return None;
        }
        let rested = loop {
            let ended = self.rests.as_ref().map(|rests| &rests.ended);
            if let Some(rested) = self.alarm.as_ref()?.wait(ended, AT_REST) {
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

    /// Begins windows after a rest or with a flood: the time before would hide a flood. Those go on that say nothing yet.
    fn begin_anew(&mut self, rested: Rested) {
        for probe in self.app.probes().iter() {
            let _unjudged = probe.lock().cost(self.app.entry_cost, Duration::ZERO);
        }
        self.look();
        if rested == Rested::UntilFlood {
            (self.suspects, self.least) = (true, meter::SHORT_WINDOW);
        }
        self.set_alarm();
    }

    /// Lets the kernel wake the agent when so many events come that they may take the budget, but not while windows are short or probes are
    /// sampled.
    fn set_alarm(&mut self) {
        let Some(alarm) = &mut self.alarm else { return };
        let most = self.app.budget_ppm.load(Relaxed).saturating_mul(MAX_EVENTS_PER_PPM);
        let was_given = self.alarmed.is_some_and(|at| at.elapsed() < ALARM_EVERY);
        self.expects_flood = self.is_calm && !self.suspects && !was_given && most > 0;
        match self.expects_flood {
            true => alarm.set(&self.app, most.saturating_mul(FLOOD_FOR.as_millis() as u64) / 1000, FLOOD_FOR),
            false => AlarmReader::clear(&self.app),
        }
    }

    /// Looks at the costs of all probes.
    fn look(&mut self) {
        let app = &self.app;
        app.shared.hooks.measure();
        let probes = app.probes();
        probes.iter().for_each(|probe| probe.lock().resume());
        // Of the windows that end now.
        let costs: Vec<Option<Cost>> =
            probes.iter().map(|probe| probe.lock().cost(app.entry_cost, self.least)).collect();
        let shared: Vec<Share> = probes.iter().filter_map(|probe| probe.lock().share()).collect();
        let over = probes.iter().filter(|probe| probe.lock().is_over_its_share()).count();
        let shares = Shares::of(app.budget_ppm.load(Relaxed), &shared, over as u64);
        for (probe, cost) in probes.iter().zip(&costs) {
            probe.lock().keep_budget(cost.as_ref(), &shares);
        }
        self.suspects = probes.iter().any(|probe| probe.lock().suspects());
        self.is_calm = !probes.iter().any(|probe| probe.lock().is_over_its_budget());
        self.all_allow_rest = probes.iter().all(|probe| probe.lock().allows_rest());
        (self.least, self.looked) = (meter::WINDOW, Instant::now());
    }
}
