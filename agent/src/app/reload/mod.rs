//! Reloads the configuration: all of it or nothing.
//!
//! SIGHUP, changed files and `POST /-/reload` start a reload. The steps that can fail come first and change nothing:
//! reading, compiling, loading new probes beside the old ones. Then one list of probes replaces the other, and probes of the
//! old one only are ended.

mod diff;

use crate::probe::lock::ProbeLock;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::config::files::diag::{self, Diagnostic};

use super::captures::CaptureDeps;
use super::events::Sink;
use super::exporters::{Changes, Exporters};
use super::load_config::{self, LoadOutcome, LoadedConfig};
use super::pace::until_second_ends;
use super::task::{self, Task};
use super::watch::{self, LOOK_AT_REST, LOOK_EVERY, Seen, Watch};
use super::{App, ConfigStatus, Options, SharedProbe, captures, lock, rights};
use crate::app::ReloadRefused;
use crate::app::logging::Level;
use crate::config::compile::{self, Compiled};
use crate::config::diagnostics::log_diagnostics;
use crate::config::exporters::receivers;
use crate::config::files::{AgentConfig, Kubernetes, Workloads};
use crate::config::plan::{Identity, ProbePlan};
use crate::kernel::load::Loader;
use crate::metrics::events::tail::Tail;
use crate::metrics::labels::Names;
use crate::probe::Probe;
use diff::{New, Old, Plan, Step, diff};
use kstrobe_history::MarkKind;
use kstrobe_web::systemd::{News, notify};

/// A summary of the reload, or the reasons for which the previous configuration stays in force.
type Answer = Result<String, ReloadRefused>;

/// A command to the reload thread.
pub(super) enum Command {
    /// Reads the files again. The first field is the reason for the log; the answer goes to the sender, if there is one.
    Reload(&'static str, Option<Sender<Answer>>),
}

pub(super) type CommandSender = Sender<Command>;

/// Reloads and waits for the answer.
pub(super) fn request(commands: &CommandSender, why: &'static str) -> Answer {
    let (answer, answered) = channel();
    // A thread that has ended drops its receiver, so that `recv` fails below.
    let _ = commands.send(Command::Reload(why, Some(answer)));
    answered.recv().unwrap_or_else(|_| Err(ReloadRefused("the agent is about to end\n".to_owned())))
}

/// Values for reloads that stay the same while the agent runs.
pub(super) struct ReloadContext {
    pub app: Arc<App>,
    pub options: Options,
    pub level: Level,
    pub tail: Arc<Tail>,
    pub deps: CaptureDeps,
    pub exporters: Arc<Exporters>,
    pub started: Started,
}

/// The part of the configuration that only a restart changes.
pub(super) struct Started {
    /// Addresses, as the configuration or the command line has them.
    listen: Vec<String>,
    log_json: bool,
    kubernetes: Kubernetes,
    workloads: Workloads,
}

impl Started {
    /// `listen` and `log_json` may be those of the command line.
    pub fn new(agent: &AgentConfig, listen: &[String], log_json: bool) -> Started {
        let (kubernetes, workloads) = (agent.kubernetes.clone(), agent.workloads);
        Started { listen: listen.to_vec(), log_json, kubernetes, workloads }
    }

