//! What was not run, for the summary of `cargo xtask test`.

use crate::find;
use std::io::Write;
use std::path::PathBuf;

/// The variable that names the list of what was not run.
pub const NOT_RUN_FILE: &str = "KSTROBE_NOT_RUN_FILE";
/// The variable that says that all witnesses were installed.
pub const INSTALLED: &str = "KSTROBE_WITNESSES_INSTALLED";

/// Whether the witnesses that a test compares with are there. Where they were installed ([`INSTALLED`] is set), or there is no list
/// ([`NOT_RUN_FILE`]), their absence fails the test; elsewhere the test is noted as not run.
#[track_caller]
pub fn witnesses(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<&str> = programs.iter().filter(|name| find(name).is_none()).copied().collect();
    if missing.is_empty() {
        return true;
    }
    let reason = format!("{} not installed", missing.join(", "));
    assert!(std::env::var_os(INSTALLED).is_none() && note(test, &reason), "{test}: {reason}");
    false
}

/// The program of a witness that a test needs, as [`witnesses`] has it.
#[track_caller]
pub fn there(test: &str, name: &str) -> Option<PathBuf> {
    witnesses(test, &[name]).then(|| find(name)).flatten()
}

/// The variable that names an OpenTelemetry Collector.
pub const COLLECTOR: &str = "KSTROBE_OTELCOL";

/// The OpenTelemetry Collector that [`COLLECTOR`] names. No package has one, so it is on request everywhere.
pub fn collector(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os(COLLECTOR).map(PathBuf::from);
    if named.is_none() {
        not_asked_for(test, &format!("{COLLECTOR} names no collector: `cargo xtask otelcol --test` builds one"));
    }
    named
}

/// Notes that a test is not run because this kernel lacks what it needs. The kernels of the lab have all that tests need, or
/// the test knows better: there it fails.
#[track_caller]
pub fn not_run(test: &str, reason: &str) {
    assert!(std::env::var_os("KSTROBE_LAB").is_none(), "{test}: {reason}, on a kernel of the lab");
    not_asked_for(test, reason);
}

/// The same of a test, or its part, whose witness is only there on request.
pub fn not_asked_for(test: &str, reason: &str) {
    eprintln!("not run here: {test}: {reason}");
    note(test, reason);
}

/// Whether there is a list to write it into.
fn note(test: &str, reason: &str) -> bool {
    let Some(list) = std::env::var_os(NOT_RUN_FILE) else { return false };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(list).unwrap();
    writeln!(file, "{test}: {reason}").unwrap();
    true
}
