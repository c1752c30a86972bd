//! What tests against the kernel share: the agent as a process, what it exports, the witnesses it is compared with, and
//! loads whose results are known beforehand.
#![allow(dead_code, unused_imports, reason = "every test crate uses a part of it")]

pub mod agent;
pub mod alertmanager;
pub mod api;
pub mod bpftrace;
pub mod capture;
pub mod disk;
pub mod frames;
pub mod groups;
pub mod kernel_objects;
pub mod load;
pub mod memory_group;
pub mod metrics;
pub mod netns;
pub mod pods;
pub mod points;
pub mod postgres;
pub mod prometheus;
pub mod proxy;
pub mod ssh;
pub mod tmux;
pub mod trace_instance;
pub mod tracing;

pub use kstrobe_testing::{
    Agreement, Folder, containers, find as program, http, kernel, not_asked_for, not_run, output, wait_for, witnesses,
};
use std::process::Command;

/// Seconds since 1970.
pub fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// How often each process (of `/proc`) or thread (of `/proc/PID/task`) of this name has waited so far.
pub fn waits(folder: &str, name: &str) -> Vec<u64> {
    let name = format!("Name:\t{name}\n");
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path().join("status"));
    let of_it = files.filter_map(|file| std::fs::read_to_string(file).ok()).filter(|status| status.starts_with(&name));
    let count = |status: String| {
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
    };
    of_it.filter_map(count).collect()
}

/// Memory of a process as its status says: `VmRSS:` now, `VmHWM:` at most so far.
pub fn memory_bytes(pid: u32, which: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(which)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A process that ends with the test.
pub struct Killed(pub std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lab's name for the kernel, where there is a lab: `5.10`, `6.1`, `6.12`, `sid`.
pub fn lab() -> Option<String> {
    std::env::var("KSTROBE_LAB").ok()
}

/// Whether the processor is emulated in software: everything takes five to twenty times as long there, and a CPU may stand
/// still for milliseconds. Limits on times are wider then; counts are not.
pub fn emulated() -> bool {
    std::env::var_os("KSTROBE_EMULATED").is_some()
}

/// What a command did.
pub struct Done {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs a command to its end, whatever that is.
#[track_caller]
pub fn done(command: &mut Command) -> Done {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Done { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}

/// Runs a line of shell in a mount namespace of its own that has tracefs, debugfs and a bpf file system: what it mounts
/// and pins is gone with it.
pub fn private_shell(script: &str) -> Command {
    // tracefs and debugfs may be there already, and a second mount at the same place is refused.
    let mounts = "set -e; [ -e /sys/kernel/tracing/events ] || mount -t tracefs none /sys/kernel/tracing; \
                  [ -e /sys/kernel/debug/tracing ] || mount -t debugfs none /sys/kernel/debug; \
                  mount -t bpf none /sys/fs/bpf; ";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]).arg(format!("{mounts}{script}"));
    command
}

/// How often the kernel's function tracer sees a function while something is done, on all CPUs.
pub fn calls_of(function: &str, work: impl FnOnce()) -> usize {
    let tracefs = tracing::Mounted::new();
    let instance = format!("instances/kst-test-{}", std::process::id());
    tracefs.make(&instance);
    tracefs.write(&format!("{instance}/set_ftrace_filter"), function);
    tracefs.write(&format!("{instance}/current_tracer"), "function");
    work();
    tracefs.write(&format!("{instance}/tracing_on"), "0");
    let text = tracefs.read(&format!("{instance}/trace")).unwrap();
    tracefs.write(&format!("{instance}/current_tracer"), "nop");
    tracefs.remove(&instance);
    text.lines().filter(|line| line.contains(&format!(": {function} <-"))).count()
}

/// Softirqs run so far by vector, over all CPUs, named as the agent names them.
pub fn softirqs() -> Vec<(String, f64)> {
    let text = std::fs::read_to_string("/proc/softirqs").unwrap();
    let rows = text.lines().skip(1).filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let total: f64 = counts.split_whitespace().filter_map(|n| n.parse::<f64>().ok()).sum();
        Some((name.trim().to_lowercase(), total))
    });
    rows.collect()
}
