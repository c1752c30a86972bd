//! bpftrace as a witness.

use super::private_shell;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

/// A script that has not been ended by then ends itself.
const LIMIT_SECONDS: u32 = 60;

/// A running script. Dropping it kills it.
pub struct Bpftrace {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// What its maps held at the end.
pub struct Maps(Vec<Value>);

impl Bpftrace {
    /// Starts a script and waits until its probes are attached.
    pub fn start(script: &str) -> Bpftrace {
        // What is printed appears once bpftrace reads its buffers, and it does so only when every probe is attached; its own
        // line `attached_probes` comes before that.
        let script = format!("BEGIN {{ printf(\"ready\"); }}\n{script}\ninterval:s:{LIMIT_SECONDS} {{ exit(); }}");
        let mut child = private_shell("exec bpftrace -f json -e \"$SCRIPT\"")
            .env("SCRIPT", script)
            .env("BPFTRACE_MAP_KEYS_MAX", "65536")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("unshare (util-linux) starts");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut started = Bpftrace { child, output };
        let mut line = String::new();
        while !line.contains("\"ready\"") {
            line.clear();
            let read = started.output.read_line(&mut line).unwrap();
            assert!(read > 0, "bpftrace ended before it was attached");
        }
        started
    }

    /// Ends it and returns what its maps held.
    pub fn stop(mut self) -> Maps {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        let documents = rest.lines().filter(|line| line.starts_with('{'));
        Maps(documents.map(|line| serde_json::from_str(line).expect("bpftrace prints JSON")).collect())
    }
}

impl Drop for Bpftrace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Maps {
    /// A number; 0 when the key is not there.
    pub fn number(&self, map: &str, key: &str) -> u64 {
        self.0.iter().find_map(|document| document["data"][map][key].as_u64()).unwrap_or(0)
    }

    /// What a map without keys holds (`@x = count()`); 0 when it was never written.
    pub fn total(&self, map: &str) -> u64 {
        self.0.iter().find_map(|document| document["data"][map].as_u64()).unwrap_or(0)
    }

    /// `hist()` buckets as (smallest value, largest value, count).
    pub fn hist(&self, map: &str, key: &str) -> Vec<(u64, u64, u64)> {
        let found = self.0.iter().filter(|document| document["type"] == "hist");
        let buckets = found.filter_map(|document| document["data"][map][key].as_array()).flatten();
        buckets
            .map(|bucket| {
                // The first bucket may have no `min`.
                let number = |field: &str| bucket[field].as_u64();
                (number("min").unwrap_or(0), number("max").unwrap_or(u64::MAX), number("count").unwrap_or(0))
            })
            .collect()
    }

    /// How often each value was counted in a map whose keys are numbers.
    pub fn counts_by_value(&self, map: &str) -> Vec<(f64, f64)> {
        let found = self.0.iter().find_map(|document| document["data"][map].as_object());
        let counts = found.into_iter().flatten();
        counts.filter_map(|(value, count)| Some((value.parse().ok()?, count.as_f64()?))).collect()
    }
}
