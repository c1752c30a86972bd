//! One enabled probe, whether it runs or not.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kstrobe_ebpf::layout::{Loss, SelectedMap};
use kstrobe_ebpf::typed::Decoder;

use super::budget::{Budget, BudgetAction, Cost, OVER_BUDGET, Share, Shares};
use super::conditions::Conditions;
use super::engine::{Engine, Scrape, Tick};
use super::error::{NotAttached, ReadError};
use super::event_buffer::EventBuffer;
use super::iterator::IteratorEngine;
use super::kernel::KernelEngine;
use super::meter;
use super::status::{ChoiceStatus, HookStatus, ProbeStatus};
use super::stopped::Off;
use super::user_hooks::UserHooks;
use crate::config::files;
use crate::config::plan::explain;
use crate::config::plan::{Identity, PREFIX, ProbeMeta, ProbePlan};
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::kernel::hooks::entry::EntryCost;
use crate::metrics::labels::Names;
use crate::metrics::telemetry::{Attachment, BudgetUse, Chosen, Observed, Telemetry};
use kstrobe_ebpf::hook::Recorded;
use kstrobe_export::reading::PackedFamily;
use kstrobe_export::snapshot::{Family, Moment};

/// Periodic work may come so late before it counts as put off.
const TOLERATED: Duration = Duration::from_secs(1);

/// A hook as written in the probe.
#[derive(Clone, Debug)]
pub(super) struct WrittenHook {
    pub(super) text: String,
    /// The chosen mechanism; empty without one.
    pub(super) kind: &'static str,
    pub(super) recorded: Recorded,
}

/// An enabled probe, whether it runs or not.
pub struct Probe {
    /// What its definition says beside its programs.
    pub meta: ProbeMeta,
    /// A reload keeps a probe of the same identity.
    pub identity: Arc<Identity>,
    pub(super) hooks: Vec<WrittenHook>,
    /// The compiler's choices on this kernel.
    pub(super) choices: Vec<explain::Choice>,
    pub(super) engine: Box<dyn Engine>,
    pub(super) budget: Option<Budget>,
    /// [`Cost::ppm`] of the last window.
    pub(super) cost_ppm: Option<u64>,
    pub(super) started: Instant,
    /// Read errors of the last scrape, and of the last sweep, as texts to compare with.
    pub(super) errors: [Vec<String>; 2],
}

/// How a probe stands with its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttling {
    /// Events are passed over, or the probe is off its hooks.
    pub is_over: bool,
    /// Of so many events one is measured.
    pub one_of: u64,
    /// One line.
    pub text: String,
}

impl Probe {
    /// Reads the series, and adds the agent's own metrics of this probe to `observed`. Read errors are counted, and new ones
    /// are logged.
    pub fn scrape(
        &mut self,
        names: &mut Names,
        now: Moment,
        observed: &mut Observed,
        telemetry: &Telemetry,
    ) -> Vec<Family> {
        self.scrape_with(names, now, observed, telemetry, |engine, scrape| engine.scrape(scrape))
    }

    /// The same, packed.
    pub fn read(
        &mut self,
        names: &mut Names,
        now: Moment,
        observed: &mut Observed,
        telemetry: &Telemetry,
    ) -> Vec<PackedFamily> {
        self.scrape_with(names, now, observed, telemetry, |engine, scrape| engine.read(scrape))
    }

    /// Reads the series alone, for the history. Read errors are those of a scrape.
    pub fn read_series(&mut self, names: &mut Names, now: Moment, telemetry: &Telemetry) -> Vec<PackedFamily> {
        let (name, mut unused) = (self.meta.name.clone(), Observed::default());
        let mut scrape = Scrape { probe: &name, names, now, observed: &mut unused, errors: Vec::new() };
        let families = self.engine.read_series(&mut scrape);
        let errors = scrape.errors;
        self.report(0, errors, telemetry);
        families
    }

    /// How it stands with its budget, if it has one.
    pub fn throttling(&self) -> Option<Throttling> {
        let throttling = |b: &Budget| Throttling { is_over: b.over(), one_of: b.one_of(), text: b.text() };
        self.budget.as_ref().map(throttling)
    }

