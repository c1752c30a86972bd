//! `kstrobe check FILE..`: the mistakes that `kstrobe run` would report for these files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kstrobe_config::diag::{Diagnostic, Severity};

use super::{KernelArgs, Output};
use crate::config::compile::{self, Prepared};
use crate::config::diagnostics::print_diagnostics;
use crate::config::files::{self, AgentConfig, Choice, Selection, SourceFile};
use crate::config::plan::{self, ProbePlan};
use crate::kernel::binaries::find::ProcessSnapshot;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Probe files.
    #[arg(required_unless_present_any = ["web", "config"], value_name = "FILE")]
    files: Vec<PathBuf>,
    /// An agent configuration (kstrobe.yaml), with all probes that an agent runs by it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// File of probes, or directory of such files, as `kstrobe run` takes it beside `--config`.
    #[arg(long, value_name = "FILE|DIR", requires = "config")]
    probes: Option<PathBuf>,
    /// A web configuration (web-config.yml), with the certificates it names.
    #[arg(long, value_name = "FILE")]
    web: Option<PathBuf>,
    #[command(flatten)]
    kernel: KernelArgs,
    /// Look at the YAML only, not at whether the kernel can run the probes.
    #[arg(long)]
    syntax_only: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub fn run(args: &Args) -> ExitCode {
    let mut diagnostics = Vec::new();
    let mut good = 0;
    if args.config.is_some() || !args.files.is_empty() {
        let checked = probes(args, &mut diagnostics);
        good = checked.probes.len() - checked.beaten.len();
        if !args.syntax_only {
            good = compiled(args, checked, &mut diagnostics);
        }
    }
    kstrobe_config::in_order(&mut diagnostics);
    diagnostics.extend(args.web.as_deref().map(web).unwrap_or_default());
    let errors = diagnostics.iter().filter(|d| d.is_error()).count();
    match args.output {
        Output::Text => {
            print_diagnostics(&diagnostics);
            println!("{good} probes fine, {errors} errors");
        }
        Output::Json => {
            let list: Vec<_> = diagnostics.iter().map(json).collect();
            println!("{}", serde_json::json!({ "fine": good, "errors": errors, "diagnostics": list }));
        }
    }
    if errors == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Probes to compile.
struct Checked {
    probes: Vec<ProbePlan>,
    /// Names of those among them that have a metric of an earlier one.
    beaten: HashSet<String>,
    /// Probes of the files whose keys or names are wrong.
    unsound: Vec<ProbePlan>,
}

/// The probes of the files, and those that an agent runs by the configuration.
fn probes(args: &Args, diagnostics: &mut Vec<Diagnostic>) -> Checked {
    let agent = args.config.as_deref().map(|file| configuration(file, diagnostics));
    let mut files = Vec::new();
    for path in &args.files {
        match files::file(path) {
            Ok(f) => files.push(f),
            Err(e) => diagnostics.push(e),
        }
    }
    let own: HashSet<String> = files.iter().map(|file| file.name.clone()).collect();
    let unsound = kstrobe_config::all_probes(&files).0.into_iter().filter(|(_, sound)| !sound);
    let unsound = unsound.map(|(probe, _)| plan::plan(probe)).collect();
    let agent = agent.flatten();
    let (with_config, agent) = (agent.is_some(), agent.unwrap_or_default());
    let (mut all, mut wrong) = match with_config {
        true => files::probe_files(&agent, args.probes.as_deref()),
        false => Default::default(),
    };
    diagnostics.append(&mut wrong);
    let at = |file: &SourceFile| std::fs::canonicalize(&file.name).ok();
    all.retain(|file| own.iter().all(|name| std::fs::canonicalize(name).ok() != at(file)));
    all.extend(files);
    let Selection { known, chosen, beaten, diagnostics: mut found, .. } =
        files::select((all, Vec::new()), &agent, &Choice::default());
    diagnostics.append(&mut found);
    let names: HashSet<String> = beaten.iter().map(|probe| probe.name().to_owned()).collect();
    let runs: HashSet<String> = chosen.iter().chain(&beaten).map(|probe| probe.name().to_owned()).collect();
    let wanted = known
        .into_iter()
        .filter(|probe| own.contains(&probe.program.name.at.file.name) || (with_config && runs.contains(probe.name())));
    let probes: Vec<ProbePlan> = wanted.map(plan::plan).collect();
    let beaten = names.into_iter().filter(|name| probes.iter().any(|plan| plan.meta().name == *name)).collect();
    Checked { probes, beaten, unsound }
}

/// The configuration, as far as it is right.
fn configuration(file: &Path, diagnostics: &mut Vec<Diagnostic>) -> Option<AgentConfig> {
    let (agent, mut found) = match files::file(file) {
        Ok(file) => files::check_agent(&file),
        Err(unread) => (None, vec![unread]),
    };
    diagnostics.append(&mut found);
    let unsendable = agent.iter().flat_map(|agent| crate::config::exporters::receivers(&agent.exporters).1);
    diagnostics.extend(unsendable.map(|message| Diagnostic {
        severity: Severity::Error,
        at: None,
        message,
        hint: None,
    }));
    agent
}

/// Compiles probes. Gives the number of those that are fine.
fn compiled(args: &Args, checked: Checked, diagnostics: &mut Vec<Diagnostic>) -> usize {
    let Checked { probes, beaten, unsound } = checked;
    let target = match args.kernel.target(&[probes.clone(), unsound.clone()].concat()) {
        Ok(target) => target,
        Err(unread) => {
            diagnostics.push(unread);
            return 0;
        }
    };
    let Prepared { target, planned, waiting, refused } = compile::compile(probes, target);
    for plan in &unsound {
        // A place with a mistake gets no second one.
        let mut more = plan.mistakes(&target);
        more.retain(|new| diagnostics.iter().all(|known| known.at != new.at));
        diagnostics.append(&mut more);
    }
    let planned = planned.into_iter().map(|(plan, artifact)| {
        let warnings = plan.warnings(&artifact);
        (plan, warnings)
    });
    let waiting = waiting.into_iter().map(|(plan, refusal)| {
        let later = refusal.diagnostics.into_iter().map(|d| Diagnostic { severity: Severity::Note, ..d });
        (plan, later.collect())
    });
    let is_refused = !refused.is_empty();
    let refused = refused.into_iter().map(|(plan, refusal)| (plan, refusal.diagnostics));
    let all: Vec<(ProbePlan, Vec<Diagnostic>)> = planned.chain(waiting).chain(refused).collect();
    let mut processes = None;
    let mut fine = 0;
    for (plan, mut found) in all {
        // Another machine has other files.
        if args.kernel.target.is_none() && !plan.file_hooks().is_empty() {
            found.extend(compile::missing_in_files(&plan, processes.get_or_insert_with(ProcessSnapshot::look)));
        }
        fine += usize::from(!found.iter().any(Diagnostic::is_error) && !beaten.contains(&plan.meta().name));
        diagnostics.append(&mut found);
    }
    if is_refused && let Some(file) = &args.kernel.target {
        diagnostics.push(of_other_probes(file));
    }
    fine
}

/// A description has what the probes need that it was made for.
fn of_other_probes(file: &Path) -> Diagnostic {
    let message =
        format!("{} has the types, functions and tracepoints of the probes that it was made for", file.display());
    let hint = "for new probes make it again on that kernel: `kstrobe target dump --file PROBES > FILE`";
    Diagnostic { severity: Severity::Note, at: None, message, hint: None }.hint(hint)
}

/// What is wrong with a web configuration.
fn web(file: &Path) -> Vec<Diagnostic> {
    let loaded = kstrobe_web::load(file);
    match loaded.settings {
        Ok(_) => loaded.warnings,
        Err(kstrobe_web::LoadError::Mistakes(mistakes)) => mistakes,
        Err(error) => vec![Diagnostic { severity: Severity::Error, at: None, message: error.to_string(), hint: None }],
    }
}

fn json(d: &Diagnostic) -> serde_json::Value {
    serde_json::json!({
        "severity": match d.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        },
        "message": d.message,
        "hint": d.hint,
        "file": d.at.as_ref().map(|a| a.file.name.clone()),
        "line": d.at.as_ref().map(|a| a.line),
        "column": d.at.as_ref().map(|a| a.column),
    })
}
