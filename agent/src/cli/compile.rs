//! `kstrobe compile FILE -o x.bpf.o`

use std::path::PathBuf;
use std::process::ExitCode;

use kstrobe_config::diag::Diagnostic;

use super::KernelArgs;
use crate::config::diagnostics::print_diagnostics;
use crate::config::files;
use crate::config::plan;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Probe file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which probe of the file; needed when it has several.
    #[arg(long, value_name = "NAME")]
    probe: Option<String>,
    #[command(flatten)]
    kernel: KernelArgs,
    /// Where to write the object.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub fn run(args: &Args) -> ExitCode {
    let file = match files::file(&args.file) {
        Ok(f) => f,
        Err(e) => return fail(&[e]),
    };
    let (mut probes, diagnostics) = kstrobe_config::probes(&[file]);
    print_diagnostics(&diagnostics);
    if diagnostics.iter().any(Diagnostic::is_error) {
        return ExitCode::from(1);
    }
    if let Some(name) = &args.probe {
        probes.retain(|p| p.name() == name);
    }
    if probes.len() != 1 {
        let names: Vec<_> = probes.iter().map(|p| p.name()).collect();
        eprintln!("error: say which probe with --probe; the file has: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let plans: Vec<_> = probes.into_iter().map(plan::plan).collect();
    let target = match args.kernel.target(&plans) {
        Ok(target) => target,
        Err(unread) => return fail(&[unread]),
    };
    let Some(plan) = plans.first() else { return ExitCode::from(1) };
    let artifact = match plan.compile(&target) {
        Ok(artifact) => artifact,
        Err(refusal) => return fail(&refusal.diagnostics),
    };
    print_diagnostics(&plan.warnings(&artifact));
    if artifact.is_idle() {
        eprintln!("error: `{}` does nothing on this kernel: there is no object", plan.meta().name);
        return ExitCode::from(1);
    }
    if artifact.object.is_empty() {
        eprintln!("error: `{}` runs in the agent, not in the kernel: there is no object", plan.meta().name);
        return ExitCode::from(1);
    }
    if let Err(e) = std::fs::write(&args.output, &artifact.object) {
        eprintln!("error: cannot write {}: {e}", args.output.display());
        return ExitCode::from(1);
    }
    println!("{}: {} bytes, {} programs", args.output.display(), artifact.object.len(), artifact.programs.len());
    ExitCode::SUCCESS
}

fn fail(diagnostics: &[Diagnostic]) -> ExitCode {
    print_diagnostics(diagnostics);
    ExitCode::from(1)
}
