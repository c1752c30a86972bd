//! From a compiled probe to an engine that runs it, or the reason why none does.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kstrobe_ebpf::hook::Recorded;
use kstrobe_ebpf::typed::Attach;
use kstrobe_ebpf::{Artifact, ProgramInfo, Target};

use super::budget::Budget;
use super::engine::Engine;
use super::error::SessionError;
use super::ftrace::FtraceEngine;
use super::iterator::IteratorEngine;
use super::kernel::KernelEngine;
use super::poll::PollEngine;
use super::running::{Probe, WrittenHook};
use super::stopped::{Idle, Off, Waiting};
use super::user_hooks::{UserHooks, log_changes};
use crate::config::attempts::Attempts;
use crate::config::compile::{self, Compiled};
use crate::config::diagnostics::log_diagnostics;
use crate::config::plan::explain;
use crate::config::plan::{self, CompileError, ProbePlan};
use crate::kernel::attach::is_user_hook;
use crate::kernel::load::{LoadError, Loaded, Loader, Program, attach_loaded, load_unattached};
use crate::kernel::privileges::Capabilities;
use kstrobe_export::snapshot::Moment;

/// What the kernel has said to the programs of a compiled probe, before any of them is attached; `None` of a probe without programs.
pub struct Tried(Option<Result<Loaded, LoadError>>);

impl Tried {
    /// Loads them. Probes are loaded beside one another, as the kernel takes its time to check programs and to clear the memory of maps.
    pub fn load(plan: &ProbePlan, compiled: &Compiled, loader: &mut Loader) -> Tried {
        Tried(match compiled {
            Compiled::Ready(artifact) if has_programs(plan, artifact) => Some(load_artifact(artifact, loader)),
            _ => None,
        })
    }
}

impl Probe {
    /// Starts a probe that was compiled for this target. An error is logged here once with all its detail, and kept as the reason.
    pub fn start(
        plan: &ProbePlan,
        compiled: Compiled,
        target: &Target,
        loader: &mut Loader,
        btf: Option<&Path>,
    ) -> Probe {
        let tried = Tried::load(plan, &compiled, loader);
        Probe::start_tried(plan, (compiled, tried), target, loader, btf)
    }

    /// The same with programs that are loaded.
    pub fn start_tried(
        plan: &ProbePlan,
        (compiled, tried): (Compiled, Tried),
        target: &Target,
        loader: &mut Loader,
        btf: Option<&Path>,
    ) -> Probe {
        match compiled {
            Compiled::Ready(artifact) => {
                log_diagnostics(&plan.warnings(&artifact));
                ready(plan, artifact, tried, target, loader)
            }
            Compiled::OverSession(artifact, refusal) => {
                over_session(plan, artifact, &refusal.reason()).unwrap_or_else(|| {
                    not_started(plan, &refusal);
                    off(plan, refusal.reason())
                })
            }
            Compiled::Waiting(refusal) => wait(plan, &refusal, btf, loader),
            Compiled::Refused(refusal) => {
                not_started(plan, &refusal);
                off(plan, refusal.reason())
            }
        }
    }
}

fn ready(plan: &ProbePlan, artifact: Artifact, Tried(tried): Tried, target: &Target, loader: &mut Loader) -> Probe {
    if let Some(loaded) = tried {
        attach(plan, artifact, loaded, target, loader)
    } else if artifact.is_idle() {
        idle(plan, &artifact)
    } else if plan.meta().poll.is_some() {
        poll(plan, artifact)
    } else {
        trace(plan, artifact)
    }
}

fn has_programs(plan: &ProbePlan, artifact: &Artifact) -> bool {
    let meta = plan.meta();
    !artifact.is_idle() && meta.poll.is_none() && meta.engine != plan::Engine::Ftrace
}

fn load_artifact(artifact: &Artifact, loader: &mut Loader) -> Result<Loaded, LoadError> {
    load_unattached(loader, &artifact.object, &artifact.module.layout, &artifact.programs)
}

