//! The files that the chart writes for the agent, read by the agent's own parser.

use anyhow::{Context, Result, bail};
use kstrobe_config::diag::{Diagnostic, render};
use kstrobe_config::model::{Probe, Shape, SourceFile};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Sources of `poll:` that show the reader's network namespace. `softnet` counts by CPU, everywhere the same.
const OF_A_NAMESPACE: [&str; 2] = ["netstat", "tcp_listen"];

/// Every case: a folder with `kstrobe.yaml` and `probes/*.yaml`.
pub fn check(cases: &Path) -> Result<()> {
    let mut names = Vec::new();
    for case in fs::read_dir(cases).with_context(|| cases.display().to_string())? {
        let case = case?;
        let name = case.file_name().to_string_lossy().into_owned();
        one(&case.path()).with_context(|| format!("the agent does not take what the chart writes for {name}"))?;
        names.push(name);
    }
    if names.is_empty() {
        bail!("the chart has no cases");
    }
    own_namespace(&cases.join("default"))?;
    println!("the agent takes the configuration of {} cases", names.len());
    Ok(())
}

fn one(case: &Path) -> Result<()> {
    let (config, mut diagnostics) = kstrobe_config::agent(&file(&case.join("kstrobe.yaml"))?);
    let mut files = kstrobe_config::embedded();
    let folder = case.join("probes");
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        files.push(file(&entry?.path())?);
    }
    let (probes, more) = kstrobe_config::probes(&files);
    diagnostics.extend(more);
    let config = config.unwrap_or_default();
    diagnostics.extend(kstrobe_config::check_rules(&config.rules, &probes, |_| true));
    let known = |name: &str| probes.iter().any(|probe| probe.name() == name || probe.pack == name);
    let unknown = config.enable.iter().chain(&config.disable).find(|name| !known(&name.value));
    if let Some(name) = unknown {
        bail!("there is no probe `{}`", name.value);
    }
    fine(&diagnostics)
}

/// Without the node's network, no probe that is on by default shows the pod's instead.
fn own_namespace(default: &Path) -> Result<()> {
    let (config, diagnostics) = kstrobe_config::agent(&file(&default.join("kstrobe.yaml"))?);
    fine(&diagnostics)?;
    let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
    let misleading: BTreeSet<&str> =
        probes.iter().filter(|p| p.enabled && reads_its_namespace(p)).map(|p| p.name()).collect();
    let config = config.unwrap_or_default();
    let off: BTreeSet<&str> = config.disable.iter().map(|name| name.value.as_str()).collect();
    if misleading != off {
        bail!("the chart turns off {off:?} without hostNetwork, but {misleading:?} read their own network namespace");
    }
    Ok(())
}

fn reads_its_namespace(probe: &Probe) -> bool {
    matches!(&probe.program.shape, Shape::Poll { source, .. } if OF_A_NAMESPACE.contains(&source.value.as_str()))
}

fn fine(diagnostics: &[Diagnostic]) -> Result<()> {
    if diagnostics.is_empty() { Ok(()) } else { bail!("\n{}", render(diagnostics)) }
}

fn file(path: &Path) -> Result<Arc<SourceFile>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(Arc::new(SourceFile { name: path.display().to_string(), text }))
}
