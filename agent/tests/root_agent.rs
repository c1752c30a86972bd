//! The agent as a whole on a live kernel: the default set has data soon, nothing is left behind, the compiler's output
//! serves other loaders too.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;
use support::agent::{self, Agent, DEFAULT_PACKS, Setup};
use support::kernel_objects::{Kind, held_by, wait_for_end};
use support::metrics::{Labels, Metrics};
use support::{Folder, load, output, private_shell, wait_for, witnesses};

#[test]
#[ignore = "needs root"]
fn root_default_probes_have_data_within_ten_seconds() {
    // Listening sockets are polled at the start, then each 15 s.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let agent = Agent::start(&DEFAULT_PACKS);
    let port = listener.local_addr().unwrap().port().to_string();
    let (address, server) = load::delayed_echo(Duration::from_millis(1));
    load::ask(address, 20, "kst-client");
    server.join().unwrap();
    let expected: [(&str, &[(&str, &str)]); 6] = [
        ("kstrobe_syscall_duration_seconds_count", &[("syscall", "recvfrom")]),
        ("kstrobe_recv_wait_seconds_count", &[("comm", "kst-client")]),
        ("kstrobe_softirq_duration_seconds_count", &[]),
        ("kstrobe_softirq_delay_seconds_count", &[]),
        ("kstrobe_tcp_accept_queue_depth_count", &[]),
        ("kstrobe_tcp_listen_queue_limit", &[("port", &port)]),
    ];
    wait_for("data of the default probes", Duration::from_secs(10), || {
        let metrics = agent.scrape();
        expected.iter().all(|(name, labels)| metrics.sum(name, labels) > 0.0).then_some(())
    });
    let metrics = agent.scrape();
    let detached: Vec<_> = metrics.series("kstrobe_probe_attached", &[]).filter(|(_, value)| *value != 1.0).collect();
    assert!(detached.is_empty(), "not attached: {detached:?}");
    for probe in ["syscalls", "recvfrom", "softirq", "softirq_delay", "tcp_retransmits", "tcp_backlog"] {
        assert!(
            metrics.has("kstrobe_probe_attached", &[("probe", probe)]),
            "{probe} does not say whether it is attached"
        );
    }
    assert_eq!(agent.get("/readyz").map(|(status, _)| status), Some(200));
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_killed_agent_leaves_nothing_and_a_new_one_makes_one_set() {
    if !witnesses("root_a_killed_agent_leaves_nothing_and_a_new_one_makes_one_set", &["bpftool"]) {
        return;
    }
    let first = Agent::start(&DEFAULT_PACKS);
    let [programs, maps] = [Kind::Programs, Kind::Maps].map(|kind| held_by(first.pid(), kind));
    assert!(!programs.is_empty() && !maps.is_empty(), "the agent holds no programs or maps");
    first.kill();
    wait_for_end(&programs, &maps);
    let second = Agent::start(&DEFAULT_PACKS);
    let names = |ids: &std::collections::BTreeMap<u64, String>| {
        let mut names: Vec<String> = ids.values().cloned().collect();
        names.sort();
        names
    };
    assert_eq!(names(&held_by(second.pid(), Kind::Programs)), names(&programs));
    assert_eq!(names(&held_by(second.pid(), Kind::Maps)), names(&maps));
    let [programs, maps] = [Kind::Programs, Kind::Maps].map(|kind| held_by(second.pid(), kind));
    second.stop();
    wait_for_end(&programs, &maps);
}

#[test]
#[ignore = "needs root"]
fn root_compiled_objects_load_with_bpftool_and_show_yaml_lines() {
    if !witnesses("root_compiled_objects_load_with_bpftool_and_show_yaml_lines", &["bpftool"]) {
        return;
    }
    let folder = Folder::new();
    let object = folder.0.join("syscalls.bpf.o");
    let object = object.to_str().unwrap();
    output(&mut agent::command(&["compile", "probes/syscalls/syscalls.yaml", "-o", object]));
    let script = "mkdir /sys/fs/bpf/kst && bpftool prog loadall \"$OBJECT\" /sys/fs/bpf/kst && \
                  for p in /sys/fs/bpf/kst/*; do bpftool prog dump xlated pinned $p linum; done";
    let text = output(private_shell(script).env("OBJECT", object));
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("syscalls.yaml")).collect();
    assert!(lines.iter().any(|line| line.contains("value: elapsed")), "no YAML line in:\n{text}");
}

