//! `kstrobe check FILE..`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kstrobe_config::diag::{Diagnostic, Severity};

use super::{Output, complain};
use crate::{plan, prepare, sources};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Probe files.
    #[arg(required_unless_present = "web", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A web configuration (web-config.yml), with the certificates it names.
    #[arg(long, value_name = "FILE")]
    web: Option<PathBuf>,
    /// Kernel types to use instead of /sys/kernel/btf/vmlinux.
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Look at the YAML only, not at whether this kernel can run the probes.
    #[arg(long)]
    syntax_only: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub fn run(args: &Args) -> ExitCode {
    let mut diagnostics = Vec::new();
    let mut files = Vec::new();
    for path in &args.files {
        match sources::file(path) {
            Ok(f) => files.push(f),
            Err(e) => diagnostics.push(e),
        }
    }
    diagnostics.extend(args.web.as_deref().map(web).unwrap_or_default());
    let (probes, mut found) = kstrobe_config::probes(&files);
    diagnostics.append(&mut found);
    let mut good = probes.len();
    if !args.syntax_only {
        let prepared = prepare::prepare(probes.into_iter().map(plan::draft), args.btf.as_deref());
        good = prepared.planned.len();
        diagnostics.extend(prepared.refused.into_iter().flat_map(|(_, refusal)| refusal.diagnostics));
    }
    let errors = diagnostics.iter().filter(|d| d.severity == Severity::Error).count();
    match args.output {
        Output::Text => {
            complain(&diagnostics);
            println!("{good} probes fine, {errors} errors");
        }
        Output::Json => {
            let list: Vec<_> = diagnostics.iter().map(json).collect();
            println!("{}", serde_json::json!({ "fine": good, "errors": errors, "diagnostics": list }));
        }
    }
    if errors == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
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
        "severity": if d.severity == Severity::Error { "error" } else { "warning" },
        "message": d.message,
        "hint": d.hint,
        "file": d.at.as_ref().map(|a| a.file.name.clone()),
        "line": d.at.as_ref().map(|a| a.line),
        "column": d.at.as_ref().map(|a| a.column),
    })
}
