//! One enabled probe and its fate: compiled, loaded and attached, or the reason why not.

use std::path::{Path, PathBuf};
use std::time::Instant;

use kstrobe_ebpf::program::Binary;
use kstrobe_ebpf::target::{Ability, usdt_name};
use kstrobe_ebpf::{Artifact, Target};

use super::attached::Attached;
use super::poll::Poll;
use super::user_hooks::{Change, LOOK_EVERY, News, UserHooks};
use crate::binaries::find::World;
use crate::cli::log;
use crate::http::{HookStatus, ProbeStatus};
use crate::kernel::load::{self, Loader};
use crate::kernel::uprobe;
use crate::metrics::labels::Names;
use crate::metrics::snapshot::{Family, Moment};
use crate::plan::explain::attach_point;
use crate::plan::{Draft, Outline, PREFIX, Refusal};
use crate::prepare;
use crate::telemetry::{Attachment, Observed, SeriesUse, Telemetry};

/// A probe the agent was asked to run.
pub(super) struct Running {
    pub outline: Outline,
    /// As the user wrote them.
    hooks: Vec<String>,
    /// What was chosen for the hooks; empty when nothing was.
    kind: &'static str,
    engine: Engine,
    /// What could not be read at the last scrape, and at the last sweep.
    trouble: [Vec<String>; 2],
}

/// What became of it.
enum Engine {
    /// Programs in the kernel.
    Attached(Attached),
    /// Rows read by the agent.
    Poll(Poll),
    /// Nothing yet: what the compiler must know of a program's probe points is not there.
    Waiting(Box<Waiting>),
    /// Nothing; why.
    Off(String),
}

/// A probe that is compiled once the program it hooks is there.
struct Waiting {
    draft: Draft,
    /// `--btf`
    btf: Option<PathBuf>,
    reason: String,
    looked: Instant,
}

impl Running {
    /// Starts a probe. What goes wrong is logged here, once, with all its detail, and kept as its reason.
    pub fn start(draft: &Draft, target: &Target, loader: &mut Loader, btf: Option<&Path>) -> Running {
        match draft.compile(target) {
            Err(refusal) if refusal.target && waits(draft, target) => wait(draft, &refusal, btf),
            Err(refusal) => {
                log(&refusal.diagnostics);
                tracing::error!(probe = draft.outline().name, reason = refusal.reason(), "not started");
                off(draft, refusal.reason())
            }
            Ok(artifact) if draft.outline().poll.is_some() => poll(draft, artifact),
            Ok(artifact) => attach(draft, artifact, target, loader),
        }
    }

    /// Series now, and in `observed` what this probe says of itself. What cannot be read is counted, and logged when it
    /// was not said before.
    pub fn scrape(&mut self, names: &mut Names, now: Moment, observed: &mut Observed, told: &Telemetry) -> Vec<Family> {
        let name = self.outline.name.clone();
        let reason = self.reason();
        observed.attachments.extend(self.hooks.iter().map(|hook| Attachment {
            probe: name.clone(),
            hook: hook.clone(),
            kind: self.kind.to_string(),
            reason: reason.clone(),
        }));
        match &mut self.engine {
            Engine::Attached(a) => {
                let (families, mut errors) = a.families(names, now);
                errors.append(&mut a.observe(&name, observed));
                self.trouble(0, errors, told);
                families
            }
            Engine::Poll(p) => {
                observed.series.push(SeriesUse { probe: name, overflowed: p.overflowed(), evicted: 0 });
                p.families()
            }
            Engine::Waiting(_) | Engine::Off(_) => vec![],
        }
    }

    /// When it wants to be attended to, if ever.
    pub fn due(&self) -> Option<Instant> {
        match &self.engine {
            Engine::Attached(a) => a.due(),
            Engine::Poll(p) => Some(p.due()),
            Engine::Waiting(w) => Some(w.looked + LOOK_EVERY),
            Engine::Off(_) => None,
        }
    }

