//! The systemd unit, by systemd itself.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Most exposure that `systemd-analyze security` may find, in tenths.
const MAX_EXPOSURE: &str = "40";

/// Whether systemd takes the unit without a word, finds it hardened, and it asks for what the chart asks for.
pub fn check(root: &Path) -> Result<()> {
    let unit = root.join("packaging/kstrobe.service");
    let machine = root.join("target/unit");
    // A machine on which what the unit starts is there.
    for program in ["usr/bin/kstrobe", "bin/kill"] {
        let path = machine.join(program);
        fs::create_dir_all(path.parent().context("a path in a folder")?)?;
        fs::write(&path, "#!/bin/sh\n")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let units = machine.join("usr/lib/systemd/system");
    fs::create_dir_all(&units)?;
    fs::copy(&unit, units.join("kstrobe.service")).with_context(|| unit.display().to_string())?;
    for target in ["sysinit", "basic", "shutdown", "network", "local-fs", "multi-user"] {
        fs::write(units.join(format!("{target}.target")), "[Unit]\nDefaultDependencies=no\n")?;
    }
    fs::write(units.join("-.mount"), "[Unit]\nDefaultDependencies=no\n[Mount]\nWhat=none\nWhere=/\n")?;
    quiet(
        Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(format!("--root={}", machine.display()))
            .arg("kstrobe.service"),
    )?;
    let security = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", &format!("--threshold={MAX_EXPOSURE}")])
        .arg(&unit)
        .output()?;
    let text = String::from_utf8_lossy(&security.stdout);
    ensure!(security.status.success(), "the unit is exposed too much:\n{text}");
    println!("{}", text.lines().rfind(|line| line.contains("exposure")).unwrap_or_default().trim());
    capabilities(&fs::read_to_string(&unit)?, &fs::read_to_string(root.join("helm/kstrobe/values.yaml"))?)
}

/// On a node and in a pod the agent has the same rights.
fn capabilities(unit: &str, values: &str) -> Result<()> {
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.map(str::to_owned).with_context(|| format!("nothing about {key}"))
    };
    let of_chart = value(values, "capabilities: ")?;
    let of_chart: Vec<String> =
        of_chart.trim_matches(['[', ']']).split(", ").map(|name| format!("CAP_{name}")).collect();
    for key in ["AmbientCapabilities=", "CapabilityBoundingSet="] {
        let of_unit = value(unit, key)?;
        ensure!(of_unit.split(' ').eq(&of_chart), "{key}{of_unit}, and the chart has {of_chart:?}");
    }
    Ok(())
}

/// systemd only warns of keys that it does not know.
fn quiet(command: &mut Command) -> Result<()> {
    let output = command.output().context("starting systemd-analyze")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !said.trim().is_empty() {
        bail!("systemd does not take the unit:\n{}", said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    #[test]
    fn the_packaged_configuration_is_one_in_all_its_lines() {
        let text = include_str!("../../packaging/kstrobe.yaml");
        let (head, lines) = text.split_once("\n\n").unwrap();
        assert!(
            head.lines().all(|line| line.starts_with('#')) && lines.lines().all(|l| l.is_empty() || l.starts_with('#'))
        );
        let text: String = lines.lines().map(|line| format!("{}\n", line.trim_start_matches('#'))).collect();
        let file = Arc::new(kstrobe_config::model::SourceFile { name: "kstrobe.yaml".into(), text });
        let (config, diagnostics) = kstrobe_config::agent(&file);
        assert!(config.is_some() && diagnostics.is_empty(), "{}", kstrobe_config::diag::render(&diagnostics));
    }

    #[test]
    fn the_same_capabilities_in_the_same_order() {
        let unit = "AmbientCapabilities=CAP_BPF CAP_PERFMON\nCapabilityBoundingSet=CAP_BPF CAP_PERFMON\n";
        assert!(super::capabilities(unit, "capabilities: [BPF, PERFMON]\n").is_ok());
        assert!(super::capabilities(unit, "capabilities: [BPF]\n").is_err());
        assert!(super::capabilities(unit, "").is_err());
    }
}
