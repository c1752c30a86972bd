//! Memory of the maps of the default set, as `kstrobe explain` computes it.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::process::Command;

/// Bytes of all maps of the probes that are enabled by default.
pub struct Maps {
    /// Of this machine.
    pub cpus: u32,
    pub bytes: u64,
    pub bytes_at_256_cpus: u64,
}

#[derive(Deserialize)]
struct Listed {
    probe: String,
    default: String,
}

#[derive(Deserialize)]
struct Explained {
    probe: String,
    cpus: u32,
    map_bytes: u64,
    /// At 256 CPUs, or why the probe cannot run there.
    map_bytes_big: Result<u64, String>,
}

/// Adds up the maps of the probes that are enabled by default.
pub fn of_default_set(binary: &Path) -> Result<Maps> {
    let mut maps = Maps { cpus: 0, bytes: 0, bytes_at_256_cpus: 0 };
    let listed: Vec<Listed> = answer(binary, &["list", "-o", "json"])?;
    for Listed { probe, .. } in listed.into_iter().filter(|listed| listed.default == "on") {
        // A name is that of a pack, too: then all probes of the pack are explained.
        let explained: Vec<Explained> = answer(binary, &["explain", "-o", "json", &probe])?;
        let of_probe = explained.into_iter().find(|explained| explained.probe == probe);
        let Explained { cpus, map_bytes, map_bytes_big, .. } = of_probe.with_context(|| probe.clone())?;
        maps.cpus = cpus;
        maps.bytes += map_bytes;
        maps.bytes_at_256_cpus += map_bytes_big.map_err(anyhow::Error::msg)?;
    }
    Ok(maps)
}

fn answer<T: DeserializeOwned>(binary: &Path, arguments: &[&str]) -> Result<T> {
    let output = Command::new(binary).args(arguments).output().with_context(|| binary.display().to_string())?;
    ensure!(output.status.success(), "kstrobe {}: {}", arguments[0], String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).with_context(|| format!("kstrobe {}", arguments.join(" ")))
}
