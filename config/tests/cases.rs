//! Each `tests/cases/NAME.yaml` is loaded and its diagnostics compared with `NAME.stderr`; `BLESS=1` rewrites those.
//!
//! Files that begin with `agent_` are read as `kstrobe.yaml`, their rules against the built-in probes, those that begin with
//! `web_` as `web-config.yml`, all others as probes.

use kstrobe_config::model::SourceFile;
use kstrobe_config::{agent, check_rules, embedded, probes, render, unique_metrics, web};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    cases.retain(|path| path.extension().is_some_and(|e| e == "yaml"));
    cases.sort();
    cases
}

/// Diagnostics as text, and a line that says what was loaded nevertheless.
fn outcome(path: &Path) -> String {
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let text = std::fs::read_to_string(path).unwrap();
    let (is_agent, is_web) = (name.starts_with("agent_"), name.starts_with("web_"));
    let file = Arc::new(SourceFile { name, text });
    let (loaded, diagnostics) = if is_agent {
        let (agent, mut diagnostics) = agent(&file);
        if let Some(agent) = &agent {
            diagnostics.extend(check_rules(&agent.rules, &probes(&embedded()).0, |probe| probe.enabled));
        }
        (if agent.is_some() { "the configuration".to_owned() } else { "nothing".to_owned() }, diagnostics)
    } else if is_web {
        let (web, diagnostics) = web(&file);
        (web.map_or_else(|| "nothing".to_owned(), |web| format!("{web:#?}")), diagnostics)
    } else {
        let (probes, mut diagnostics) = probes(&[file]);
        let (probes, mut twice) = unique_metrics(probes);
        diagnostics.append(&mut twice);
        let names: Vec<&str> = probes.iter().map(|p| p.name()).collect();
        (if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }, diagnostics)
    };
    let text = render(&diagnostics);
    let gap = if text.is_empty() { "" } else { "\n" };
    format!("{text}{gap}loaded: {loaded}\n")
}

#[test]
fn diagnostics_are_as_recorded() {
    let bless = std::env::var_os("BLESS").is_some();
    let cases = cases();
    assert!(cases.len() > 40, "only {} cases found", cases.len());
    let mut wrong = Vec::new();
    for path in cases {
        let found = outcome(&path);
        let golden = path.with_extension("stderr");
        if bless {
            std::fs::write(&golden, &found).unwrap();
        } else if std::fs::read_to_string(&golden).unwrap_or_default() != found {
            wrong.push(format!("--- {}\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "differs from the recorded text (BLESS=1 rewrites):\n{}", wrong.join("\n"));
}

#[test]
fn no_recorded_text_is_without_its_case() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.with_extension("yaml").exists(), "{} has no case", path.display());
    }
}
