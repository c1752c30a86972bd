//! bpftrace as a process: attached once it says so, its histograms read when it ends.

use crate::programs;
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running script. Dropping it kills it.
pub struct Script {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Script {
    /// Starts it and waits until its probes are attached.
    pub fn start(file: &Path) -> Result<Script> {
        let bpftrace = programs::find("bpftrace").context("bpftrace is not installed")?;
        let mut child = Command::new(bpftrace)
            .args(["-f", "json"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting bpftrace")?;
        let output = BufReader::new(child.stdout.take().context("bpftrace without an output")?);
        let mut script = Script { child, output };
        let mut line = String::new();
        while script.output.read_line(&mut line)? > 0 {
            // The script prints this, which appears only when every probe is attached; bpftrace's own line
            // `attached_probes` comes before that.
            if line.contains("\"ready\"") {
                return Ok(script);
            }
            line.clear();
        }
        bail!("bpftrace ended before it was attached; try: bpftrace {}", file.display())
    }

    /// Ends it and returns the count of all buckets of `map[key]`.
    pub fn stop(mut self, map: &str, key: &str) -> Result<u64> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT)?;
        let mut rest = String::new();
        self.output.read_to_string(&mut rest)?;
        let documents = rest.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let counts = documents.filter(|d| d["type"] == "hist").filter_map(|d| {
            let buckets = d["data"][map][key].as_array()?;
            Some(buckets.iter().filter_map(|b| b["count"].as_u64()).sum::<u64>())
        });
        Ok(counts.sum())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
