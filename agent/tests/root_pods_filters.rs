//! Conditions on pods end events in the kernel: what is counted, stored and sent for pods that are not meant is nothing, as
//! bpftool sees it in the maps themselves.

mod support;

use kstrobe::kernel::sys::prog::enable_stats;
use kstrobe_ebpf::layout::PASSES;
use kstrobe_fake_api::{FakeApi, objects};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::time::Duration;
use support::agent::Agent;
use support::containers::{Driver, Node, RUNC};
use support::groups;
use support::kernel_objects::{Kind, entries, held_by, runs};
use support::metrics::Metrics;
use support::{pods, wait_for, witnesses};
use syscalls::Sysno;

const LIMIT: Duration = Duration::from_secs(60);

/// A process of these tests: goes into a cgroup and calls.
#[test]
#[ignore = "other tests run it"]
fn calls_in_a_group() {
    groups::calls();
}

/// The hook is one that runs for this call alone, whoever makes it.
const COUNTER: &str = "\
probe: shop_calls
summary: Calls in one namespace.
at: tracepoint:syscalls:sys_enter_getppid
where: namespace == \"shop\"
metrics:
  shop_calls_total: { type: counter, labels: { pod: pod, comm: comm } }
slow: { when: pid > 0, max_per_second: 100000, fields: { comm: comm, pod: pod } }
";

