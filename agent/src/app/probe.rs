//! One enabled probe and its fate: compiled, loaded and attached, or the reason why not.

use kstrobe_ebpf::target::Ability;
use kstrobe_ebpf::{Artifact, Target};

use super::attached::Attached;
use super::poll::Poll;
use crate::http::{HookStatus, ProbeStatus};
use crate::kernel::load::{self, Loader};
use crate::metrics::labels::Names;
use crate::metrics::snapshot::{Family, Moment};
use crate::plan::explain::attach_point;
use crate::plan::{Draft, Outline};
use crate::telemetry::{Attachment, Observed};

/// A probe the agent was asked to run.
pub(super) struct Running {
    pub outline: Outline,
    hooks: Vec<HookStatus>,
    pub engine: Engine,
}

/// What became of it.
pub(super) enum Engine {
    /// Programs in the kernel.
    Attached(Attached),
    /// Rows read by the agent.
    Poll(Poll),
    /// Nothing; why.
    Off(String),
}

impl Running {
    /// Starts a probe. What goes wrong is logged here, once, with all its detail, and kept as its reason.
    pub fn start(draft: &Draft, target: &Target, loader: &mut Loader) -> Running {
        match draft.compile(target) {
            Err(refusal) => {
                tracing::error!(probe = draft.outline().name, "not started\n{}", refusal.render());
                off(draft, refusal.reason())
            }
            Ok(artifact) if draft.outline().poll.is_some() => poll(draft, artifact),
            Ok(artifact) => attach(draft, artifact, target, loader),
        }
    }

    /// Series now, and what could not be read.
    pub fn families(&mut self, names: &mut Names, now: Moment) -> (Vec<Family>, Vec<String>) {
        match &mut self.engine {
            Engine::Attached(a) => a.families(names, now),
            Engine::Poll(p) => (p.families(), vec![]),
            Engine::Off(_) => (vec![], vec![]),
        }
    }

    /// As `/api/v1/probes` and `/readyz` tell it.
    pub fn status(&self) -> ProbeStatus {
        let reason = self.reason();
        ProbeStatus {
            name: self.outline.name.clone(),
            summary: self.outline.summary.clone(),
            attached: reason.is_empty(),
            reason,
            hooks: self.hooks.clone(),
            metrics: self.outline.metrics.iter().map(|m| m.about.name.clone()).collect(),
        }
    }

    fn reason(&self) -> String {
        match &self.engine {
            Engine::Off(reason) => reason.clone(),
            Engine::Poll(p) => p.failure.clone().unwrap_or_default(),
            Engine::Attached(_) => String::new(),
        }
    }

    /// Adds what this probe says of itself to the agent's own metrics.
    pub fn observe(&self, all: &mut Observed) {
        let name = &self.outline.name;
        let reason = self.reason();
        all.attachments.extend(self.hooks.iter().map(|h| Attachment {
            probe: name.clone(),
            hook: h.hook.clone(),
            kind: h.kind.clone(),
            reason: reason.clone(),
        }));
        match &self.engine {
            Engine::Attached(a) => {
                all.programs.extend(a.programs(name));
                all.maps.extend(a.maps(name));
                all.losses.extend(a.losses(name));
                all.series.push(a.series(name));
            }
            Engine::Poll(p) => all.series.push(crate::telemetry::SeriesUse {
                probe: name.clone(),
                overflowed: p.overflowed(),
                evicted: 0,
            }),
            Engine::Off(_) => {}
        }
    }
}

fn hooks(draft: &Draft, kind: &str, reason: &str) -> Vec<HookStatus> {
    let texts = draft.outline().hooks.clone();
    let status = |hook| HookStatus { hook, kind: kind.into(), attached: reason.is_empty(), reason: reason.into() };
    texts.into_iter().map(status).collect()
}

fn off(draft: &Draft, reason: String) -> Running {
    Running { outline: draft.outline().clone(), hooks: hooks(draft, "", &reason), engine: Engine::Off(reason) }
}

fn poll(draft: &Draft, artifact: Artifact) -> Running {
    match Poll::new(draft.outline(), artifact.module) {
        Some(poll) => {
            tracing::info!(probe = draft.outline().name, source = poll.source(), "polling");
            Running { outline: draft.outline().clone(), hooks: hooks(draft, "poll", ""), engine: Engine::Poll(poll) }
        }
        None => off(draft, "this agent has no such poll source".into()),
    }
}

/// Loads and attaches; when BTF-typed tracepoints are refused, once more with raw ones.
fn attach(draft: &Draft, artifact: Artifact, target: &Target, loader: &mut Loader) -> Running {
    let name = &draft.outline().name;
    match load_once(draft, &artifact, loader) {
        Ok(running) => running,
        Err(first) if target.abilities.tp_btf.yes() => {
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

fn refused(draft: &Draft, error: &load::LoadError) -> Running {
    tracing::error!(probe = draft.outline().name, reason = %error, "not attached");
    off(draft, error.to_string())
}

fn load_once(draft: &Draft, artifact: &Artifact, loader: &mut Loader) -> Result<Running, load::LoadError> {
    let born = Moment::now();
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    let layout = &artifact.module.layout;
    let loaded = load::load(loader, &artifact.object, layout, &programs)?;
    for p in &artifact.programs {
        let (hook, _) = attach_point(&p.attach);
        tracing::info!(probe = draft.outline().name, program = p.name, hook, instructions = p.instructions, "attached");
    }
    let kind = kind(artifact);
    let attached = Attached::new(draft.outline(), layout, loaded, born);
    Ok(Running { outline: draft.outline().clone(), hooks: hooks(draft, kind, ""), engine: Engine::Attached(attached) })
}

/// The kind of hook its programs use; all programs of a probe use the same.
fn kind(artifact: &Artifact) -> &'static str {
    use kstrobe_ebpf::typed::Attach;
    match artifact.programs.last().map(|p| &p.attach) {
        Some(Attach::TpBtf { .. }) => "tp_btf",
        Some(Attach::RawTp { .. }) => "raw_tp",
        Some(Attach::Tracepoint { .. }) => "tracepoint",
        Some(Attach::Interval { .. }) => "interval",
        None => "",
    }
}
