//! Another configuration for an agent that runs: all of it or nothing.
//!
//! Files are read again at SIGHUP, when they have changed, and when a client asks. What can fail comes first and changes nothing:
//! reading, compiling, loading what is new beside what runs. Then one list of probes takes the place of another, and what is
//! in the old one only is ended.

mod diff;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::config::files::diag::{self, Diagnostic};

use super::capturing::Around;
use super::events::Sink;
use super::intent::{self, Intent, Reading};
use super::pushers::{Changes, Pushers};
use super::watch::{self, LOOK_EVERY, Seen, Watch};
use super::{App, Options, Probe, Running, Told, capturing, lock, rights};
use crate::app::logging::Level;
use crate::app::logging::log_diagnostics;
use crate::config::compile;
use crate::config::exporters::receivers;
use crate::config::files::{AgentConfig, Kubernetes, Workloads};
use crate::config::plan::{Draft, Identity};
use crate::kernel::load::Loader;
use crate::metrics::events::tail::Tail;
use crate::metrics::labels::Names;
use diff::{New, Old, Plan, Step, diff};
use kstrobe_web::systemd::{News, notify};

/// What came of it, in words: that it runs, or why what ran before runs on.
type Answer = Result<String, String>;

/// Somebody wants the files to be read again.
pub(super) enum Ask {
    /// And hears what came of it, if there is somebody who listens.
    Read(&'static str, Option<Sender<Answer>>),
}

/// Asks, and waits for what comes of it.
pub(super) fn ask(asks: &Sender<Ask>, why: &'static str) -> Answer {
    let (answer, answered) = channel();
    // A thread that is gone gives no answer either.
    let _ = asks.send(Ask::Read(why, Some(answer)));
    answered.recv().unwrap_or_else(|_| Err("the agent is about to end\n".to_owned()))
}

/// What does not change while the agent runs.
pub(super) struct Fixed {
    pub app: Arc<App>,
    pub options: Options,
    pub level: Level,
    pub tail: Arc<Tail>,
    pub around: Around,
    pub pushers: Arc<Pushers>,
    pub started: Started,
}

/// The part of the configuration that takes a restart.
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

    /// Keys that have changed since, and take a restart.
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
pub(super) fn start(fixed: Fixed, asked: Receiver<Ask>, seen: Seen, directory: Option<PathBuf>) -> std::io::Result<()> {
    let mut reload = Reload { fixed, watch: Watch::new(seen), directory, begun: Instant::now() };
    std::thread::Builder::new().name("reload".into()).spawn(move || reload.run(&asked))?;
    Ok(())
}

struct Reload {
    fixed: Fixed,
    watch: Watch,
    /// Of probe files.
    directory: Option<PathBuf>,
    begun: Instant,
}

/// Tells systemd when it goes.
struct Ready;

impl Drop for Ready {
    fn drop(&mut self) {
        notify(News::Ready);
    }
}

/// Why nothing was changed.
#[derive(Debug)]
struct Refused {
    /// Each reason on a line.
    reasons: Vec<String>,
    /// The same for a person, with the places in files.
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

/// Probes for the new configuration, loaded and attached, but not in the place of the old ones yet.
struct Prepared {
    probes: Vec<Probe>,
    old: Arc<[Probe]>,
    plan: Plan,
}

impl Reload {
    fn run(&mut self, asked: &Receiver<Ask>) {
        loop {
            let (why, first) = match asked.recv_timeout(LOOK_EVERY) {
                Ok(Ask::Read(why, listener)) => (why, listener),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let seen = watch::look(self.fixed.options.config.as_deref(), self.directory.as_deref());
                    if !self.watch.look(self.begun.elapsed(), seen) {
                        continue;
                    }
                    ("files have changed", None)
                }
            };
            // One reload is for all who asked before it began.
            let mut listeners: Vec<Sender<Answer>> = first.into_iter().collect();
            while let Ok(Ask::Read(_, listener)) = asked.try_recv() {
                listeners.extend(listener);
            }
            let answer = catch_unwind(AssertUnwindSafe(|| self.reload(why))).unwrap_or_else(|_| {
                let fault = "the reload failed: this is an error in kstrobe, please report it with the agent's log";
                Err(self.refuse(fault.to_owned().into()))
            });
            for listener in listeners {
                // Who hung up needs no answer.
                let _ = listener.send(answer.clone());
            }
        }
    }

