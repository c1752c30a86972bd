//! Captures by rules, alerts and the API: of threads whose work is known, on the real kernel.

mod support;

use kstrobe_ftrace::trace::{Event, Trace};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::alertmanager::{self, Alertmanager};
use support::api::{Home, LIMIT, TOKEN};
use support::capture::{instances, records};
use support::http::ask;
use support::load::{Asking, getppid_calls};
use support::{Folder, wait_for, witnesses};

/// Events of the threads that are meant: of switches and wakeups one side is theirs.
const EVENTS: [&str; 2] = ["sched:sched_switch", "raw_syscalls"];

/// The clock of recordings.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    u64::try_from(Duration::from(now).as_nanos()).unwrap()
}

fn count(trace: &Trace, fits: impl Fn(&Event<'_>) -> bool) -> usize {
    trace.events().filter(fits).count()
}

/// Times from the begin to the end of each receiving call of a thread, in ascending order.
fn receiving_ns(trace: &Trace, tid: i32) -> Vec<u64> {
    let mut begun = BTreeMap::new();
    let mut took = Vec::new();
    for event in trace.events().filter(|event| event.pid() == tid) {
        if event.is("syscalls", "sys_enter_recvfrom") {
            begun.insert(tid, event.time);
        } else if event.is("syscalls", "sys_exit_recvfrom") {
            took.extend(begun.remove(&tid).map(|begin| event.time - begin));
        }
    }
    took.sort_unstable();
    took
}

#[test]
#[ignore = "needs root"]
fn root_a_rule_captures_what_is_slow_while_it_is_slow() {
    const SLOW: Duration = Duration::from_millis(30);
    let rules = "
rules:
  - name: slow_recv
    when: p99(recv_wait_seconds{comm=\"kst-slow\"}) over 1s > 20ms for 1s
    every: 200ms
    cooldown: 1h
    capture: { events: [sched, 'syscalls:sys_*_recvfrom'], comms: [kst-slow], duration: 1s }
  - name: often
    when: p50(recv_duration_seconds{comm=~\"kst-s*\"}) over 1s >= 0.02
    every: 200ms
    cooldown: 0s
    max_per_hour: 2
    capture: { events: sched:sched_switch, comms: [kst-slow], duration: 100ms }
  - name: never
    when: rate(recv_wait_seconds{comm=\"kst-slow\"}) over 1s > 1000
    capture: { events: sched:sched_switch }
";
    let home = Home::new();
    let agent = home.start(&["recvfrom"], "max_concurrent: 3", rules);
    let of = |rule: &str| -> Vec<Value> {
        agent.all_captures().into_iter().filter(|capture| capture["trigger"]["rule"] == rule).collect()
    };

    let begin = monotonic_ns();
    let slow = Asking::start(SLOW, "kst-slow");
    let capture =
        wait_for("the rule's capture", LIMIT, || of("slow_recv").pop().filter(|capture| capture["state"] != "running"));
    wait_for("both limits", LIMIT, || {
        (agent.asked("slow_recv", "cooldown") > 0.0 && agent.asked("often", "hourly_cap") > 0.0).then_some(())
    });
    let tid = slow.tid;
    let id = capture["id"].as_str().unwrap();
    let in_openmetrics = || {
        let accept = [("Accept", "application/openmetrics-text; version=1.0.0")];
        let answer = ask(agent.address(), "GET", "/metrics", &accept, "").unwrap();
        let linked = format!("capture_id=\"{id}\"");
        let lines = answer.text().lines().filter(|line| line.contains(&linked)).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let exemplars = in_openmetrics();
    slow.end();
    let end = monotonic_ns();

    assert_eq!(capture["state"], "done", "{capture}");
    let why = capture["trigger"]["why"].as_str().unwrap();
    assert!(why.starts_with("p99(recv_wait_seconds") && why.contains("comm=\"kst-slow\""), "{why}");
    let trace = agent.recorded(id);
    assert_eq!(trace.events().count() as u64, capture["records"].as_u64().unwrap(), "{capture}");
    assert!(trace.events().all(|event| (begin..end).contains(&event.time)), "it was recorded while it was slow");
    let others = count(&trace, |e| e.format.is_some_and(|f| f.system == "syscalls") && e.pid() != tid);
    assert_eq!(others, 0, "system calls of others");
    let leaves = count(&trace, |e| e.is("sched", "sched_switch") && e.number("prev_pid") == Some(tid as u64));
    let took = receiving_ns(&trace, tid);
    eprintln!("{why}: {} records, {leaves} times off CPU, calls took {took:?} ns", capture["records"]);
    // Some wait less when they come late to it.
    assert!(took[took.len() / 2] > 20_000_000 && leaves >= took.len(), "{leaves} {took:?}");

    let [exemplar] = &exemplars[..] else { panic!("{exemplars:?}") };
    eprintln!("{exemplar}");
    assert!(exemplar.starts_with("kstrobe_recv_wait_seconds_bucket{") && exemplar.contains("comm=\"kst-slow\""));
    let after = |text: &str| exemplar.split_once(text).unwrap().1;
    let bound: f64 = after("le=\"").split('"').next().unwrap().parse().unwrap();
    let value: f64 = after("\"} ").split_once("\"} ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!(value > 0.02 && value <= bound, "{exemplar}");
    assert!(!agent.get("/metrics").unwrap().1.contains("capture_id"), "text 0.0.4 has no exemplars");
    assert_eq!(agent.captures("DELETE", &format!("/{id}"), "").status, 204);
    assert_eq!(in_openmetrics(), [""; 0], "of a capture that is gone");

    // The same again, after a while in which nobody asks.
    let before = [agent.asked("slow_recv", "cooldown"), agent.asked("often", "hourly_cap")];
    wait_for("another time that is slow", LIMIT, || {
        std::thread::sleep(Duration::from_secs(3));
        let slow = Asking::start(SLOW, "kst-slow");
        std::thread::sleep(Duration::from_secs(4));
        slow.end();
        let now = [agent.asked("slow_recv", "cooldown"), agent.asked("often", "hourly_cap")];
        (now[0] > before[0] && now[1] > before[1]).then_some(())
    });
    assert_eq!([agent.asked("slow_recv", "started"), agent.asked("often", "started")], [1.0, 2.0]);
    assert_eq!((of("slow_recv").len(), of("often").len(), of("never").len()), (0, 2, 0));
    let scrape = agent.scrape();
    assert_eq!(scrape.sum("kstrobe_captures_total", &[("trigger", "rule"), ("result", "done")]), 3.0);
    assert_eq!(scrape.series("kstrobe_rule_captures_total", &[("rule", "never")]).map(|(_, n)| n).sum::<f64>(), 0.0);
    agent.stop();
}

/// What Perfetto's file is: packets, each with its length, to the end.
fn packets(mut bytes: &[u8]) -> usize {
    let mut packets = 0;
    while let Some((tag, rest)) = bytes.split_first() {
        assert_eq!(*tag, 0x0a, "field 1 with a length");
        let (mut length, mut at) = (0, 0);
        loop {
            length |= usize::from(rest[at] & 0x7f) << (7 * at);
            at += 1;
            if rest[at - 1] & 0x80 == 0 {
                break;
            }
        }
        bytes = &rest[at + length..];
        packets += 1;
    }
    packets
}

#[test]
#[ignore = "needs root"]
fn root_the_api_starts_gives_ends_and_removes_captures() {
    let home = Home::new();
    let agent = home.start(&[], "max_duration: 60s, max_concurrent: 1", "");
    let busy = Asking::start(Duration::from_millis(1), "kst-busy");
    let request = json!({"events": EVENTS, "pids": [busy.tid], "duration": "2s"});

    let id = agent.begin(&request);
    let second = agent.captures("POST", "", &request.to_string());
    assert_eq!(second.status, 429, "{second:?}");
    assert!(second.text().contains("a capture runs already"), "{second:?}");
    for (method, path) in [("GET", format!("/{id}/download")), ("DELETE", format!("/{id}"))] {
        assert_eq!(agent.captures(method, &path, "").status, 409, "{method}");
    }
    assert_eq!(agent.scrape().sum("kstrobe_captures_running", &[]), 1.0);
    let capture = agent.ended(&id);
    assert_eq!(capture["state"], "done", "{capture}");
    assert_eq!(agent.all_captures(), std::slice::from_ref(&capture));
    assert_eq!(capture["trigger"]["kind"], "api");

    let trace = agent.recorded(&id);
    let records = trace.events().count();
    assert_eq!(records as u64, capture["records"].as_u64().unwrap(), "{capture}");
    let calls = |e: &Event<'_>| e.is("raw_syscalls", "sys_enter");
    let own = count(&trace, |e| calls(e) && e.pid() == busy.tid);
    assert!(own > 0 && own == count(&trace, calls), "{own}");
    assert!(count(&trace, |e| e.is("sched", "sched_switch") && e.number("prev_pid") == Some(busy.tid as u64)) > 0);
    let text = String::from_utf8(agent.download(&id, "text")).unwrap();
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), records);
    assert!(text.contains("kst-busy-") && text.contains(": sched_switch: "), "{text:.1000}");
    let packets = packets(&agent.download(&id, "perfetto"));
    eprintln!("{own} calls, {records} records, {packets} packets, {} lines of text", text.lines().count());
    assert!(packets > 0);
    // Time in calls needs calls.
    for form in ["folded", "pprof"] {
        let none = agent.captures("GET", &format!("/{id}/download?format={form}"), "");
        assert_eq!(none.status, 404, "{none:?}");
        assert!(none.text().contains("no calls of functions were recorded"), "{none:?}");
    }
    assert_eq!(agent.captures("GET", &format!("/{id}/download?format=jpeg"), "").status, 400);

    let endless = json!({"events": EVENTS, "duration": "60s"});
    let ended = agent.begin(&endless);
    assert_eq!(agent.captures("POST", &format!("/{ended}/cancel"), "").status, 202);
    let capture = agent.ended(&ended);
    assert_eq!(capture["state"], "cancelled", "{capture}");
    assert_eq!(agent.captures("POST", &format!("/{ended}/cancel"), "").status, 409);
    assert_eq!(agent.recorded(&ended).events().count() as u64, capture["records"].as_u64().unwrap());
    assert_eq!(agent.captures("DELETE", &format!("/{ended}"), "").status, 204);
    assert_eq!(agent.captures("GET", &format!("/{ended}"), "").status, 404);
    assert!(!home.captures().join(&ended).exists() && home.captures().join(&id).exists());

    // What only the kernel knows to be wrong.
    let failed = agent.ended(&agent.begin(&json!({"events": "nosuch:event"})));
    assert_eq!(failed["state"], "failed");
    assert!(failed["error"].as_str().unwrap().contains("no event of this kernel is `nosuch:event`"), "{failed}");
    let filter = json!({"events": [{"event": "sched:sched_switch", "filter": "nosuch == 1"}]});
    let failed = agent.ended(&agent.begin(&filter));
    assert!(failed["error"].as_str().unwrap().contains("Field not found"), "{failed}");

    let scrape = agent.scrape();
    for (result, number) in [("done", 1.0), ("refused", 1.0), ("cancelled", 1.0), ("failed", 2.0)] {
        let labels = [("trigger", "api"), ("result", result)];
        assert_eq!(scrape.sum("kstrobe_captures_total", &labels), number, "{result}");
    }
    let stored: u64 = agent.all_captures().iter().map(|capture| capture["bytes"].as_u64().unwrap()).sum();
    assert_eq!(scrape.sum("kstrobe_captures_stored_bytes", &[]), stored as f64);
    busy.end();
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_captures_are_for_those_who_may_ask() {
    let home = Home::new();
    let agent = home.start(&[], "", "");
    let request = json!({"events": "sched:sched_switch"}).to_string();
    let status = |agent: &Agent, headers: &[(&str, &str)], method: &str, path: &str| {
        ask(agent.address(), method, path, headers, if method == "POST" { &request } else { "" }).unwrap().status
    };
    let list = "/api/v1/captures";
    let all = [("GET", list), ("POST", list), ("POST", "/api/v1/captures/alertmanager")];
    for (method, path) in all {
        assert_eq!(status(&agent, &[], method, path), 401, "{method} {path}");
        assert_eq!(status(&agent, &[("Authorization", "Bearer a-token-of-another-agent")], method, path), 401);
    }
    assert_eq!(agent.all_captures(), [] as [Value; 0]);
    let log = agent.log();
    assert_eq!(log.lines().filter(|line| line.contains("audit=true") && line.contains("denied")).count(), 6, "{log}");
    // A new token is asked for from now on.
    std::fs::write(home.token_file(), "another-token-of-more-than-16-bytes").unwrap();
    assert_eq!(agent.captures("GET", "", "").status, 401);
    assert_eq!(status(&agent, &[("Authorization", "Bearer another-token-of-more-than-16-bytes")], "GET", list), 200);
    agent.stop();

    // Without a token: loopback alone, and no web pages.
    let folder = Folder::new();
    let config = format!("captures: {{ dir: {} }}\n", folder.0.display());
    let agent = Setup { config: &config, ..Setup::default() }.start();
    assert_eq!(status(&agent, &[], "GET", list), 200);
    assert_eq!(status(&agent, &[("Origin", "http://evil.example")], "POST", list), 403);
    drop(agent);
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).to_string();
    let arguments = ["--web.listen-address", everywhere.as_str()];
    let agent = Setup { config: &config, arguments: &arguments, ..Setup::default() }.start();
    assert_eq!(status(&agent, &[], "GET", list), 403);
    drop(agent);
    let agent = Setup::default().start();
    assert_eq!(status(&agent, &[], "GET", list), 403, "captures are off");
}

#[test]
#[ignore = "needs root"]
fn root_captures_keep_their_quota() {
    const MIB: u64 = 1 << 20;
    let home = Home::new();
    let agent = home.start(&[], "max_total_bytes: 24MiB, max_bytes: 1MiB", "");
    let request = |bytes: &str| json!({"events": "raw_syscalls", "duration": "30s", "max_bytes": bytes});
    let refused = agent.captures("POST", "", &request("2MiB").to_string());
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("at most 1MiB"), "{refused:?}");
    let mut ids = Vec::new();
    while agent.scrape().sum("kstrobe_captures_evicted_total", &[("reason", "quota")]) == 0.0 {
        let id = agent.begin(&request("1MiB"));
        let capture = wait_for("all bytes", LIMIT, || {
            getppid_calls(10_000);
            Some(agent.capture(&id)).filter(|capture| capture["state"] != "running")
        });
        assert_eq!(capture["state"], "done", "{capture}");
        assert!(capture["notes"].to_string().contains("all the bytes"), "{capture}");
        let pages: usize = agent.recorded(&id).buffers[0].cpus.iter().map(|cpu| cpu.pages.len()).sum();
        assert_eq!(pages as u64, MIB);
        let stored = agent.scrape().sum("kstrobe_captures_stored_bytes", &[]);
        eprintln!("{} bytes, {stored} in all", capture["bytes"]);
        assert!(stored <= 24.0 * MIB as f64, "{stored}");
        ids.push(id);
        assert!(ids.len() < 100, "nothing was ever removed");
    }
    let left: Vec<Value> = agent.all_captures().iter().rev().map(|capture| capture["id"].clone()).collect();
    assert!(
        !left.is_empty() && ids.ends_with(&left.iter().map(|id| id.as_str().unwrap().to_owned()).collect::<Vec<_>>())
    );
    assert!(left.len() < ids.len());
    let folders = std::fs::read_dir(home.captures()).unwrap();
    assert_eq!(folders.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(), left.len());
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_an_alert_of_alertmanager_gets_one_capture() {
    if !witnesses("root_an_alert_of_alertmanager_gets_one_capture", &[alertmanager::PROGRAM]) {
        return;
    }
    let rules = "
rules:
  - name: disk
    capture: { events: sched:sched_switch, duration: 500ms }
";
    let home = Home::new();
    let agent = home.start(&[], "", rules);
    let alertmanager = Alertmanager::start(agent.address(), &home.token_file());
    let alert = |name: &str, rule: &str, end: Option<&str>| {
        let mut alert = json!({"labels": {"alertname": name, "node": "n1", "kstrobe_rule": rule}, "startsAt": "2026-01-01T00:00:00Z"});
        end.into_iter().for_each(|end| alert["endsAt"] = end.into());
        json!([alert])
    };
    alertmanager.push(&alert("DiskSlow", "disk", None));
    let id = wait_for("the alert's capture", LIMIT, || Some(agent.all_captures().first()?["id"].as_str()?.to_owned()));
    let capture = agent.ended(&id);
    assert_eq!(capture["state"], "done", "{capture}");
    assert_eq!((&capture["trigger"]["kind"], &capture["trigger"]["rule"]), (&json!("alertmanager"), &json!("disk")));
    assert_eq!(capture["trigger"]["why"], "alert DiskSlow");
    assert!(count(&agent.recorded(&id), |e| e.is("sched", "sched_switch")) > 0);
    wait_for("the alert again", LIMIT, || (agent.asked("disk", "duplicate") >= 2.0).then_some(()));
    alertmanager.push(&alert("DiskSlow", "disk", Some("2026-01-01T00:01:00Z")));
    wait_for("the alert's end", LIMIT, || (agent.asked("disk", "resolved") >= 1.0).then_some(()));
    // Others: too soon, of a rule that there is not, and of none.
    alertmanager.push(&alert("DiskFull", "disk", None));
    wait_for("another alert", LIMIT, || (agent.asked("disk", "cooldown") >= 1.0).then_some(()));
    alertmanager.push(&alert("NetSlow", "net", None));
    wait_for("an alert of no rule that there is", LIMIT, || {
        (agent.asked("unknown", "unknown_rule") >= 1.0).then_some(())
    });
    alertmanager.push(&alert("Other", "", None));
    wait_for("an alert without a rule", LIMIT, || {
        (agent.asked("alertmanager_default", "no_rule") >= 1.0).then_some(())
    });
    assert_eq!(agent.asked("disk", "started"), 1.0);
    assert_eq!(agent.all_captures().len(), 1);
    let log = agent.log();
    assert!(log.contains("start by alert") && !log.contains(TOKEN), "{log}");
    let counts: Vec<_> =
        agent.scrape().series("kstrobe_rule_captures_total", &[]).map(|(l, n)| format!("{l:?} {n}")).collect();
    eprintln!("{}", counts.join("\n"));
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_captures_of_an_agent_that_ends_or_is_killed() {
    let home = Home::new();
    // Few records: at its end the agent waits for a while only until all is written.
    let request = json!({"events": ["sched:sched_process_exit", "raw_syscalls:sys_enter"], "duration": "60s"});
    let recording = |agent: &Agent| {
        let id = agent.begin(&request);
        let own = format!("kstrobe-{}-", agent.pid());
        let names = move || instances().into_iter().filter(|name| name.starts_with(&own)).collect::<Vec<_>>();
        wait_for("its instance", LIMIT, || names().first().filter(|name| records(name)).map(|_| ()));
        // The first part of the trace is written then.
        std::thread::sleep(Duration::from_secs(1));
        getppid_calls(1000);
        (id, names)
    };
    let agent = home.start(&[], "", "");
    let (told, names) = recording(&agent);
    agent.stop();
    assert_eq!(names(), [""; 0], "an agent that ends removes its instances");

    let agent = home.start(&[], "", "");
    let capture = agent.capture(&told);
    assert_eq!(capture["state"], "cancelled", "{capture}");
    let trace = agent.recorded(&told);
    assert_eq!(trace.events().count() as u64, capture["records"].as_u64().unwrap());
    let calls = count(&trace, |e| e.is("raw_syscalls", "sys_enter") && e.pid() == nix::unistd::gettid().as_raw());
    assert!(calls >= 1000, "{calls}");

    let (killed, names) = recording(&agent);
    agent.kill();
    assert_eq!(names().len(), 1, "nobody was there to remove it");
    let agent = home.start(&[], "", "");
    assert_eq!(names(), [""; 0]);
    assert!(agent.log().contains("an interrupted capture was rescued"), "{}", agent.log());
    let capture = agent.capture(&killed);
    assert_eq!(capture["state"], "done", "{capture:#}");
    assert!(capture["notes"].to_string().contains("its recorder was killed"), "{capture:#}");
    let trace = agent.recorded(&killed);
    assert_eq!(trace.events().count() as u64, capture["records"].as_u64().unwrap());
    let calls = count(&trace, |e| e.is("raw_syscalls", "sys_enter") && e.pid() == nix::unistd::gettid().as_raw());
    assert!(calls >= 1000, "{calls}");
    let files = std::fs::read_dir(home.captures().join(&killed)).unwrap();
    assert_eq!(files.count(), 2, "capture.json and trace.dat");
    assert_eq!(agent.capture(&told)["state"], "cancelled", "the other one is there as before");
    agent.stop();
}
