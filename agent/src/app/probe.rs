//! One enabled probe: compiled, loaded and attached, or the reason why not.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use kstrobe_ebpf::layout::{Loss, SelectedMap};
use kstrobe_ebpf::target::Ability;
use kstrobe_ebpf::typed::{Attach, Decoder};
use kstrobe_ebpf::{Artifact, Target};

use super::attached::Attached;
use super::budget::{Budget, BudgetAction, OVER_BUDGET};
use super::events::EventBuffer;
use super::iterate::Iterated;
use super::logging::log_diagnostics;
use super::poll::Poll;
use super::rights;
use super::traced::Traced;
use super::user_hooks::{Change, FileChange, LOOK_EVERY, UserHooks};
use super::workloads::Conditions;
use crate::config::compile;
use crate::config::plan::explain::{self, attach_point};
use crate::config::plan::{self, Draft, Identity, Outline, PREFIX, Refusal};
use crate::kernel::attach::is_user_hook;
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::kernel::load::{self, Loader};
use crate::kubernetes::probe_controller;
use crate::metrics::labels::Names;
use crate::metrics::telemetry::{Attachment, BudgetUse, Chosen, Observed, SeriesUse, Telemetry};
use crate::probe::status::{ChoiceStatus, HookStatus, ProbeStatus};
use kstrobe_export::snapshot::{Family, Moment};

/// An enabled probe, whether it runs or not.
pub(super) struct Probe {
    pub outline: Outline,
    /// A reload keeps a probe of the same identity.
    pub identity: Arc<Identity>,
    /// Hooks as written in the probe, each with the chosen mechanism; empty without one.
    hooks: Vec<(String, &'static str)>,
    /// The compiler's choices on this kernel.
    choices: Vec<explain::Choice>,
    engine: Engine,
    budget: Option<Budget>,
    started: Instant,
    /// Read errors of the last scrape, and of the last sweep.
    errors: [Vec<String>; 2],
}

/// How the probe runs.
enum Engine {
    /// Programs in the kernel.
    Attached(Box<Attached>),
    /// Iterator programs, run at each scrape.
    Iterated(Arc<Iterated>),
    /// Rows read by the agent.
    Poll(Box<Poll>),
    /// Records of an ftrace session, read by the agent.
    Traced(Box<Traced>),
    /// Not compiled yet: the program with its static probe points does not run.
    Waiting(Box<Waiting>),
    /// Compiled to nothing, as its conditions are never true on this kernel; the warnings that name them.
    Idle(String),
    /// Not running, with the reason.
    Off(String),
}

/// A probe that is compiled once the program that it hooks runs.
struct Waiting {
    draft: Draft,
    /// `--btf`
    btf: Option<PathBuf>,
    reason: String,
    looked: Instant,
}

impl Probe {
    /// Starts a probe. An error is logged here once with all its detail, and kept as the reason.
    pub fn start(draft: &Draft, target: &Target, loader: &mut Loader, btf: Option<&Path>) -> Probe {
        Probe::start_compiled(draft, draft.compile(target), target, loader, btf)
    }

    /// As [`Probe::start`], of a probe that was compiled for this target.
    pub fn start_compiled(
        draft: &Draft,
        compiled: Result<Artifact, Refusal>,
        target: &Target,
        loader: &mut Loader,
        btf: Option<&Path>,
    ) -> Probe {
        if let Ok(artifact) = &compiled {
            log_diagnostics(&draft.warnings(artifact));
        }
        match compiled {
            Err(refusal) if refusal.target && compile::waits(draft, target) => wait(draft, &refusal, btf),
            Err(refusal) => {
                if let Some(running) = refusal.target.then(|| fall_back(draft, target, &refusal.reason())).flatten() {
                    return running;
                }
                not_started(draft, &refusal);
                off(draft, refusal.reason())
            }
            Ok(artifact) if artifact.is_idle() => idle(draft, &artifact),
            Ok(artifact) if draft.outline().poll.is_some() => poll(draft, artifact),
            Ok(artifact) if draft.outline().engine == plan::Engine::Ftrace => trace(draft, artifact),
            Ok(artifact) => attach(draft, artifact, target, loader),
        }
    }

