//! Faults that need a kernel to show: what it lacks, what it refuses, and what does not fit. Each shows a clear message or
//! a counted loss, and the agent goes on with the rest.

mod support;

use kstrobe_testing::groups::controller;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use support::agent::{self, Agent, DEFAULT_PACKS, Setup};
use support::kernel_objects::{Kind, held_by, wait_for_end};
use support::memory_group::MemoryGroup;
use support::metrics::{Histogram, Metrics};
use support::{Folder, done, load, wait_for, witnesses};

/// A process id that no process has (the most there can be is 2^22): system calls with it are this test's own.
const NOBODY: i32 = 0x4000_0000;

fn start(name: &str, yaml: &str) -> Agent {
    let agent = Agent::start_with(&[], &[(name, yaml)]);
    let attached = agent.scrape().sum("kstrobe_probe_attached", &[("probe", name)]);
    assert!(attached > 0.0, "{name} is not attached");
    agent
}

fn lost(metrics: &Metrics, reason: &str) -> f64 {
    let labels = [("reason", reason)];
    assert!(metrics.has("kstrobe_lost_total", &labels), "no kstrobe_lost_total of {reason}");
    metrics.sum("kstrobe_lost_total", &labels)
}

/// The line of `/readyz` about a probe.
#[track_caller]
fn readiness(agent: &Agent, probe: &str) -> String {
    let (status, body) = agent.get("/readyz").unwrap();
    assert_eq!(status, 503, "{body}");
    let line = body.lines().find(|line| line.starts_with(&format!("{probe}: ")));
    line.unwrap_or_else(|| panic!("{probe} is not named in:\n{body}")).to_owned()
}

#[track_caller]
fn counts_getppid(agent: &Agent) {
    load::getppid_calls(100);
    let counted = agent.scrape().sum("kstrobe_syscall_duration_seconds_count", &[("syscall", "getppid")]);
    assert!(counted >= 100.0, "{counted} calls counted");
}