/// Starts are kept in a hash, where they can be seen.
const SPAN: &str = "\
probe: shop_naps
summary: Naps in one namespace.
span: { start: \"syscall:clock_nanosleep:enter\", end: \"syscall:clock_nanosleep:exit\", by: pid }
where: namespace == \"shop\"
metrics:
  shop_naps_seconds: { type: histogram, value: elapsed, labels: { pod: pod } }
";

/// The one program or map whose name begins like this; the agent runs one probe.
#[track_caller]
fn held(agent: &Agent, kind: Kind, name: &str) -> u64 {
    let held = held_by(agent.pid(), kind);
    let found: Vec<u64> = held.iter().filter(|(_, held)| held.starts_with(name)).map(|(id, _)| *id).collect();
    let [one] = found[..] else { panic!("`{name}` among {held:?}") };
    one
}

/// What the maps hold that events write to.
type Written = [Vec<(Vec<u8>, Vec<u8>)>; 2];

fn written(agent: &Agent) -> Written {
    ["ks_index0", "ks_values0"].map(|name| {
        let all = entries(held(agent, Kind::Maps, name));
        all.into_iter().filter(|(_, value)| value.iter().any(|byte| *byte != 0)).collect()
    })
}

/// Ids of the groups that pass; the map has those of new groups, too, until they are decided.
fn passing(agent: &Agent) -> BTreeSet<u64> {
    let ids = entries(held(agent, Kind::Maps, "ks_selected0"));
    let passing = ids.into_iter().filter(|(_, says)| *says == PASSES.to_le_bytes());
    passing.map(|(key, _)| u64::from_le_bytes(key.try_into().expect("eight bytes"))).collect()
}

#[test]
#[ignore = "needs root"]
fn root_events_of_other_namespaces_end_in_the_kernel() {
    if !witnesses("root_events_of_other_namespaces_end_in_the_kernel", &["bpftool"]) {
        return;
    }
    let api = FakeApi::start();
    let [shop, bank] = pods::shop_and_bank(&api, 11);
    let (agent, _folder) = pods::agent(&api, COUNTER, "30s");
    pods::meant(&agent, "shop_calls", 2.0);
    let ids = passing(&agent);
    assert!(ids.contains(&shop.group.id()) && !ids.contains(&bank.group.id()), "{ids:?}");

    // The statistics of all programs at a hook are those of its entry.
    let program = held(&agent, Kind::Programs, "ks_entry");
    let _counting = enable_stats().expect("root may have statistics");
    // A tracepoint knows no groups: the program is entered for everybody, and leaves at its first look-up. Nothing is written.
    let before = runs(program);
    bank.group.call(20_000);
    let ran = runs(program) - before;
    assert!(ran >= 20_000, "{ran} runs for 20,000 calls");
    assert_eq!(written(&agent), Written::default());
    assert!(!agent.scrape().has("kstrobe_shop_calls_total", &[]));

    // The same program, the same calls, a pod that is meant.
    shop.group.call(3000);
    let [index, values] = written(&agent);
    assert!(!index.is_empty() && !values.is_empty(), "{index:?} {values:?}");
    let counted = agent.scrape();
    let labels = [("pod", &*shop.name), ("comm", groups::COMM)];
    assert_eq!(counted.sum("kstrobe_shop_calls_total", &labels), 3000.0);
    let all = counted.sum("kstrobe_shop_calls_total", &[]);

    // What is there stays byte for byte as it is.
    let before = runs(program);
    bank.group.call(20_000);
    assert!(runs(program) - before >= 20_000);
    assert_eq!(written(&agent), [index, values]);
    assert_eq!(agent.scrape().sum("kstrobe_shop_calls_total", &[]), all);
    // Of single events those that were counted were sent, and no others: they come in order.
    shop.group.call(10);
    let sent = |now: &Metrics| now.sum("kstrobe_slow_events_total", &[("probe", "shop_calls")]);
    let last = wait_for("the last event", LIMIT, || {
        let now = agent.scrape();
        (sent(&now) >= all + 10.0).then_some(now)
    });
    assert_eq!(sent(&last), last.sum("kstrobe_shop_calls_total", &[]));
    let (_, text) = agent.get("/api/v1/events?probe=shop_calls").unwrap();
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = answer["events"].as_array().unwrap();
    assert!(events.len() >= 10 && events.iter().all(|event| event["fields"]["pod"] == shop.name), "{text:.2000}");
    agent.stop();
}

/// What sleeps is in the middle of a span, if one began.
#[test]
#[ignore = "needs root"]
fn root_no_span_begins_for_other_namespaces() {
    if !witnesses("root_no_span_begins_for_other_namespaces", &["bpftool"]) {
        return;
    }
    let api = FakeApi::start();
    let [shop, bank] = pods::shop_and_bank(&api, 21);
    let (agent, _folder) = pods::agent(&api, SPAN, "30s");
    pods::meant(&agent, "shop_naps", 2.0);
    let open = held(&agent, Kind::Maps, "ks_open");
    let started = || -> Vec<u32> {
        let all = entries(open).into_iter();
        all.map(|(key, _)| u32::from_le_bytes(key[..4].try_into().expect("four bytes"))).collect()
    };
    let mut naps = [bank.group.spawn("sleep 5"), shop.group.spawn("sleep 5")];
    for nap in &naps {
        let pid = nap.id();
        wait_for("its nap", LIMIT, || {
            // The number of the call that it is in, and its arguments.
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            let number = call.split(' ').next()?.parse().ok()?;
            [Sysno::nanosleep, Sysno::clock_nanosleep].map(|call| call.id()).contains(&number).then_some(())
        });
    }
    // All others of this machine nap as well: the agent, its threads, this test.
    assert_eq!(started(), [naps[1].id()]);
    for nap in &mut naps {
        assert!(nap.wait().unwrap().success());
    }
    assert_eq!(started(), [0; 0]);
    let now = agent.scrape();
    assert_eq!(now.sum("kstrobe_shop_naps_seconds_count", &[("pod", &shop.name)]), 1.0);
    assert_eq!(now.sum("kstrobe_shop_naps_seconds_count", &[]), 1.0);
    assert_eq!(written(&agent)[0].len(), 1, "one key");
    // The ends of the others had no start, and are no loss.
    assert_eq!(now.sum("kstrobe_lost_total", &[("probe", "shop_naps")]), 0.0);
    agent.stop();
}

/// The same with what a real runtime starts.
#[test]
#[ignore = "needs root"]
fn root_a_condition_knows_containers() {
    if !witnesses("root_a_condition_knows_containers", &[RUNC, &["bpftool"]].concat()) {
        return;
    }
    let (api, node) = (FakeApi::start(), Node::new());
    let pod = |namespace, number| {
        let uid = Node::uid();
        (objects::deployed(namespace, "web", number, &uid), uid)
    };
    let probe =
        COUNTER.replace("sys_enter_getppid", "sys_enter_read").replace("\"shop\"", "\"shop\" && args.count == 7051");
    let (agent, _folder) = pods::agent(&api, &probe, "30s");
    let containers = [pod("shop", 31), pod("bank", 32)].map(|(mut object, uid)| {
        let id = Node::id();
        let container = node.runc(&Driver::Systemd.container(&uid, "cri-containerd", &id), &id, "busybox sleep 280");
        objects::runs(&mut object, "app", &format!("containerd://{id}"));
        api.put(object);
        container
    });
    let [shop, bank] = &containers;
    let ids = wait_for("the container's cgroup and its pod's", Duration::from_secs(60), || {
        let ids = passing(&agent);
        (ids.len() == 2 && ids.contains(&shop.cgroup_id())).then_some(ids)
    });
    assert!(!ids.contains(&bank.cgroup_id()), "{ids:?}");
    let reads = |count: u32| format!("busybox dd if=/dev/zero of=/dev/null bs=7051 count={count}");
    bank.run(&reads(5000));
    assert_eq!(written(&agent), Written::default());
    shop.run(&reads(2000));
    bank.run(&reads(5000));
    assert_eq!(agent.scrape().sum("kstrobe_shop_calls_total", &[]), 2000.0);
    assert_eq!(written(&agent)[0].len(), 1, "one key");
    agent.stop();
}

/// The condition is about its own calls alone.
const AT_ONCE: &str = "\
probe: shop_calls
summary: Calls in one namespace.
at: tracepoint:syscalls:sys_enter_getppid
where: comm == \"kst-workload\" && namespace in [\"shop\"]
metrics:
  shop_calls_total: { type: counter }
";

#[test]
#[ignore = "needs root"]
fn root_what_a_pod_does_at_once_is_counted_or_said_to_be_missing() {
    let api = FakeApi::start();
    let [shop, bank] = pods::shop_and_bank(&api, 31);
    let (agent, _folder) = pods::agent(&api, AT_ONCE, "30s");
    pods::meant(&agent, "shop_calls", 2.0);
    let undecided = || agent.scrape().sum("kstrobe_lost_total", &[("reason", "cgroup_undecided")]);
    // Containers whose ids no status has yet, in pods that are known.
    let container =
        |pod: &pods::TestPod| pod.group.folder().with_file_name(format!("cri-containerd-{}.scope", "ab#d".repeat(16)));
    // The agent stands still meanwhile: the kernel itself lets them pass, as joining a cgroup takes longer than to select it.
    agent.signal(Signal::SIGSTOP);
    groups::call_briefly(&container(&shop), 1, 5000);
    agent.signal(Signal::SIGCONT);
    let before = undecided();
    let counted = agent.scrape();
    assert_eq!(counted.sum("kstrobe_shop_calls_total", &[]), 5000.0);
    assert_eq!(before, 0.0, "the pod's own cgroup was known");
    groups::call_briefly(&container(&bank), 1, 5000);
    assert_eq!(agent.scrape().sum("kstrobe_shop_calls_total", &[]), 5000.0);
    // A pod that is not known at all: each call is counted as one that may have been meant.
    let before = undecided();
    let stranger = groups::Group::new(&Driver::Systemd.container(&"9".repeat(8), "cri-containerd", &"c".repeat(64)));
    stranger.call(700);
    assert_eq!(undecided() - before, 700.0);
    assert_eq!(agent.scrape().sum("kstrobe_shop_calls_total", &[]), 5000.0);
    agent.stop();
}