    /// Warnings about changed keys that take a restart.
    fn notes(&self, now: &Started) -> Vec<String> {
        let still = format!(": the agent still listens on {}", self.listen.join(", "));
        let changed = [
            ("`listen`", now.listen != self.listen, still.as_str()),
            ("`log.format`", now.log_json != self.log_json, ""),
            ("`kubernetes`", now.kubernetes != self.kubernetes, ""),
            ("`workloads.walk`", now.workloads.walk_ns != self.workloads.walk_ns, ""),
            ("`workloads.grace`", now.workloads.grace_ns != self.workloads.grace_ns, ""),
            ("`workloads.sandboxes`", now.workloads.sandboxes != self.workloads.sandboxes, ""),
        ];
        let changed = changed.iter().filter(|(_, is, _)| *is);
        changed.map(|(what, _, more)| format!("{what} has changed, and takes a restart{more}")).collect()
    }
}

/// Starts the thread that reads files again, which lives as long as the agent. `seen` and `directory` are of the files that run.
pub(super) fn start(
    context: ReloadContext,
    commands: Receiver<Command>,
    seen: Seen,
    directory: Option<PathBuf>,
) -> std::io::Result<()> {
    task::spawn(move || Reload::new(context, commands, seen, directory)).map(drop)
}

struct Reload {
    context: ReloadContext,
    watch: Watch,
    /// Of probe files.
    directory: Option<PathBuf>,
    begun: Instant,
    commands: Receiver<Command>,
    /// The reason of the reload that is due.
    due: Option<&'static str>,
    /// Wait for its answer.
    listeners: Vec<Sender<Answer>>,
}

/// Notifies systemd when dropped.
struct Ready;

impl Drop for Ready {
    fn drop(&mut self) {
        notify(News::Ready);
    }
}

/// The reasons of a refused reload.
#[derive(Debug)]
struct Refused {
    /// Each reason on a line.
    reasons: Vec<String>,
    /// The same with source lines.
    text: String,
}

impl Refused {
    fn files(diagnostics: &[Diagnostic]) -> Refused {
        let errors = diagnostics.iter().filter(|d| d.is_error());
        Refused { reasons: errors.map(Diagnostic::one_line).collect(), text: diag::render(diagnostics) }
    }
}

impl From<String> for Refused {
    fn from(reason: String) -> Refused {
        Refused { text: format!("error: {reason}\n"), reasons: vec![reason] }
    }
}

/// Probes of the new configuration, loaded and attached, but not in the list of the app yet.
struct Prepared {
    probes: Vec<SharedProbe>,
    old: Arc<[SharedProbe]>,
    plan: Plan,
}

impl Task for Reload {
    const NAME: &'static str = "reload";

    fn run(&mut self) {
        if let Some(why) = self.due.take() {
            let answer = self.reload(why);
            self.answer(&answer);
        }
    }

    fn panicked(&mut self) {
        let fault = "the reload failed: this is an error in kstrobe, please report it with the agent's log";
        let refused = self.refuse(fault.to_owned().into());
        self.answer(&Err(refused));
    }

    fn wait(&mut self) -> ControlFlow<()> {
        match self.next_command() {
            Ok(Command::Reload(why, listener)) => {
                self.due = Some(why);
                self.listeners.extend(listener);
            }
            Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
            Err(RecvTimeoutError::Timeout) => {
                let seen = watch::look(self.context.options.config.as_deref(), self.directory.as_deref());
                self.due = self.watch.look(self.begun.elapsed(), seen).then_some("files have changed");
            }
        }
        // One reload answers all commands that came before it.
        while let Ok(Command::Reload(why, listener)) = self.commands.try_recv() {
            self.due.get_or_insert(why);
            self.listeners.extend(listener);
        }
        ControlFlow::Continue(())
    }
}

impl Reload {
    fn new(context: ReloadContext, commands: Receiver<Command>, seen: Seen, directory: Option<PathBuf>) -> Reload {
        Reload {
            context,
            watch: Watch::new(seen),
            directory,
            begun: Instant::now(),
            commands,
            due: None,
            listeners: Vec::new(),
        }
    }