#[test]
#[ignore = "needs root"]
fn root_a_memory_limit_below_the_need_is_said_at_start() {
    if !controller("root_a_memory_limit_below_the_need_is_said_at_start", "memory") {
        return;
    }
    // What the agent takes when it starts, and less than it may take.
    let group = MemoryGroup::new("small", 62 << 20);
    let words = group.words();
    let under: Vec<&str> = words.iter().map(String::as_str).collect();
    let agent = Setup { packs: &DEFAULT_PACKS, under: &under, ..Setup::default() }.start();
    let log = agent.log();
    let said = log.lines().find(|line| line.contains("too little memory")).unwrap_or_else(|| panic!("{log}"));
    for part in
        ["level=error", "the memory limit of 62 MiB", "small/memory.", "maps of probes take up to", "MemoryMax="]
    {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    agent.stop();
    let found = done(&mut agent::command_under(&under, &["doctor"]));
    assert!(
        found.out.lines().any(|line| line.starts_with("MISSING  memory") && line.contains("62 MiB")),
        "{}",
        found.out
    );
    assert_eq!(group.oom_kills(), 0);
}

#[test]
#[ignore = "needs root"]
fn root_without_btf_what_needs_none_runs_and_the_others_say_so() {
    let folder = Folder::new();
    let garbage = folder.write("garbage.btf", "not BTF");
    for (file, why) in [("/nonexistent/btf", "No such file"), (garbage.to_str().unwrap(), "holds no BTF")] {
        let agent = Setup { packs: &DEFAULT_PACKS, arguments: &["--btf", file], ..Setup::default() }.start();
        for probe in ["recvfrom", "softirq", "softirq_delay", "tcp_backlog", "tcp_retransmits"] {
            let line = readiness(&agent, probe);
            assert!(line.contains("BTF") && line.contains(file) && line.contains(why), "{line}");
        }
        counts_getppid(&agent);
        assert!(agent.log().contains("no kernel types: most probes cannot run"), "{}", agent.log());
        agent.stop();
    }
    let found = done(&mut agent::command(&["check", "--btf", "/nonexistent/btf", "probes/interrupts/softirq.yaml"]));
    assert!(found.err.contains("the BTF of /nonexistent/btf cannot be read: No such file"), "{}", found.err);
    assert_eq!(found.code, Some(1));
    let found = done(&mut agent::command(&["list", "tracepoints", "--btf", "/nonexistent/btf"]));
    assert!(found.err.contains("the BTF of /nonexistent/btf cannot be read: No such file"), "{}", found.err);
    assert_eq!((found.code, found.out.as_str()), (Some(1), ""));
}

/// What the agent is meant to run with: CAP_BPF and CAP_PERFMON, and CAP_SYS_RESOURCE for kernels before 5.11, which count
/// maps against RLIMIT_MEMLOCK. tracefs is not mounted, and without CAP_SYS_ADMIN it cannot
/// be.
const NO_TRACEFS: [&str; 6] = [
    "unshare",
    "--mount",
    "--propagation=private",
    "sh",
    "-c",
    // debugfs mounts one below it when it is looked into.
    "grep -E ' (tracefs|debugfs) ' /proc/mounts | cut -d ' ' -f 2 | sort -r | while read -r place; do umount -l \"$place\"; done; \
     exec setpriv --inh-caps=-all --bounding-set=-all,+bpf,+perfmon,+sys_resource \"$0\" \"$@\"",
];

#[test]
#[ignore = "needs root"]
fn root_without_tracefs_what_needs_no_argument_names_runs() {
    let of_files = "probe: opens\nsummary: Opened files.\nat: tracepoint:fs:do_sys_open\n\
                    metrics:\n  opens_total: { type: counter }\n";
    let of_library = "probe: library\nsummary: Of a library that is not there.\nat: uprobe:libkstrobe-none:f\n\
                      metrics:\n  library_total: { type: counter }\n";
    let probes = [("opens", of_files), ("library", of_library)];
    let agent = Setup { packs: &DEFAULT_PACKS, probes: &probes, under: &NO_TRACEFS, ..Setup::default() }.start();
    // Whether it runs somewhere is not known without the right to look. Before Linux 6.6 uprobes take more anyway.
    let line = readiness(&agent, "library");
    assert!(line.contains("CAP_SYS_PTRACE") || line.contains("CAP_SYS_ADMIN"), "{line}");
    for probe in ["recvfrom", "tcp_backlog", "opens"] {
        let line = readiness(&agent, probe);
        assert!(line.contains("tracefs"), "{line}");
    }
    counts_getppid(&agent);
    let metrics = agent.scrape();
    for probe in ["syscalls", "softirq", "softirq_delay", "tcp_retransmits"] {
        let labels = [("probe", probe)];
        assert!(metrics.series("kstrobe_probe_attached", &labels).all(|(_, value)| value == 1.0), "{probe}");
    }
    assert!(metrics.sum("kstrobe_softirq_duration_seconds_count", &[]) > 0.0);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_an_event_that_is_no_end_misses_no_start() {
    let probe = |name: &str, condition: &str| {
        format!(
            "probe: {name}\nsummary: From exec to exit.\n\
             span: {{ start: rawtracepoint:sched_process_exec, end: rawtracepoint:sched_process_exit{condition} }}\n\
             metrics:\n  {name}_seconds: {{ type: histogram, value: elapsed }}\n"
        )
    };
    let asked = probe("asked", ", where: { end: 'comm == \"true\"' }");
    let unasked = probe("unasked", "");
    let agent = Setup { probes: &[("asked", &asked), ("unasked", &unasked)], ..Setup::default() }.start();
    let of = |probe: &str| {
        let metrics = agent.scrape();
        let lost = [("probe", probe), ("reason", "no_start")];
        (metrics.sum(&format!("kstrobe_{probe}_seconds_count"), &[]), metrics.sum("kstrobe_lost_total", &lost))
    };
    let before = [of("asked"), of("unasked")];
    // Threads end without having become another program first.
    (0..10).for_each(|_| load::named("kst-thread", || {}));
    (0..3).for_each(|_| drop(support::output(&mut std::process::Command::new("true"))));
    let after = [of("asked"), of("unasked")];
    let more = |index: usize| (after[index].0 - before[index].0, after[index].1 - before[index].1);
    assert_eq!(more(0), (3.0, 0.0), "{before:?} {after:?}");
    assert!(more(1).0 >= 3.0 && more(1).1 >= 10.0, "{before:?} {after:?}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_what_this_kernel_lacks_is_named_with_its_place() {
    let yaml = "\
probe: no_field
summary: A member that no socket has.
at: rawtracepoint:tcp_retransmit_skb
metrics:
  no_field_total: { type: counter, labels: { port: args.sk.sk_nmu } }
---
probe: no_argument
summary: An argument that the tracepoint does not have.
at: rawtracepoint:softirq_entry
metrics:
  no_argument_total: { type: counter, labels: { vector: softirq(args.vec) } }
---
probe: no_type
summary: A structure that no kernel has.
at: rawtracepoint:tcp_retransmit_skb
where: cast(struct no_such_thing, args.sk).x == 1
metrics:
  no_type_total: { type: counter }
---
probe: no_event
summary: A tracepoint that no kernel has.
at: rawtracepoint:softirq_entri
metrics:
  no_event_total: { type: counter }
---
probe: type_error
summary: Text where a number is wanted.
at: rawtracepoint:softirq_entry
metrics:
  type_error_total: { type: counter, value: comm }
---
probe: fine
summary: Nothing is wrong with this one.
at: rawtracepoint:softirq_entry
metrics:
  fine_total: { type: counter }
";
    let agent = Agent::start_with(&["syscalls"], &[("lacking", yaml)]);
    for (probe, place, what) in [
        ("no_field", "lacking.yaml:5:60", "`struct sock` has no member `sk_nmu`"),
        ("no_argument", "lacking.yaml:11:", "has no argument `vec` (it has vec_nr)"),
        ("no_type", "lacking.yaml:16:", "no_such_thing"),
        (
            "no_event",
            "lacking.yaml:22:5",
            "this kernel has no tracepoint `softirq_entri` (did you mean `softirq_entry`?)",
        ),
        ("type_error", "lacking.yaml:30:", "comm"),
    ] {
        let line = readiness(&agent, probe);
        assert!(line.contains(place) && line.contains(what), "{what}\n{line}");
        assert_eq!(agent.scrape().sum("kstrobe_probe_attached", &[("probe", probe)]), 0.0);
    }
    wait_for("the good probe", Duration::from_secs(5), || {
        (agent.scrape().sum("kstrobe_fine_total", &[]) > 0.0).then_some(())
    });
    counts_getppid(&agent);
    let path = agent.folder().join("probes/lacking.yaml");
    let found = done(&mut agent::command(&["check", path.to_str().unwrap()]));
    assert_eq!((found.code, found.out.as_str()), (Some(1), "1 probes fine, 5 errors\n"), "{}", found.err);
    let line = "  no_field_total: { type: counter, labels: { port: args.sk.sk_nmu } }";
    let caret = format!("5 | {line}\n  | {}^^^^^^\n", " ".repeat(line.find("sk_nmu").unwrap()));
    assert!(found.err.contains(&caret), "{}", found.err);
    agent.stop();
}

/// Every path through it has another sum, so that the verifier can merge none: 2^17 of them are more than it walks.
fn too_many_paths() -> String {
    let bits: Vec<String> = (0..17).map(|bit| format!("((u32(args.pid) & {0}) != 0 ? {0} : 0)", 1 << bit)).collect();
    format!(
        "probe: paths\nsummary: More paths than the verifier walks.\nat: syscall:getpgid:enter\nmetrics:\n  \
         paths_total:\n    type: counter\n    labels:\n      call: \"syscall({})\"\n",
        bits.join(" + ")
    )
}

#[test]
#[ignore = "needs root"]
fn root_a_probe_that_the_verifier_refuses_is_skipped_with_its_line() {
    let agent = Agent::start_with(&["syscalls"], &[("paths", &too_many_paths())]);
    let line = readiness(&agent, "paths");
    assert!(line.contains("the kernel refuses program ks_paths_at: BPF program is too large"), "{line}");
    // Kernels from 6.9 on name the line.
    let named = line.contains("paths.yaml:8: call:");
    assert!(named || agent.log().contains("kernel=5.") || agent.log().contains("kernel=6.1."), "{line}");
    assert_eq!(agent.scrape().sum("kstrobe_probe_attached", &[("probe", "paths")]), 0.0);
    counts_getppid(&agent);
    let programs = held_by(agent.pid(), Kind::Programs);
    assert!(!programs.values().any(|name| name.contains("paths")), "{programs:?}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_spans_that_find_no_room_and_ends_without_a_start_are_counted() {
    let pairs = format!(
        "probe: pairs\nsummary: From getpgid to getsid of one number.\n\
         span:\n  start: syscall:getpgid:enter\n  end: syscall:getsid:enter\n  by: u32(args.pid)\n  \
         where: u32(args.pid) >= {NOBODY}\n  max_entries: 1\n\
         metrics:\n  pair_seconds: {{ type: histogram, value: elapsed }}\n"
    );
    let agent = start("pairs", &pairs);
    (0..10).for_each(|n| load::getpgid_calls(NOBODY + n, 1));
    assert_eq!(lost(&agent.scrape(), "spans_full"), 9.0, "the first of 10 has the only room");
    (0..10).for_each(|n| load::getsid_calls(NOBODY + n, 1));
    assert_eq!(agent.scrape().sum("kstrobe_pair_seconds_count", &[]), 1.0);
    // The entry of a span that has ended is there for the next one with its key.
    load::getpgid_calls(NOBODY, 1);
    load::getsid_calls(NOBODY, 1);
    assert_eq!(agent.scrape().sum("kstrobe_pair_seconds_count", &[]), 2.0);
    agent.stop();
    // Threads end without having become another program first.
    let yaml = "probe: lives\nsummary: From exec to exit.\n\
                span: { start: rawtracepoint:sched_process_exec, end: rawtracepoint:sched_process_exit }\n\
                metrics:\n  life_seconds: { type: histogram, value: elapsed, labels: { comm: comm } }\n";
    let agent = start("lives", yaml);
    let before = lost(&agent.scrape(), "no_start");
    (0..10).for_each(|_| load::named("kst-thread", || {}));
    for _ in 0..3 {
        support::output(&mut std::process::Command::new("true"));
    }
    let metrics = agent.scrape();
    assert!(lost(&metrics, "no_start") - before >= 10.0);
    assert!(!metrics.has("kstrobe_life_seconds_count", &[("comm", "kst-thread")]));
    assert!(metrics.sum("kstrobe_life_seconds_count", &[("comm", "true")]) >= 3.0);
    agent.stop();
}

/// Counts `getpgid` of one number by the caller's name.
fn by_name(more: &str) -> String {
    format!(
        "probe: names\nsummary: Calls by name.\nat: syscall:getpgid:enter\nwhere: u32(args.pid) == {NOBODY}\n\
         metrics:\n  names_total: {{ type: counter, labels: {{ comm: comm }}, {more} }}\n"
    )
}

fn calls_as(comm: &str, count: u32) {
    load::named(comm, || load::getpgid_calls(NOBODY, count));
}

fn named(metrics: &Metrics, comm: &str) -> Option<f64> {
    let labels = [("comm", comm)];
    let found = metrics.series("kstrobe_names_total", &labels).next();
    found.map(|(_, value)| value)
}

#[test]
#[ignore = "needs root"]
fn root_a_label_explosion_is_merged_and_counted() {
    let agent = start("names", &by_name("max_series: 4"));
    (0..50).for_each(|n| calls_as(&format!("kst-{n}"), 10));
    let metrics = agent.scrape();
    for n in 0..4 {
        assert_eq!(named(&metrics, &format!("kst-{n}")), Some(10.0), "the first four have their own");
    }
    assert_eq!(named(&metrics, "other"), Some(460.0));
    assert_eq!(metrics.sum("kstrobe_names_total", &[]), 500.0, "nothing is lost");
    assert_eq!(metrics.series("kstrobe_names_total", &[]).count(), 5);
    assert_eq!(metrics.sum("kstrobe_series_overflow_total", &[("probe", "names")]), 460.0);
    // What is known goes on counting beside the flood.
    calls_as("kst-2", 7);
    assert_eq!(named(&agent.scrape(), "kst-2"), Some(17.0));
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_keys_go_after_their_time_and_their_room_is_clean() {
    let agent = start("names", &by_name("max_series: 2, ttl: 1s"));
    calls_as("kst-old-a", 30);
    calls_as("kst-old-b", 40);
    calls_as("kst-late", 5);
    let full = agent.scrape();
    assert_eq!((named(&full, "kst-old-a"), named(&full, "other")), (Some(30.0), Some(5.0)));
    let evicted = |metrics: &Metrics| metrics.sum("kstrobe_series_evicted_total", &[("probe", "names")]);
    let clean = wait_for("the end of series idle for 1 s", Duration::from_secs(5), || {
        let metrics = agent.scrape();
        (evicted(&metrics) == 2.0).then_some(metrics)
    });
    assert_eq!((named(&clean, "kst-old-a"), named(&clean, "kst-old-b")), (None, None), "absent, not zero");
    assert_eq!(named(&clean, "other"), Some(5.0), "what was merged stays");
    // Their slots start from nothing for whoever comes next.
    calls_as("kst-new-c", 3);
    calls_as("kst-new-d", 4);
    let reused = agent.scrape();
    assert_eq!((named(&reused, "kst-new-c"), named(&reused, "kst-new-d")), (Some(3.0), Some(4.0)));
    assert_eq!(named(&reused, "other"), Some(5.0), "there was room");
    // A series that is used stays.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        calls_as("kst-new-c", 1);
        std::thread::sleep(Duration::from_millis(100));
    }
    let metrics = agent.scrape();
    assert!(named(&metrics, "kst-new-c").is_some_and(|n| n > 10.0), "{:?}", named(&metrics, "kst-new-c"));
    assert_eq!(named(&metrics, "kst-new-d"), None);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_values_outside_the_range_are_in_the_outer_buckets_and_in_the_sum() {
    let agent = start(
        "outside",
        "probe: outside\nsummary: Numbers as durations.\nat: syscall:getpgid:enter\nwhere: u32(args.pid) >= 0x40000000\n\
         metrics:\n  short_seconds: { type: histogram, value: (u64(args.pid) - 0x40000000) * 1ns }\n  \
         long_seconds: { type: histogram, value: (u64(args.pid) - 0x40000000) * 1s }\n",
    );
    // Numbers of nanoseconds (least bound 1 us) and of seconds (greatest bound 10 s).
    for n in [0, 1, 999, 1000, 1001, 9, 10, 11, 3600] {
        load::getpgid_calls(NOBODY + n, 1);
    }
    let metrics = agent.scrape();
    let histogram = |name: &str| -> Histogram { metrics.histogram(name, &[]) };
    let (short, long) = (histogram("kstrobe_short_seconds"), histogram("kstrobe_long_seconds"));
    let total = 999.0 + 1000.0 + 1001.0 + 1.0 + 9.0 + 10.0 + 11.0 + 3600.0;
    assert_eq!((short.count, short.at_most(1e-6)), (9.0, 7.0), "0, 1, 9, 10, 11, 999, 1000: {short:?}");
    assert!((short.sum - total * 1e-9).abs() < 1e-12, "{short:?}");
    assert_eq!((long.count, long.at_most(1e-6), long.at_most(10.0)), (9.0, 1.0, 4.0), "0 | 1, 9, 10: {long:?}");
    assert_eq!((long.sum, long.buckets.last()), (total, Some(&(f64::INFINITY, 9.0))), "{long:?}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_source_that_breaks_and_heals_is_told_once_each() {
    let yaml = "probe: backlog\nsummary: Backlog.\npoll: { source: softnet, every: 100ms }\n\
                metrics:\n  backlog_packets: { type: gauge, value: args.backlog, labels: { cpu: args.cpu } }\n";
    // The agent reads its own /proc/net, in a mount namespace where a test can put something else there.
    let under = ["unshare", "--mount", "--propagation=private", "sh", "-c", "exec \"$0\" \"$@\""];
    let agent = Setup { probes: &[("backlog", yaml)], under: &under, ..Setup::default() }.start();
    let has = |agent: &Agent| agent.scrape().has("kstrobe_backlog_packets", &[]);
    wait_for("a reading", Duration::from_secs(5), || has(&agent).then_some(()));
    let folder = Folder::new();
    let pid = agent.pid().to_string();
    let inside = |script: &str| {
        let mut command = std::process::Command::new("nsenter");
        support::output(command.args(["--mount", "-t", &pid, "sh", "-ec", script]).env("OTHER", &folder.0));
    };
    // Files below /proc/PID cannot be covered one by one, so all of /proc is.
    inside(
        "mount -t tmpfs none \"$OTHER\"; mkdir \"$OTHER/net\"; echo nonsense > \"$OTHER/net/softnet_stat\"; \
         mount --move \"$OTHER\" /proc",
    );
    wait_for("the failure", Duration::from_secs(5), || {
        (agent.scrape().sum("kstrobe_poll_errors_total", &[("source", "softnet")]) >= 5.0).then_some(())
    });
    assert!(!has(&agent), "old values told as new");
    let line = readiness(&agent, "backlog");
    assert!(line.contains("source softnet: /proc/net/softnet_stat line 1: `nonsense`"), "{line}");
    assert_eq!(agent.scrape().sum("kstrobe_probe_attached", &[("probe", "backlog")]), 0.0);
    inside("umount /proc");
    wait_for("the next reading", Duration::from_secs(5), || has(&agent).then_some(()));
    assert_eq!(agent.get("/readyz").unwrap().0, 200);
    let log = agent.log();
    assert_eq!((log.matches("poll failed").count(), log.matches("polling again").count()), (1, 1), "{log}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_signals_leave_nothing_in_the_kernel() {
    if !witnesses("root_signals_leave_nothing_in_the_kernel", &["bpftool"]) {
        return;
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let agent = Agent::start(&DEFAULT_PACKS);
        let [programs, maps] = [Kind::Programs, Kind::Maps].map(|kind| held_by(agent.pid(), kind));
        assert!(!programs.is_empty() && !maps.is_empty(), "the agent holds no programs or maps");
        agent.stop_by(signal);
        wait_for_end(&programs, &maps);
    }
}

#[test]
#[ignore = "needs root"]
fn root_a_signal_while_probes_are_attached_is_obeyed_too() {
    for wait_ms in [100, 200, 300, 500] {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut child = agent::command(&["run", "--web.listen-address", &address])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_for("its listener", Duration::from_secs(10), || std::net::TcpStream::connect(&address).ok());
        std::thread::sleep(Duration::from_millis(wait_ms));
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        let status = wait_for("its end", Duration::from_secs(20), || child.try_wait().unwrap());
        assert!(status.success(), "{status} after {wait_ms} ms");
    }
}
