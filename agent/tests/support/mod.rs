//! What tests against the kernel share: the agent as a process, what it exports, the witnesses it is compared with, and
//! loads whose results are known beforehand.
#![allow(dead_code, reason = "every test crate uses a part of it")]

pub mod agent;
pub mod bpftrace;
pub mod capture;
pub mod disk;
pub mod frames;
pub mod kernel_objects;
pub mod load;
pub mod memory_group;
pub mod metrics;
pub mod netns;
pub mod prometheus;
pub mod trace_instance;
pub mod tracing;

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Whether the witnesses that a test compares with are there. Where they could have been installed their absence fails
/// the test; elsewhere (`KSTROBE_NOT_RUN_FILE` is set) the test is noted as not run.
pub fn witnesses(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<&str> = programs.iter().filter(|name| program(name).is_none()).copied().collect();
    if missing.is_empty() {
        return true;
    }
    let reason = format!("{test}: {} not installed", missing.join(", "));
    let Some(list) = std::env::var_os("KSTROBE_NOT_RUN_FILE") else { panic!("{reason}") };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(list).unwrap();
    writeln!(file, "{reason}").unwrap();
    false
}

/// Where a witness is: installed, or unpacked beside the build by `cargo xtask test`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let unpacked = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/programs/usr/bin");
    let folders = path.split(':').chain(["/usr/sbin", unpacked]).map(PathBuf::from).chain(postgresql());
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Folders of PostgreSQL's programs: Debian keeps those of each version apart.
pub fn postgresql() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin")).collect()
}

/// Notes that a test is not run because this kernel lacks what it needs. The kernels of the lab have all that tests need, or
/// the test knows better: there it fails.
pub fn not_run(test: &str, reason: &str) {
    assert!(std::env::var_os("KSTROBE_LAB").is_none(), "{test}: {reason}, on a kernel of the lab");
    eprintln!("not run here: {test}: {reason}");
    if let Some(list) = std::env::var_os("KSTROBE_NOT_RUN_FILE") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(list).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
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

/// Runs a command to its end and returns its output; a failure fails the test and shows what it said.
#[track_caller]
pub fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?} ended with {}\n{out}{err}", done.status);
    out.into_owned()
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

/// Asks again and again until there is an answer; fails the test when time is up.
#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A folder of the test's own, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    /// Makes it.
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kstrobe-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Writes a file into it.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
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
