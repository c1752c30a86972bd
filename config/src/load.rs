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
        .map(|(name, text)| Arc::new(SourceFile { name: format!("{BUILT_IN}{name}"), text: (*text).to_owned() }))
        .collect()
}

/// What the names of built-in files begin with.
const BUILT_IN: &str = "<embedded>/";

/// The area of a built-in file, which is the folder in `probes` that it stands in; `None` of all other files.
pub fn area(file: &SourceFile) -> Option<&str> {
    file.name.strip_prefix(BUILT_IN)?.split_once('/').map(|(area, _)| area)
}

macro_rules! embedded {
    ($($name:literal)*) => {
        &[$((concat!($name, ".yaml"), include_str!(concat!("../../probes/", $name, ".yaml")))),*]
    };
}

const EMBEDDED: &[(&str, &str)] = embedded! {
    "block/block"
    "block/block_by_program"
    "block/block_events"
    "block/block_requests"
    "block/block_sizes"
    "block/block_stacks"
    "block/disks"
    "block/md_flushes"
    "block/scsi"
    "block/slow_block_io"
    "cgroups/cgroup_changes"
    "cgroups/cgroup_cpu"
    "cgroups/cgroup_usage"
    "cgroups/cpu_throttling"
    "cgroups/rstat"
    "filesystem/dentry_cache"
    "filesystem/disk_space"
    "filesystem/file_changes"
    "filesystem/file_locks"
    "filesystem/files"
    "filesystem/filesystem"
    "filesystem/filesystem_slow"
    "filesystem/journal"
    "filesystem/nfs"
    "filesystem/overlayfs"
    "filesystem/readahead"
    "filesystem/syncs"
    "filesystem/vfs"
    "filesystem/vfs_sizes"
    "filesystem/writeback"
    "interrupts/hardirqs"
    "interrupts/interrupt_counts"
    "interrupts/processor_interrupts"
    "interrupts/softirq"
    "interrupts/tasklets"
    "interrupts/timers"
    "memory/compaction"
    "memory/direct_reclaim"
    "memory/file_faults"
    "memory/huge_pages"
    "memory/kswapd"
    "memory/mappings"
    "memory/memory"
    "memory/oom_kills"
    "memory/page_allocations"
    "memory/page_cache"
    "memory/page_faults"
    "memory/process_memory"
    "memory/slab"
    "memory/swap"
    "network/binds"
    "network/dns"
    "network/drops"
    "network/icmp"
    "network/interfaces"
    "network/name_resolution"
    "network/napi"
    "network/neighbours"
    "network/network_counters"
    "network/network_drivers"
    "network/network_queues"
    "network/packet_flows"
    "network/packet_sizes"
    "network/qdisc"
    "network/routes"
    "network/socket_buffers"
    "network/socket_traffic"
    "network/sockets"
    "network/tcp_accepts"
    "network/tcp_backlog"
    "network/tcp_congestion"
    "network/tcp_connect"
    "network/tcp_connections"
    "network/tcp_connects"
    "network/tcp_first_byte"
    "network/tcp_life"
    "network/tcp_quality"
    "network/tcp_queues"
    "network/tcp_resets"
    "network/tcp_retransmits"
    "network/tcp_sessions"
    "network/tcp_states"
    "network/udp_drops"
    "network/unix_sockets"
    "network/xdp"
    "scheduler/bpf_programs"
    "scheduler/context_switches"
    "scheduler/cpu_idle"
    "scheduler/cpu_times"
    "scheduler/cpu_usage"
    "scheduler/hung_tasks"
    "scheduler/locks"
    "scheduler/migrations"
    "scheduler/offcpu"
    "scheduler/oncpu"
    "scheduler/pressure"
    "scheduler/processes"
    "scheduler/profile_cpu"
    "scheduler/runqueue"
    "scheduler/runqueue_length"
    "scheduler/runqueue_slow"
    "scheduler/signals"
    "scheduler/tasks"
    "scheduler/wakeup_stacks"
    "scheduler/wakeups"
    "scheduler/workqueues"
    "syscalls/capabilities"
    "syscalls/futex"
    "syscalls/identity_changes"
    "syscalls/introspection"
    "syscalls/io_uring"
    "syscalls/ioctls"
    "syscalls/modules"
    "syscalls/mounts"
    "syscalls/opens"
    "syscalls/read_write"
    "syscalls/recvfrom"
    "syscalls/shared_memory"
    "syscalls/sleeps"
    "syscalls/slow_syscalls"
    "syscalls/stats"
    "syscalls/syscalls"
    "syscalls/syscalls_by_program"
    "syscalls/thread_waits"
    "userspace/interpreters"
    "userspace/libc"
    "userspace/mysql"
    "userspace/postgresql"
    "userspace/shells"
    "userspace/tls"
    "virtualisation/irqfd"
    "virtualisation/kvm"
};

/// The stem of a file's name.
fn pack(name: &str) -> &str {
    let base = name.rsplit('/').next().unwrap_or(name);
    base.rsplit_once('.').map_or(base, |(stem, _)| stem)
}
