//! `kstrobe target dump`

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::SourceArgs;
use crate::config::compile;
use crate::config::diagnostics::print_diagnostics;
use crate::config::files::{self, Choice, choose};
use crate::config::plan;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print what kstrobe knows of this kernel, as text, for a bug report or a test: abilities, system calls, and the types
    /// that the given probes need. It has names and layouts of the kernel's types and nothing of what runs here.
    Dump(Dump),
}

#[derive(Debug, clap::Args)]
struct Dump {
    /// Probes or packs [default: all].
    #[arg(value_name = "PROBE")]
    probes_or_packs: Vec<String>,
    /// Also the probes of this file; may be given several times.
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

pub fn run(args: &Args) -> ExitCode {
    let Command::Dump(args) = &args.command;
    let (mut probes, mut diagnostics) = files::probes(args.source.probes.as_deref());
    if !args.probes_or_packs.is_empty() {
        let choice = Choice { only: args.probes_or_packs.clone(), ..Choice::default() };
        let (chosen, unknown) = choose(probes, &kstrobe_config::model::Agent::default(), &choice);
        probes = chosen;
        diagnostics.extend(unknown);
    } else if !args.files.is_empty() {
        probes.clear();
    }
    let mut files = Vec::new();
    for path in &args.files {
        match files::file(path) {
            Ok(file) => files.push(file),
            Err(diagnostic) => diagnostics.push(diagnostic),
        }
    }
    let (more, mistakes) = kstrobe_config::probes(&files);
    probes.extend(more);
    diagnostics.extend(mistakes);
    print_diagnostics(&diagnostics);
    let plans: Vec<_> = probes.into_iter().map(plan::plan).collect();
    let target = compile::look(&plans, args.source.btf.as_deref());
    print!("{}", plan::dump(&plans, &target));
    if diagnostics.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