    fn scrape_with<T>(
        &mut self,
        names: &mut Names,
        now: Moment,
        observed: &mut Observed,
        telemetry: &Telemetry,
        read: impl FnOnce(&mut dyn Engine, &mut Scrape<'_>) -> T,
    ) -> T {
        let name = self.meta.name.clone();
        // A label's text with numbers in it would be another series after each measurement.
        let reason = if self.suspended().is_some() { OVER_BUDGET.to_owned() } else { self.reason() };
        observed.budgets.extend(self.budget.iter().map(|b| BudgetUse {
            probe: name.clone(),
            one_of: b.one_of(),
            over: b.over() && !b.rests_for_others(),
            throttled: b.throttled(),
        }));
        observed.attachments.extend(self.hooks.iter().map(|WrittenHook { text: hook, kind, .. }| Attachment {
            probe: name.clone(),
            hook: hook.clone(),
            kind: kind.to_string(),
            reason: reason.clone(),
        }));
        observed.choices.extend(self.choices.iter().map(|choice| Chosen {
            probe: name.clone(),
            wanted: choice.wanted.clone(),
            got: choice.got.clone(),
            because: choice.because.join("; "),
        }));
        let mut scrape = Scrape { probe: &name, names, now, observed, errors: Vec::new() };
        let families = read(self.engine.as_mut(), &mut scrape);
        let errors = scrape.errors;
        self.report(0, errors, telemetry);
        families
    }

    /// Applies a new definition of the same identity: texts and budget may differ.
    pub fn renew(&mut self, plan: &ProbePlan) {
        let sampled = self.engine.as_kernel().map(KernelEngine::can_sample);
        let meta = plan.meta().clone();
        if meta.budget != self.meta.budget {
            let new = sampled.and_then(|can_sample| Budget::new(meta.budget, can_sample));
            match (&mut self.budget, new) {
                (Some(budget), Some(new)) => budget.set_limit(&new),
                (budget, new) => *budget = new,
            }
        }
        self.engine.renew(plan);
        self.meta = meta;
    }

    /// Detaches and unloads the probe, and returns its last events. `reason` becomes the reason of its status.
    pub fn end(&mut self, names: &mut Names, reason: &str) -> EventBuffer {
        if let Ok(kernel) = self.engine.kernel() {
            kernel.detach();
        }
        let (_, unread) = self.events(names);
        self.engine = Box::new(Off(reason.to_owned()));
        (self.budget, self.cost_ppm) = (None, None);
        unread
    }

    /// Removes the ftrace session, which the kernel would keep after the agent has ended.
    pub fn end_session(&mut self) {
        if self.engine.outlives_the_process() {
            self.engine = Box::new(Off("the agent stops".to_owned()));
        }
    }

    /// Whether names of cgroups matter to it, in labels, in single events or in conditions.
    pub fn asks_for_cgroups(&self) -> bool {
        let Some(layout) = self.engine.layout() else { return false };
        let of_events = layout.events.iter().flat_map(|e| e.fields.iter().chain(e.otlp_span.iter().map(|(_, f)| f)));
        let fields = layout.tables.iter().flat_map(|t| &t.key).chain(of_events);
        !layout.selected.is_empty() || fields.into_iter().any(|field| matches!(field.decoder, Decoder::Cgroup(_)))
    }

    /// Writes the cgroups that meet its conditions into their maps. Returns how many did not fit.
    pub fn select(&mut self, conditions: &Conditions<'_>) -> usize {
        let Some(maps) = self.engine.maps() else { return 0 };
        let admitted = conditions.groups.is_some_and(|groups| {
            maps.admit(groups).unwrap_or_else(|reason| {
                tracing::warn!(
                    probe = self.meta.name,
                    %reason,
                    "what new cgroups do before their names are known is not counted by its conditions"
                );
                false
            })
        });
        let one = |s: &SelectedMap| {
            let decided = conditions.decide(&s.selector);
            // A new cgroup stays as the program set it until the table knows the cgroup.
            let is_open = |id| decided.undecided.contains(&id) || admitted && !conditions.knows(id);
            maps.select(s.map, &decided.passes, is_open)
        };
        match maps.layout().selected.iter().map(one).sum::<std::io::Result<usize>>() {
            Ok(refused) => refused,
            Err(error) => {
                tracing::error!(probe = self.meta.name, %error, "its conditions on workloads cannot be kept current");
                0
            }
        }
    }

    /// Makes the next sweep due: the kernel reused ids of cgroups, whose counts must not get the old names.
    pub fn cgroups_were_reused(&mut self) {
        if let Ok(kernel) = self.engine.kernel() {
            kernel.sweep_soon();
        }
    }

    /// Whether it measures, waits for what it measures, or has nothing to measure on this kernel.
    pub fn runs(&self) -> bool {
        self.engine.runs()
    }

    /// Full names of its metrics.
    pub fn metrics(&self) -> impl Iterator<Item = &str> {
        self.meta.metrics.iter().map(|metric| metric.about.name.as_str())
    }

    /// When [`Probe::tick`] is due, if ever. `rests` is whether the agent does.
    pub fn due(&self, rests: bool) -> Option<Instant> {
        if rests { self.engine.due_at_rest() } else { self.engine.due() }
    }

    /// Whether a rest has put its work off for so long that a read must not go without it.
    pub fn is_put_off(&self) -> bool {
        let due = self.engine.due().filter(|due| self.engine.due_at_rest() != Some(*due));
        due.is_some_and(|due| due + TOLERATED < Instant::now())
    }

    /// See [`Engine::needs_processes`].
    pub fn needs_processes(&self) -> Option<bool> {
        self.engine.needs_processes()
    }

    /// Does the periodic work that is due: reads a poll's source, evicts keys and spans, hooks new files.
    ///
    /// `processes` is the snapshot that [`Probe::needs_processes`] requires. Returns whether another probe has taken its place.
    pub fn tick(&mut self, names: &mut Names, processes: Option<&ProcessSnapshot>, telemetry: &Telemetry) -> bool {
        let mut tick = Tick { probe: &self.meta.name, names, processes, telemetry, errors: None };
        let successor = self.engine.tick(&mut tick);
        if let Some(errors) = tick.errors {
            self.report(1, errors, telemetry);
        }
        let is_replaced = successor.is_some();
        if let Some(successor) = successor {
            *self = successor;
        }
        is_replaced
    }

    /// New processes that [`Probe::tick`] found in stack keys.
    pub fn take_unseen(&mut self) -> HashSet<u32> {
        self.engine.kernel().map(KernelEngine::take_unseen).unwrap_or_default()
    }

    /// See [`KernelEngine::has_unread_events`].
    pub fn has_unread_events(&self) -> bool {
        self.engine.as_kernel().is_some_and(KernelEngine::has_unread_events)
    }

    /// What could not be read at the last scrape and the last sweep.
    pub fn read_errors(&self) -> impl Iterator<Item = &str> {
        self.errors.iter().flatten().map(String::as_str)
    }

    /// File descriptors to poll, and the single events since the last call.
    pub fn events(&mut self, names: &mut Names) -> (Vec<Arc<OwnedFd>>, EventBuffer) {
        let Ok(attached) = self.engine.kernel() else { return Default::default() };
        for (reason, events) in attached.new_losses() {
            let remedy = match reason {
                Loss::EventsLimited => "let its `slow.when` hold for fewer events, or raise `slow.max_per_second`",
                _ => "let its `slow.when` hold for fewer events, lower `slow.max_per_second`, or raise `slow.buffer`",
            };
            let (probe, reason) = (self.meta.name.as_str(), reason.name());
            tracing::warn!(
                probe,
                reason,
                events,
                remedy,
                "slow events are lost; kstrobe_lost_total counts them from now on"
            );
        }
        attached.events(names)
    }

    /// Whether the next window should come soon.
    pub fn suspects(&self) -> bool {
        self.budget.as_ref().is_some_and(Budget::suspects)
    }

    /// What its programs have cost in the window that ends now; `None` while it goes on, without programs, and while its budget
    /// suspends it. The window is at least so long, or a short one where the probe seems to be above its budget.
    pub fn cost(&mut self, entry_cost: EntryCost, least: Duration) -> Option<Cost> {
        let least = if self.suspects() { meter::SHORT_WINDOW } else { least };
        let is_suspended = self.suspended().is_some();
        let Some(kernel) = self.engine.kernel().ok().filter(|_| !is_suspended) else {
            self.cost_ppm = None;
            return None;
        };
        let cost = kernel.cost(entry_cost, least)?;
        self.cost_ppm = Some(cost.ppm());
        Some(cost)
    }

    /// What it takes of the agent's budget, by its last window; `None` where its budget is its own.
    pub fn share(&self) -> Option<Share> {
        self.budget.as_ref()?.share(self.cost_ppm?)
    }

    pub fn is_over_its_budget(&self) -> bool {
        self.budget.as_ref().is_some_and(Budget::over)
    }

    /// Whether its budget is such a share, and samples or suspends it.
    pub fn is_over_its_share(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.is_shared() && budget.over())
    }

