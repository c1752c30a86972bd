//! Reads configuration files and decides which probes run.

use std::path::Path;
use std::sync::Arc;

use kstrobe_config::diag::{Diagnostic, Severity};
use kstrobe_config::model::{Agent, Probe, SourceFile, Spanned};

/// What the command line asks for on top of the configuration file.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// `--enable`
    pub enable: Vec<String>,
    /// `--disable`
    pub disable: Vec<String>,
    /// `--only`: these and no others.
    pub only: Vec<String>,
}

/// Reads a file, or says why not.
pub fn file(path: &Path) -> Result<Arc<SourceFile>, Diagnostic> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Arc::new(SourceFile { name: path.display().to_string(), text })),
        Err(e) => Err(problem(format!("cannot read {}: {e}", path.display()))),
    }
}

/// The agent's own configuration: the file's, or the defaults. With any mistake in the file there is none.
pub fn agent(path: Option<&Path>) -> (Option<Agent>, Vec<Diagnostic>) {
    match path {
        None => (Some(Agent::default()), vec![]),
        Some(path) => match file(path) {
            Ok(file) => kstrobe_config::agent(&file),
            Err(e) => (None, vec![e]),
        },
    }
}

/// All probes known: the embedded ones and those of a directory, whose files replace embedded files of the same name.
pub fn probes(directory: Option<&Path>) -> (Vec<Probe>, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let mut files = Vec::new();
    if let Some(directory) = directory {
        match yaml_files(directory) {
            Ok(paths) => {
                for path in paths {
                    match file(&path) {
                        Ok(f) => files.push(f),
                        Err(e) => diagnostics.push(e),
                    }
                }
            }
            Err(e) => {
                diagnostics.push(problem(format!("cannot read the probes directory {}: {e}", directory.display())))
            }
        }
    }
    let base = |f: &SourceFile| f.name.rsplit('/').next().unwrap_or_default().to_string();
    let replaced: Vec<String> = files.iter().map(|f| base(f)).collect();
    let mut all: Vec<_> = kstrobe_config::embedded().into_iter().filter(|f| !replaced.contains(&base(f))).collect();
    all.extend(files);
    let (probes, mut more) = kstrobe_config::probes(&all);
    diagnostics.append(&mut more);
    (probes, diagnostics)
}

/// The probes an agent should run, from its configuration and the command line. Mistakes in probe files cost only the
/// probe they are in; a name that fits nothing is a mistake of whoever starts the agent, and then there are none.
pub fn chosen(agent: &Agent, directory: Option<&Path>, choice: &Choice) -> (Option<Vec<Probe>>, Vec<Diagnostic>) {
    let configured = agent.probes_directory.as_ref().map(|d| Path::new(&d.value));
    let (all, mut diagnostics) = probes(directory.or(configured));
    let (chosen, mut unknown) = choose(all, agent, choice);
    let known = unknown.is_empty();
    diagnostics.append(&mut unknown);
    (known.then_some(chosen), diagnostics)
}

/// YAML files right in a directory, in name order. A mounted ConfigMap shows each key as a link beside hidden folders.
fn yaml_files(directory: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        let yaml = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
        if yaml && !hidden && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The probes that should run. A name that fits no probe and no pack is a mistake, with its place when it has one.
pub fn choose(probes: Vec<Probe>, agent: &Agent, choice: &Choice) -> (Vec<Probe>, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let named = |name: &str, p: &Probe| p.name.value == name || p.pack == name;
    let mut unknown = |name: &str, at: Option<&Spanned<String>>| {
        if probes.iter().any(|p| named(name, p)) {
            return;
        }
        let known = probes.iter().flat_map(|p| [p.name.value.as_str(), p.pack.as_str()]);
        let hint = kstrobe_config::did_you_mean(name, known).map(|n| format!("did you mean `{n}`?"));
        let hint = hint.or_else(|| Some("`kstrobe list` shows all probes".into()));
        diagnostics.push(Diagnostic {
            hint,
            at: at.map(|s| s.at.clone()),
            ..problem(format!("there is no probe `{name}`"))
        });
    };
    for s in agent.enable.iter().chain(&agent.disable) {
        unknown(&s.value, Some(s));
    }
    for name in choice.enable.iter().chain(&choice.disable).chain(&choice.only) {
        unknown(name, None);
    }
    let wanted = |p: &Probe| {
        // The most exact word wins: `--only` over all, then a probe's own name over its pack's.
        if !choice.only.is_empty() {
            return choice.only.iter().any(|n| named(n, p) && (p.enabled || *n == p.name.value));
        }
        let says = |names: &mut dyn Iterator<Item = &str>| -> u8 {
            names.map(|n| if n == p.name.value { 2 } else { u8::from(n == p.pack && p.enabled) }).max().unwrap_or(0)
        };
        let on =
            says(&mut agent.enable.iter().map(|s| s.value.as_str()).chain(choice.enable.iter().map(String::as_str)));
        let off =
            says(&mut agent.disable.iter().map(|s| s.value.as_str()).chain(choice.disable.iter().map(String::as_str)));
        if off > on { false } else { p.enabled || on > 0 }
    };
    let chosen = probes.iter().filter(|p| wanted(p)).cloned().collect();
    (chosen, diagnostics)
}

fn problem(message: String) -> Diagnostic {
    Diagnostic { severity: Severity::Error, at: None, message, hint: None }
}