/// Logs each reason. Missing capabilities are logged once for all probes, by the agent.
fn not_started(plan: &ProbePlan, refusal: &CompileError) {
    let probe = plan.meta().name.as_str();
    if !refusal.target {
        log_diagnostics(&refusal.diagnostics);
        tracing::error!(probe, reason = refusal.reason(), "not started");
    } else if Capabilities::missing_here().is_empty() {
        for diagnostic in &refusal.diagnostics {
            tracing::error!(probe, reason = diagnostic.one_line(), "not started");
        }
    }
}

fn wait(plan: &ProbePlan, refusal: &CompileError, btf: Option<&Path>, loader: &Loader) -> Probe {
    let reason = format!("waiting: {}", refusal.reason());
    tracing::info!(probe = plan.meta().name, reason, "not started yet");
    let btf = btf.map(Path::to_path_buf);
    let (shared, looked) = (loader.shared().clone(), Instant::now());
    build(plan, Vec::new(), Vec::new(), Box::new(Waiting { plan: plan.clone(), shared, btf, reason, looked }))
}

fn build(plan: &ProbePlan, kinds: Vec<&'static str>, choices: Vec<explain::Choice>, engine: Box<dyn Engine>) -> Probe {
    let meta = plan.meta().clone();
    let budget = engine.as_kernel().and_then(|kernel| Budget::new(meta.budget, kernel.can_sample()));
    let kinds = kinds.into_iter().chain(std::iter::repeat(""));
    let recorded = plan.recorded().into_iter().chain(std::iter::repeat_with(Recorded::default));
    let hooks = meta.hooks.iter().zip(kinds).zip(recorded);
    let mut hooks: Vec<WrittenHook> =
        hooks.map(|((text, kind), recorded)| WrittenHook { text: text.clone(), kind, recorded }).collect();
    // A span may begin and end at one hook.
    let mut seen = BTreeSet::new();
    hooks.retain(|hook| seen.insert((hook.text.clone(), hook.kind)));
    let started = Instant::now();
    let identity = plan.identity().clone();
    Probe { hooks, meta, identity, choices, engine, budget, cost_ppm: None, started, errors: Default::default() }
}

/// A probe that compiled to nothing. It has no hooks, so that none is shown as not attached.
fn idle(plan: &ProbePlan, artifact: &Artifact) -> Probe {
    let warnings = plan.warnings(artifact);
    let reasons: Vec<String> = warnings.iter().map(|warning| warning.one_line()).collect();
    let idle = build(plan, Vec::new(), explain::choices(artifact), Box::new(Idle(reasons.join("; "))));
    Probe { hooks: Vec::new(), ..idle }
}

fn off(plan: &ProbePlan, reason: String) -> Probe {
    build(plan, Vec::new(), Vec::new(), Box::new(Off(reason)))
}

fn poll(plan: &ProbePlan, artifact: Artifact) -> Probe {
    match PollEngine::new(plan.meta(), artifact.module) {
        Some(poll) => {
            tracing::info!(probe = plan.meta().name, source = poll.source(), "polling");
            build(plan, vec!["poll"], Vec::new(), Box::new(poll))
        }
        None => off(plan, "this agent has no such poll source".into()),
    }
}

/// Runs the probe in the agent over the records of an ftrace session.
fn trace(plan: &ProbePlan, artifact: Artifact) -> Probe {
    let choices = explain::choices(&artifact);
    match traced(plan, artifact, choices) {
        Ok(running) => running,
        Err(reason) => {
            tracing::error!(probe = plan.meta().name, %reason, "not started");
            off(plan, reason.to_string())
        }
    }
}

fn traced(plan: &ProbePlan, artifact: Artifact, choices: Vec<explain::Choice>) -> Result<Probe, SessionError> {
    let meta = plan.meta();
    let engine = FtraceEngine::start(meta, artifact)?;
    tracing::info!(probe = meta.name, "recording its events in an ftrace session");
    let kinds = vec!["ftrace"; meta.hooks.len()];
    Ok(build(plan, kinds, choices, Box::new(engine)))
}

/// The probe over an ftrace session, where the kernel refuses programs and the probe sets no engine; `None` when the session
/// fails too.
fn over_session(plan: &ProbePlan, artifact: Artifact, refused: &str) -> Option<Probe> {
    if artifact.is_idle() {
        return Some(idle(plan, &artifact));
    }
    let choices = explain::choices(&artifact);
    let running = traced(plan, artifact, choices).ok()?;
    tracing::warn!(probe = plan.meta().name, reason = refused, "an ftrace session measures it: programs are refused");
    Some(running)
}

