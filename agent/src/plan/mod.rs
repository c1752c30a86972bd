//! From checked configuration to compiled probes: the only room that knows the configuration and the compiler together.

mod program;
mod report;

use kstrobe_config::diag::{Diagnostic, Severity};
use kstrobe_config::model;
use kstrobe_ebpf::program::{HookKind, Shape};
use kstrobe_ebpf::typed::Attach;
use kstrobe_ebpf::{Artifact, Fault, Program, Target};

/// A probe with the compiler's input made from it.
pub struct Draft {
    /// As the user wrote it.
    pub probe: model::Probe,
    program: Program,
    places: program::Places,
}

/// Why a probe cannot run here.
#[derive(Debug)]
pub struct Refusal {
    /// Whether the kernel, rather than the text, is what is lacking.
    pub target: bool,
    /// What is wrong, at its place in the YAML file.
    pub diagnostics: Vec<Diagnostic>,
}

impl Refusal {
    /// The first message, for one-line reports.
    pub fn reason(&self) -> String {
        self.diagnostics.first().map_or_else(String::new, |d| d.message.clone())
    }
}

/// A hook in bpftrace's words, with why it was chosen.
pub fn attach_point(a: &Attach) -> (String, &'static str) {
    match a {
        Attach::TpBtf { event } => {
            (format!("tp_btf:{event}"), "BTF-typed tracepoint: arguments are read with plain loads")
        }
        Attach::RawTp { event } => (format!("raw_tp:{event}"), "raw tracepoint: this kernel has no BTF-typed ones"),
        Attach::Tracepoint { system, event } => (format!("tracepoint:{system}:{event}"), "perf tracepoint, as written"),
        Attach::Interval { period_ns } => (format!("interval:{period_ns}ns"), "cpu-clock on one CPU"),
    }
}

/// A kernel as text, with the types that these probes need: what a bug report or a test needs to compile them elsewhere.
pub fn dump(drafts: &[Draft], target: &Target) -> String {
    let events = drafts.iter().flat_map(Draft::hooks).flat_map(|hook| match hook {
        HookKind::RawTracepoint { event } => vec![event.as_str()],
        HookKind::Syscall { .. } => vec!["sys_enter", "sys_exit"],
        HookKind::Tracepoint { .. } | HookKind::Interval { .. } => vec![],
    });
    let calls: Vec<String> = drafts.iter().flat_map(Draft::syscalls).collect();
    let texts = drafts.iter().flat_map(|d| program::expressions(&d.program));
    let roots = kstrobe_ebpf::target::dump::roots(target, events, calls.iter().map(String::as_str), texts);
    kstrobe_ebpf::target::dump::dump(target, &roots.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Turns probes into the compiler's input.
pub fn draft(probe: model::Probe) -> Draft {
    let (program, places) = program::program(&probe);
    Draft { probe, program, places }
}

impl Draft {
    /// Tracepoints (`system:event`) whose formats the compiler needs.
    pub fn tracepoints(&self) -> Vec<String> {
        self.hooks()
            .filter_map(|h| match h {
                HookKind::Tracepoint { system, event } => Some(format!("{system}:{event}")),
                _ => None,
            })
            .collect()
    }

    /// System calls whose argument names the compiler needs.
    pub fn syscalls(&self) -> Vec<String> {
        self.hooks()
            .filter_map(|h| match h {
                HookKind::Syscall { names, .. } => Some(names.clone()),
                _ => None,
            })
            .flatten()
            .collect()
    }

    /// What the compiler is given.
    pub fn program(&self) -> &Program {
        &self.program
    }

    fn hooks(&self) -> impl Iterator<Item = &HookKind> {
        let hooks: Vec<_> = match &self.program.shape {
            Shape::At(hooks) => hooks.iter().collect(),
            Shape::Span(s) => s.start.iter().chain(&s.end).collect(),
            Shape::Poll { .. } => vec![],
        };
        hooks.into_iter().map(|h| &h.kind)
    }

    /// The hooks as the user wrote them.
    pub fn hook_texts(&self) -> Vec<String> {
        program::hook_texts(&self.program)
    }

    /// Compiles the probe for a kernel.
    pub fn compile(&self, target: &Target) -> Result<Artifact, Refusal> {
        kstrobe_ebpf::compile(&self.program, target).map_err(|errors| {
            let mut diagnostics: Vec<_> =
                errors.iter().map(|e| report::place(e, &self.places, Severity::Error)).collect();
            // The compiler's order is that of its input; people read from the top of the file.
            diagnostics.sort_by_key(|d| d.at.as_ref().map_or(usize::MAX, |at| at.start));
            Refusal { target: errors.iter().all(|e| e.fault == Fault::Target), diagnostics }
        })
    }
}
