//! Memory of the maps of the default set, as `kstrobe explain` computes it.

use super::agent::DEFAULT_PACKS;
use crate::apt::finished;
use anyhow::Result;
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// Bytes of all maps of the probes that are enabled by default.
#[derive(Default)]
pub struct Maps {
    /// Of this machine.
    pub cpus: u32,
    pub bytes: u64,
    pub bytes_at_256_cpus: u64,
}

#[derive(Deserialize)]
struct Explained {
    cpus: u32,
    map_bytes: u64,
    /// At 256 CPUs, or why the probe cannot run there.
    map_bytes_big: Result<u64, String>,
}

/// Adds up the maps of the packs that are enabled by default.
pub fn of_default_set(binary: &Path) -> Result<Maps> {
    let mut maps = Maps::default();
    for pack in DEFAULT_PACKS {
        let text = finished(Command::new(binary).args(["explain", "-o", "json", pack]))?;
        for Explained { cpus, map_bytes, map_bytes_big } in serde_json::from_str::<Vec<Explained>>(&text)? {
            maps.cpus = cpus;
            maps.bytes += map_bytes;
            maps.bytes_at_256_cpus += map_bytes_big.map_err(anyhow::Error::msg)?;
        }
    }
    Ok(maps)
}
