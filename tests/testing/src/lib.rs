//! For tests and chores alone: programs that serve as witnesses, what was not run for want of one, servers and containers
//! of a test's own. A failure panics, as it fails a test.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here is a test's failure")]

mod agreement;
pub mod browser;
pub mod certificates;
pub mod containers;
mod folder;
pub mod groups;
pub mod http;
mod noted;
mod programs;
mod prometheus;
mod receiving;
mod server;
pub mod servers;
pub mod unit;

pub use agreement::{AGREEMENT_FILE, Agreement};
pub use folder::Folder;
pub use noted::{COLLECTOR, INSTALLED, NOT_RUN_FILE, collector, not_asked_for, not_run, there, witnesses};
pub use programs::{UNPACKED, find};
pub use prometheus::{Api, Sample};
pub use receiving::{Came, Receiving};
pub use server::{Server, free};

use std::process::Command;
use std::time::{Duration, Instant};

/// The kernel's version: its first two numbers.
#[track_caller]
pub fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().expect("a number"));
    numbers.next().zip(numbers.next()).expect("two numbers")
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

/// Runs a command to its end and returns its output; a failure fails the test and shows what it said.
#[track_caller]
pub fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?} ended with {}\n{out}{err}", done.status);
    out.into_owned()
}
