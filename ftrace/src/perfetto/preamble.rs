//! Packets that tell about the whole trace.

use super::proto::{
    Clock, ClockId, ClockSnapshot, END_OF_TRACE, FtraceCpuStats, FtraceStats, Packet, Process, ProcessTree, SystemInfo,
    Thread, ThreadName, Utsname,
};
use super::{Machine, WHOLE};
use crate::trace::{About, CpuPages, Trace};
use std::collections::BTreeSet;

/// Processes and threads of one packet, at most.
const TREE_ENTRIES: usize = 1024;

/// What comes before the events: machine, clocks, processes and threads.
pub(super) fn packets<'a>(trace: &'a Trace, machine: Machine<'a>, start: u64) -> impl Iterator<Item = Packet> + 'a {
    let head = [system(&trace.about, machine), clocks(trace, machine, start)];
    head.into_iter().chain(trees(trace)).chain(names(trace, machine.time(start))).map(whole)
}

/// What comes after them: the kernel's own counts.
pub(super) fn stats(trace: &Trace) -> impl Iterator<Item = Packet> + '_ {
    trace.buffers.iter().filter_map(|buffer| {
        let cpu_stats: Vec<_> = buffer.cpus.iter().filter_map(cpu_stats).collect();
        let stats = FtraceStats { phase: Some(END_OF_TRACE), cpu_stats };
        (!stats.cpu_stats.is_empty()).then(|| whole(Packet { ftrace_stats: Some(stats), ..Packet::default() }))
    })
}

fn whole(packet: Packet) -> Packet {
    Packet { trusted_packet_sequence_id: Some(WHOLE), ..packet }
}

fn cpu_stats(pages: &CpuPages) -> Option<FtraceCpuStats> {
    let stats = pages.stats?;
    Some(FtraceCpuStats {
        cpu: Some(pages.cpu.into()),
        entries: Some(stats.entries),
        overrun: Some(stats.overrun),
        commit_overrun: Some(stats.commit_overrun),
        bytes_read: Some(stats.bytes),
        dropped_events: Some(stats.dropped_events),
        read_events: Some(stats.read_events),
    })
}

fn system(about: &About, machine: Machine<'_>) -> Packet {
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    // The version is made of words, too, so the names around it are taken from both ends.
    let utsname = about.uname.split_once(' ').and_then(|(sysname, rest)| {
        let (release, rest) = rest.split_once(' ')?;
        let (version, machine) = rest.rsplit_once(' ')?;
        Some(Utsname {
            sysname: Some(sysname.to_owned()),
            version: Some(version.to_owned()),
            release: Some(release.to_owned()),
            machine: Some(machine.to_owned()),
        })
    });
    let info = SystemInfo {
        utsname,
        tracing_service_version: known(&about.recorder),
        num_cpus: (about.cpus > 0).then_some(about.cpus),
        machine_name: known(machine.name.unwrap_or(&about.hostname)),
    };
    Packet { system_info: Some(info), ..Packet::default() }
}

/// One moment, by all clocks that it is known or taken to be known by.
fn clocks(trace: &Trace, machine: Machine<'_>, start: u64) -> Packet {
    let clock = |id: ClockId, timestamp| Clock { clock_id: Some(id as u32), timestamp: Some(timestamp) };
    let mut clocks = vec![clock(ClockId::Boottime, machine.time(start))];
    let used = |name: &str| trace.buffers.iter().any(|buffer| buffer.clock == name);
    clocks.extend(used("mono").then(|| clock(ClockId::Monotonic, start)));
    clocks.extend(used("mono_raw").then(|| clock(ClockId::MonotonicRaw, start)));
    let realtime = trace.about.epoch_offset_ns.and_then(|offset| start.checked_add_signed(offset));
    clocks.extend(realtime.map(|realtime| clock(ClockId::Realtime, realtime)));
    // The clock of the first machine is that of the whole trace.
    let primary_trace_clock = (machine.number == 0).then_some(ClockId::Boottime as i32);
    let snapshot = ClockSnapshot { clocks, primary_trace_clock };
    Packet { clock_snapshot: Some(snapshot), ..Packet::default() }
}

/// Processes, and the threads whose process is known.
fn trees(trace: &Trace) -> impl Iterator<Item = Packet> + '_ {
    let comm = |pid: &i32| trace.comms.get(pid).cloned();
    let process = move |pid: i32| Process {
        pid: Some(pid),
        cmdline: comm(&pid).into_iter().collect(),
        cmdline_is_comm: Some(true),
    };
    let thread = move |(tid, tgid): (&i32, &i32)| Thread { tid: Some(*tid), name: comm(tid), tgid: Some(*tgid) };
    let processes: BTreeSet<i32> = trace.tgids.values().copied().collect();
    let mut processes = processes.into_iter().map(process);
    let mut threads = trace.tgids.iter().map(thread);
    std::iter::from_fn(move || {
        let processes: Vec<_> = processes.by_ref().take(TREE_ENTRIES).collect();
        let threads: Vec<_> = threads.by_ref().take(TREE_ENTRIES).collect();
        (!processes.is_empty() || !threads.is_empty()).then_some(ProcessTree { processes, threads })
    })
    .map(|tree| Packet { process_tree: Some(tree), ..Packet::default() })
}

/// Names of threads whose process is not known: a process tree would make them threads of process 0.
fn names(trace: &Trace, start: u64) -> impl Iterator<Item = Packet> + '_ {
    trace.comms.iter().filter(|(tid, _)| !trace.tgids.contains_key(tid)).map(move |(tid, comm)| {
        let name = ThreadName { tid: Some((*tid).into()), comm: Some(comm.clone()) };
        Packet { timestamp: Some(start), thread_name: Some(name), ..Packet::default() }
    })
}