#[test]
#[ignore = "needs root"]
fn root_a_bad_probe_is_skipped_and_the_others_run() {
    let bad = "probe: broken\nsummary: Names an event that no kernel has.\nat: rawtracepoint:no_such_event\n\
               metrics:\n  broken_total:\n    type: counter\n";
    let agent = Agent::start_with(&["syscalls"], &[("broken", bad)]);
    load::getppid_calls(100);
    let metrics: Metrics = agent.scrape();
    let getppid = [("syscall", "getppid")];
    assert!(metrics.sum("kstrobe_syscall_duration_seconds_count", &getppid) >= 100.0);
    assert_eq!(metrics.sum("kstrobe_probe_attached", &[("probe", "broken")]), 0.0);
    assert!(metrics.has("kstrobe_probe_attached", &[("probe", "broken")]), "the bad probe is not mentioned");
    let (status, body) = agent.get("/readyz").unwrap();
    assert!(body.contains("broken") && body.contains("no_such_event"), "/readyz says {status}: {body}");
    agent.stop();
}

/// What a command prints as a list in JSON. It may fail for a part of what it was asked.
fn listed(arguments: &[&str]) -> Vec<Value> {
    serde_json::from_slice(&agent::command(arguments).output().unwrap().stdout).unwrap()
}

fn texts(value: &Value, keys: &[&str]) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Array(lines) => lines.iter().map(|line| line.as_str().unwrap()).collect::<Vec<_>>().join("; "),
        // The API leaves out what is empty.
        Value::Null => String::new(),
        other => other.as_str().unwrap().to_owned(),
    };
    keys.iter().map(|key| short(&text(&value[key]))).collect()
}

/// A label has a bounded length.
fn short(text: &str) -> String {
    text.chars().take(200).collect()
}

#[test]
#[ignore = "needs root"]
fn root_what_was_chosen_and_why_is_said_alike_everywhere() {
    // Choices of hooks, of a way to send events, of copies of functions, and some that one kernel or another refuses.
    let chosen = "page_faults,page_cache,slow_block_io,filesystem,name_resolution,tcp_sessions,drops,softirq";
    let agent = Setup { arguments: &["--enable", chosen], ..Setup::default() }.start();
    let (status, body) = agent.get("/api/v1/probes").unwrap();
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    let metrics = agent.scrape();
    let list = listed(&["list", "probes", "-o", "json"]);
    let probes = answer["probes"].as_array().unwrap();
    assert!(probes.len() >= 8, "{body}");
    let (mut choices, mut refused) = (0, 0);
    for probe in probes {
        let name = probe["name"].as_str().unwrap();
        let in_metric = |metric: &str, keys: &[&str]| -> BTreeSet<Vec<String>> {
            let of_probe = [("probe", name)];
            let row = |labels: &Labels| keys.iter().map(|key| short(&labels[*key])).collect();
            metrics.series(metric, &of_probe).map(|(labels, _)| row(labels)).collect()
        };
        // Hooks: the API and the metric.
        let keys = ["hook", "kind", "reason"];
        let hooks: BTreeSet<_> = probe["hooks"].as_array().unwrap().iter().map(|hook| texts(hook, &keys)).collect();
        assert_eq!(in_metric("kstrobe_probe_attached", &keys), hooks, "{name}");
        // Choices: the API, the metric and `explain`.
        let keys = ["wanted", "got", "because"];
        let said = |value: &Value| -> BTreeSet<_> {
            value["choices"].as_array().unwrap().iter().map(|choice| texts(choice, &keys)).collect()
        };
        let ours = said(probe);
        choices += ours.len();
        assert_eq!(in_metric("kstrobe_probe_choice_info", &keys), ours, "{name}");
        // `list`: the kinds of hooks, or why it cannot run.
        let of_probe = |rows: &[Value]| rows.iter().find(|row| row["probe"] == name).unwrap().clone();
        let row = of_probe(&list);
        let here = row["here"].as_str().unwrap();
        if let Some(reason) = here.strip_prefix("cannot run: ") {
            refused += 1;
            let reason: String = reason.chars().take(100).collect();
            assert!(!hooks.is_empty(), "{name}");
            assert!(hooks.iter().all(|hook| hook[2].contains(&reason)), "{name}: {reason}\n{hooks:?}");
            assert_eq!(probe["attached"], false, "{name}");
            continue;
        }
        let kinds: BTreeSet<_> = hooks.iter().map(|hook| hook[1].as_str()).collect();
        let (here, lesser) = here.split_once(" (").unwrap_or((here, ""));
        assert_eq!(here.split(',').collect::<BTreeSet<_>>(), kinds, "{name}");
        for choice in ours.iter().filter(|choice| !choice[2].is_empty()) {
            assert!(lesser.contains(&format!("{} for {}", choice[1], choice[0])), "{name}: {lesser}\n{choice:?}");
        }
        assert_eq!(said(&of_probe(&listed(&["explain", name, "-o", "json"]))), ours, "{name}");
    }
    println!("{choices} choices of {} probes, {refused} of them refused", probes.len());
    assert!(choices >= 3, "{body}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_doctor_says_what_each_missing_right_costs() {
    let doctor = |without: &str| {
        let words = ["setpriv", "--bounding-set", without];
        let done = agent::command_under(&words, &["doctor"]).output().unwrap();
        (done.status.success(), String::from_utf8(done.stdout).unwrap())
    };
    // What is taken away, whether probes run without it, and what is said.
    for (without, usable, words) in [
        (
            "-sys_admin",
            true,
            "no captures, no `bpf_programs`, no fentry in modules, and uprobes only from Linux 6.6 on",
        ),
        ("-sys_ptrace", true, "programs of other containers have no names in stacks"),
        ("-syslog", true, "no kernel symbol names"),
        // CAP_SYS_ADMIN holds for these too.
        ("-sys_admin,-bpf", false, "no program can be loaded"),
        ("-sys_admin,-perfmon", false, "no program can look at the kernel"),
    ] {
        let (success, text) = doctor(without);
        let line = text.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{without}:\n{text}"));
        let name = without.rsplit('-').next().unwrap().to_uppercase();
        assert!(line.starts_with("MISSING") && line.contains(&format!("CAP_{name} ")), "{without}: {line}");
        assert_eq!(success, usable, "{without}:\n{text}");
    }
    // Maps count as locked memory before Linux 5.11.
    let line = |text: &str| text.lines().find(|line| line.contains("CAP_SYS_RESOURCE")).map(str::to_owned);
    let (with, without) = (line(&doctor("-syslog").1), line(&doctor("-sys_resource").1));
    if support::kernel() < (5, 11) {
        let (with, without) = (with.unwrap(), without.unwrap());
        assert!(with.starts_with("ok") && without.starts_with("MISSING"), "{with}\n{without}");
        assert!(without.contains("KiB of RLIMIT_MEMLOCK"), "{without}");
    } else {
        assert_eq!((with, without), (None, None));
    }
}

/// systemd itself does not run where tests do; what it gives by the unit is given by other programs here.
#[test]
#[ignore = "needs root"]
fn root_the_rights_of_the_systemd_unit_are_enough_for_the_default_probes() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kstrobe.service");
    let under = kstrobe_testing::unit::rights(std::path::Path::new(unit));
    let under: Vec<&str> = under.iter().map(String::as_str).collect();
    let agent = Setup { packs: &DEFAULT_PACKS, under: &under, ..Setup::default() }.start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    // SYSLOG, PERFMON and BPF of linux/capability.h.
    let held = format!("{:016x}", 1u64 << 34 | 1 << 38 | 1 << 39);
    assert_eq!((field("Uid:").split('\t').next(), field("CapEff:"), field("CapBnd:")), (Some("0"), held.clone(), held));
    let metrics = agent.scrape();
    let hooks: Vec<_> = metrics.series("kstrobe_probe_attached", &[]).collect();
    assert!(hooks.len() >= DEFAULT_PACKS.len() && hooks.iter().all(|(_, attached)| *attached == 1.0), "{hooks:#?}");
    let ready = agent.get("/readyz").unwrap();
    assert_eq!(ready.0, 200, "{}", ready.1);
    agent.stop();
}

