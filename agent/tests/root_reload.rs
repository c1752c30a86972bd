//! Another configuration for an agent that runs: what is the same goes on, what is wrong changes nothing, and nothing is
//! left behind.

mod support;

use kstrobe_testing::Receiving;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::capture::instances;
use support::kernel_objects::{Kind, all, held_by};
use support::{emulated, load, wait_for, witnesses};

const LIMIT: Duration = Duration::from_secs(60);

/// Counts the calls of this test's threads of a name.
fn calls(probe: &str, comm: &str) -> String {
    format!(
        // The load is more than the budget allows, and is to be counted whole.
        "probe: {probe}\nsummary: Calls.\nbudget_cpu_percent: 0\nat: syscall:getppid:enter\nwhere: comm == \"{comm}\"\n\
         metrics:\n  {probe}_calls_total: {{ type: counter }}\n"
    )
}

fn value(agent: &Agent, metric: &str) -> f64 {
    agent.scrape().sum(metric, &[])
}

fn reloads(agent: &Agent, result: &str) -> f64 {
    agent.scrape().sum("kstrobe_config_reloads_total", &[("result", result)])
}

fn hash(agent: &Agent) -> String {
    let metrics = agent.scrape();
    let hashes: Vec<String> =
        metrics.series("kstrobe_config_hash", &[]).map(|(labels, _)| labels["hash"].clone()).collect();
    assert_eq!(hashes.len(), 1, "{hashes:?}");
    hashes[0].clone()
}

/// Ids of the programs of a probe.
fn programs(agent: &Agent, probe: &str) -> BTreeMap<u64, String> {
    let of_probe = |name: &String| name.starts_with(&format!("ks_{probe}_"));
    held_by(agent.pid(), Kind::Programs).into_iter().filter(|(_, name)| of_probe(name)).collect()
}

