//! An id of a cgroup that means another pod than before. Kernels with 64 bits never give one twice, so that the agent is shown
//! it: in a mount namespace of its own, in which the groups of two pods change places.

mod support;

use kstrobe_fake_api::FakeApi;
use std::process::Command;
use std::time::Duration;
use support::agent::Agent;
use support::groups::{self, COMM};
use support::pods::{self, TestPod};
use support::{Folder, output, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// A process of these tests: goes into a cgroup and calls.
#[test]
#[ignore = "other tests run it"]
fn calls_in_a_group() {
    groups::calls();
}

const PROBES: &str = "\
probe: pod_calls
summary: Calls by pod.
at: syscall:getppid:enter
where: comm == \"COMM\"
metrics:
  pod_calls_total: { type: counter, labels: { namespace: namespace, pod: pod } }
---
probe: shop_calls
summary: Calls in one namespace.
at: syscall:getppid:enter
where: namespace == \"shop\" && comm == \"COMM\"
metrics:
  shop_calls_total: { type: counter, labels: { pod: pod } }
";

/// Has the agent see each pod's group at the place of the other's.
fn swap(agent: &Agent, a: &TestPod, b: &TestPod) {
    let aside = Folder::new();
    // What is mounted over cannot be reached any more: both are taken aside first.
    let script = "set -e; mkdir \"$1/a\" \"$1/b\"; mount --bind \"$2\" \"$1/a\"; mount --bind \"$3\" \"$1/b\"; \
                  mount --bind \"$1/b\" \"$2\"; mount --bind \"$1/a\" \"$3\"; umount \"$1/a\" \"$1/b\"";
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--target", &agent.pid().to_string(), "sh", "-c", script, "sh"]);
    output(command.arg(&aside.0).args([a.group.folder(), b.group.folder()]));
}

#[test]
#[ignore = "needs root"]
fn root_an_id_that_means_another_pod_takes_nothing_with_it() {
    let api = FakeApi::start();
    let [a, b] = pods::shop_and_bank(&api, 41);
    let alone = ["unshare", "--mount", "--propagation", "private"];
    let (agent, _folder) = pods::agent_under(&alone, &api, &PROBES.replace("COMM", COMM), "30s");
    pods::meant(&agent, "shop_calls", 2.0);
    let counts = || {
        let now = agent.scrape();
        [&a, &b].map(|pod| now.sum("kstrobe_pod_calls_total", &[("pod", &pod.name)]))
    };
    a.group.call(3000);
    b.group.call(50);
    wait_for("both loads", LIMIT, || (counts() == [3000.0, 50.0]).then_some(()));
    assert_eq!(agent.scrape().sum("kstrobe_shop_calls_total", &[]), 3000.0);

    swap(&agent, &a, &b);
    wait_for("the keys that are given back", LIMIT, || {
        let now = agent.scrape();
        let [of_a, of_b] = [&a, &b].map(|pod| now.sum("kstrobe_pod_calls_total", &[("pod", &pod.name)]));
        assert!(of_a <= 3000.0 && of_b <= 50.0, "{of_a} {of_b}: what an id had counted came with it");
        // Two of the one probe, and one of the other.
        (now.sum("kstrobe_series_evicted_total", &[]) >= 3.0).then_some(())
    });
    assert!(agent.scrape().sum("kstrobe_workloads_reused_total", &[]) >= 2.0);
    // From here on the first group is the second pod's, and nothing of before is left in either.
    a.group.call(700);
    b.group.call(11);
    wait_for("both loads under their new names", LIMIT, || (counts() == [11.0, 700.0]).then_some(()));
    let now = agent.scrape();
    assert_eq!(now.sum("kstrobe_pod_calls_total", &[]), 711.0);
    // The condition follows: the id that passed does not any more.
    assert_eq!(now.sum("kstrobe_shop_calls_total", &[("pod", &a.name)]), 11.0);
    assert_eq!(now.sum("kstrobe_shop_calls_total", &[]), 11.0);
    agent.stop();
}
