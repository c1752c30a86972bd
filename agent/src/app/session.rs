//! Probes of one command: an agent without a server, whose figures and events the command takes in this process.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Runtime;

use super::captures::CaptureDeps;
use super::events::{self, Reader, Sink};
use super::{App, Captures, SharedProbe, budgets, housekeeping, iterate, rights, unwind, workloads};
use crate::capture::access::{Access, Denied};
use crate::config::compile::Target;
use crate::config::files::AgentConfig;
use crate::config::plan::ProbePlan;
use crate::metrics::events::line::Event;
use crate::metrics::events::tail::Tail;
use crate::metrics::telemetry::Observed;
use crate::probe::status::ProbeStatus;
use kstrobe_export::snapshot::Family;

/// Events that may wait for the command.
const MAX_WAITING: usize = 1 << 12;
/// Longest time until a signal is noticed.
const NOTICE: Duration = Duration::from_millis(50);

/// Probes of a command, until SIGINT or SIGTERM.
pub(super) struct Alone {
    pub app: Arc<App>,
    /// Set by a signal.
    pub stop: Arc<AtomicBool>,
    pub agent: AgentConfig,
    /// Its threads follow signals and pods.
    pub runtime: Runtime,
}

impl Alone {
    pub fn start(target: &Target, plans: &[ProbePlan], btf: Option<&Path>) -> io::Result<Alone> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let signal = runtime.block_on(async { super::stop_signal() })?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        runtime.spawn(async move {
            signal.await;
            stopped.store(true, Ordering::Relaxed);
        });
        let captures = Captures { rules: Err(Denied::off()), access: Access::Local };
        let (sender, events) = workloads::event_channel();
        let agent = AgentConfig::default();
        let app = App::start(target, plans, &agent, btf, captures, &CaptureDeps::offline(), sender);
        let app = Arc::new(app);
        workloads::start(&app, events, &agent, runtime.handle())?;
        Ok(Alone { app, stop, agent, runtime })
    }
}

/// One probe that runs for a command.
pub struct Session {
    alone: Alone,
    probe: SharedProbe,
    events: Receiver<Event>,
    reader: Reader,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Signals and threads.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Rights(String),
    #[error("`{probe}` does not run: {reason}")]
    NotAttached { probe: String, reason: String },
}

/// What comes next.
pub enum Next {
    Event(Event),
    /// A signal came.
    Stopped,
    /// It is that time.
    Due,
}

/// The series since the start, and what they leave out.
pub struct Totals {
    pub at: SystemTime,
    pub families: Vec<Family>,
    pub account: Account,
}

/// What figures leave out, since the start or in an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Events that were not measured, by the reason in `kstrobe_lost_total`; `program_missed` is what the kernel passed over.
    pub lost: BTreeMap<&'static str, u64>,
    /// Events in the series whose labels are all `other`.
    pub merged: u64,
    /// One of so many events is measured now.
    pub one_of: u64,
    /// Times that the budget changed this, or took the probe off its hooks.
    pub throttled: u64,
    /// Why it does not measure now, or not everywhere; empty when it does.
    pub reason: String,
    /// What could not be read.
    pub unread: Vec<String>,
}

impl Session {
    /// Compiles the probe, loads it and reads its events. Fails when it does not run.
    pub fn start(target: &Target, plan: &ProbePlan, btf: Option<&Path>) -> Result<Session, SessionError> {
        let alone = Alone::start(target, std::slice::from_ref(plan), btf)?;
        let app = &alone.app;
        if let Some(lacking) = rights::lacking(app) {
            return Err(SessionError::Rights(lacking.text));
        }
        let not_attached =
            |reason: &str| SessionError::NotAttached { probe: plan.meta().name.clone(), reason: reason.to_owned() };
        let probe = app.probes().first().cloned().ok_or_else(|| not_attached("it was not started"))?;
        let (runs, status) = {
            let running = probe.lock();
            (running.runs(), running.status())
        };
        if !runs || status.idle {
            return Err(not_attached(&status.reason));
        }
        app.set_budget(&alone.agent);
        housekeeping::start(app.clone())?;
        budgets::start(app.clone(), budgets::Rest::Never)?;
        iterate::start(app)?;
        unwind::start(app)?;
        let (sender, events) = sync_channel(MAX_WAITING);
        let reader = events::start(app.clone(), Arc::new(Tail::new(Vec::new(), 1)), Sink::Channel(sender))?;
        Ok(Session { alone, probe, events, reader })
    }

    pub fn status(&self) -> ProbeStatus {
        self.probe.lock().status()
    }

    /// Waits for an event, a signal or that time. A signal goes before events, which may come without end.
    pub fn next(&self, until: Instant) -> Next {
        loop {
            if self.alone.stop.load(Ordering::Relaxed) {
                return Next::Stopped;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Due;
            }
            match self.events.recv_timeout(left.min(NOTICE)) {
                Ok(event) => return Next::Event(event),
                Err(RecvTimeoutError::Timeout) => {}
                // The reader has ended: there are no events, but there is still time.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left.min(NOTICE)),
            }
        }
    }

    /// Reads the series.
    pub fn read(&self) -> Totals {
        let (snapshot, _) = self.alone.app.snapshot();
        let account = account(&self.alone.app.telemetry.observed(), &self.probe);
        Totals { at: snapshot.at, families: snapshot.families, account }
    }

    /// Takes the probe off its hooks, and returns the last figures and events.
    pub fn finish(self) -> (Totals, Vec<Event>) {
        if let Ok(kernel) = self.probe.lock().kernel() {
            kernel.detach();
        }
        let totals = self.read();
        self.reader.close();
        // The sender goes with the reader, after its last pass.
        let events = self.events.iter().collect();
        super::end_sessions(self.alone.app);
        (totals, events)
    }
}

impl Account {
    /// What is left out in the interval that begins with `before`. What holds now is that of its end.
    pub fn since(&self, before: &Account) -> Account {
        let grown = |(reason, total): (&&'static str, &u64)| {
            let events = total.saturating_sub(before.lost.get(reason).copied().unwrap_or(0));
            (events > 0).then_some((*reason, events))
        };
        Account {
            lost: self.lost.iter().filter_map(grown).collect(),
            merged: self.merged.saturating_sub(before.merged),
            throttled: self.throttled.saturating_sub(before.throttled),
            ..self.clone()
        }
    }
}

fn account(observed: &Observed, probe: &SharedProbe) -> Account {
    let missed = observed.programs.iter().map(|program| program.missed).sum();
    let losses = observed.losses.iter().map(|lost| (lost.reason, lost.events)).chain([("program_missed", missed)]);
    let running = probe.lock();
    Account {
        lost: losses.filter(|(_, events)| *events > 0).collect(),
        merged: observed.series.iter().map(|series| series.overflowed).sum(),
        one_of: observed.budgets.iter().map(|budget| budget.one_of).max().unwrap_or(1).max(1),
        throttled: observed.budgets.iter().map(|budget| budget.throttled).sum(),
        reason: running.reason(),
        unread: running.read_errors().map(str::to_owned).collect(),
    }
}