/// Attaches the best artifact, which was loaded, or loads and attaches the first of the next best that the kernel takes.
fn attach(
    plan: &ProbePlan,
    best: Artifact,
    mut loaded: Result<Loaded, LoadError>,
    target: &Target,
    loader: &mut Loader,
) -> Probe {
    let (mut artifact, mut attempts, mut first) = (best, Attempts::new(plan, target), None);
    loop {
        let error = match loaded.and_then(|loaded| attach_once(plan, &artifact, loaded, loader)) {
            Ok(running) => {
                if let Some(reason) = first {
                    tracing::warn!(probe = plan.meta().name, %reason, "attached in the next best way");
                }
                return running;
            }
            Err(error) => error,
        };
        let next = refused_hook(&artifact, &error).and_then(|hook| attempts.without(hook, error.to_string()));
        let first = first.get_or_insert(error);
        match next {
            Some(next) => (loaded, artifact) = (load_artifact(&next, loader), next),
            None => return refused(plan, target, first),
        }
    }
}

/// The hook of the refused program, if another kind of hook may be taken there.
fn refused_hook<'a>(artifact: &'a Artifact, error: &LoadError) -> Option<&'a Attach> {
    // Other kinds of hooks have longer programs, so that one that has too many paths is not tried again: it costs the verifier
    // seconds to find out.
    if error.is_too_complex() {
        return None;
    }
    match error {
        LoadError::Verifier { program, .. } | LoadError::Attach { program, .. } => {
            artifact.programs.iter().find(|p| p.name == *program).map(|p| &p.attach)
        }
        LoadError::Permission { .. } | LoadError::Map { .. } | LoadError::Hook { .. } | LoadError::Object(_) => None,
    }
}

fn refused(plan: &ProbePlan, target: &Target, error: &LoadError) -> Probe {
    let reason = error.to_string();
    let artifact = compile::over_session(plan, target, &reason);
    if let Some(running) = artifact.and_then(|artifact| over_session(plan, artifact, &reason)) {
        return running;
    }
    tracing::error!(probe = plan.meta().name, reason = %error, "not attached");
    if let LoadError::Verifier { program, log, .. } = error {
        tracing::debug!(program, log, "all the verifier says");
    }
    off(plan, error.to_string())
}

fn attach_once(plan: &ProbePlan, artifact: &Artifact, loaded: Loaded, loader: &mut Loader) -> Result<Probe, LoadError> {
    let born = Moment::now();
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    let layout = &artifact.module.layout;
    let loaded = attach_loaded(loader, loaded)?;
    let mut user = UserHooks::new(&programs);
    if let Some(user) = &mut user {
        log_changes(&plan.meta().name, &user.look(&loaded, loader.processes()));
    }
    for p in artifact.programs.iter().filter(|p| !is_user_hook(&p.attach)) {
        let hook = p.attach.to_string();
        tracing::info!(probe = plan.meta().name, program = p.name, hook, instructions = p.instructions, "attached");
    }
    let meta = plan.meta();
    let fields = layout.events.as_ref().map_or(0, |events| events.fields.len());
    if layout.events.is_some() && meta.exemplar_links.iter().any(|link| link.needs(fields)) {
        tracing::warn!(
            probe = meta.name,
            "exemplars disabled: event records with the labels of its histograms would be too large"
        );
    }
    let engine: Box<dyn Engine> = match programs.iter().any(|(_, attach)| attach.is_iterator()) {
        true => Box::new(Arc::new(IteratorEngine::new(meta, layout, loaded))),
        false => Box::new(KernelEngine::new(meta, layout, loaded, user, born)),
    };
    Ok(build(plan, plan.kinds(artifact), explain::choices(artifact), engine))
}

impl From<&ProgramInfo> for Program {
    fn from(info: &ProgramInfo) -> Program {
        let ProgramInfo { name, attach, calls, duty, .. } = info.clone();
        Program { name, attach, calls, duty }
    }
}
