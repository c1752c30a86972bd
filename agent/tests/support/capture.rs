//! `kstrobe capture` as a process.

use super::agent::command;
use super::tracing::Mounted;
use super::{Folder, wait_for};
use kstrobe_ftrace::dat;
use kstrobe_ftrace::trace::Trace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A recording that goes on until it is told to end, or its command does.
pub struct Capture {
    /// The process.
    pub child: Child,
    /// What it writes.
    pub file: PathBuf,
}

impl Capture {
    /// Starts it and waits until it records.
    pub fn start(folder: &Folder, arguments: &[&str]) -> Capture {
        let file = folder.0.join("trace.dat");
        let before = instances();
        let mut starting = command(&["capture", "-o"]);
        let said = std::fs::File::create(folder.0.join("said")).unwrap();
        let child = starting.arg(&file).args(arguments).stdin(Stdio::null()).stderr(said).spawn().unwrap();
        let mut capture = Capture { child, file };
        wait_for("a recording's begin", LIMIT, || {
            if let Some(status) = capture.child.try_wait().unwrap() {
                panic!("it ended with {status}: {}", capture.said());
            }
            let mut new = capture.instances().into_iter().filter(|name| !before.contains(name));
            (new.any(|name| records(&name)) || global_records()).then_some(())
        });
        capture
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Tracing instances of its own.
    pub fn instances(&self) -> Vec<String> {
        let own = format!("kstrobe-{}-", self.child.id());
        instances().into_iter().filter(|name| name.starts_with(&own)).collect()
    }

    /// What it wrote to standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.file.with_file_name("said")).unwrap_or_default()
    }

    /// Ends it by Ctrl-C and reads what it wrote.
    pub fn end(mut self) -> (Trace, String) {
        kill(self.pid(), Signal::SIGINT).unwrap();
        let status = wait_for("a recording's end", LIMIT, || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", self.said());
        (trace(&self.file), self.said())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a trace.dat.
pub fn trace(file: &Path) -> Trace {
    dat::read(&std::fs::read(file).unwrap()).unwrap().trace
}

/// All tracing instances.
pub fn instances() -> Vec<String> {
    Mounted::new().list("instances")
}

/// Whether an instance is ready and switched on.
pub fn records(instance: &str) -> bool {
    let tracefs = Mounted::new();
    let says = |file: &str| tracefs.read(&format!("instances/{instance}/{file}")).unwrap_or_default();
    // A new instance is on, too, and has another clock.
    says("tracing_on") == "1" && says("trace_clock").contains("[mono]")
}

/// Whether somebody records calls into the global buffer.
pub fn global_records() -> bool {
    let tracefs = Mounted::new();
    tracefs.read("current_tracer").unwrap() != "nop" && tracefs.read("tracing_on").unwrap() == "1"
}
