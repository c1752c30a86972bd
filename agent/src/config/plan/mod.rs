//! From checked configuration to compiled probes: the only room that knows the configuration and the compiler together.

mod exemplar_links;
pub mod explain;
mod identity;
mod probe_meta;
mod report;

pub use exemplar_links::ExemplarLink;
pub use identity::Identity;
pub use probe_meta::{BudgetLimit, Engine, Metric, PREFIX, Poll, ProbeMeta, Stacks};

use std::collections::HashSet;
use std::sync::Arc;

use kstrobe_config::diag::Diagnostic;
use kstrobe_config::model::{Location, Probe};
use kstrobe_ebpf::hook::Recorded;
use kstrobe_ebpf::program::{self, Binary, Hook, HookKind};
use kstrobe_ebpf::{Artifact, Fault, Program, Target};

/// A probe with the compiler's input made from it.
#[derive(Clone)]
pub struct ProbePlan {
    meta: ProbeMeta,
    program: Program,
    identity: Arc<Identity>,
}

/// Why a probe cannot run here.
#[derive(Debug)]
pub struct CompileError {
    /// Whether the kernel, rather than the text, is what is lacking.
    pub target: bool,
    /// What is wrong, at its place in the YAML file.
    pub diagnostics: Vec<Diagnostic>,
}

impl CompileError {
    /// The first mistake with its place and hint on one line, and how many more there are.
    pub fn reason(&self) -> String {
        let first = self.errors().next().map(Diagnostic::one_line).unwrap_or_default();
        match self.errors().count().saturating_sub(1) {
            0 => first,
            more => format!("{first}, and {more} more"),
        }
    }

    /// What of it stops the probe: warnings do not.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|d| d.is_error())
    }
}