    fn reload(&mut self, why: &'static str) -> Answer {
        tracing::info!(why, "reloading");
        notify(News::Reloading);
        // Ready is what it is again, whatever came of it and however this ends.
        let _ready = Ready;
        match self.attempt() {
            Ok(told) => {
                self.fixed.app.telemetry.reloaded(true);
                Ok(told)
            }
            Err(refused) => Err(self.refuse(refused)),
        }
    }

    /// Says so wherever somebody may look.
    fn refuse(&self, refused: Refused) -> String {
        let app = &self.fixed.app;
        let reason = refused.reasons.first().map_or("", String::as_str);
        tracing::error!(reason, reasons = refused.reasons.len(), "not reloaded: what ran before runs on");
        app.telemetry.reloaded(false);
        lock(&app.told).refused = refused.reasons;
        format!("{}not reloaded: what ran before runs on\n", refused.text)
    }

    fn attempt(&mut self) -> Result<String, Refused> {
        let Reading { intent, diagnostics, seen, directory } =
            intent::read(&self.fixed.options, self.directory.as_deref());
        // Whatever comes of it: what is wrong with files is not better for being read again.
        (self.watch, self.directory) = (Watch::new(seen), directory);
        log_diagnostics(&diagnostics);
        let intent = match intent {
            Some(intent) if !diagnostics.iter().any(Diagnostic::is_error) => intent,
            _ => return Err(Refused::files(&diagnostics)),
        };
        let Fixed { app, options, around, pushers, .. } = &self.fixed;
        let (receivers, unsendable) = receivers(&intent.agent.exporters);
        if !unsendable.is_empty() {
            return Err(Refused::from(unsendable.join("; ")));
        }
        let sink = Sink::open(intent.events(options))?;
        let captures = app.captures();
        let change = capturing::prepare(&captures, &intent.agent, &intent.drafts, around)?;
        let prepared = self.prepare(&intent.drafts)?;
        // From here on nothing can fail.
        let counts = self.exchange(&intent.drafts, prepared, sink);
        let next = change.make(&captures, &intent.agent, &intent.drafts, around);
        *app.captures.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        capturing::close(&captures, Some(&next));
        *lock(&app.told) = Told::default();
        app.configured(0, &intent);
        self.fixed.tail.set_limit(intent.agent.kept_events);
        // After the probes: the last report of an exporter that ends tells of the new ones already.
        let exporters = self.exporters(pushers.renew(receivers));
        let mut notes = self.notes(&intent);
        tracing::info!(probes = counts, hash = intent.hash, "reloaded");
        notes.extend(rights::lacking(app).map(|lacking| lacking.text));
        for note in &notes {
            tracing::warn!(reason = note, "not all of the configuration runs");
        }
        let notes: String = notes.into_iter().map(|note| format!("warning: {note}\n")).collect();
        let doubts = diag::render(&diagnostics);
        Ok(format!("reloaded; probes: {counts}\n{exporters}{notes}{doubts}"))
    }

    /// What became of exporters, if there were or are any.
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

