//! Follows the workloads of the node. One thread knows the cgroups and their pods and units. It publishes names for labels
//! and keeps the maps of conditions current, so that scrapes never wait for cgroupfs or Kubernetes.
//!
//! The thread is idle while no probe uses names of cgroups.

mod groups;
mod pod_marks;
mod pods;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use kstrobe_workloads::{Pod, Settings, Table};
use tokio::runtime::Handle;

use super::task::{self, AFTER_A_PANIC, Task};
use super::{App, lock};
use crate::config::files::{AgentConfig, Sandboxes};
use crate::kernel::groups::Change;
use crate::kubernetes;
use crate::metrics::telemetry::WorkloadsUse;
use crate::metrics::workload_names::Timeouts;
use crate::probe::conditions::Conditions;
use groups::Groups;
use kstrobe_history::MarkKind;
use pod_marks::PodMarks;
use pods::{PodWatch, PodWatchTask};

/// Shortest interval between two passes after events.
const SOON: Duration = Duration::from_millis(50);
/// The same for cgroups reported by programs: they are undecided for conditions until the pass.
const AT_ONCE: Duration = Duration::from_millis(10);
/// A walk over all groups for those that programs could not name comes at most so often: it reads every folder.
const SEARCH_EVERY: Duration = Duration::from_millis(500);

/// An event for the thread.
#[derive(Debug)]
pub(crate) enum Event {
    /// Other probes run now.
    Probes,
    /// Cgroups came or went.
    Groups,
    /// Groups that came or went, as programs saw it, and the number of changes that found no room.
    Changes(Vec<Change>, u64),
    /// There is a pod, or it changed.
    Pod(Box<Pod>),
    /// The pod with this uid is gone.
    PodGone(Arc<str>),
    /// All pods of the node were sent once.
    PodsListed,
}

/// Sends events to the thread.
#[derive(Clone, Debug)]
pub(crate) struct EventSender(Sender<Event>);

impl EventSender {
    /// Sends an event; does nothing after the thread has ended.
    pub fn send(&self, event: Event) {
        let _ = self.0.send(event);
    }
}

/// How often to look, and how long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    walk: Duration,
    grace: Duration,
    wait: Duration,
}

impl Pace {
    pub fn of(agent: &AgentConfig) -> Pace {
        let settings = agent.workloads;
        let [walk, grace, wait] = [settings.walk_ns, settings.grace_ns, settings.wait_ns].map(Duration::from_nanos);
        Pace { walk, grace, wait }
    }

    pub fn timeouts(self) -> Timeouts {
        Timeouts { wait: self.wait, grace: self.grace }
    }
}

/// The channel to the thread.
pub(super) fn event_channel() -> (EventSender, Receiver<Event>) {
    let (sender, receiver) = channel();
    (EventSender(sender), receiver)
}

/// Starts the thread of the table, which lives as long as the agent. Tasks of the runtime fetch the pods.
pub(super) fn start(
    app: &Arc<App>,
    events: Receiver<Event>,
    agent: &AgentConfig,
    runtime: &Handle,
) -> std::io::Result<()> {
    let (pace, node) = (Pace::of(agent), kubernetes::node_or_host(&agent.kubernetes));
    let pod_watch = PodWatch::of(agent, &node, &app.kubernetes, runtime);
    // Without a source of pods, names must not wait for one.
    let patience = if pod_watch.is_some() { pace.wait } else { Duration::ZERO };
    let settings = Settings { node: Some(node.into()), grace: pace.grace, patience };
    let follower = Follower {
        app: app.clone(),
        pace,
        table: Table::new(settings),
        groups: None,
        pod_watch,
        pod_task: None,
        pod_marks: PodMarks::default(),
        walked: None,
        missed: false,
        changed: false,
        reused: 0,
        sandboxes: agent.workloads.sandboxes,
        failure: None,
        turned: Instant::now(),
        pause: None,
        events,
    };
    task::spawn(move || follower).map(drop)
}

struct Follower {
    app: Arc<App>,
    pace: Pace,
    table: Table,
    /// Set once a probe uses names.
    groups: Option<Groups>,
    /// The source of pods until it is started.
    pod_watch: Option<PodWatch>,
    /// The running task; dropping it ends the task.
    pod_task: Option<PodWatchTask>,
    pod_marks: PodMarks,
    walked: Option<Instant>,
    /// Programs saw a group since without its name, or lost one.
    missed: bool,
    /// Cgroups came or went since.
    changed: bool,
    /// Number of reused ids at the last pass.
    reused: u64,
    /// Labels of cgroups in a pod and in no container.
    sandboxes: Sandboxes,
    /// The last logged error of a walk.
    failure: Option<String>,
    /// When the last turn ended.
    turned: Instant,
    /// Until the next turn; `None` while no probe uses names.
    pause: Option<Duration>,
    events: Receiver<Event>,
}

impl Task for Follower {
    const NAME: &'static str = "workloads";

    fn run(&mut self) {
        self.pause = self.turn();
        self.turned = Instant::now();
    }

    fn panicked(&mut self) {
        (self.pause, self.turned) = (Some(AFTER_A_PANIC), Instant::now());
    }

