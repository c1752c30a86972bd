//! A mount namespace of the chore's own: what is mounted in it ends with the chore and the programs that it started.

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use std::fs;

const CGROUPS: &str = "/sys/fs/cgroup";

/// Moves the calling thread into a mount namespace of its own with tracefs and debugfs in their usual places: perf tracepoints
/// and bpftrace look there.
pub fn private() -> Result<()> {
    if !geteuid().is_root() {
        bail!("making a mount namespace needs root: run it with sudo");
    }
    unshare(CloneFlags::CLONE_NEWNS).context("making a private mount namespace")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("making mounts private")?;
    mount_where_empty("tracefs", "/sys/kernel/tracing")?;
    mount_where_empty("debugfs", "/sys/kernel/debug")
}

/// The same with bpffs, and with control groups of version 2 alone, as systemd mounts them on most machines. Controllers
/// that this machine has bound to hierarchies of version 1 stay there, out of sight.
pub fn as_systemd() -> Result<()> {
    private()?;
    mount_where_empty("bpf", "/sys/fs/bpf")?;
    // Hierarchies of version 1 are mounted below: they go with the tree.
    while umount2(CGROUPS, MntFlags::MNT_DETACH).is_ok() {}
    mount_at("cgroup2", CGROUPS)
}

fn mount_where_empty(kind: &str, target: &str) -> Result<()> {
    if fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none()) { mount_at(kind, target) } else { Ok(()) }
}

fn mount_at(kind: &str, target: &str) -> Result<()> {
    mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("mounting {kind} at {target}"))
}
