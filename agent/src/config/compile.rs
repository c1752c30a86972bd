//! From files to compiled probes, for every command that needs them: one bad probe never stops the others.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub use kstrobe_ebpf::Target;
pub use kstrobe_ebpf::kernel_target::{Abilities, Ability, Function};
use kstrobe_ebpf::kernel_target::{dump, usdt_name};
use kstrobe_ebpf::program::{Binary, HookKind};
use kstrobe_ebpf::typed::{Attach, Choice};
use kstrobe_ebpf::{Artifact, ProgramInfo};

use crate::config::files::diag::{Diagnostic, Severity};
use crate::config::plan::{CompileError, Engine, ProbePlan};
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::kernel::binaries::pattern::is_pattern;
use crate::kernel::binaries::{self, File, FileError};
use crate::kernel::detect::{self, Wanted};
use crate::kernel::pollers;

/// Probes compiled for a kernel, and those it cannot run.
pub struct Prepared {
    /// The kernel.
    pub target: Target,
    /// Ready to run.
    pub planned: Vec<(ProbePlan, Artifact)>,
    /// To be compiled once the program that they hook is there.
    pub waiting: Vec<(ProbePlan, CompileError)>,
    /// Not to be run here, with the reason.
    pub refused: Vec<(ProbePlan, CompileError)>,
}

impl Prepared {
    /// What is doubtful in the probes that can run.
    pub fn warnings(&self) -> Vec<Diagnostic> {
        self.planned.iter().flat_map(|(plan, artifact)| plan.warnings(artifact)).collect()
    }
}

/// Detects what these probes need to know of this kernel, and compiles them.
pub fn prepare(plans: impl IntoIterator<Item = ProbePlan>, btf: Option<&Path>) -> Prepared {
    let plans: Vec<ProbePlan> = plans.into_iter().collect();
    let target = look(&plans, btf);
    compile(plans, target)
}

/// What becomes of a probe on a kernel.
pub enum Compiled {
    /// Runs as it is configured.
    Ready(Artifact),
    /// Runs over an ftrace session, since the kernel cannot run its programs, for this reason.
    OverSession(Artifact, CompileError),
    /// To be compiled again once the program that it hooks is there.
    Waiting(CompileError),
    /// Cannot run.
    Refused(CompileError),
}

impl Compiled {
    pub fn artifact(&self) -> Option<&Artifact> {
        match self {
            Compiled::Ready(artifact) | Compiled::OverSession(artifact, _) => Some(artifact),
            Compiled::Waiting(_) | Compiled::Refused(_) => None,
        }
    }

    /// Whether it measures system calls of every number.
    pub fn measures_all_calls(&self) -> bool {
        let is_of_calls = |attach: &Attach| matches!(attach.event(), Some("sys_enter" | "sys_exit"));
        let all = |program: &ProgramInfo| program.calls.is_none() && is_of_calls(&program.attach);
        self.artifact().is_some_and(|artifact| artifact.programs.iter().any(all))
    }

    /// Whether all of its hooks are in files of user space.
    pub fn is_of_files(&self) -> bool {
        let programs = self.artifact().map(|artifact| &artifact.programs).filter(|programs| !programs.is_empty());
        programs.is_some_and(|programs| programs.iter().all(|program| program.attach.binary().is_some()))
    }

    /// What is wrong in the text, whichever the kernel is.
    pub fn mistakes(&self) -> impl Iterator<Item = &Diagnostic> {
        let refusal = match self {
            Compiled::Refused(refusal) if !refusal.target => Some(refusal),
            _ => None,
        };
        refusal.into_iter().flat_map(CompileError::errors)
    }
}

/// Compiles a probe for a kernel.
pub fn probe(plan: &ProbePlan, target: &Target) -> Compiled {
    let refusal = match plan.compile(target) {
        Ok(artifact) => return Compiled::Ready(artifact),
        Err(refusal) => refusal,
    };
    if refusal.target && waits(plan, target) {
        return Compiled::Waiting(refusal);
    }
    match refusal.target.then(|| over_session(plan, target, &refusal.reason())).flatten() {
        Some(artifact) => Compiled::OverSession(artifact, refusal),
        None => Compiled::Refused(refusal),
    }
}

/// Compiles probes as the agent does when it starts them.
pub fn compile(plans: Vec<ProbePlan>, target: Target) -> Prepared {
    let mut prepared = Prepared { target, planned: Vec::new(), waiting: Vec::new(), refused: Vec::new() };
    for plan in plans {
        match probe(&plan, &prepared.target) {
            Compiled::Ready(artifact) => prepared.planned.push((plan, artifact)),
            Compiled::OverSession(artifact, _) => prepared.planned.push((plan.for_session(), artifact)),
            Compiled::Waiting(refusal) => prepared.waiting.push((plan, refusal)),
            Compiled::Refused(refusal) => prepared.refused.push((plan, refusal)),
        }
    }
    prepared
}

/// Whether a probe that does not compile may do so once a program is there: its notes say where arguments lie.
fn waits(plan: &ProbePlan, target: &Target) -> bool {
    let known =
        |(binary, provider, name): (&Binary, &str, &str)| target.usdts.contains_key(&usdt_name(binary, provider, name));
    let can_hook = target.abilities.uprobe.yes() || target.abilities.uprobe_multi.yes();
    can_hook && !plan.usdts().into_iter().all(known)
}