    /// Whether the agent may rest: not where a budget of its own is exceeded by few events. See also [`KernelEngine::allows_rest`].
    pub fn allows_rest(&self) -> bool {
        let has_own_budget = self.budget.as_ref().is_some_and(|budget| !budget.is_shared());
        !has_own_budget && self.engine.as_kernel().is_none_or(KernelEngine::allows_rest)
    }

    /// Applies the budget to the cost of a window, if one has ended. Slices of time are tolerated before that: others may need them.
    pub fn keep_budget(&mut self, cost: Option<&Cost>, shares: &Shares) {
        let now = self.started.elapsed();
        let Some(budget) = &mut self.budget else { return };
        let action = cost.and_then(|cost| budget.look(now, cost, shares));
        let slicing = budget.slicing();
        if let Some(action) = action {
            self.apply(action);
        }
        if let Ok(kernel) = self.engine.kernel() {
            kernel.slice(slicing);
        }
    }

    /// Lets a suspended probe run again whose pause is over.
    pub fn resume(&mut self) {
        let now = self.started.elapsed();
        if let Some(action) = self.budget.as_mut().and_then(|b| b.resume(now)) {
            self.apply(action);
        }
    }

    fn apply(&mut self, action: BudgetAction) {
        let (Ok(attached), Some(budget)) = (self.engine.kernel(), &mut self.budget) else { return };
        let probe = self.meta.name.as_str();
        let done = match action {
            BudgetAction::Sample(halvings) => attached.sample(halvings),
            BudgetAction::Suspend => {
                attached.detach();
                Ok(())
            }
            BudgetAction::Resume(halvings) => attached.attach(halvings),
        };
        match done {
            Ok(()) if budget.over() => tracing::warn!(probe, reason = budget.text(), "throttled"),
            Ok(()) => tracing::info!(probe, "measures all events again"),
            Err(reason) => {
                // A probe above its budget must not run on without the action.
                attached.detach();
                budget.extend_suspension(self.started.elapsed());
                tracing::error!(probe, %reason, "taken off its hooks");
            }
        }
    }