    /// Does what is due: a poll reads its source, keys and spans whose time has come go, files that are new are hooked.
    pub fn attend(&mut self, names: &mut Names, world: &mut Option<World>, told: &Telemetry) {
        match &mut self.engine {
            Engine::Attached(a) => {
                let news = a.look(world);
                tell(&self.outline.name, &news);
                if a.sweep_due().is_some_and(|due| due <= Instant::now()) {
                    let errors = a.sweep(names, Moment::now());
                    self.trouble(1, errors, told);
                }
            }
            Engine::Waiting(w) => {
                w.looked = Instant::now();
                let found = prepare::usdts(std::slice::from_ref(&w.draft));
                if !found.is_empty() {
                    let target = prepare::look(std::slice::from_ref(&w.draft), w.btf.as_deref());
                    *self = Running::start(&w.draft.clone(), &target, &mut Loader::new(), w.btf.clone().as_deref());
                }
            }
            Engine::Poll(p) => {
                let before = p.failure.take();
                p.read(names);
                if p.failure.is_some() {
                    told.poll_failed(p.source());
                }
                match (&before, &p.failure) {
                    (_, Some(reason)) if p.failure != before => {
                        tracing::error!(probe = self.outline.name, reason, "poll failed");
                    }
                    (Some(_), None) => tracing::info!(probe = self.outline.name, "polling again"),
                    _ => {}
                }
            }
            Engine::Off(_) => {}
        }
    }

    fn trouble(&mut self, when: usize, errors: Vec<String>, told: &Telemetry) {
        let name = self.outline.name.as_str();
        errors.iter().for_each(|_| told.read_failed(name));
        let before = std::mem::replace(&mut self.trouble[when], errors);
        let now = &self.trouble[when];
        for reason in now.iter().filter(|e| !before.contains(e)) {
            tracing::error!(probe = name, reason, "cannot be read");
        }
        if now.is_empty() && !before.is_empty() {
            tracing::info!(probe = name, "can be read again");
        }
    }

    /// As `/api/v1/probes` and `/readyz` tell it.
    pub fn status(&self) -> ProbeStatus {
        let reason = self.reason();
        let names = |stacks: bool| {
            let metrics = self.outline.metrics.iter().filter(|m| m.stacks.is_some() == stacks);
            metrics.map(|m| m.about.name.clone()).collect::<Vec<_>>()
        };
        let hook = |hook: &String| HookStatus {
            hook: hook.clone(),
            kind: self.kind.to_string(),
            attached: reason.is_empty(),
            reason: reason.clone(),
        };
        ProbeStatus {
            name: self.outline.name.clone(),
            summary: self.outline.summary.clone(),
            attached: reason.is_empty(),
            hooks: self.hooks.iter().map(hook).collect(),
            files: self.files(),
            metrics: names(false),
            stacks: names(true).iter().map(|name| name.trim_start_matches(PREFIX).to_owned()).collect(),
            reason,
        }
    }

    /// What it is in the kernel, or why it is not there.
    pub fn attached(&mut self) -> Result<&mut Attached, String> {
        match &mut self.engine {
            Engine::Attached(a) => Ok(a),
            Engine::Off(reason) => Err(reason.clone()),
            Engine::Waiting(w) => Err(w.reason.clone()),
            Engine::Poll(_) => Err("it is a poll".into()),
        }
    }

    fn reason(&self) -> String {
        match &self.engine {
            Engine::Off(reason) => reason.clone(),
            Engine::Poll(p) => p.failure.clone().unwrap_or_default(),
            Engine::Waiting(w) => w.reason.clone(),
            Engine::Attached(a) => a.user().map(UserHooks::reason).unwrap_or_default(),
        }
    }

