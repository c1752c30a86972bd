//! Labels and conditions by what a cgroup belongs to: groups of the test's own, with a load of known size in each.

mod support;

use std::time::Duration;
use support::agent::{Agent, Setup};
use support::groups::{self, COMM, Group, Legacy, unified};
use support::metrics::Metrics;
use support::prometheus::{self, JOBS, Prometheus};
use support::{emulated, not_run, wait_for, witnesses};

/// Names come with walks over all groups, which an emulated processor that others use too takes its time for.
fn limit() -> Duration {
    Duration::from_secs(if emulated() { 300 } else { 60 })
}

/// A process of these tests: goes into a cgroup and calls.
#[test]
#[ignore = "other tests run it"]
fn calls_in_a_group() {
    groups::calls();
}

/// Names that no other test has at the same time.
fn unit(name: &str) -> String {
    format!("kst-{}-{name}.service", std::process::id())
}

fn probes(chosen: &str) -> String {
    format!(
        "\
probe: grouped_calls
summary: Calls by unit.
at: syscall:getppid:enter
where: comm == \"{COMM}\"
metrics:
  grouped_calls_total: {{ type: counter, labels: {{ unit: unit, container: container, pod: pod, path: cgroup_path }} }}
---
probe: chosen_calls
summary: Calls of one unit.
at: syscall:getppid:enter
where: comm == \"{COMM}\" && {chosen}
metrics:
  chosen_calls_total: {{ type: counter, labels: {{ unit: unit }} }}
---
probe: chosen_spans
summary: Calls of one unit from their start to their end.
span: {{ start: \"syscall:getppid:enter\", end: \"syscall:getppid:exit\" }}
where: {chosen}
metrics:
  chosen_spans_seconds: {{ type: histogram, value: elapsed }}
"
    )
}

fn start(chosen: &str) -> Agent {
    start_under(&[], chosen)
}

fn start_under(under: &[&str], chosen: &str) -> Agent {
    let probes = probes(chosen);
    let config = "workloads: { walk: 500ms, grace: 1s, wait: 2s }\n";
    Setup { probes: &[("grouped", &probes)], config, under, ..Setup::default() }.start()
}

/// Waits until the maps of both conditions hold so many cgroups.
fn selected(agent: &Agent, count: f64) {
    wait_for("the conditions' cgroups", limit(), || {
        let now = agent.scrape();
        let held = |probe| now.sum("kstrobe_map_entries", &[("probe", probe), ("map", "ks_selected0")]);
        (held("chosen_calls") == count && held("chosen_spans") == count).then_some(())
    });
}

fn calls(metrics: &Metrics, unit: &str) -> f64 {
    metrics.sum("kstrobe_grouped_calls_total", &[("unit", unit)])
}

#[test]
#[ignore = "needs root"]
fn root_cgroups_are_chosen_by_the_beginning_of_their_paths() {
    let [one, two, other] = ["web-1", "web-2", "db"].map(unit);
    let groups = [&one, &two, &other].map(|name| Group::new(name));
    let beginning = one.trim_end_matches("1.service");
    let agent = start(&format!("glob(cgroup_path, \"/{beginning}*\") && !glob(unit, \"systemd-*\")"));
    selected(&agent, 2.0);
    groups.iter().zip([300, 200, 100]).for_each(|(group, count)| group.call(count));
    let counted = agent.scrape();
    assert_eq!([&one, &two, &other].map(|name| calls(&counted, name)), [300.0, 200.0, 100.0]);
    let chosen = |name: &str| counted.sum("kstrobe_chosen_calls_total", &[("unit", name)]);
    assert_eq!([&one, &two, &other].map(|name| chosen(name)), [300.0, 200.0, 0.0]);
}

#[test]
#[ignore = "needs root"]
fn root_each_load_is_counted_under_its_own_name_and_no_other() {
    let (first, second) = (unit("first"), unit("second"));
    let (a, b) = (Group::new(&first), Group::new(&format!("{second}/inside")));
    let id = "3f1c".repeat(16);
    let docker = Group::new(&format!("docker/{id}"));
    let agent = start(&format!("unit == \"{first}\""));
    selected(&agent, 1.0);
    // What it counts must be the same whoever runs at the same time.
    std::thread::scope(|scope| {
        scope.spawn(|| a.call(3000));
        scope.spawn(|| b.call(5000));
        scope.spawn(|| docker.call(700));
    });
    let counted = wait_for("the names of all", limit(), || {
        let now = agent.scrape();
        (now.sum("kstrobe_grouped_calls_total", &[]) == 8700.0).then_some(now)
    });
    let short = &id[..12];
    let docker_calls = counted.sum("kstrobe_grouped_calls_total", &[("container", short), ("unit", "")]);
    assert_eq!((calls(&counted, &first), calls(&counted, &second), docker_calls), (3000.0, 5000.0, 700.0));
    assert_eq!(counted.sum("kstrobe_grouped_calls_total", &[("path", &format!("/{second}/inside"))]), 5000.0);
    // Conditions let nothing else through, not even into a map.
    assert_eq!(counted.sum("kstrobe_chosen_calls_total", &[]), 3000.0);
    assert_eq!(counted.sum("kstrobe_chosen_calls_total", &[("unit", &first)]), 3000.0);
    let keys = counted.sum("kstrobe_map_entries", &[("probe", "chosen_calls"), ("map", "ks_index0")]);
    assert_eq!(keys, 1.0, "no key for what is not meant");
    let spans = counted.histogram("kstrobe_chosen_spans_seconds", &[]).count;
    assert!((3000.0..3100.0).contains(&spans), "{spans}: the test's process calls a little more than it is asked to");
    assert!(counted.sum("kstrobe_workloads_cgroups", &[("state", "named")]) >= 4.0);
    drop((docker, a, b));
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_groups_of_version_1_have_names_where_version_2_is_not_mounted() {
    let Some(legacy) = Legacy::new() else {
        return not_run(
            "root_groups_of_version_1_have_names_where_version_2_is_not_mounted",
            "version 2 has all controllers in use",
        );
    };
    let (first, second) = (unit("v1-first"), unit("v1-second"));
    let groups = [&first, &second].map(|name| Group::of_version_1(&legacy, name));
    // The agent sees what a host has that never mounted it.
    let script = format!("umount -l {} && exec \"$0\" \"$@\"", unified().display());
    let agent = start_under(
        &["unshare", "--mount", "--propagation", "private", "sh", "-c", &script],
        &format!("unit == \"{first}\""),
    );
    selected(&agent, 1.0);
    std::thread::scope(|scope| {
        scope.spawn(|| groups[0].call(3000));
        scope.spawn(|| groups[1].call(5000));
    });
    let counted = wait_for("the names of both", limit(), || {
        let now = agent.scrape();
        (now.sum("kstrobe_grouped_calls_total", &[]) == 8000.0).then_some(now)
    });
    assert_eq!((calls(&counted, &first), calls(&counted, &second)), (3000.0, 5000.0));
    assert_eq!(counted.sum("kstrobe_chosen_calls_total", &[("unit", &first)]), 3000.0);
    assert_eq!(counted.sum("kstrobe_chosen_calls_total", &[]), 3000.0);
    drop(groups);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_counts_of_a_group_that_ended_stay_while_another_has_its_name() {
    let name = unit("again");
    let first = Group::new(&name);
    let agent = start("unit == \"nobody.service\"");
    first.call(1000);
    wait_for("the first load", limit(), || (calls(&agent.scrape(), &name) == 1000.0).then_some(()));
    drop(first);
    // As a restarted service has it: the same path, another cgroup.
    let second = Group::new(&name);
    second.call(10);
    let evicted = |now: &Metrics| now.sum("kstrobe_series_evicted_total", &[("probe", "grouped_calls")]);
    let mut least = 1000.0;
    wait_for("the end of the first", limit(), || {
        let now = agent.scrape();
        let count = calls(&now, &name);
        assert!(count >= least, "{count} after {least}: a counter went back");
        least = count;
        (evicted(&now) >= 1.0).then_some(())
    });
    assert_eq!(calls(&agent.scrape(), &name), 1010.0);
    second.call(5);
    assert_eq!(calls(&agent.scrape(), &name), 1015.0);
    let now = agent.scrape();
    assert_eq!(now.sum("kstrobe_chosen_calls_total", &[]), 0.0, "nobody was meant");
    drop(second);
    wait_for("the end of the series", limit(), || {
        (!agent.scrape().has("kstrobe_grouped_calls_total", &[("unit", &name)])).then_some(())
    });
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_prometheus_takes_nobody_for_the_pod_of_the_agent() {
    let test = "root_prometheus_takes_nobody_for_the_pod_of_the_agent";
    if !witnesses(test, &[prometheus::PROGRAM]) {
        return;
    }
    let name = unit("scraped");
    let group = Group::new(&name);
    let agent = start("unit == \"nobody.service\"");
    group.call(1000);
    let server = Prometheus::in_a_cluster(agent.address(), "monitoring", "kstrobe-x7k2p");
    for (job, _) in JOBS {
        let calls = format!("kstrobe_grouped_calls_total{{job=\"{job}\",unit=\"{name}\"");
        server.wait(&format!("{calls},namespace=\"monitoring\",pod=\"\"}}"), |calls| calls == 1000.0);
        assert_eq!(server.value(&format!("{calls},pod!=\"\"}}")), None, "{job}");
        // What is said of the agent itself has its pod's name.
        server.wait(&format!("kstrobe_scrapes_total{{job=\"{job}\",pod=\"kstrobe-x7k2p\"}}"), |scrapes| scrapes >= 1.0);
    }
    drop(group);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_reload_means_other_groups() {
    let (first, second) = (unit("one"), unit("two"));
    let (a, b) = (Group::new(&first), Group::new(&second));
    let agent = start(&format!("unit == \"{first}\""));
    selected(&agent, 1.0);
    a.call(100);
    b.call(200);
    assert_eq!(agent.scrape().sum("kstrobe_chosen_calls_total", &[]), 100.0);
    agent.write("probes/grouped.yaml", &probes(&format!("unit in [\"{first}\", \"{second}\"]")));
    agent.signal(nix::sys::signal::Signal::SIGHUP);
    selected(&agent, 2.0);
    let before = agent.scrape().sum("kstrobe_chosen_calls_total", &[]);
    a.call(10);
    b.call(20);
    let after = agent.scrape();
    assert_eq!(after.sum("kstrobe_chosen_calls_total", &[]) - before, 30.0);
    assert_eq!(calls(&after, &first) + calls(&after, &second), 330.0, "the other probe counts on");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_groups_that_live_for_a_millisecond_have_their_names() {
    const GROUPS: u64 = 500;
    let probes = probes("unit == \"nobody.service\"");
    let config = "workloads: { walk: 60s, grace: 300s, wait: 2s }\n";
    let agent = Setup { probes: &[("grouped", &probes)], config, ..Setup::default() }.start();
    wait_for("the first look", limit(), || {
        (agent.scrape().sum("kstrobe_workloads_cgroups", &[("state", "named")]) >= 1.0).then_some(())
    });
    let names = unit("brief-#");
    groups::call_briefly(&unified().join(&names), GROUPS, 3);
    let all = GROUPS as f64 * 3.0;
    let counted = wait_for("all calls", limit(), || {
        let now = agent.scrape();
        (now.sum("kstrobe_grouped_calls_total", &[]) == all).then_some(now)
    });
    let named = (0..GROUPS).map(|number| calls(&counted, &names.replace('#', &number.to_string())));
    let nameless = GROUPS as usize - named.filter(|calls| *calls == 3.0).count();
    assert_eq!(nameless, 0, "of {GROUPS} groups");
    assert_eq!(counted.sum("kstrobe_workloads_walk_errors_total", &[]), 0.0);
    agent.stop();
}