/// The probe over an ftrace session, for the reason that programs are refused, if `engine: auto` leaves the choice to the
/// agent; `None` when a session is no way either.
pub fn over_session(plan: &ProbePlan, target: &Target, refused: &str) -> Option<Artifact> {
    let meta = plan.meta();
    if meta.engine != Engine::Auto || meta.poll.is_some() {
        return None;
    }
    let mut artifact = plan.for_session().compile(target).ok()?;
    let because = vec![refused.to_owned()];
    artifact.choices.insert(0, Choice { wanted: "engine bpf".into(), got: "engine ftrace".into(), because });
    Some(artifact)
}

/// The kernel that a file describes, as `kstrobe target dump` printed it there. `btf` has types to use in place of those in it.
pub fn described(file: &Path, btf: Option<&Path>) -> Result<Target, Diagnostic> {
    let problem = |message| Diagnostic { severity: Severity::Error, at: None, message, hint: None };
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| problem(format!("cannot read {}: {error}", file.display())))?;
    let mut target = dump::parse(&text).map_err(|why| {
        let hint = "such a file is made on the kernel by `kstrobe target dump --file PROBES > FILE`";
        problem(format!("{} does not describe a kernel: {why}", file.display())).hint(hint)
    })?;
    if btf.is_some() {
        target.btf = Some(detect::read_btf(btf).map_err(|error| problem(error.to_string()))?);
    }
    // Rows are the agent's, not the kernel's.
    target.polls = pollers::row_types();
    Ok(target)
}

/// Whether a file has the place that a hook names.
type HasPlace<'a> = &'a dyn Fn(&File) -> Result<(), FileError>;

/// What this machine lacks of the files that a probe hooks. A program may come later, and the agent looks for it: that is a
/// note, unless a `uprobe:` names one file.
pub fn missing_in_files(plan: &ProbePlan, processes: &ProcessSnapshot) -> Vec<Diagnostic> {
    let hooks = plan.file_hooks();
    let missing = hooks.into_iter().filter_map(|(hook, at)| {
        let (binary, at_any_place): (&Binary, HasPlace) = match hook {
            HookKind::User { binary, symbol, offset, .. } => {
                (binary, &|file| binaries::functions(file, symbol, *offset).map(drop))
            }
            HookKind::Usdt { binary, provider, name } => {
                (binary, &|file| binaries::probes(file, provider, name).map(drop))
            }
            _ => return None,
        };
        let one_file = matches!(hook, HookKind::User { .. }) && binary.path.starts_with('/') && binary.pid.is_none();
        match processes.find(binary) {
            Err(none) if one_file && !is_pattern(&binary.path) => {
                Some(Diagnostic::error(at, none.to_string()).hint("the agent looks for it every ten seconds"))
            }
            Err(none) => Some(Diagnostic::note(at, none.to_string()).hint("the agent looks for it every ten seconds")),
            Ok(files) => {
                let mut refusals = Vec::new();
                for file in &files {
                    match at_any_place(file) {
                        Ok(()) => return None,
                        Err(why) => refusals.push(format!("{}: {why}", file.shown)),
                    }
                }
                Some(Diagnostic::error(at, refusals.join("; ")))
            }
        }
    });
    missing.collect()
}

/// This kernel as plain data, without what only some probes need. All its abilities are tried, those too that are known to work.
pub fn examine() -> Target {
    detect::detect(&Wanted { try_all: true, ..Wanted::default() })
}

/// This kernel as plain data, as far as these probes need it.
pub fn look(plans: &[ProbePlan], btf: Option<&Path>) -> Target {
    let wanted = Wanted {
        try_all: false,
        tracepoints: plans.iter().flat_map(ProbePlan::tracepoints).collect(),
        syscalls: plans.iter().flat_map(ProbePlan::syscalls).collect(),
        functions: plans.iter().flat_map(ProbePlan::functions).collect(),
        counters: plans.iter().flat_map(ProbePlan::counters).collect(),
        btf: btf.map(Path::to_path_buf),
    };
    let mut target = detect::detect(&wanted);
    target.polls = pollers::row_types();
    target.usdts = usdts(plans, ProcessSnapshot::look);
    target
}

/// What the notes of static probe points say of their arguments. Points that are not found, yet, are absent.
pub fn usdts<W: Borrow<ProcessSnapshot>>(
    plans: &[ProbePlan],
    processes: impl FnOnce() -> W,
) -> BTreeMap<String, Vec<String>> {
    let wanted: Vec<_> = plans.iter().flat_map(ProbePlan::usdts).collect();
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let processes = processes();
    let mut found = BTreeMap::new();
    for (binary, provider, name) in wanted {
        let files = processes.borrow().find(binary).unwrap_or_default();
        let sites = files.iter().flat_map(|file| binaries::probes(file, provider, name).unwrap_or_default());
        let ways: BTreeSet<String> = sites.map(|site| site.args).collect();
        if !ways.is_empty() {
            found.insert(usdt_name(binary, provider, name), ways.into_iter().collect());
        }
    }
    found
}