    fn files(&self) -> Vec<String> {
        match &self.engine {
            Engine::Attached(a) => a.user().map(UserHooks::files).unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}

/// Whether the compiler lacks what only a program that is not there could tell.
fn waits(draft: &Draft, target: &Target) -> bool {
    let known =
        |(binary, provider, name): (&Binary, &str, &str)| target.usdts.contains_key(&usdt_name(binary, provider, name));
    !draft.usdts().into_iter().all(known)
}

fn wait(draft: &Draft, refusal: &Refusal, btf: Option<&Path>) -> Running {
    let reason = format!("waiting: {}", refusal.reason());
    tracing::info!(probe = draft.outline().name, reason, "not started yet");
    let btf = btf.map(Path::to_path_buf);
    running(draft, "", Engine::Waiting(Box::new(Waiting { draft: draft.clone(), btf, reason, looked: Instant::now() })))
}

/// What a look for files changed.
fn tell(probe: &str, news: &[News]) {
    for News { hook, file, change } in news {
        match change {
            Change::Attached(places) => tracing::info!(probe, hook, file, places, "attached"),
            Change::Detached => tracing::info!(probe, hook, file, "detached: nothing runs it any more"),
            Change::Refused(reason) => tracing::warn!(probe, hook, file, reason, "not attached"),
        }
    }
}

fn running(draft: &Draft, kind: &'static str, engine: Engine) -> Running {
    let outline = draft.outline().clone();
    Running { hooks: outline.hooks.clone(), outline, kind, engine, trouble: Default::default() }
}

fn off(draft: &Draft, reason: String) -> Running {
    running(draft, "", Engine::Off(reason))
}

fn poll(draft: &Draft, artifact: Artifact) -> Running {
    match Poll::new(draft.outline(), artifact.module) {
        Some(poll) => {
            tracing::info!(probe = draft.outline().name, source = poll.source(), "polling");
            running(draft, "poll", Engine::Poll(poll))
        }
        None => off(draft, "this agent has no such poll source".into()),
    }
}

/// Loads and attaches; when BTF-typed tracepoints are refused, once more with raw ones.
fn attach(draft: &Draft, artifact: Artifact, target: &Target, loader: &mut Loader) -> Running {
    let name = &draft.outline().name;
    match load_once(draft, &artifact, loader) {
        Ok(running) => running,
        Err(first) if target.abilities.tp_btf.yes() && raw_may_do(&first) => {
            let mut lesser = target.clone();
            lesser.abilities.tp_btf = Ability::No(first.to_string());
            let second = draft.compile(&lesser).map_err(|r| r.reason());
            match second.and_then(|a| load_once(draft, &a, loader).map_err(|e| e.to_string())) {
                Ok(running) => {
                    tracing::warn!(probe = name, reason = %first, "attached at raw tracepoints instead of BTF-typed ones");
                    running
                }
                Err(_) => refused(draft, &first),
            }
        }
        Err(error) => refused(draft, &error),
    }
}

/// Whether the kernel may take raw tracepoints where it refused BTF-typed ones. Their programs are longer, so that one that
/// has too many paths is not tried again: it costs the verifier seconds to find out.
fn raw_may_do(error: &load::LoadError) -> bool {
    match error {
        load::LoadError::Verifier { summary, .. } => !summary.contains("too large") && !summary.contains("too complex"),
        load::LoadError::Attach { .. } => true,
        load::LoadError::Permission(_) | load::LoadError::Map { .. } | load::LoadError::Object(_) => false,
    }
}

fn refused(draft: &Draft, error: &load::LoadError) -> Running {
    tracing::error!(probe = draft.outline().name, reason = %error, "not attached");
    if let load::LoadError::Verifier { program, log, .. } = error {
        tracing::debug!(program, log, "all the verifier says");
    }
    off(draft, error.to_string())
}

fn load_once(draft: &Draft, artifact: &Artifact, loader: &mut Loader) -> Result<Running, load::LoadError> {
    let born = Moment::now();
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    let layout = &artifact.module.layout;
    let loaded = load::load(loader, &artifact.object, layout, &programs)?;
    let mut user = UserHooks::new(&programs);
    if let Some(user) = &mut user {
        tell(&draft.outline().name, &user.look(&loaded, &World::look()));
    }
    for p in artifact.programs.iter().filter(|p| uprobe::way(&p.attach).is_none()) {
        let (hook, _) = attach_point(&p.attach);
        tracing::info!(probe = draft.outline().name, program = p.name, hook, instructions = p.instructions, "attached");
    }
    let attached = Attached::new(draft.outline(), layout, loaded, user, born);
    Ok(running(draft, kind(artifact), Engine::Attached(attached)))
}

/// The kind of hook its programs use; all programs of a probe use the same.
fn kind(artifact: &Artifact) -> &'static str {
    artifact.programs.last().map_or("", |p| p.attach.kind())
}