    /// Loads and attaches what is new, beside what runs.
    fn prepare(&self, drafts: &[Draft]) -> Result<Prepared, Refused> {
        let Fixed { app, options, .. } = &self.fixed;
        let old = app.probes();
        let known = |probe: &Probe| {
            let running = lock(probe);
            (running.outline.name.clone(), running.identity.clone(), running.runs())
        };
        let known: Vec<(String, Arc<Identity>, bool)> = old.iter().map(known).collect();
        let olds: Vec<Old> = known.iter().map(|(name, identity, runs)| Old { name, identity, runs: *runs }).collect();
        let news = drafts.iter().map(|draft| New { name: &draft.outline().name, identity: draft.identity() });
        let plan = diff(&olds, &news.collect::<Vec<_>>());
        let steps = || drafts.iter().zip(&plan.steps);
        let changed: Vec<Draft> =
            steps().filter(|(_, step)| !matches!(step, Step::Keep(_))).map(|(draft, _)| draft.clone()).collect();
        if changed.is_empty() {
            let kept = plan.steps.iter().flat_map(|step| step.old()).map(|at| old[at].clone()).collect();
            return Ok(Prepared { probes: kept, old, plan });
        }
        let btf = options.source.btf.as_deref();
        let target = compile::look(&changed, btf);
        // What is wrong with a text is wrong on every kernel.
        let refusals = changed.iter().filter_map(|draft| draft.compile(&target).err());
        let faults: Vec<Diagnostic> =
            refusals.filter(|r| !r.target).flat_map(|r| r.diagnostics).filter(Diagnostic::is_error).collect();
        if !faults.is_empty() {
            log_diagnostics(&faults);
            return Err(Refused::files(&faults));
        }
        let mut loader = Loader::new();
        let mut probes = Vec::with_capacity(drafts.len());
        for (draft, step) in steps() {
            if let Step::Keep(at) = step {
                probes.push(old[*at].clone());
                continue;
            }
            let mut running = Running::start(draft, &target, &mut loader, btf);
            if !running.runs() && step.old().is_some_and(|at| known[at].2) {
                let (name, reason) = (&running.outline.name, running.reason());
                return Err(Refused::from(format!(
                    "probe `{name}` runs, and would not as it is written now: {reason}"
                )));
            }
            if running.due().is_some_and(|due| due <= Instant::now()) {
                // A poll has rows from the first scrape on.
                running.attend(&mut lock(&app.names), None, &app.telemetry);
            }
            probes.push(Arc::new(Mutex::new(running)));
        }
        Ok(Prepared { probes, old, plan })
    }

    /// Lets the new probes take the place of the old ones, which end.
    fn exchange(&self, drafts: &[Draft], prepared: Prepared, sink: Sink) -> String {
        let Fixed { app, tail, .. } = &self.fixed;
        let Prepared { probes, old, plan } = prepared;
        let slow = drafts.iter().map(Draft::outline).filter(|o| o.slow).map(|o| o.name.clone());
        tail.extend(slow.collect());
        let (mut kept, mut replaced, mut started) = (0, Vec::new(), 0);
        for ((draft, step), probe) in drafts.iter().zip(&plan.steps).zip(&probes) {
            match step {
                Step::Keep(_) => {
                    kept += 1;
                    lock(probe).renew(draft);
                }
                Step::Replace(at) => replaced.push(*at),
                Step::Start => started += 1,
            }
        }
        app.run_these(probes);
        let mut names = Names::new().with_owners(app.owners.clone());
        for at in replaced.iter().chain(&plan.ends) {
            let mut running = lock(&old[*at]);
            let name: Arc<str> = Arc::from(running.outline.name.as_str());
            let unread = running.end(&mut names, "the configuration has changed, and this probe with it");
            drop(running);
            if plan.ends.contains(at) {
                tracing::info!(probe = &*name, "ended: it is not asked for any more");
                app.telemetry.forget(&name);
            }
            lock(&app.events).unread.push((name, unread));
        }
        lock(&app.events).sink = Some(sink);
        format!("{kept} unchanged, {} replaced, {started} started, {} ended", replaced.len(), plan.ends.len())
    }

    /// What of the configuration only a restart brings, and does what else there is to do.
    fn notes(&self, intent: &Intent) -> Vec<String> {
        let Fixed { options, level, started, .. } = &self.fixed;
        let (wanted, json) = intent.log(options);
        let mut notes = Vec::new();
        if let Err(reason) = level.set(wanted) {
            notes.push(format!("`log.level` stays as it was: {reason}"));
        }
        notes.extend(started.notes(&Started::new(&intent.agent, intent.listen(options), json)));
        notes
    }
}

#[cfg(test)]
mod tests;
