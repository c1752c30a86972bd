//! The machine: what it is, and a private view of its file systems.

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use std::fs;

/// Moves the process into a mount namespace of its own with tracefs and debugfs in their usual places: perf tracepoints
/// and bpftrace look there, and nothing is left mounted afterwards. Must run before any thread is started.
pub fn private_mounts() -> Result<()> {
    if !geteuid().is_root() {
        bail!("the benchmark loads eBPF programs and needs root: run it with sudo");
    }
    unshare(CloneFlags::CLONE_NEWNS).context("making a private mount namespace")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("making mounts private")?;
    for (kind, target) in [("tracefs", "/sys/kernel/tracing"), ("debugfs", "/sys/kernel/debug")] {
        // Some systems have them mounted already: then there is nothing to do.
        if fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none()) {
            mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
                .with_context(|| format!("mounting {kind} at {target}"))?;
        }
    }
    Ok(())
}

/// One line that says where the numbers come from.
pub fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split(':').nth(1));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let model = model.map_or("unknown CPU", str::trim);
    format!("Linux {}, {model}, {cpus} CPUs, load average {load} at the start", release.trim())
}

/// The highest CPU this process may use: the lowest ones take most interrupts.
pub fn last_cpu() -> usize {
    std::thread::available_parallelism().map_or(0, |n| n.get() - 1)
}