    fn wait(&mut self) -> ControlFlow<()> {
        let first = match self.pause {
            Some(pause) => self.events.recv_timeout(pause),
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match first {
            Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
            Err(RecvTimeoutError::Timeout) => return ControlFlow::Continue(()),
            Ok(first) => {
                let burst = if matches!(first, Event::Changes(..)) { AT_ONCE } else { SOON };
                self.apply(first);
                // A burst of changes is one turn; a single change does not wait.
                std::thread::sleep(burst.saturating_sub(self.turned.elapsed()));
            }
        }
        while let Ok(more) = self.events.try_recv() {
            self.apply(more);
        }
        ControlFlow::Continue(())
    }
}

impl Follower {
    fn apply(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Probes => self.walked = None,
            Event::Groups => self.changed = true,
            Event::Changes(changes, lost) => {
                let unnamed = groups::hear(&changes, &mut self.table, now);
                self.missed |= unnamed || lost > 0;
                if self.groups.as_mut().is_some_and(|groups| groups.lose(lost)) {
                    tracing::warn!(
                        lost,
                        "cgroups came and went faster than they were looked at: a walk finds those that last"
                    );
                }
            }
            Event::Pod(pod) => {
                self.pod_marks.seen(&pod).into_iter().for_each(|text| self.mark(text));
                self.table.pod_seen(*pod, now);
            }
            Event::PodGone(uid) => {
                self.pod_marks.gone(&uid).into_iter().for_each(|text| self.mark(text));
                self.table.pod_gone(&uid, now);
            }
            Event::PodsListed => self.pod_marks.listed(),
        }
    }

    fn mark(&self, text: String) {
        self.app.history.mark(MarkKind::Pod, SystemTime::now(), text, None);
    }

    /// One pass: walks, names, publishes. Returns the time to the next one; `None` while no probe uses names.
    fn turn(&mut self) -> Option<Duration> {
        let probes = self.app.probes();
        if !probes.iter().any(|probe| probe.lock().asks_for_cgroups()) {
            *lock(&self.app.workloads_use) = None;
            // A probe may use names again: drain the kernel's reports meanwhile.
            if std::mem::take(&mut self.changed) {
                self.look(false);
            }
            self.table.tick(Instant::now());
            return None;
        }
        if let Some(pod_watch) = self.pod_watch.take() {
            self.pod_task = Some(pod_watch.start(self.app.workloads.clone()));
        }
        let due = self.until_walk().is_zero();
        if due || std::mem::take(&mut self.changed) {
            self.look(due);
        }
        let now = Instant::now();
        self.table.tick(now);
        // First the maps of conditions, as programs read them.
        let conditions = Conditions { table: &self.table, groups: self.groups.as_ref().and_then(Groups::programs) };
        let unselected: usize = probes.iter().map(|probe| probe.lock().select(&conditions)).sum();
        self.app
            .workload_names
            .publish(groups::workloads(&self.table, self.sandboxes), self.groups.as_ref().and_then(Groups::walked));
        let reused = self.table.counts().reused;
        if std::mem::replace(&mut self.reused, reused) != reused {
            probes.iter().for_each(|probe| probe.lock().cgroups_were_reused());
            // Their sweeps are due now.
            self.app.pace.notify();
        }
        *lock(&self.app.workloads_use) = Some(self.used(unselected));
        Some(self.until_walk())
    }

    /// How long the next walk over all groups can wait.
    fn until_walk(&self) -> Duration {
        let every = if self.missed { SEARCH_EVERY.min(self.pace.walk) } else { self.pace.walk };
        self.walked.map_or(Duration::ZERO, |walked| every.saturating_sub(walked.elapsed()))
    }

    /// Looks at all cgroups, or at those that changed.
    fn look(&mut self, all: bool) {
        if all {
            // Also when it fails: not again at once.
            self.walked = Some(Instant::now());
            self.missed = false;
        }
        let groups = match &mut self.groups {
            Some(groups) => Ok(groups),
            None => Groups::here(&self.app.workloads).map(|groups| self.groups.insert(groups)),
        };
        let table = &mut self.table;
        let looked = groups.and_then(|groups| if all { groups.walk(table) } else { groups.changes(table) });
        let failure = looked.err().map(|error| error.to_string());
        match (&failure, &self.failure) {
            (Some(reason), before) if before.as_ref() != Some(reason) => {
                tracing::error!(reason, "cgroups cannot be looked at: their names are missing");
            }
            (None, Some(_)) => tracing::info!("cgroups can be looked at again"),
            _ => {}
        }
        self.failure = failure;
    }

    fn used(&self, unselected: usize) -> WorkloadsUse {
        let counts = self.table.counts();
        let (mut named, mut waiting, mut ended) = (0, 0, 0);
        for group in self.table.groups() {
            *match (group.ended, group.workload) {
                (true, _) => &mut ended,
                (false, Some(_)) => &mut named,
                (false, None) => &mut waiting,
            } += 1;
        }
        let (took, errors) = self.groups.as_ref().map_or((Duration::ZERO, 0), Groups::cost);
        WorkloadsUse {
            cgroups: vec![("named", named), ("waiting", waiting), ("ended", ended)],
            pods: self.table.pods() as u64,
            walk: took,
            walk_errors: errors,
            unresolved: counts.unresolved,
            late: counts.late,
            reused: counts.reused,
            expired: counts.expired,
            unselected: unselected as u64,
        }
    }
}