    /// Reads the series, and adds the agent's own metrics of this probe to `observed`. Read errors are counted, and new ones
    /// are logged.
    pub fn scrape(
        &mut self,
        names: &mut Names,
        now: Moment,
        observed: &mut Observed,
        telemetry: &Telemetry,
    ) -> Vec<Family> {
        let name = self.outline.name.clone();
        // A label's text with numbers in it would be another series after each measurement.
        let reason = if self.suspended().is_some() { OVER_BUDGET.to_owned() } else { self.reason() };
        observed.budgets.extend(self.budget.iter().map(|b| BudgetUse {
            probe: name.clone(),
            one_of: b.one_of(),
            over: b.over(),
            throttled: b.throttled(),
        }));
        observed.attachments.extend(self.hooks.iter().map(|(hook, kind)| Attachment {
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
        match &mut self.engine {
            Engine::Attached(a) => {
                let (families, mut errors) = a.families(names, now);
                errors.append(&mut a.observe(&name, observed));
                self.report(0, errors, telemetry);
                families
            }
            Engine::Iterated(i) => {
                let (families, errors) = i.scrape(&name, observed);
                self.report(0, errors, telemetry);
                families
            }
            Engine::Traced(t) => {
                let (families, mut errors) = t.families(names, now);
                errors.append(&mut t.observe(&name, observed));
                self.report(0, errors, telemetry);
                families
            }
            Engine::Poll(p) => {
                observed.series.push(SeriesUse { probe: name, overflowed: p.overflowed(), evicted: 0, waiting: None });
                p.families()
            }
            Engine::Waiting(_) | Engine::Idle(_) | Engine::Off(_) => vec![],
        }
    }

    /// Applies a new definition of the same identity: texts and budget may differ.
    pub fn renew(&mut self, draft: &Draft) {
        let steered = match &self.engine {
            Engine::Attached(a) => Some(a.can_thin()),
            _ => None,
        };
        let outline = draft.outline().clone();
        if outline.budget_ppm != self.outline.budget_ppm {
            match (&mut self.budget, steered) {
                (Some(budget), _) if outline.budget_ppm > 0 => budget.set_limit(outline.budget_ppm),
                (budget, Some(can_thin)) => *budget = Budget::new(outline.budget_ppm, can_thin),
                (budget, None) => *budget = None,
            }
        }
        if let Engine::Waiting(waiting) = &mut self.engine {
            waiting.draft = draft.clone();
        }
        self.outline = outline;
    }

    /// Detaches and unloads the probe, and returns its last events. `reason` becomes the reason of its status.
    pub fn end(&mut self, names: &mut Names, reason: &str) -> EventBuffer {
        if let Engine::Attached(attached) = &mut self.engine {
            attached.detach();
        }
        let (_, unread) = self.events(names);
        self.engine = Engine::Off(reason.to_owned());
        self.budget = None;
        unread
    }

    /// Removes the ftrace session, which the kernel would keep after the agent has ended.
    pub fn end_session(&mut self) {
        if let Engine::Traced(_) = self.engine {
            self.engine = Engine::Off("the agent stops".to_owned());
        }
    }

    /// Whether names of cgroups matter to it, in labels, in single events or in conditions.
    pub fn asks_for_cgroups(&self) -> bool {
        let layout = match &self.engine {
            Engine::Attached(a) => a.loaded.maps().layout(),
            Engine::Iterated(i) => i.maps().layout(),
            Engine::Traced(t) => t.layout(),
            Engine::Poll(_) | Engine::Waiting(_) | Engine::Idle(_) | Engine::Off(_) => return false,
        };
        let fields = layout.tables.iter().flat_map(|t| &t.key).chain(layout.events.iter().flat_map(|e| &e.fields));
        !layout.selected.is_empty() || fields.into_iter().any(|field| matches!(field.decoder, Decoder::Cgroup(_)))
    }

    /// Writes the cgroups that meet its conditions into their maps. Returns how many did not fit.
    pub fn select(&mut self, conditions: &Conditions<'_>) -> usize {
        let maps = match &self.engine {
            Engine::Attached(a) => a.loaded.maps(),
            Engine::Iterated(i) => i.maps(),
            Engine::Traced(_) | Engine::Poll(_) | Engine::Waiting(_) | Engine::Idle(_) | Engine::Off(_) => return 0,
        };
        let admitted = conditions.groups.is_some_and(|groups| {
            maps.admit(groups).unwrap_or_else(|reason| {
                tracing::warn!(
                    probe = self.outline.name,
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
                tracing::error!(probe = self.outline.name, %error, "its conditions on workloads cannot be kept current");
                0
            }
        }
    }

    /// Makes the next sweep due: the kernel reused ids of cgroups, whose counts must not get the old names.
    pub fn cgroups_were_reused(&mut self) {
        if let Engine::Attached(attached) = &mut self.engine {
            attached.sweep_soon();
        }
    }

    /// Whether it measures, waits for what it measures, or has nothing to measure on this kernel.
    pub fn runs(&self) -> bool {
        !matches!(self.engine, Engine::Off(_))
    }

    /// Full names of its metrics.
    pub fn metrics(&self) -> impl Iterator<Item = &str> {
        self.outline.metrics.iter().map(|metric| metric.about.name.as_str())
    }

    /// When [`Probe::tick`] is due, if ever.
    pub fn due(&self) -> Option<Instant> {
        match &self.engine {
            Engine::Attached(a) => a.due(),
            Engine::Poll(p) => Some(p.due()),
            Engine::Traced(t) => Some(t.due()),
            Engine::Waiting(w) => Some(w.looked + LOOK_EVERY),
            Engine::Iterated(_) | Engine::Idle(_) | Engine::Off(_) => None,
        }
    }

    /// Whether the next tick needs a process snapshot: `Some(true)` when with mapped files, for hooks that name a file
    /// without its path.
    pub fn looks(&self) -> Option<bool> {
        match &self.engine {
            Engine::Attached(a) => a.user().filter(|user| user.due() <= Instant::now()).map(UserHooks::by_name),
            Engine::Waiting(_) => Some(true),
            _ => None,
        }
    }

    /// Does the periodic work that is due: reads a poll's source, evicts keys and spans, hooks new files.
    ///
    /// `processes` is the snapshot that [`Probe::looks`] requires.
    pub fn tick(&mut self, names: &mut Names, processes: Option<&ProcessSnapshot>, telemetry: &Telemetry) {
        match &mut self.engine {
            Engine::Attached(a) => {
                let changes = a.look(processes);
                log_changes(&self.outline.name, &changes);
                match a.follow_cpus() {
                    Some(Ok(())) => tracing::info!(probe = self.outline.name, "follows the CPUs that are online"),
                    Some(Err(reason)) => tracing::error!(probe = self.outline.name, reason, "cannot follow the CPUs"),
                    None => {}
                }
                if a.sweep_due().is_some_and(|due| due <= Instant::now()) {
                    let errors = a.sweep(names, Moment::now());
                    self.report(1, errors, telemetry);
                }
            }
            Engine::Waiting(w) => {
                let Some(processes) = processes else { return };
                w.looked = Instant::now();
                let found = compile::usdts(std::slice::from_ref(&w.draft), || processes);
                if !found.is_empty() {
                    let target = compile::look(std::slice::from_ref(&w.draft), w.btf.as_deref());
                    *self = Probe::start(&w.draft.clone(), &target, &mut Loader::new(), w.btf.clone().as_deref());
                }
            }
            Engine::Poll(p) => {
                let before = p.failure.take();
                p.read(names);
                if p.failure.is_some() {
                    telemetry.poll_failed(p.source());
                }
                match (&before, &p.failure) {
                    (_, Some(reason)) if p.failure != before => {
                        tracing::error!(probe = self.outline.name, reason, "poll failed");
                    }
                    (Some(_), None) => tracing::info!(probe = self.outline.name, "polling again"),
                    _ => {}
                }
            }
            Engine::Traced(t) => t.tick(names),
            Engine::Iterated(_) | Engine::Idle(_) | Engine::Off(_) => {}
        }
    }

    /// New processes that [`Probe::tick`] found in stack keys.
    pub fn take_unseen(&mut self) -> HashSet<u32> {
        match &mut self.engine {
            Engine::Attached(a) => a.take_unseen(),
            _ => HashSet::new(),
        }
    }

    /// File descriptors to poll, and the single events since the last call.
    pub fn events(&mut self, names: &mut Names) -> (Vec<Arc<OwnedFd>>, EventBuffer) {
        let Engine::Attached(attached) = &mut self.engine else { return Default::default() };
        for (reason, events) in attached.new_losses() {
            let remedy = match reason {
                Loss::EventsLimited => "let its `slow.when` hold for fewer events, or raise `slow.max_per_second`",
                _ => "let its `slow.when` hold for fewer events, lower `slow.max_per_second`, or raise `slow.buffer`",
            };
            let (probe, reason) = (self.outline.name.as_str(), reason.name());
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

    /// Whether its programs are attached, so that a window measures them.
    pub fn is_metered(&self) -> bool {
        matches!(self.engine, Engine::Attached(_)) && self.budget.as_ref().is_none_or(|b| b.suspended_until().is_none())
    }

    /// Whether the next window should come soon.
    pub fn suspects(&self) -> bool {
        self.budget.as_ref().is_some_and(Budget::suspects)
    }

    /// Opens a window of run-time statistics.
    pub fn open_window(&mut self) {
        if let Engine::Attached(a) = &mut self.engine {
            a.open_window();
        }
    }

    /// Closes the window, and applies the budget to its cost.
    pub fn close_window(&mut self, clock_ns: u64) {
        let Engine::Attached(attached) = &mut self.engine else { return };
        let Some(cost) = attached.close_window(clock_ns) else { return };
        let now = self.started.elapsed();
        if let Some(action) = self.budget.as_mut().and_then(|b| b.look(now, &cost)) {
            self.apply(action);
        }
    }

    /// Attaches a suspended probe whose pause is over.
    pub fn resume(&mut self) {
        let now = self.started.elapsed();
        if let Some(action) = self.budget.as_mut().and_then(|b| b.resume(now)) {
            self.apply(action);
        }
    }

    fn apply(&mut self, action: BudgetAction) {
        let (Engine::Attached(attached), Some(budget)) = (&mut self.engine, &mut self.budget) else { return };
        let probe = self.outline.name.as_str();
        let done = match action {
            BudgetAction::Thin(halvings) => attached.thin(halvings),
            BudgetAction::Detach => {
                attached.detach();
                Ok(())
            }
            BudgetAction::Attach(halvings) => attached.attach(halvings),
        };
        match done {
            Ok(()) if budget.over() => tracing::warn!(probe, reason = budget.text(), "throttled"),
            Ok(()) => tracing::info!(probe, "measures all events again"),
            Err(reason) => {
                // A probe above its budget must not run on without the action.
                attached.detach();
                budget.extend_suspension(self.started.elapsed());
                tracing::error!(probe, reason, "taken off its hooks");
            }
        }
    }

    fn report(&mut self, when: usize, errors: Vec<String>, telemetry: &Telemetry) {
        let name = self.outline.name.as_str();
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
            let metrics = self.outline.metrics.iter().filter(|m| m.stacks.is_some() == stacks);
            metrics.map(|m| m.about.name.clone()).collect::<Vec<_>>()
        };
        let hook = |(hook, kind): &(String, &str)| HookStatus {
            hook: hook.clone(),
            kind: kind.to_string(),
            attached: reason.is_empty(),
            reason: reason.clone(),
        };
        let choice = |choice: &explain::Choice| ChoiceStatus {
            wanted: choice.wanted.clone(),
            got: choice.got.clone(),
            because: choice.because.clone(),
        };
        ProbeStatus {
            name: self.outline.name.clone(),
            summary: self.outline.summary.clone(),
            attached: reason.is_empty(),
            idle: matches!(self.engine, Engine::Idle(_)),
            of_cluster: probe_controller::is_handed(&self.outline.pack),
            hooks: self.hooks.iter().map(hook).collect(),
            files: self.files(),
            choices: self.choices.iter().map(choice).collect(),
            metrics: names(false),
            stacks: names(true).iter().map(|name| name.trim_start_matches(PREFIX).to_owned()).collect(),
            throttled: self.budget.as_ref().map(Budget::text).unwrap_or_default(),
            reason,
        }
    }

    /// What it is in the kernel, or why it is not there.
    pub fn attached(&mut self) -> Result<&mut Attached, String> {
        match &mut self.engine {
            Engine::Attached(a) => Ok(a),
            Engine::Iterated(_) => Err("it runs when the metrics are read".into()),
            Engine::Idle(reason) | Engine::Off(reason) => Err(reason.clone()),
            Engine::Waiting(w) => Err(w.reason.clone()),
            Engine::Poll(_) => Err("it is a poll".into()),
            Engine::Traced(_) => Err("an ftrace session measures it".into()),
        }
    }

    /// The reason of the suspension, while the budget suspends the probe.
    pub fn held_back(&self) -> Option<String> {
        self.suspended().map(Budget::text)
    }

    /// It measures one of so many events; and whether that number has changed since the start.
    pub fn one_of(&self) -> (u64, bool) {
        self.budget.as_ref().map_or((1, false), |budget| (budget.one_of(), budget.throttled() > 0))
    }

    pub fn iterated(&self) -> Option<Arc<Iterated>> {
        match &self.engine {
            Engine::Iterated(i) => Some(i.clone()),
            _ => None,
        }
    }

    /// Why it does not measure, or not everywhere; empty when it does.
    pub fn reason(&self) -> String {
        match &self.engine {
            Engine::Iterated(i) => i.failure(),
            Engine::Idle(reason) | Engine::Off(reason) => reason.clone(),
            Engine::Poll(p) => p.failure.clone().unwrap_or_default(),
            Engine::Traced(t) => t.failure(),
            Engine::Waiting(w) => w.reason.clone(),
            Engine::Attached(a) => match self.suspended() {
                Some(budget) => budget.text(),
                None => a.reason(),
            },
        }
    }

    /// Its budget, while that suspends the probe.
    fn suspended(&self) -> Option<&Budget> {
        self.budget.as_ref().filter(|budget| budget.suspended_until().is_some())
    }

    fn files(&self) -> Vec<String> {
        match &self.engine {
            Engine::Attached(a) => a.user().map(UserHooks::files).unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}

/// Logs each reason. Missing capabilities are logged once for all probes: see [`super::rights`].
fn not_started(draft: &Draft, refusal: &Refusal) {
    let probe = draft.outline().name.as_str();
    if !refusal.target {
        log_diagnostics(&refusal.diagnostics);
        tracing::error!(probe, reason = refusal.reason(), "not started");
    } else if rights::missing().is_empty() {
        for diagnostic in &refusal.diagnostics {
            tracing::error!(probe, reason = diagnostic.one_line(), "not started");
        }
    }
}

fn wait(draft: &Draft, refusal: &Refusal, btf: Option<&Path>) -> Probe {
    let reason = format!("waiting: {}", refusal.reason());
    tracing::info!(probe = draft.outline().name, reason, "not started yet");
    let btf = btf.map(Path::to_path_buf);
    build(
        draft,
        Vec::new(),
        Vec::new(),
        Engine::Waiting(Box::new(Waiting { draft: draft.clone(), btf, reason, looked: Instant::now() })),
    )
}

fn log_changes(probe: &str, changes: &[FileChange]) {
    for FileChange { hook, file, change } in changes {
        match change {
            Change::Attached(places) => tracing::info!(probe, hook, file, places, "attached"),
            Change::Detached => tracing::info!(probe, hook, file, "detached: nothing runs it any more"),
            Change::Refused(reason) => tracing::warn!(probe, hook, file, reason, "not attached"),
        }
    }
}

fn build(draft: &Draft, kinds: Vec<&'static str>, choices: Vec<explain::Choice>, engine: Engine) -> Probe {
    let outline = draft.outline().clone();
    let budget = match &engine {
        Engine::Attached(a) => Budget::new(outline.budget_ppm, a.can_thin()),
        _ => None,
    };
    let kinds = kinds.into_iter().chain(std::iter::repeat(""));
    let mut hooks: Vec<(String, &'static str)> = outline.hooks.iter().cloned().zip(kinds).collect();
    // A span may begin and end at one hook.
    let mut seen = BTreeSet::new();
    hooks.retain(|hook| seen.insert(hook.clone()));
    let started = Instant::now();
    let identity = draft.identity().clone();
    Probe { hooks, outline, identity, choices, engine, budget, started, errors: Default::default() }
}

/// A probe that compiled to nothing. It has no hooks, so that none is shown as not attached.
fn idle(draft: &Draft, artifact: &Artifact) -> Probe {
    let warnings = draft.warnings(artifact);
    let reasons: Vec<String> = warnings.iter().map(|warning| warning.one_line()).collect();
    let idle = build(draft, Vec::new(), explain::choices(artifact), Engine::Idle(reasons.join("; ")));
    Probe { hooks: Vec::new(), ..idle }
}

fn off(draft: &Draft, reason: String) -> Probe {
    build(draft, Vec::new(), Vec::new(), Engine::Off(reason))
}

fn poll(draft: &Draft, artifact: Artifact) -> Probe {
    match Poll::new(draft.outline(), artifact.module) {
        Some(poll) => {
            tracing::info!(probe = draft.outline().name, source = poll.source(), "polling");
            build(draft, vec!["poll"], Vec::new(), Engine::Poll(Box::new(poll)))
        }
        None => off(draft, "this agent has no such poll source".into()),
    }
}

/// Runs the probe in the agent over the records of an ftrace session.
fn trace(draft: &Draft, artifact: Artifact) -> Probe {
    let choices = explain::choices(&artifact);
    match traced(draft, artifact, choices) {
        Ok(running) => running,
        Err(reason) => {
            tracing::error!(probe = draft.outline().name, reason, "not started");
            off(draft, reason)
        }
    }
}

fn traced(draft: &Draft, artifact: Artifact, choices: Vec<explain::Choice>) -> Result<Probe, String> {
    let outline = draft.outline();
    let traced = Traced::start(outline, artifact)?;
    tracing::info!(probe = outline.name, "recording its events in an ftrace session");
    let kinds = vec!["ftrace"; outline.hooks.len()];
    Ok(build(draft, kinds, choices, Engine::Traced(Box::new(traced))))
}

/// The probe over an ftrace session, where the kernel refuses programs and the probe sets no engine; `None` when the session
/// fails too.
fn fall_back(draft: &Draft, target: &Target, refused: &str) -> Option<Probe> {
    let artifact = compile::over_session(draft, target, refused)?;
    if artifact.is_idle() {
        return Some(idle(draft, &artifact));
    }
    let choices = explain::choices(&artifact);
    let running = traced(draft, artifact, choices).ok()?;
    tracing::warn!(
        probe = draft.outline().name,
        reason = refused,
        "an ftrace session measures it: programs are refused"
    );
    Some(running)
}

/// Loads and attaches. When the kernel refuses a kind of hook, tries the next best kind: an ability of the kernel may fail
/// at this function.
fn attach(draft: &Draft, artifact: Artifact, target: &Target, loader: &mut Loader) -> Probe {
    let (mut artifact, mut lesser, mut first) = (artifact, None, None);
    loop {
        let error = match load_once(draft, &artifact, loader) {
            Ok(running) => {
                if let Some(reason) = first {
                    tracing::warn!(probe = draft.outline().name, %reason, "attached in the next best way");
                }
                return running;
            }
            Err(error) => error,
        };
        let lesser = lesser.get_or_insert_with(|| target.clone());
        let next = without(lesser, &artifact, &error).then(|| draft.compile(lesser));
        let first = first.get_or_insert(error);
        match next {
            Some(Ok(next)) => artifact = next,
            _ => return refused(draft, target, first),
        }
    }
}

/// Removes the refused kind of hook from the target's abilities. Returns false when no other kind can help.
fn without(target: &mut Target, artifact: &Artifact, error: &load::LoadError) -> bool {
    // Other kinds of hooks have longer programs, so that one that has too many paths is not tried again: it costs the verifier
    // seconds to find out.
    if error.is_too_complex() {
        return false;
    }
    let program = match error {
        load::LoadError::Verifier { program, .. } | load::LoadError::Attach { program, .. } => program,
        load::LoadError::Permission { .. } | load::LoadError::Map { .. } | load::LoadError::Object(_) => return false,
    };
    let Some(refused) = artifact.programs.iter().find(|p| p.name == *program) else { return false };
    let ability = match refused.attach {
        Attach::TpBtf { .. } => &mut target.abilities.tp_btf,
        Attach::Fentry { .. } | Attach::Fexit { .. } => &mut target.abilities.fentry,
        Attach::Kprobe { multi: true, .. } => &mut target.abilities.kprobe_multi,
        _ => return false,
    };
    let was = std::mem::replace(ability, Ability::No(error.to_string()));
    was.yes()
}

fn refused(draft: &Draft, target: &Target, error: &load::LoadError) -> Probe {
    if let Some(running) = fall_back(draft, target, &error.to_string()) {
        return running;
    }
    tracing::error!(probe = draft.outline().name, reason = %error, "not attached");
    if let load::LoadError::Verifier { program, log, .. } = error {
        tracing::debug!(program, log, "all the verifier says");
    }
    off(draft, error.to_string())
}

fn load_once(draft: &Draft, artifact: &Artifact, loader: &mut Loader) -> Result<Probe, load::LoadError> {
    let born = Moment::now();
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    let layout = &artifact.module.layout;
    let loaded = load::load(loader, &artifact.object, layout, &programs)?;
    let mut user = UserHooks::new(&programs);
    if let Some(user) = &mut user {
        log_changes(&draft.outline().name, &user.look(&loaded, &ProcessSnapshot::look()));
    }
    for p in artifact.programs.iter().filter(|p| !is_user_hook(&p.attach)) {
        let (hook, _) = attach_point(&p.attach);
        tracing::info!(probe = draft.outline().name, program = p.name, hook, instructions = p.instructions, "attached");
    }
    let outline = draft.outline();
    let fields = layout.events.as_ref().map_or(0, |events| events.fields.len());
    if layout.events.is_some() && outline.linked.iter().any(|linked| linked.needs(fields)) {
        tracing::warn!(
            probe = outline.name,
            "exemplars disabled: event records with the labels of its histograms would be too large"
        );
    }
    let engine = match programs.iter().any(|(_, attach)| matches!(attach, Attach::Iter { .. })) {
        true => Engine::Iterated(Arc::new(Iterated::new(outline, layout, loaded))),
        false => Engine::Attached(Box::new(Attached::new(outline, layout, loaded, user, born))),
    };
    Ok(build(draft, draft.kinds(artifact), explain::choices(artifact), engine))
}
