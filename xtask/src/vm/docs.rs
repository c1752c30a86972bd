//! `docs/kernels.md`: what each kernel of the lab says of itself and of every shipped probe.

use super::binaries::Binaries;
use super::boot::Ended;
use crate::apt::finished;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

/// What one kernel said.
pub struct Answers {
    /// As the lab calls it, and the version.
    kernel: (String, String),
    doctor: Value,
    probes: Value,
}

/// Names of all shipped probes, off by default or not.
pub fn shipped(binaries: &Binaries) -> Result<Vec<String>> {
    let text = finished(Command::new(&binaries.agent).args(["list", "probes", "-o", "json"]))?;
    let list: Vec<Value> = serde_json::from_str(&text)?;
    list.iter().map(|probe| Ok(probe["probe"].as_str().context("a probe without a name")?.to_owned())).collect()
}

/// Runs the agent with all of them and leaves what it says.
pub fn script(binaries: &Binaries, shipped: &[String]) -> String {
    let (agent, names) = (binaries.agent.display(), shipped.join(","));
    format!(
        "agent='{agent}'\n\"$agent\" doctor -o json >/out/doctor\n\
         \"$agent\" run --only {names} --web.listen-address 127.0.0.1:9779 >/tmp/log 2>&1 &\n\
         for i in $(seq 600); do\n\
         wget -q -O /out/probes http://127.0.0.1:9779/api/v1/probes 2>/dev/null && exit 0\nsleep 0.1\ndone\n\
         cat /tmp/log\nexit 1\n"
    )
}

/// Reads what a guest left.
pub fn answers(name: &str, version: &str, ended: &Ended) -> Result<Answers> {
    let file = |wanted: &str| -> Result<Value> {
        let found = ended.files.iter().find(|(name, _)| name == wanted);
        let (_, bytes) = found.with_context(|| format!("the guest left no {wanted}"))?;
        serde_json::from_slice(bytes).with_context(|| format!("reading {wanted}"))
    };
    Ok(Answers { kernel: (name.to_owned(), version.to_owned()), doctor: file("doctor")?, probes: file("probes")? })
}

/// Reasons by number, each once.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn number(&mut self, reason: &str) -> usize {
        let reason = reason.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let known = self.0.iter().position(|known| *known == reason);
        known.unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        }) + 1
    }
}

/// The page.
pub fn page(all: &[Answers], shipped: &[String]) -> Result<String> {
    let mut notes = Notes::default();
    let mut page = String::from(
        "# Kernels\n\n\
         Written by `cargo xtask vm --write-docs`: Debian's kernels were booted, and each was asked what it can do and to run\n\
         every probe that is shipped. Do not edit.\n\n",
    );
    for answers in all {
        writeln!(page, "- **{}**: {}", answers.kernel.0, answers.kernel.1)?;
    }
    page += "\n## Probes\n\nA cell names the kinds of hooks that were chosen, or why the probe cannot run there.\n\n";
    let probe_row = |notes: &mut Notes, name: &str| -> Vec<String> {
        all.iter().map(|answers| probe_cell(&answers.probes, name, notes)).collect()
    };
    header(&mut page, "probe", all)?;
    for name in shipped {
        writeln!(page, "| `{name}` | {} |", probe_row(&mut notes, name).join(" | "))?;
    }
    page +=
        "\n## Abilities\n\nEach was tried. What is missing costs what the note says; nothing depends on a version.\n\n";
    header(&mut page, "ability", all)?;
    for what in abilities(all) {
        let cells: Vec<String> = all.iter().map(|answers| ability_cell(&answers.doctor, &what, &mut notes)).collect();
        writeln!(page, "| {what} | {} |", cells.join(" | "))?;
    }
    if !notes.0.is_empty() {
        page += "\n## Notes\n\n";
        for (number, reason) in notes.0.iter().enumerate() {
            writeln!(page, "{}. {reason}", number + 1)?;
        }
    }
    Ok(page)
}

fn header(page: &mut String, first: &str, all: &[Answers]) -> Result<()> {
    let names: Vec<&str> = all.iter().map(|answers| answers.kernel.0.as_str()).collect();
    writeln!(page, "| {first} | {} |", names.join(" | "))?;
    writeln!(page, "|---|{}", "---|".repeat(all.len()))?;
    Ok(())
}

fn probe_cell(probes: &Value, name: &str, notes: &mut Notes) -> String {
    // A list, or an object that holds it.
    let list = probes.as_array().or_else(|| probes["probes"].as_array());
    let Some(probe) = list.and_then(|list| list.iter().find(|probe| probe["name"] == name)) else {
        return "unknown".into();
    };
    let hooks = probe["hooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    if probe["attached"] == true {
        let kinds: BTreeMap<&str, ()> = hooks.iter().filter_map(|hook| Some((hook["kind"].as_str()?, ()))).collect();
        return kinds.into_keys().filter(|kind| !kind.is_empty()).collect::<Vec<_>>().join(", ");
    }
    let reasons = [probe].into_iter().chain(hooks).filter_map(|part| part["reason"].as_str());
    let reason = reasons.into_iter().find(|reason| !reason.is_empty()).unwrap_or("no reason given");
    format!("no ({})", notes.number(reason))
}

/// What the doctor looked at, in its order.
fn abilities(all: &[Answers]) -> Vec<String> {
    let findings = all.first().and_then(|answers| answers.doctor["findings"].as_array());
    findings.into_iter().flatten().filter_map(|finding| finding["what"].as_str().map(str::to_owned)).collect()
}

fn ability_cell(doctor: &Value, what: &str, notes: &mut Notes) -> String {
    let found = doctor["findings"].as_array().and_then(|list| list.iter().find(|finding| finding["what"] == what));
    match found {
        None => "unknown".into(),
        Some(finding) if finding["ok"] == true => "yes".into(),
        Some(finding) => format!("no ({})", notes.number(finding["detail"].as_str().unwrap_or("no reason given"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_has_hooks_and_each_reason_once() {
        let answers = |attached: bool| Answers {
            kernel: ("6.1".into(), "6.1.0-1".into()),
            doctor: json!({ "findings": [{ "what": "storage", "ok": false, "detail": "too old" }] }),
            probes: json!({ "probes": [{
                "name": "p", "attached": attached, "reason": if attached { "" } else { "no\n  event" },
                "hooks": [{ "kind": "tp_btf" }, { "kind": "tp_btf" }],
            }] }),
        };
        let shipped = ["p".to_owned(), "q".to_owned()];
        let page = page(&[answers(true), answers(false)], &shipped).unwrap();
        assert!(page.contains("| `p` | tp_btf | no (1) |"), "{page}");
        assert!(page.contains("| `q` | unknown | unknown |"), "{page}");
        assert!(page.contains("| storage | no (2) | no (2) |"), "{page}");
        assert!(page.contains("1. no event\n2. too old\n"), "{page}");
    }
}