    /// Counts read errors, and logs new ones. A probe has those of scrapes (0) and of sweeps (1).
    fn report(&mut self, when: usize, errors: Vec<ReadError>, telemetry: &Telemetry) {
        let name = self.meta.name.as_str();
        let errors: Vec<String> = errors.iter().map(ReadError::to_string).collect();
        errors.iter().for_each(|_| telemetry.read_failed(name));
        let before = std::mem::replace(&mut self.errors[when], errors);
        let now = &self.errors[when];
        for reason in now.iter().filter(|e| !before.contains(e)) {
            tracing::error!(probe = name, reason, "cannot be read");
        }
        if now.is_empty() && !before.is_empty() {
            tracing::info!(probe = name, "can be read again");
        }
    }

    /// The entry of `/api/v1/probes` and `/readyz`.
    pub fn status(&self) -> ProbeStatus {
        let reason = self.reason();
        let names = |stacks: bool| {
            let metrics = self.meta.metrics.iter().filter(|m| m.stacks.is_some() == stacks);
            metrics.map(|m| m.about.name.clone()).collect::<Vec<_>>()
        };
        let hook = |hook: &WrittenHook| {
            let Recorded { events, functions } = hook.recorded.clone();
            let (attached, reason) = (reason.is_empty(), reason.clone());
            HookStatus { hook: hook.text.clone(), kind: hook.kind.to_owned(), attached, reason, events, functions }
        };
        let choice = |choice: &explain::Choice| ChoiceStatus {
            wanted: choice.wanted.clone(),
            got: choice.got.clone(),
            because: choice.because.clone(),
        };
        ProbeStatus {
            name: self.meta.name.clone(),
            summary: self.meta.summary.clone(),
            attached: reason.is_empty(),
            idle: self.engine.is_idle(),
            of_cluster: files::is_of_cluster(&self.meta.pack),
            hooks: self.hooks.iter().map(hook).collect(),
            files: self.files(),
            choices: self.choices.iter().map(choice).collect(),
            metrics: names(false),
            stacks: names(true).iter().map(|name| name.trim_start_matches(PREFIX).to_owned()).collect(),
            cost_ppm: self.cost_ppm,
            lost: self.engine.as_kernel().map(KernelEngine::lost).unwrap_or_default(),
            one_of: self.budget.as_ref().map(Budget::one_of).filter(|one_of| *one_of > 1),
            throttled: self.budget.as_ref().map(Budget::text).unwrap_or_default(),
            reason,
        }
    }

    /// Its programs at events, or why there are none.
    pub fn kernel(&mut self) -> Result<&mut KernelEngine, NotAttached> {
        self.engine.kernel()
    }

    /// The reason of the suspension, while the budget suspends the probe.
    pub fn held_back(&self) -> Option<String> {
        self.suspended().map(Budget::text)
    }

    pub fn iterator(&self) -> Option<Arc<IteratorEngine>> {
        self.engine.iterator()
    }

    /// Why it does not measure, or not everywhere; empty when it does.
    pub fn reason(&self) -> String {
        self.suspended().map_or_else(|| self.engine.reason(), Budget::text)
    }

    /// Its budget, while that suspends the probe.
    fn suspended(&self) -> Option<&Budget> {
        self.budget.as_ref().filter(|budget| budget.suspended_until().is_some())
    }

    fn files(&self) -> Vec<String> {
        self.engine.as_kernel().and_then(KernelEngine::user).map(UserHooks::files).unwrap_or_default()
    }
}