/// A kernel as text, with the types that these probes need: what a bug report or a test needs to compile them elsewhere.
pub fn dump(plans: &[ProbePlan], target: &Target) -> String {
    let events: Vec<String> = plans.iter().flat_map(ProbePlan::hooks).flat_map(HookKind::btf_events).collect();
    let calls: Vec<String> = plans.iter().flat_map(ProbePlan::syscalls).collect();
    let functions: Vec<String> = plans.iter().flat_map(ProbePlan::functions).collect();
    let [events, calls, functions] = [&events, &calls, &functions].map(|names| names.iter().map(String::as_str));
    let texts = plans.iter().flat_map(|d| d.program.expressions()).map(|text| text.value.as_str());
    // Metrics of stacks have no expression for them.
    let has_user_stacks =
        |metric: &program::Metric| matches!(metric.kind, program::MetricKind::Stacks(spec) if spec.user);
    let stacks = plans.iter().flat_map(|d| &d.program.metrics).any(has_user_stacks).then_some("ustack");
    let texts = texts.chain(stacks);
    let roots = kstrobe_ebpf::kernel_target::dump::roots(target, events, calls, functions, texts);
    kstrobe_ebpf::kernel_target::dump::dump(target, &roots.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Adds to a probe what the agent wants of its programs: the fields of exemplars, and that events can be sampled.
pub fn plan(probe: Probe) -> ProbePlan {
    let links = exemplar_links::links(&probe.program);
    let meta = probe_meta::probe_meta(&probe, &links);
    let mut program = probe.program;
    if let Some(slow) = &mut program.slow {
        slow.fields.extend(links.fields);
    }
    program.limits.sampled = meta.budget != BudgetLimit::None && meta.engine != Engine::Ftrace;
    program.number_texts();
    let identity = Arc::new(Identity::new(program.clone(), &meta));
    ProbePlan { meta, program, identity }
}

impl ProbePlan {
    /// Tracepoints (`system:event`) whose formats the compiler needs.
    pub fn tracepoints(&self) -> Vec<String> {
        self.hooks().filter_map(HookKind::tracepoint).collect()
    }

    /// System calls whose argument names the compiler needs.
    pub fn syscalls(&self) -> Vec<String> {
        self.hooks().flat_map(HookKind::syscalls).cloned().collect()
    }

    /// Static probe points whose notes the compiler needs: file, provider, name.
    pub fn usdts(&self) -> Vec<(&Binary, &str, &str)> {
        self.hooks().filter_map(HookKind::usdt).collect()
    }

    /// Hooks in programs and libraries, but for alternatives, each with its place in the YAML file.
    pub fn file_hooks(&self) -> Vec<(&HookKind, &Location)> {
        let hooks = self.program.written_hooks().into_iter().filter(|hook| hook.kind.binary().is_some());
        hooks.map(|hook| (&hook.kind, &hook.text.at)).collect()
    }

    /// Hardware events that are counted.
    pub fn counters(&self) -> Vec<String> {
        self.hooks().filter_map(HookKind::counter).map(str::to_owned).collect()
    }

    /// Kernel functions and patterns of them (`name` or `module:name`) that the compiler needs to know about.
    pub fn functions(&self) -> Vec<String> {
        self.hooks().filter_map(HookKind::functions).collect()
    }

    /// What the compiler is given.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Every hook, alternatives among them.
    fn hooks(&self) -> impl Iterator<Item = &HookKind> {
        self.program.hooks().into_iter().map(|hook| &hook.kind)
    }

    /// What a trace records in place of each of [`ProbeMeta::hooks`]; empty for a poll.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.program.written_hooks().into_iter().map(|hook| hook.kind.recorded()).collect()
    }

    /// The kind of hook that each of [`ProbeMeta::hooks`] became.
    pub fn kinds(&self, artifact: &Artifact) -> Vec<&'static str> {
        let kind = |hook: &Hook| {
            let texts: Vec<_> = hook.alternatives().iter().map(|h| h.text.id).collect();
            let place = artifact.attach_points.iter().find(|(text, _)| texts.contains(text));
            // One that has no place of its own is a system call, and shares that of another.
            place.or(artifact.attach_points.last()).map_or("", |(_, attach)| attach.kind())
        };
        self.program.written_hooks().into_iter().map(kind).collect()
    }

    /// The same probe over the records of an ftrace session.
    pub fn for_session(&self) -> ProbePlan {
        let mut plan = self.clone();
        plan.program.engine = kstrobe_ebpf::program::Engine::Ftrace;
        // No program runs in the kernel that could sample.
        plan.program.limits.sampled = false;
        plan
    }

    /// What the agent needs to know of it besides its programs.
    pub fn meta(&self) -> &ProbeMeta {
        &self.meta
    }

    /// What must be the same for a running probe to go on as this one.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    fn without_links(&self) -> Option<Program> {
        let slow = self.program.slow.as_ref()?;
        let shown = self.meta.shown_fields;
        (slow.fields.len() > shown).then(|| {
            let mut program = self.program.clone();
            program.slow.iter_mut().for_each(|slow| slow.fields.truncate(shown));
            program
        })
    }

    /// Compiles the probe for a kernel.
    pub fn compile(&self, target: &Target) -> Result<Artifact, CompileError> {
        let made = kstrobe_ebpf::compile(&self.program, target);
        // Fields for links are optional: a probe whose records have no room for them has none.
        let made = match self.without_links().filter(|_| made.is_err()) {
            Some(program) => kstrobe_ebpf::compile(&program, target),
            None => made,
        };
        made.map_err(|said| {
            let target = said.iter().filter(|d| d.is_error()).all(|d| d.fault == Fault::Target);
            CompileError { target, diagnostics: self.placed(&said) }
        })
    }

    /// What is wrong or doubtful in its expressions and hooks: also of a probe whose keys or names are wrong.
    pub fn mistakes(&self, target: &Target) -> Vec<Diagnostic> {
        match kstrobe_ebpf::check(&self.program, target) {
            Ok(probe) => self.placed(&probe.warnings),
            Err(mistakes) => self.placed(&mistakes),
        }
    }

    /// What is doubtful in a probe that compiles, at its place in the YAML file.
    pub fn warnings(&self, artifact: &Artifact) -> Vec<Diagnostic> {
        self.placed(&artifact.warnings)
    }

    fn placed(&self, said: &[kstrobe_ebpf::Diagnostic]) -> Vec<Diagnostic> {
        let place = |d| (d, report::place(d, &self.program));
        let mut placed: Vec<(&kstrobe_ebpf::Diagnostic, Diagnostic)> = said.iter().map(place).collect();
        // The compiler's order is that of its input; readers start at the top of the file.
        placed.sort_by_key(|(_, d)| d.at.as_ref().map_or(usize::MAX, |at| at.start));
        // What the kernel lacks for one hook it lacks for all others of this kind.
        let mut hints = HashSet::new();
        for (d, placed) in placed.iter_mut().filter(|(d, _)| d.fault == Fault::Target) {
            placed.hint = d.hint.clone().filter(|hint| hints.insert(hint.clone()));
        }
        placed.into_iter().map(|(_, diagnostic)| diagnostic).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::kernel::attach::perf_event::known;
    use kstrobe_ebpf::program::PerfEvent;

    #[test]
    fn the_kernel_room_knows_every_perf_event_of_the_language() {
        let (software, hardware) = kstrobe_config::perf_events();
        assert!(software.into_iter().all(|name| known(&PerfEvent::Software(name.into()))));
        assert!(hardware.into_iter().all(|name| known(&PerfEvent::Hardware(name.into()))));
    }
}