/// Calls in a thread of this name until it is told to stop; gives how many.
fn call_until(stop: &AtomicBool, comm: &str) -> u64 {
    let made = AtomicU64::new(0);
    load::named(comm, || {
        while !stop.load(Ordering::Relaxed) {
            load::getppid_calls(100);
            made.fetch_add(100, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    made.into_inner()
}

/// Does something beside threads that call, and one that scrapes and checks what it sees.
fn under_load(agent: &Agent, work: impl FnOnce()) -> (u64, u64) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| call_until(&stop, "kst-load"));
        let scraper = scope.spawn(|| {
            let (mut last, mut scrapes) = (0.0, 0);
            while !stop.load(Ordering::Relaxed) {
                let metrics = agent.scrape();
                let now = metrics.sum("kstrobe_kept_calls_total", &[]);
                assert!(now >= last, "a count went back from {last} to {now}");
                for probe in ["kept", "changed"] {
                    assert_eq!(metrics.sum("kstrobe_probe_attached", &[("probe", probe)]), 1.0, "{probe}");
                }
                (last, scrapes) = (now, scrapes + 1);
            }
            scrapes
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        let (calls, scrapes) = (caller.join().unwrap(), scraper.join().unwrap());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (calls, scrapes)
    })
}

#[test]
#[ignore = "needs root"]
fn root_unchanged_probes_keep_their_counts_through_reloads_under_load() {
    if !witnesses("root_unchanged_probes_keep_their_counts_through_reloads_under_load", &["bpftool"]) {
        return;
    }
    let kept = calls("kept", "kst-load");
    let agent = Agent::start_with(&[], &[("kept", &kept), ("changed", &calls("changed", "kst-load"))]);
    let ids = programs(&agent, "kept");
    assert!(!ids.is_empty());
    let mut seen = programs(&agent, "changed");
    let created = |agent: &Agent| agent.scrape().sum("process_start_time_seconds", &[]);
    let (started, first_hash) = (created(&agent), hash(&agent));
    let mut hashes = vec![first_hash];
    let (made, scrapes) = under_load(&agent, || {
        for round in 0..10 {
            // It stands elsewhere, and yet it is the same.
            agent.write("probes/kept.yaml", &format!("{}{kept}", "# A comment.\n".repeat(round + 1)));
            agent.write("probes/changed.yaml", &format!("{}# {round}\n", calls("changed", &format!("kst-{round}"))));
            let answer = agent.reload(200);
            assert!(answer.starts_with("reloaded; probes: 1 unchanged, 1 replaced, 0 started, 0 ended\n"), "{answer}");
            assert_eq!(programs(&agent, "kept"), ids, "round {round}");
            let new = programs(&agent, "changed");
            assert!(!new.is_empty() && new.keys().all(|id| !seen.contains_key(id)), "round {round}: {new:?}");
            seen.extend(new);
            hashes.push(hash(&agent));
        }
    });
    assert!(made > 0 && scrapes > 10, "{made} calls, {scrapes} scrapes");
    // A kernel may switch a task out within a program: it then skips the program for others on this CPU, and says how often.
    let missed = agent.scrape().sum("kstrobe_program_missed_total", &[("probe", "kept")]);
    let (counted, made) = (value(&agent, "kstrobe_kept_calls_total"), made as f64);
    assert!(counted <= made && made <= counted + missed, "{made} calls, {counted} counted, {missed} missed");
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 11, "each configuration has a hash of its own");
    assert_eq!((reloads(&agent, "success"), reloads(&agent, "failure")), (10.0, 0.0));
    assert_eq!(created(&agent), started, "it is the same process");
    // What replaced the other is at work.
    load::named("kst-9", || load::getppid_calls(77));
    assert_eq!(value(&agent, "kstrobe_changed_calls_total"), 77.0);
    // The kernel frees what was replaced after a grace period.
    let now = programs(&agent, "changed");
    wait_for("the end of the programs that were replaced", LIMIT, || {
        let there = all(Kind::Programs);
        seen.keys().all(|id| now.contains_key(id) || !there.contains_key(id)).then_some(())
    });
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_configuration_with_a_mistake_changes_nothing() {
    let agent = Agent::start_with(&[], &[("kept", &calls("kept", "kst-load"))]);
    let config = std::fs::read_to_string(agent.folder().join("kstrobe.yaml")).unwrap();
    let (good, since) = (hash(&agent), value(&agent, "kstrobe_config_last_reload_success_timestamp_seconds"));
    assert_eq!(value(&agent, "kstrobe_config_last_reload_successful"), 1.0);
    let new = calls("new", "kst-load");
    let unknown = config.replace("disable: [", "enable: [no_such_probe]\n  disable: [");
    let mut refusals = 0.0;
    for (file, text, expected) in [
        // A key that there is not, with its place.
        ("probes/new.yaml", new.replace("summary:", "sumary:"), "new.yaml:2:1"),
        ("probes/new.yaml", "probe: [".to_owned(), "new.yaml:1"),
        // Only the compiler knows types.
        ("probes/new.yaml", new.replace("comm ==", "no_such_field =="), "new.yaml:5"),
        ("probes/kept.yaml", calls("kept", "kst-load").replace("comm ==", "pid =="), "kept.yaml:5"),
        // Only the kernel knows events; what runs must not go for what cannot.
        (
            "probes/kept.yaml",
            calls("kept", "kst-load").replace("syscall:getppid:enter", "rawtracepoint:no_such"),
            "no_such",
        ),
        ("kstrobe.yaml", unknown, "no_such_probe"),
        ("kstrobe.yaml", format!("{config}events: /no/such/folder/events\n"), "/no/such/folder"),
        ("kstrobe.yaml", format!("{config}captures: {{ dir: /proc/none }}\n"), "captures cannot be stored"),
    ] {
        let before = std::fs::read_to_string(agent.folder().join(file)).ok();
        agent.write(file, &text);
        let answer = agent.reload(500);
        let of_place = expected.split(':').next().unwrap();
        assert!(
            answer.contains(of_place) && answer.ends_with("not reloaded: what ran before runs on\n"),
            "{file}: {answer}"
        );
        refusals += 1.0;
        let metrics = agent.scrape();
        assert_eq!(metrics.sum("kstrobe_config_last_reload_successful", &[]), 0.0, "{answer}");
        assert_eq!(metrics.sum("kstrobe_config_reloads_total", &[("result", "failure")]), refusals);
        assert_eq!(metrics.sum("kstrobe_config_last_reload_success_timestamp_seconds", &[]), since);
        assert_eq!(metrics.sum("kstrobe_probe_attached", &[("probe", "kept")]), 1.0);
        assert!(!metrics.has("kstrobe_probe_attached", &[("probe", "new")]));
        assert_eq!(hash(&agent), good);
        let (_, probes) = agent.get("/api/v1/probes").unwrap();
        let probes: Value = serde_json::from_str(&probes).unwrap();
        let refused = probes["refused"][0].as_str().unwrap_or_default();
        assert!(refused.contains(expected), "{file}: {probes}");
        assert!(probes["mistakes"].is_null(), "what runs has none: {probes}");
        let (status, ready) = agent.get("/readyz").unwrap();
        assert!(status == 200 && ready.contains(expected), "{status} {ready}");
        assert!(agent.log().contains("not reloaded"), "{answer}");
        match before {
            Some(before) => agent.write(file, &before),
            None => std::fs::remove_file(agent.folder().join(file)).unwrap(),
        }
    }
    load::named("kst-load", || load::getppid_calls(33));
    assert_eq!(value(&agent, "kstrobe_kept_calls_total"), 33.0);
    // Put right, it is taken, and nothing speaks of mistakes any more.
    agent.write("probes/new.yaml", &new);
    agent.reload(200);
    let metrics = agent.scrape();
    assert_eq!(metrics.sum("kstrobe_config_last_reload_successful", &[]), 1.0);
    assert!(metrics.sum("kstrobe_config_last_reload_success_timestamp_seconds", &[]) > since);
    assert_eq!(metrics.sum("kstrobe_kept_calls_total", &[]), 33.0);
    assert_eq!(agent.get("/readyz").unwrap(), (200, "ready: 2 probes attached\n".to_owned()));
    // A probe that is new, and that this kernel cannot run, is reported as at a start.
    agent.write("probes/other.yaml", &calls("other", "x").replace("syscall:getppid:enter", "rawtracepoint:no_such"));
    agent.reload(200);
    assert_eq!(agent.get("/readyz").unwrap().0, 503);
    assert!(agent.scrape().has("kstrobe_probe_attached", &[("probe", "other")]));
    agent.stop();
}

/// A folder as Kubernetes mounts a ConfigMap: each key is a link through `..data`, which leads to the version there is.
fn publish(mount: &Path, version: &str, text: &str) {
    let folder = mount.join(version);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("own.yaml"), text).unwrap();
    let link = mount.join("..data_tmp");
    symlink(version, &link).unwrap();
    std::fs::rename(link, mount.join("..data")).unwrap();
    if !mount.join("own.yaml").is_symlink() {
        symlink("..data/own.yaml", mount.join("own.yaml")).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn root_signals_and_changes_of_files_are_reloads() {
    let agent = Agent::start_with(&[], &[("kept", &calls("kept", "kst-load"))]);
    let config = std::fs::read_to_string(agent.folder().join("kstrobe.yaml")).unwrap();
    let after = |what: &str, done: f64| {
        wait_for(what, LIMIT, || (reloads(&agent, "success") == done).then_some(()));
    };
    agent.signal(Signal::SIGHUP);
    after("a reload at SIGHUP", 1.0);
    // A folder of its own by an editor that renames.
    let mount = agent.folder().join("mount");
    publish(&mount, "..1", &calls("first", "kst-load"));
    agent.write("kstrobe.yaml", &config.replace("/probes\n", "/mount\n"));
    after("a reload by a change of kstrobe.yaml", 2.0);
    let has = |probe: &str| agent.scrape().has("kstrobe_probe_attached", &[("probe", probe)]);
    assert!(has("first") && !has("kept"));
    publish(&mount, "..2", &calls("second", "kst-load"));
    std::fs::remove_dir_all(mount.join("..1")).unwrap();
    after("a reload by the swap of a link", 3.0);
    assert!(has("second") && !has("first"));
    // What is wrong is tried once.
    publish(&mount, "..3", "probe: [");
    wait_for("a reload that is refused", LIMIT, || (reloads(&agent, "failure") == 1.0).then_some(()));
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!((reloads(&agent, "success"), reloads(&agent, "failure")), (3.0, 1.0), "nothing has changed since");
    assert!(has("second"));
    publish(&mount, "..4", &calls("fourth", "kst-load"));
    after("a reload by the next version", 4.0);
    assert!(has("fourth"));
    // Many at once do no harm.
    (0..20).for_each(|_| agent.signal(Signal::SIGHUP));
    agent.reload(200);
    assert!(has("fourth"));
    agent.stop();
}

/// One probe of each way to be run.
fn every_kind(version: usize) -> Vec<(&'static str, String)> {
    let probe = |name: &str, rest: &str| {
        format!(
            "probe: {name}\nsummary: Version {version}.\n{rest}\n\
             metrics:\n  {name}_total: {{ type: counter }}\n"
        )
    };
    vec![
        ("calls", calls("calls", "kst-load").replace("Calls.", &format!("Version {version}."))),
        ("kernel", probe("kernel", "at: 'function:do_exit:entry'")),
        ("user", probe("user", "at: 'uprobe:libc:malloc'\nwhere: comm == \"kst-none\"")),
        ("sampled", probe("sampled", "at: 'profile:hz:11'")),
        ("timed", probe("timed", "at: 'interval:s:1'")),
        ("traced", probe("traced", "engine: ftrace\nat: 'tracepoint:sched:sched_process_exit'")),
        (
            "polled",
            format!(
                "probe: polled\nsummary: Version {version}.\npoll: {{ source: softnet, every: 1s }}\n\
                 metrics:\n  polled_total: {{ type: counter, value: args.processed, labels: {{ cpu: args.cpu }} }}\n"
            ),
        ),
        (
            "walked",
            format!(
                "probe: walked\nsummary: Version {version}.\nat: 'iter:task'\n\
                 metrics:\n  walked_tasks: {{ type: gauge, value: 1, labels: {{ comm: args.task.comm }} }}\n"
            ),
        ),
        ("slow", receives(version)),
    ]
}

/// Receives that take longer than 5 ms, each a single event; and sums by stack.
fn receives(version: usize) -> String {
    format!(
        "probe: slow\nsummary: Version {version}.\n\
         span: {{ start: 'syscall:recvfrom:enter', end: 'syscall:recvfrom:exit', where: comm == \"kst-slow\" }}\n\
         metrics:\n  slow_seconds: {{ type: histogram, value: elapsed }}\n  \
         slow_where_seconds: {{ type: stacks, value: elapsed, stacks: [kernel, user] }}\n\
         slow:\n  when: elapsed > 5ms\n  max_per_second: 1000\n  fields: {{ took: elapsed, stack: kstack }}\n"
    )
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
#[ignore = "needs root"]
fn root_reloads_leave_nothing_behind() {
    if !witnesses("root_reloads_leave_nothing_behind", &["bpftool"]) {
        return;
    }
    let probes = every_kind(0);
    let named: Vec<(&str, &str)> = probes.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let agent = Agent::start_with(&[], &named);
    let detached = |agent: &Agent| {
        let metrics = agent.scrape();
        let all = metrics.series("kstrobe_probe_attached", &[]);
        let mut names: Vec<String> =
            all.filter(|(_, value)| *value != 1.0).map(|(labels, _)| labels["probe"].clone()).collect();
        names.dedup();
        names
    };
    // Not every kernel has hooks at functions, in the kernel or in programs.
    let lacking = detached(&agent);
    assert!(lacking.iter().all(|name| name == "kernel" || name == "user"), "{lacking:?}");
    let own = format!("kstrobe-{}-", agent.pid());
    let held = |agent: &Agent| {
        let names = |kind| held_by(agent.pid(), kind).into_values().collect::<Vec<_>>();
        let mut all = [names(Kind::Programs), names(Kind::Maps)].concat();
        all.sort();
        let threads = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().count();
        let instances = instances().into_iter().filter(|name| name.starts_with(&own)).count();
        (all, descriptors(agent.pid()), instances, threads)
    };
    let change = |version: usize| {
        for (name, text) in every_kind(version) {
            agent.write(&format!("probes/{name}.yaml"), &text);
        }
        let answer = agent.reload(200);
        assert!(answer.starts_with("reloaded; probes: 0 unchanged, 9 replaced, 0 started, 0 ended\n"), "{answer}");
        assert_eq!(detached(&agent), lacking, "version {version}");
    };
    // Maps of costs are made within the second after a start or a reload.
    std::thread::sleep(Duration::from_secs(3));
    let objects = held(&agent).0;
    change(1);
    // Who waits for the events of the old ones does so for a second.
    let before = wait_for("the old ones to go", LIMIT, || Some(held(&agent)).filter(|now| now.0 == objects));
    assert!(before.2 > 0 && before.0.len() > 9, "{before:?}");
    // An emulated processor compiles and loads nine probes in some ten seconds.
    let last = if emulated() { 6 } else { 20 };
    (2..=last).for_each(change);
    // Threads for requests come and go, and with them descriptors of connections.
    wait_for("what a reload leaves behind to go", LIMIT, || {
        let now = held(&agent);
        (now.0 == before.0 && now.1 <= before.1 && now.2 == before.2 && now.3 <= before.3 + 8).then_some(())
    });
    for (name, _) in every_kind(0) {
        std::fs::remove_file(agent.folder().join(format!("probes/{name}.yaml"))).unwrap();
    }
    let answer = agent.reload(200);
    assert!(answer.starts_with("reloaded; probes: 0 unchanged, 0 replaced, 0 started, 9 ended\n"), "{answer}");
    // Who waits for events does so for a second.
    wait_for("an empty kernel", LIMIT, || {
        let (objects, _, instances, _) = held(&agent);
        // What wakes the agent at rest is its own, not a probe's.
        (objects == ["ks_alarm", "ks_alarm_ring"] && instances == 0).then_some(())
    });
    let metrics = agent.scrape();
    assert!(!metrics.has("kstrobe_probe_attached", &[]) && !metrics.has("kstrobe_calls_calls_total", &[]));
    agent.stop();
}

/// Waits so often in vain for 10 ms, in a thread of the probe's.
fn slow_receives(count: usize) {
    load::named("kst-slow", || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        for _ in 0..count {
            assert!(socket.recv(&mut [0]).is_err(), "nobody sends here");
        }
    });
}

#[test]
#[ignore = "needs root"]
fn root_events_stacks_and_iterators_go_on_after_reloads() {
    let agent = Agent::start_with(&[], &[("kept", &calls("kept", "kst-load"))]);
    // Nothing had events when it started: the stream of all events is there already.
    let mut stream = TcpStream::connect(agent.address()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET /api/v1/events?follow=true HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut stream = BufReader::new(stream);
    let mut next = |wanted: &str| {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended before {wanted}");
        }
        line
    };
    next("\r\n");
    let mut events = 0;
    for version in 0..3 {
        agent.write("probes/slow.yaml", &receives(version));
        agent.write("probes/walked.yaml", &every_kind(version)[7].1);
        let answer = agent.reload(200);
        assert!(answer.contains("1 unchanged"), "{answer}");
        assert!(agent.scrape().sum("kstrobe_walked_tasks", &[]) > 1.0, "iterators are read at once");
        slow_receives(5);
        // The next reload takes the probe away: nothing that it sent is lost with it.
        events += 5;
        if version == 2 {
            break;
        }
        std::fs::remove_file(agent.folder().join("probes/slow.yaml")).unwrap();
        agent.reload(200);
        (0..5).for_each(|_| assert!(next("\"slow\"").contains("took")));
    }
    (0..5).for_each(|_| assert!(next("\"slow\"").contains("took")));
    let list = agent.get("/api/v1/events?probe=slow").unwrap();
    let list: Value = serde_json::from_str(&list.1).unwrap();
    assert_eq!(list["events"].as_array().unwrap().len(), events);
    assert_eq!(value(&agent, "kstrobe_slow_seconds_count"), 5.0);
    let (status, folded) = agent.get("/api/v1/stacks/slow_where_seconds?format=folded").unwrap();
    assert!(status == 200 && folded.contains("recv"), "{status} {folded}");
    // Who waits for a profile of a probe that goes hears why there is none.
    std::thread::scope(|scope| {
        let profile = scope.spawn(|| agent.get("/api/v1/stacks/slow_where_seconds?seconds=5").unwrap());
        std::thread::sleep(Duration::from_secs(1));
        std::fs::remove_file(agent.folder().join("probes/slow.yaml")).unwrap();
        agent.reload(200);
        let (status, body) = profile.join().unwrap();
        assert!(status != 200 && body.contains("the configuration has changed"), "{status} {body}");
    });
    assert_eq!(agent.get("/api/v1/stacks/slow_where_seconds").unwrap().0, 404);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_rules_captures_and_settings_come_with_a_reload() {
    let agent = Setup { probes: &[("kept", &calls("kept", "kst-load"))], budget: true, ..Setup::default() }.start();
    let config = std::fs::read_to_string(agent.folder().join("kstrobe.yaml")).unwrap();
    assert_eq!(agent.get("/api/v1/captures").unwrap().0, 403, "there are none");
    let folder = agent.folder().join("captures");
    let rule = |per_second: u32| {
        format!(
            "{config}captures: {{ dir: {} }}\nrules:\n  - name: busy\n    when: rate(kept_calls_total) over 2s > {per_second}\n    \
             every: 500ms\n    capture: {{ events: 'sched:sched_process_exit', duration: 1s }}\n",
            folder.display()
        )
    };
    agent.write("kstrobe.yaml", &rule(1_000_000_000));
    agent.reload(200);
    assert_eq!(agent.get("/api/v1/captures").unwrap(), (200, "{\"captures\":[]}".to_owned()));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| call_until(&stop, "kst-load"));
        agent.write("kstrobe.yaml", &rule(10));
        let answer = agent.reload(200);
        let fired = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert!(answer.contains("1 unchanged"), "{answer}");
            wait_for("the rule's capture", LIMIT, || {
                let metrics = agent.scrape();
                (metrics.sum("kstrobe_captures_total", &[("trigger", "rule"), ("result", "done")]) == 1.0).then_some(())
            });
        }));
        stop.store(true, Ordering::Relaxed);
        fired.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    // The same captures under other settings, then none.
    agent.write("kstrobe.yaml", &rule(20).replace("{ dir:", "{ max_concurrent: 2, dir:"));
    agent.reload(200);
    assert_eq!(agent.scrape().sum("kstrobe_captures_total", &[("result", "done")]), 1.0);
    agent.write("kstrobe.yaml", &config);
    agent.reload(200);
    assert_eq!(agent.get("/api/v1/captures").unwrap().0, 403);
    agent.write("kstrobe.yaml", &rule(20));
    agent.reload(200);
    assert!(agent.get("/api/v1/captures").unwrap().1.contains("\"rule\":\"busy\""), "it is still stored");
    // Settings.
    let events = agent.folder().join("events");
    agent.write("kstrobe.yaml", &format!("{config}log: {{ level: error }}\nevents: {}\n", events.display()));
    agent.write("probes/slow.yaml", &receives(0));
    let answer = agent.reload(200);
    assert!(!answer.contains("restart"), "{answer}");
    let reloadings = || agent.log().matches("message=reloading").count();
    let said = reloadings();
    agent.reload(200);
    assert_eq!(reloadings(), said, "errors only");
    slow_receives(3);
    let lines = || std::fs::read_to_string(&events).unwrap_or_default().lines().count();
    wait_for("events in the new file", LIMIT, || (lines() == 3).then_some(()));
    // As logrotate does.
    std::fs::rename(&events, agent.folder().join("events.1")).unwrap();
    agent.signal(Signal::SIGHUP);
    wait_for("the file again", LIMIT, || events.is_file().then_some(()));
    agent.write("kstrobe.yaml", &config);
    agent.reload(200);
    agent.reload(200);
    assert!(reloadings() > said, "as at the start");
    // The budget of a probe that goes on.
    agent.write("kstrobe.yaml", &(config + "limits: { budget_percent: 7 }\nlog: { format: json }\n"));
    let answer = agent.reload(200);
    assert!(answer.contains("2 unchanged") && answer.contains("`log.format` has changed"), "{answer}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_exporters_come_stay_and_go_by_reload() {
    let receiving = Receiving::start(&[]);
    let address = receiving.address;
    let exporter = |name: &str, interval: &str| {
        format!("{{ name: {name}, endpoint: 'http://{address}/{name}', protocol: http, interval: {interval} }}")
    };
    // Nobody takes what is sent there: it waits.
    let away = "{ name: away, endpoint: 'http://127.0.0.1:9', protocol: http, interval: 1s }";
    let base = "probes: { disable: [recvfrom, softirq, syscalls, tcp_backlog, tcp_retransmits] }\n";
    let with = |list: &[&str]| format!("{base}exporters: {{ otlp: [{}] }}\n", list.join(", "));
    let agent = Agent::start(&[]);
    let of = |metric: &str, exporter: &str| agent.scrape().sum(metric, &[("exporter", exporter)]);
    let names = || {
        let metrics = agent.scrape();
        let series = metrics.series("kstrobe_export_queue_points", &[]);
        let mut names: Vec<String> = series.map(|(labels, _)| labels["exporter"].clone()).collect();
        names.sort();
        names
    };
    agent.write("kstrobe.yaml", &with(&[away, &exporter("a", "1s"), &exporter("b", "1h")]));
    assert!(agent.reload(200).contains("\nexporters: 0 unchanged, 3 started, 0 ended\n"));
    assert_eq!(names(), ["a", "away", "b"]);
    wait_for("reports of `a`", LIMIT, || (of("kstrobe_export_points_sent_total", "a") > 0.0).then_some(()));
    wait_for("failures", LIMIT, || (of("kstrobe_export_failures_total", "away") >= 1.0).then_some(()));
    let failures = of("kstrobe_export_failures_total", "away");
    assert!(of("kstrobe_export_queue_points", "away") > 0.0);

    // What is the same goes on with what waits and what was counted; `b` ends with a report that was not due for an hour.
    let before = receiving.came().len();
    agent.write("kstrobe.yaml", &with(&[&exporter("c", "1s"), away, &exporter("a", "1s")]));
    assert!(agent.reload(200).contains("\nexporters: 2 unchanged, 1 started, 1 ended\n"));
    assert_eq!(names(), ["a", "away", "c"]);
    assert!(of("kstrobe_export_failures_total", "away") >= failures && of("kstrobe_export_queue_points", "away") > 0.0);
    wait_for("the last report of `b` and reports of `c`", LIMIT, || {
        let new = receiving.came().split_off(before);
        let has = |name: &str| new.iter().any(|r| r.path == format!("/{name}/v1/metrics") && r.body.len() > 100);
        (has("b") && has("c")).then_some(())
    });
    assert!(agent.log().contains("removed by a reload"));

    // A mistake changes nothing, a signal is as good as a request.
    agent.write("kstrobe.yaml", &with(&["{ endpoint: nowhere }"]));
    agent.reload(500);
    assert_eq!(names(), ["a", "away", "c"]);
    agent.write("kstrobe.yaml", base);
    agent.signal(Signal::SIGHUP);
    wait_for("the end of all", LIMIT, || names().is_empty().then_some(()));
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_systemd_is_told_of_reloads() {
    let folder = support::Folder::new();
    let path = folder.0.join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let heard = || {
        let mut bytes = [0; 512];
        let length = socket.recv(&mut bytes).unwrap();
        let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let set = format!("NOTIFY_SOCKET={}", path.display());
    let arguments = ["--web.enable-lifecycle"];
    let agent = support::agent::Setup { under: &["env", &set], arguments: &arguments, ..Default::default() }.start();
    assert_eq!(heard(), ["READY=1"]);
    // systemd compares it with its own clock: it has to be of this reload.
    let clock = || {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        now.tv_sec() as u64 * 1_000_000 + now.tv_nsec() as u64 / 1000
    };
    let told = |since: u64| {
        let reloading = heard();
        let [first, at] = reloading.as_slice() else { panic!("{reloading:?}") };
        assert_eq!(first, "RELOADING=1");
        let at: u64 = at.strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
        assert!((since..=clock()).contains(&at), "{since} {at}");
        assert_eq!(heard(), ["READY=1"]);
    };
    let since = clock();
    agent.signal(Signal::SIGHUP);
    told(since);
    // It is ready again as well when what ran before runs on.
    let since = clock();
    agent.write("kstrobe.yaml", "listen: [");
    agent.reload(500);
    told(since);
    agent.signal(Signal::SIGTERM);
    assert_eq!(heard(), ["STOPPING=1"]);
    drop(agent);
}