    /// Waits for a command until the next look at files, if there are any.
    fn next_command(&mut self) -> Result<Command, RecvTimeoutError> {
        let rests = self.context.app.pace.rests() && !self.watch.has_changed();
        let every = if rests { LOOK_AT_REST } else { LOOK_EVERY };
        match self.context.options.config.is_some() || self.directory.is_some() {
            true => self.commands.recv_timeout(every - Duration::from_secs(1) + until_second_ends()),
            false => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn answer(&mut self, answer: &Answer) {
        for listener in self.listeners.drain(..) {
            // The client may be gone.
            let _ = listener.send(answer.clone());
        }
    }

    fn reload(&mut self, why: &'static str) -> Answer {
        tracing::info!(why, "reloading");
        notify(News::Reloading);
        // systemd needs READY=1 after RELOADING=1, also after an error or a panic.
        let _ready = Ready;
        match self.attempt() {
            Ok(answer) => {
                self.context.app.telemetry.reloaded(true);
                self.mark(answer.lines().next().unwrap_or_default().to_owned());
                Ok(answer)
            }
            Err(refused) => Err(self.refuse(refused)),
        }
    }

    /// Logs the refusal, counts it, and shows it in the status.
    fn refuse(&self, refused: Refused) -> ReloadRefused {
        let app = &self.context.app;
        let reason = refused.reasons.first().map_or("", String::as_str);
        tracing::error!(reason, reasons = refused.reasons.len(), "not reloaded: what ran before runs on");
        app.telemetry.reloaded(false);
        self.mark(format!("not reloaded: {reason}"));
        lock(&app.config_status).refused = refused.reasons;
        ReloadRefused(format!("{}not reloaded: what ran before runs on\n", refused.text))
    }

    fn mark(&self, text: String) {
        self.context.app.history.mark(MarkKind::Reload, SystemTime::now(), text, None);
    }

    fn attempt(&mut self) -> Result<String, Refused> {
        let LoadOutcome { loaded, diagnostics, seen, directory } =
            load_config::read(&self.context.options, self.directory.as_deref());
        // Also after an error: the same files would fail again.
        (self.watch, self.directory) = (Watch::new(seen), directory);
        log_diagnostics(&diagnostics);
        let loaded = match loaded {
            Some(loaded) if !diagnostics.iter().any(Diagnostic::is_error) => loaded,
            _ => return Err(Refused::files(&diagnostics)),
        };
        let ReloadContext { app, options, deps, exporters, .. } = &self.context;
        let (receivers, unsendable) = receivers(&loaded.agent.exporters);
        if !unsendable.is_empty() {
            return Err(Refused::from(unsendable.join("; ")));
        }
        let sink = Sink::open(loaded.events(options)).map_err(|error| Refused::from(error.to_string()))?;
        let captures = app.captures();
        let change = captures::prepare(&captures, &loaded.agent, &loaded.plans, deps)
            .map_err(|error| Refused::from(format!("captures cannot be stored: {error}")))?;
        let prepared = self.prepare(&loaded.plans)?;
        // From here on nothing can fail.
        let counts = self.exchange(&loaded.plans, prepared, sink);
        let next = change.make(&captures, &loaded.agent, &loaded.plans, deps);
        *app.captures.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        captures::close(&captures, Some(&next));
        *lock(&app.config_status) = ConfigStatus::default();
        app.configured(0, &loaded);
        // Probes and settings that a rest does not know.
        app.pace.read();
        // Rules, and the last events of probes that ended.
        app.pace.notify();
        app.wake_events();
        self.context.tail.set_limit(loaded.agent.kept_events);
        // After the probes, so that the last report of a removed exporter has the new ones.
        let exporters = self.exporters(exporters.renew(receivers));
        let mut notes = self.notes(&loaded);
        tracing::info!(probes = counts, hash = loaded.hash, "reloaded");
        notes.extend(rights::lacking(app).map(|lacking| lacking.text));
        for note in &notes {
            tracing::warn!(reason = note, "not all of the configuration runs");
        }
        let notes: String = notes.into_iter().map(|note| format!("warning: {note}\n")).collect();
        let doubts = diag::render(&diagnostics);
        Ok(format!("reloaded; probes: {counts}\n{exporters}{notes}{doubts}"))
    }

    /// The changes of exporters as a line; empty without exporters.
    fn exporters(&self, changes: Changes) -> String {
        let Changes { kept, started, ended } = changes;
        if changes == Changes::default() {
            return String::new();
        }
        if started + ended > 0 {
            tracing::info!(unchanged = kept, started, ended, "exporters");
        }
        format!("exporters: {kept} unchanged, {started} started, {ended} ended\n")
    }

    /// Loads and attaches new probes beside the running ones.
    fn prepare(&self, plans: &[ProbePlan]) -> Result<Prepared, Refused> {
        let ReloadContext { app, options, .. } = &self.context;
        let old = app.probes();
        let known = |probe: &SharedProbe| {
            let running = probe.lock();
            (running.meta.name.clone(), running.identity.clone(), running.runs())
        };
        let known: Vec<(String, Arc<Identity>, bool)> = old.iter().map(known).collect();
        let olds: Vec<Old> = known.iter().map(|(name, identity, runs)| Old { name, identity, runs: *runs }).collect();
        let news = plans.iter().map(|plan| New { name: &plan.meta().name, identity: plan.identity() });
        let plan = diff(&olds, &news.collect::<Vec<_>>());
        let steps = || plans.iter().zip(&plan.steps);
        let is_kept = |step: &Step| matches!(step, Step::Keep(_));
        let changed: Vec<ProbePlan> =
            steps().filter(|(_, step)| !is_kept(step)).map(|(plan, _)| plan.clone()).collect();
        if changed.is_empty() {
            let kept = plan.steps.iter().flat_map(|step| step.old()).map(|at| old[at].clone()).collect();
            return Ok(Prepared { probes: kept, old, plan });
        }
        let btf = options.source.btf.as_deref();
        let target = compile::look(&changed, btf);
        // `None` of a probe that is kept.
        let of = |(plan, step): (&ProbePlan, &Step)| (!is_kept(step)).then(|| compile::probe(plan, &target));
        let compiled: Vec<Option<Compiled>> = steps().map(of).collect();
        // Mistakes in the text refuse the reload; a kernel that lacks a hook does not.
        let faults: Vec<Diagnostic> = compiled.iter().flatten().flat_map(Compiled::mistakes).cloned().collect();
        if !faults.is_empty() {
            log_diagnostics(&faults);
            return Err(Refused::files(&faults));
        }
        let mut loader = Loader::for_target(app.shared.clone(), &target, btf);
        let batch = app.shared.hooks.batch();
        let mut probes = Vec::with_capacity(plans.len());
        for ((plan, step), compiled) in steps().zip(compiled) {
            let Some(compiled) = compiled else {
                probes.extend(step.old().map(|at| old[at].clone()));
                continue;
            };
            let mut running = Probe::start(plan, compiled, &target, &mut loader, btf);
            if !running.runs() && step.old().is_some_and(|at| known[at].2) {
                let (name, reason) = (&running.meta.name, running.reason());
                return Err(Refused::from(format!(
                    "probe `{name}` runs, and would not as it is written now: {reason}"
                )));
            }
            if running.due(false).is_some_and(|due| due <= Instant::now()) {
                // A poll has rows from the first scrape on.
                running.tick(&mut app.names.lock(), None, &app.telemetry);
            }
            probes.push(Arc::new(ProbeLock::new(running)));
        }
        drop(batch);
        Ok(Prepared { probes, old, plan })
    }

    /// Replaces the list of probes and ends the old ones.
    fn exchange(&self, plans: &[ProbePlan], prepared: Prepared, sink: Sink) -> String {
        let ReloadContext { app, tail, .. } = &self.context;
        let Prepared { probes, old, plan } = prepared;
        let slow = plans.iter().map(ProbePlan::meta).filter(|o| o.slow).map(|o| o.name.clone());
        tail.extend(slow.collect());
        let (mut kept, mut replaced, mut started) = (0, Vec::new(), 0);
        for ((plan, step), probe) in plans.iter().zip(&plan.steps).zip(&probes) {
            match step {
                Step::Keep(_) => {
                    kept += 1;
                    probe.lock().renew(plan);
                }
                Step::Replace(at) => replaced.push(*at),
                Step::Start => started += 1,
            }
        }
        let replaces = plan.steps.iter().zip(&probes).filter_map(|(step, new)| match step {
            Step::Replace(at) => Some((old[*at].clone(), Some(new.clone()))),
            Step::Keep(_) | Step::Start => None,
        });
        let ending: Vec<_> = replaces.chain(plan.ends.iter().map(|at| (old[*at].clone(), None))).collect();
        let mut sampler = lock(&app.sampler);
        app.replace_probes(probes, |names| sampler.hand_over(app, names, &ending));
        drop(sampler);
        let mut names = Names::new().with_workload_names(app.workload_names.clone());
        let _batch = app.shared.hooks.batch();
        for at in replaced.iter().chain(&plan.ends) {
            let mut running = old[*at].lock();
            let name: Arc<str> = Arc::from(running.meta.name.as_str());
            let unread = running.end(&mut names, "the configuration has changed, and this probe with it");
            drop(running);
            if plan.ends.contains(at) {
                tracing::info!(probe = &*name, "ended: no longer in the configuration");
                app.telemetry.forget(&name);
            }
            lock(&app.events).unread.push((name, unread));
        }
        lock(&app.events).sink = Some(sink);
        format!("{kept} unchanged, {} replaced, {started} started, {} ended", replaced.len(), plan.ends.len())
    }

    /// Applies the log level. Returns warnings about keys that take a restart.
    fn notes(&self, loaded: &LoadedConfig) -> Vec<String> {
        let ReloadContext { options, level, started, .. } = &self.context;
        let (wanted, json) = loaded.log(options);
        let mut notes = Vec::new();
        if let Err(reason) = level.set(wanted) {
            notes.push(format!("`log.level` stays as it was: {reason}"));
        }
        notes.extend(started.notes(&Started::new(&loaded.agent, loaded.listen(options), json)));
        notes
    }
}

#[cfg(test)]
mod tests;
