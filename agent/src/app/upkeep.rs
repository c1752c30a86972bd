//! What has to be done without anybody asking: polls that are due, keys whose time has come, and short windows in which
//! the kernel counts what our programs cost.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::probe::Running;
use super::{App, lock, stacks};
use crate::kernel::binaries::find::World;
use crate::kernel::sys::prog as sys;

/// Counting run time costs each program two readings of the clock per event (20 to 120 ns, see
/// [`sys::empty_run_ns`]): it is on for a tenth of the time.
const EVERY: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(100);
/// Until the next window when a probe seems to be above its budget.
const SOON: Duration = Duration::from_millis(300);
/// Rights do not come back often.
const AFTER_A_REFUSAL: Duration = Duration::from_secs(3600);
/// Longest pause: probes come with a new configuration, and nobody says so.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After a fault of our own: not at once, it may last.
const AFTER_A_FAULT: Duration = Duration::from_secs(5);

/// What was seen of the processes that run is used for this long.
const SIGHT: Duration = Duration::from_secs(1);

/// Starts the thread of the upkeep, which lives as long as the agent.
pub(super) fn start(app: Arc<App>) -> std::io::Result<()> {
    std::thread::Builder::new().name("upkeep".into()).spawn(move || run(&app))?;
    Ok(())
}

fn run(app: &App) {
    let (mut windows, mut sight) = (Windows::new(), Sight::default());
    loop {
        // Polls that silently stop would go on showing their last values as if they were new.
        let turn = catch_unwind(AssertUnwindSafe(|| {
            let next = attend_all(app, &mut sight);
            let window = windows.turn(app);
            next.map_or(window, |next| next.min(window))
        }));
        let pause = match turn {
            Ok(next) => next.saturating_duration_since(Instant::now()).min(LONGEST_PAUSE),
            Err(_) => {
                tracing::error!("upkeep failed: this is an error in kstrobe, please report it with the lines above");
                AFTER_A_FAULT
            }
        };
        std::thread::sleep(pause);
    }
}

/// Attends to the probes that are due, and says when the next one is.
fn attend_all(app: &App, sight: &mut Sight) -> Option<Instant> {
    app.probes().iter().filter_map(|probe| attend(app, probe, sight)).min()
}

fn attend(app: &App, probe: &Mutex<Running>, sight: &mut Sight) -> Option<Instant> {
    let looks = {
        let running = lock(probe);
        let due = running.due()?;
        if Instant::now() < due {
            return Some(due);
        }
        running.looks()
    };
    // Before anything is locked that a scrape waits for.
    let world = looks.map(|by_name| sight.look(by_name));
    let mut names = lock(&app.names);
    let mut running = lock(probe);
    running.attend(&mut names, world, &app.telemetry);
    let (due, unseen) = (running.due(), running.take_unseen());
    drop((running, names));
    stacks::learn(probe, unseen);
    due
}

/// The processes that run, looked at once for all probes that ask.
#[derive(Default)]
struct Sight(Option<(World, Instant)>);

impl Sight {
    fn look(&mut self, by_name: bool) -> &World {
        let seen = match self.0.take() {
            Some((world, at)) if at.elapsed() < SIGHT => (world, at),
            Some((world, _)) => (world.look_again(), Instant::now()),
            None => (World::look(), Instant::now()),
        };
        let (world, _) = self.0.insert(seen);
        if by_name {
            world.read_code();
        }
        world
    }
}

/// The windows in which run time is counted, of all probes at once.
struct Windows {
    /// Keeps the kernel counting.
    on: Option<OwnedFd>,
    open: bool,
    next: Instant,
    /// What the kernel counts for a run that does nothing, once that is known.
    clock_ns: Option<u64>,
}

impl Windows {
    fn new() -> Windows {
        // Not at once: what runs at the start is not typical of what runs later.
        Windows { on: None, open: false, next: Instant::now() + EVERY, clock_ns: None }
    }

    /// Opens or closes a window when it is time, and says when it will be again.
    fn turn(&mut self, app: &App) -> Instant {
        if Instant::now() < self.next {
            return self.next;
        }
        let pause = if std::mem::take(&mut self.open) {
            let clock_ns = self.clock_ns.unwrap_or(0);
            let probes = app.probes();
            probes.iter().for_each(|probe| lock(probe).close_window(clock_ns));
            self.on = None;
            let soon = probes.iter().any(|probe| lock(probe).suspects());
            if soon { SOON } else { EVERY - WINDOW }
        } else {
            app.probes().iter().for_each(|probe| lock(probe).come_back());
            self.begin(app)
        };
        self.next = Instant::now() + pause;
        self.next
    }

    fn begin(&mut self, app: &App) -> Duration {
        let probes = app.probes();
        if !probes.iter().any(|probe| lock(probe).is_metered()) {
            return EVERY;
        }
        match sys::enable_stats() {
            Ok(on) => self.on = Some(on),
            Err(_) if sys::stats_are_always_on() => {}
            Err(reason) => {
                tracing::warn!(
                    %reason,
                    "what programs cost is not measured, and budgets are not kept: it takes CAP_SYS_ADMIN or \
                     kernel.bpf_stats_enabled=1"
                );
                return AFTER_A_REFUSAL;
            }
        }
        if self.clock_ns.is_none() {
            self.clock_ns = Some(sys::empty_run_ns().unwrap_or(0));
            tracing::debug!(clock_ns = self.clock_ns, "what counting adds to a run");
        }
        probes.iter().for_each(|probe| lock(probe).open_window());
        self.open = true;
        WINDOW
    }
}
