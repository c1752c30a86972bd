//! Files to definitions: the crate's verbs.

use crate::check::{self, Seen};
use crate::diag::Diagnostic;
use crate::model::{Agent, Capture, Captures, Location, Probe, SourceFile, Web};
use crate::raw::{self, Kind, Node};
use crate::report::Report;
use crate::secrets::Secrets;
use std::sync::Arc;

/// The probes of `files` and everything wrong with them. A probe with an error is left out, all others are returned.
///
/// Of two probes with one name, in whatever files, the first stands. Two probes may have metrics of one name as long as they do
/// not run together: [`crate::unique_metrics`].
pub fn probes(files: &[Arc<SourceFile>]) -> (Vec<Probe>, Vec<Diagnostic>) {
    let (probes, diagnostics) = all_probes(files);
    (probes.into_iter().filter_map(|(probe, sound)| sound.then_some(probe)).collect(), diagnostics)
}

/// The same, with what could be read of probes with mistakes: for callers that report further mistakes in them. The second of
/// each pair says whether the probe is right.
pub fn all_probes(files: &[Arc<SourceFile>]) -> (Vec<(Probe, bool)>, Vec<Diagnostic>) {
    let mut report = Report::default();
    let mut seen = Seen::default();
    let mut probes = Vec::new();
    for file in files {
        let before = report.errors();
        let documents = raw::documents(file, &mut report);
        let documents: Vec<_> = documents.iter().filter(|d| !matches!(d.node.kind, Kind::Nothing)).collect();
        if documents.is_empty() && report.errors() == before {
            report.push(Diagnostic::warning(&Location::new(file, 0..0), "the file has no probe in it"));
        }
        for document in documents {
            if check::is_configuration(&document.node) {
                let diagnostic = Diagnostic::error(&document.node.at, "this is the agent's configuration, not a probe");
                report.push(diagnostic.hint(format!("`kstrobe check --config {}` checks it", file.name)));
                continue;
            }
            let probe = check::probe(&document.node, pack(&file.name), &mut seen, &mut report);
            probes.extend(probe.map(|(probe, sound)| (probe, sound && document.sound)));
        }
    }
    (probes, report.finish())
}

/// The agent's configuration, `None` when there is an error in it. An empty file gives the defaults.
pub fn agent(file: &Arc<SourceFile>) -> (Option<Agent>, Vec<Diagnostic>) {
    only(
        file,
        "headers",
        "the configuration",
        "remove the line `---`; probes belong in files of their own",
        check::agent,
    )
}

/// A `web-config.yml`, `None` when there is an error in it. An empty file is plain HTTP for everybody.
pub fn web(file: &Arc<SourceFile>) -> (Option<Web>, Vec<Diagnostic>) {
    only(file, "basic_auth_users", "the web configuration", "remove the line `---`", check::web)
}

/// What the one document of a file with secrets says. These are in no place and no message. Values under `secret` are some.
fn only<T: Default>(
    file: &Arc<SourceFile>,
    secret: &str,
    what: &str,
    hint: &str,
    check: impl FnOnce(&Node, &mut Report) -> T,
) -> (Option<T>, Vec<Diagnostic>) {
    let secrets = Secrets::find(&file.text, secret);
    let mut report = Report::default();
    let documents = raw::documents_of(&file.text, &secrets.hidden_in(file), &mut report);
    let checked = documents.first().map(|first| check(&first.node, &mut report)).unwrap_or_default();
    if let Some(second) = documents.get(1) {
        report.push(Diagnostic::error(&second.node.at, format!("{what} is one document")).hint(hint));
    }
    let found = (report.errors() == 0).then_some(checked);
    let mut diagnostics = report.finish();
    secrets.hide(&mut diagnostics);
    (found, diagnostics)
}

/// What to record, as the API is sent it: the block `capture:` of a rule as a document of its own, within the limits of
/// `captures`. `None` when there is an error in it.
pub fn capture(file: &Arc<SourceFile>, captures: &Captures) -> (Option<Capture>, Vec<Diagnostic>) {
    let mut report = Report::default();
    let documents = raw::documents(file, &mut report);
    let here = Location::new(file, 0..0);
    let capture = match documents.as_slice() {
        [only] => check::capture(&only.node, &only.node.at, &mut report),
        [] if report.errors() > 0 => None,
        _ => {
            report.push(Diagnostic::error(&here, "a capture is one document"));
            None
        }
    };
    for diagnostic in capture.iter().flat_map(|capture| check::beyond(capture, captures)) {
        report.push(diagnostic);
    }
    (capture.filter(|_| report.errors() == 0), report.finish())
}

/// The probes that are built in.
pub fn embedded() -> Vec<Arc<SourceFile>> {
    EMBEDDED
        .iter()
        .map(|(name, text)| Arc::new(SourceFile { name: format!("<embedded>/{name}"), text: (*text).to_owned() }))
        .collect()
}

const EMBEDDED: &[(&str, &str)] = &[
    ("block.yaml", include_str!("../../probes/block.yaml")),
    ("direct_reclaim.yaml", include_str!("../../probes/direct_reclaim.yaml")),
    ("drops.yaml", include_str!("../../probes/drops.yaml")),
    ("filesystem.yaml", include_str!("../../probes/filesystem.yaml")),
    ("futex.yaml", include_str!("../../probes/futex.yaml")),
    ("hardirqs.yaml", include_str!("../../probes/hardirqs.yaml")),
    ("name_resolution.yaml", include_str!("../../probes/name_resolution.yaml")),
    ("offcpu.yaml", include_str!("../../probes/offcpu.yaml")),
    ("oom_kills.yaml", include_str!("../../probes/oom_kills.yaml")),
    ("packet_sizes.yaml", include_str!("../../probes/packet_sizes.yaml")),
    ("page_cache.yaml", include_str!("../../probes/page_cache.yaml")),
    ("page_faults.yaml", include_str!("../../probes/page_faults.yaml")),
    ("postgresql.yaml", include_str!("../../probes/postgresql.yaml")),
    ("profile_cpu.yaml", include_str!("../../probes/profile_cpu.yaml")),
    ("recvfrom.yaml", include_str!("../../probes/recvfrom.yaml")),
    ("runqueue.yaml", include_str!("../../probes/runqueue.yaml")),
    ("slow_block_io.yaml", include_str!("../../probes/slow_block_io.yaml")),
    ("slow_syscalls.yaml", include_str!("../../probes/slow_syscalls.yaml")),
    ("sockets.yaml", include_str!("../../probes/sockets.yaml")),
    ("softirq.yaml", include_str!("../../probes/softirq.yaml")),
    ("syscalls.yaml", include_str!("../../probes/syscalls.yaml")),
    ("tasks.yaml", include_str!("../../probes/tasks.yaml")),
    ("tcp_backlog.yaml", include_str!("../../probes/tcp_backlog.yaml")),
    ("tcp_connect.yaml", include_str!("../../probes/tcp_connect.yaml")),
    ("tcp_retransmits.yaml", include_str!("../../probes/tcp_retransmits.yaml")),
    ("tcp_sessions.yaml", include_str!("../../probes/tcp_sessions.yaml")),
    ("vfs.yaml", include_str!("../../probes/vfs.yaml")),
    ("wakeups.yaml", include_str!("../../probes/wakeups.yaml")),
];

/// The stem of a file's name.
fn pack(name: &str) -> &str {
    let base = name.rsplit('/').next().unwrap_or(name);
    base.rsplit_once('.').map_or(base, |(stem, _)| stem)
}
