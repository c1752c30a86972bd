//! The machine that measures.

use anyhow::Result;
use std::collections::BTreeSet;
use std::fs;

/// One line that says where the numbers come from.
pub fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split(':').nth(1));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = cpus();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let model = model.map_or("unknown CPU", str::trim);
    format!("Linux {}, {model}, {cpus} CPUs, load average {load} at the start", release.trim())
}

/// CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The highest CPU this process may use: the lowest ones take most interrupts.
pub fn last_cpu() -> usize {
    cpus() - 1
}

/// Ids of the BPF programs and of the maps that the kernel has, of all processes.
pub fn bpf_objects() -> Result<(BTreeSet<u32>, BTreeSet<u32>)> {
    let programs = aya::programs::loaded_programs().map(|info| Ok(info?.id())).collect::<Result<_>>()?;
    let maps = aya::maps::loaded_maps().map(|info| Ok(info?.id())).collect::<Result<_>>()?;
    Ok((programs, maps))
}