/// One for each way to run: programs, objects, polls, sessions.
#[test]
#[ignore = "needs root"]
fn root_probes_for_other_kernels_do_nothing_and_say_so() {
    let shapes = [
        ("programs", "at: rawtracepoint:sched_switch\nwhere: has_type(struct no_such) && args.prev.pid > 1\n"),
        ("objects", "at: iter:task\nwhere: has(args.task.no_such) && args.task.pid > 1\n"),
        ("polled", "poll: { source: softnet }\nwhere: \"false\"\n"),
        ("session", "engine: ftrace\nat: tracepoint:sched:sched_switch\nwhere: has(args.no_such)\n"),
    ];
    let metric = |name: &str| format!("metrics:\n  {name}_here: {{ type: gauge, value: 1 }}\n");
    let texts =
        shapes.map(|(name, shape)| format!("probe: {name}\nsummary: For other kernels.\n{shape}{}", metric(name)));
    let probes: Vec<(&str, &str)> = shapes.iter().zip(&texts).map(|((name, _), text)| (*name, text.as_str())).collect();
    let agent = Agent::start_with(&["syscalls"], &probes);
    let (status, body) = agent.get("/readyz").unwrap();
    assert_eq!(status, 200, "{body}");
    assert!(body.starts_with("ready: 1 probes attached\n"), "{body}");
    let (metrics, log) = (agent.scrape(), agent.log());
    for (name, _) in shapes {
        assert!(body.contains(&format!("{name}: ")) && body.contains("never true on this kernel"), "{name}: {body}");
        assert!(!metrics.has(&format!("kstrobe_{name}_here"), &[]), "{name} measures");
        assert!(!metrics.has("kstrobe_probe_attached", &[("probe", name)]), "{name} has hooks");
        assert!(log.contains(&format!("{name}.yaml")), "{log}");
    }
    agent.stop();
}
