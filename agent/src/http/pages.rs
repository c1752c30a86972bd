//! Answers for people: the text of readiness, and the paths that are taken.

use crate::probe::status::{ProbeStatus, Status};

/// Paths that are there already, with all below those that end with `/`.
const TAKEN: [&str; 8] = ["/healthz", "/readyz", "/-/", "/-", "/api/", "/api", "/page/", "/page"];

/// Hint of `/readyz` for a node whose kernel cannot run a probe.
const LEAVE_OUT: &str =
    "leave out a probe that this node cannot run: `--disable NAME`, or `probes: { disable: [NAME] }` in kstrobe.yaml\n";

/// Why a path cannot be that of the metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("a path begins with `/` and has letters, digits and `-_.~` in it, e.g. /metrics")]
    NotAPath,
    #[error("{0} is something else already")]
    Taken(String),
}

/// A path for the metrics (`--web.telemetry-path`).
pub fn telemetry_path(text: &str) -> Result<String, PathError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.' | b'~');
    if !text.starts_with('/') || text.contains("//") || !text.bytes().all(plain) {
        return Err(PathError::NotAPath);
    }
    if TAKEN.iter().any(|taken| text == *taken || taken.ends_with('/') && text.starts_with(taken)) {
        return Err(PathError::Taken(text.to_owned()));
    }
    Ok(text.to_owned())
}

/// `/readyz`: whether every probe is attached, and a line for each that is not and for each mistake in a file. A probe that
/// its budget holds back has a line too, but takes nothing from readiness: the agent does what it should. Neither does one that the
/// cluster asks for: what one node's kernel lacks must not stop a rollout, and its object says so. Nor one whose own conditions say that it is
/// for other kernels.
pub fn readiness(status: &Status) -> (bool, String) {
    let probes = &status.probes;
    let missing = probes.iter().filter(|probe| !probe.attached && !probe.idle && probe.throttled.is_empty());
    let (of_cluster, missing): (Vec<&ProbeStatus>, Vec<&ProbeStatus>) = missing.partition(|probe| probe.of_cluster);
    let throttled = probes.iter().filter(|probe| !probe.throttled.is_empty());
    let throttled: String = throttled.map(|probe| format!("{}: {}\n", probe.name, probe.throttled)).collect();
    let idle: Vec<&ProbeStatus> = probes.iter().filter(|probe| probe.idle).collect();
    let attached = probes.len() - idle.len();
    let idle: String = idle.into_iter().map(line).collect();
    let of_cluster: String = of_cluster.into_iter().map(line).collect();
    let mistakes = match status.mistakes.len() {
        0 => String::new(),
        1 => ", 1 mistake in a file".to_owned(),
        n => format!(", {n} mistakes in files"),
    };
    if missing.is_empty() && mistakes.is_empty() {
        let held = if throttled.is_empty() { "" } else { ", not all with all their events" };
        let away = if of_cluster.is_empty() { "" } else { ", but for these of the cluster" };
        let head = format!("ready: {attached} probes attached{held}{away}\n");
        return (true, head + &of_cluster + &idle + &throttled + &refused(status) + &history(status));
    }
    let mut text = format!("not ready: {} of {} probes not attached{mistakes}\n", missing.len(), probes.len());
    missing.iter().for_each(|probe| text.push_str(&line(probe)));
    if !missing.is_empty() {
        text.push_str(LEAVE_OUT);
    }
    text.push_str(&of_cluster);
    text.push_str(&idle);
    for mistake in &status.mistakes {
        text.push_str(&format!("{}\n", mistake.replace('\n', " ")));
    }
    text.push_str(&throttled);
    text.push_str(&refused(status));
    text.push_str(&history(status));
    (false, text)
}

fn line(probe: &ProbeStatus) -> String {
    let reason = if probe.reason.is_empty() { "no reason known" } else { &probe.reason };
    format!("{}: {}\n", probe.name, reason.replace('\n', " "))
}

/// A disk without room takes nothing from readiness: what is measured does not depend on it.
fn history(status: &Status) -> String {
    let is_written = status.history.is_empty();
    let text = || format!("the history is not written to disk: {}\n", status.history.replace('\n', " "));
    if is_written { String::new() } else { text() }
}

/// A reload that was refused takes nothing from readiness: what ran before runs on.
fn refused(status: &Status) -> String {
    let lines = status.refused.iter().map(|line| format!("{}\n", line.replace('\n', " ")));
    let head =
        (!status.refused.is_empty()).then(|| "the last reload was refused, what ran before runs on:\n".to_owned());
    head.into_iter().chain(lines).collect()
}
