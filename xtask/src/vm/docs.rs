//! `docs/kernels.md`: what each kernel of the lab says of itself and of every shipped probe.

use super::binaries::Binaries;
use super::boot::Ended;
use crate::apt::finished;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// What one kernel said.
pub struct Answers {
    /// As the lab calls it, and the version.
    kernel: (String, String),
    doctor: Value,
    probes: Value,
}

/// A shipped probe.
pub struct Shipped {
    name: String,
    /// Whether it runs when nothing is said.
    on: bool,
}

/// All of them.
pub fn shipped(agent: &Path) -> Result<Vec<Shipped>> {
    let text = finished(Command::new(agent).args(["list", "probes", "-o", "json"]))?;
    let list: Vec<Value> = serde_json::from_str(&text)?;
    let read = |probe: &Value| -> Result<Shipped> {
        let name = probe["probe"].as_str().context("a probe without a name")?.to_owned();
        Ok(Shipped { name, on: probe["default"] == "on" })
    };
    list.iter().map(read).collect()
}

/// Runs the agent with all of them and leaves what it says.
pub fn script(binaries: &Binaries, shipped: &[Shipped]) -> String {
    let names: Vec<&str> = shipped.iter().map(|probe| probe.name.as_str()).collect();
    let (agent, names) = (binaries.agent.display(), names.join(","));
    format!(
        "ip link add any type dummy && ip link del any\nagent='{agent}'\n\"$agent\" doctor -o json >/out/doctor\n\
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

pub fn page(all: &[Answers], shipped: &[Shipped]) -> Result<String> {
    let mut notes = Notes::default();
    let mut page = String::from(
        "# Kernels\n\n\
         Written by `cargo xtask vm --write-docs`: Debian's kernels were booted, and each was asked what it can do and to run\n\
         every probe that is shipped. Do not edit.\n\n",
    );
    for answers in all {
        writeln!(page, "- **{}**: {}", answers.kernel.0, answers.kernel.1)?;
    }
    page += "\n## Probes\n\n\
             A cell names the kinds of hooks that were chosen, with a note when there would be a better one, or why the probe\n\
             cannot run there.\n\n";
    header(&mut page, "probe | default", all)?;
    for probe in shipped {
        let cells: Vec<String> =
            all.iter().map(|answers| probe_cell(&answers.probes, &probe.name, &mut notes)).collect();
        let on = if probe.on { "on" } else { "off" };
        writeln!(page, "| `{}` | {on} | {} |", probe.name, cells.join(" | "))?;
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
    let header = format!("| {first} | {} |", names.join(" | "));
    let columns = header.matches('|').count() - 1;
    writeln!(page, "{header}\n|{}", "---|".repeat(columns))?;
    Ok(())
}

fn probe_cell(probes: &Value, name: &str, notes: &mut Notes) -> String {
    let Some(probe) = list(&probes["probes"]).iter().find(|probe| probe["name"] == name) else {
        return "unknown".into();
    };
    let hooks = list(&probe["hooks"]);
    if probe["attached"] != true {
        let reasons = [probe].into_iter().chain(hooks).filter_map(|part| part["reason"].as_str());
        let reason = reasons.into_iter().find(|reason| !reason.is_empty()).unwrap_or("no reason given");
        return format!("no ({})", notes.number(reason));
    }
    let kinds: BTreeSet<&str> = hooks.iter().filter_map(|hook| hook["kind"].as_str()).collect();
    let cell = kinds.into_iter().collect::<Vec<_>>().join(", ");
    let mut second_best = BTreeSet::new();
    for choice in list(&probe["choices"]) {
        let reasons: Vec<&str> = list(&choice["because"]).iter().filter_map(Value::as_str).collect();
        if !reasons.is_empty() {
            let (wanted, got) = (choice["wanted"].as_str(), choice["got"].as_str());
            let (wanted, got) = (wanted.unwrap_or_default(), got.unwrap_or_default());
            second_best.insert(notes.number(&format!("`{got}` in place of `{wanted}`: {}", reasons.join("; "))));
        }
    }
    match second_best.iter().map(ToString::to_string).collect::<Vec<_>>() {
        numbers if numbers.is_empty() => cell,
        numbers => format!("{cell} ({})", numbers.join(", ")),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What the doctors looked at besides the rights they had, in their order.
fn abilities(all: &[Answers]) -> Vec<String> {
    let mut names = Vec::new();
    for finding in all.iter().flat_map(|answers| list(&answers.doctor["findings"])) {
        let what = finding["what"].as_str().unwrap_or_default();
        if !what.starts_with("CAP_") && !names.iter().any(|name| name == what) {
            names.push(what.to_owned());
        }
    }
    names
}

fn ability_cell(doctor: &Value, what: &str, notes: &mut Notes) -> String {
    match list(&doctor["findings"]).iter().find(|finding| finding["what"] == what) {
        None => "unknown".into(),
        Some(finding) if finding["ok"] == true => "yes".into(),
        Some(finding) => format!("no ({})", notes.number(finding["detail"].as_str().unwrap_or("no reason given"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answers(hooks: Value, choices: Value, reason: &str) -> Answers {
        let attached = reason.is_empty();
        let probe = json!({ "name": "p", "attached": attached, "reason": reason, "hooks": hooks, "choices": choices });
        let findings = json!([
            { "what": "CAP_BPF", "ok": true, "detail": "held" },
            { "what": "storage", "ok": false, "detail": "too old" },
        ]);
        Answers {
            kernel: ("6.1".into(), "6.1.0-1".into()),
            doctor: json!({ "findings": findings }),
            probes: json!({ "probes": [probe] }),
        }
    }

    #[test]
    fn a_page_has_kinds_of_hooks_and_each_reason_once() {
        let best = answers(json!([{ "kind": "tp_btf" }, { "kind": "tp_btf" }]), json!([]), "");
        let choices = json!([
            { "wanted": "fentry", "got": "kprobe", "because": ["no\n  ftrace"] },
            { "wanted": "function", "got": "fentry", "because": [] },
        ]);
        let second_best = answers(json!([{ "kind": "kprobe" }, { "kind": "tp_btf" }]), choices, "");
        let refused = answers(json!([{ "kind": "", "reason": "no event" }]), json!([]), "no event");
        let shipped = [("p", true), ("q", false)].map(|(name, on)| Shipped { name: name.into(), on });
        let page = page(&[best, second_best, refused], &shipped).unwrap();
        assert!(page.contains("| probe | default | 6.1 | 6.1 | 6.1 |\n|---|---|---|---|---|\n"), "{page}");
        assert!(page.contains("| `p` | on | tp_btf | kprobe, tp_btf (1) | no (2) |"), "{page}");
        assert!(page.contains("| `q` | off | unknown | unknown | unknown |"), "{page}");
        assert!(page.contains("| storage | no (3) | no (3) | no (3) |"), "{page}");
        assert!(page.contains("1. `kprobe` in place of `fentry`: no ftrace\n2. no event\n3. too old\n"), "{page}");
        assert!(!page.contains("CAP_BPF"), "{page}");
    }
}
