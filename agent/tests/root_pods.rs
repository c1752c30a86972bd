//! Labels and conditions by pod: cgroups with the paths of pods, a load of known size in each, and an API server that speaks the
//! real protocol. The load of one pod never appears under another, also across restarts and late news.

mod support;

use kstrobe_fake_api::{End, FakeApi, FakeKubelet};
use serde_json::json;
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::api::Home;
use support::groups::{self, COMM};
use support::metrics::Metrics;
use support::pods::{self, TestPod};
use support::{Folder, wait_for};

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
  pod_calls_total:
    type: counter
    labels: { namespace: namespace, pod: pod, container: container, workload: workload }
  workload_calls_total: { type: counter, labels: { workload: workload } }
---
probe: shop_calls
summary: Calls in one namespace.
at: syscall:getppid:enter
where: namespace in [\"shop\"] && comm == \"COMM\"
metrics:
  shop_calls_total: { type: counter, labels: { pod: pod } }
";

fn start(api: &FakeApi, wait: &str) -> (Agent, Folder) {
    pods::agent(api, &PROBES.replace("COMM", COMM), wait)
}

fn of(metrics: &Metrics, pod: &TestPod) -> f64 {
    metrics.sum("kstrobe_pod_calls_total", &[("pod", &pod.name)])
}

fn meant(agent: &Agent, count: f64) {
    pods::meant(agent, "shop_calls", count);
}

/// Makes 3000 calls in one pod and 5000 in the other, and gives what is shown once all have names: each its own.
fn loads_of_both(agent: &Agent, a: &TestPod, b: &TestPod) -> Metrics {
    meant(agent, 2.0);
    if support::kernel() >= (7, 0) {
        // From Linux 7.0 on a task may lose its CPU within a program, which others then miss there: few at once.
        a.group.call(3000);
        b.group.call(5000);
    } else {
        std::thread::scope(|scope| {
            scope.spawn(|| a.group.call(3000));
            scope.spawn(|| b.group.call(5000));
        });
    }
    let mut seen = String::new();
    let counted = wait_for("both names", LIMIT, || {
        let now = agent.scrape();
        let missed = now.sum("kstrobe_program_missed_total", &[]);
        let next = format!("{} and {}, {missed} missed", of(&now, a), of(&now, b));
        if seen != next {
            println!("{next}");
            seen = next;
        }
        (of(&now, a) + of(&now, b) == 8000.0).then_some(now)
    });
    assert_eq!((of(&counted, a), of(&counted, b)), (3000.0, 5000.0));
    counted
}

#[test]
#[ignore = "needs root"]
fn root_the_load_of_a_pod_never_appears_under_another() {
    let api = FakeApi::start();
    let [a, b] = pods::shop_and_bank(&api, 1);
    let (agent, _folder) = start(&api, "30s");
    let counted = loads_of_both(&agent, &a, &b);
    let labels = [("namespace", "shop"), ("pod", &a.name), ("container", "app"), ("workload", "web")];
    assert_eq!(counted.sum("kstrobe_pod_calls_total", &labels), 3000.0);
    assert_eq!(counted.sum("kstrobe_shop_calls_total", &[]), 3000.0);
    assert_eq!(counted.sum("kstrobe_map_entries", &[("probe", "shop_calls"), ("map", "ks_index0")]), 1.0);

    // A restart: another pod of the same workload, another uid, another container, while the API server loses us.
    api.end_watches(End::Cut);
    api.compact();
    api.remove(&a.object);
    let old = a.name.clone();
    drop(a);
    let next = TestPod::new("shop", "web", 3);
    api.put(next.object.clone());
    meant(&agent, 2.0);
    next.group.call(700);
    let after = wait_for("the next pod's name", LIMIT, || {
        let now = agent.scrape();
        (of(&now, &next) == 700.0).then_some(now)
    });
    assert!(after.sum("kstrobe_pod_calls_total", &[("pod", &old)]) <= 3000.0, "nothing more under the old name");
    let marks = wait_for("marks of pods", LIMIT, || {
        // 400 until the first whole second with the metric is over.
        let answer = agent.json_once_there("/api/v1/query?metric=pod_calls_total&from=-120&to=0")?;
        let marks = answer["marks"].as_array()?.iter().filter(|mark| mark["kind"] == "pod");
        let texts: Vec<String> = marks.filter_map(|mark| Some(mark["text"].as_str()?.to_owned())).collect();
        (texts.len() >= 3).then_some(texts)
    });
    let next = format!("shop/{}", next.name);
    let expected =
        [format!("pod shop/{old} ends"), format!("pod {next} begins"), format!("container app of pod {next} begins")];
    assert_eq!(marks, expected, "pods that were there before make none");
    assert_eq!(of(&after, &b), 5000.0);
    // By workload it is one series, which never goes back, also when the old pod's key does.
    wait_for("the end of the old pod's series", LIMIT, || {
        let now = agent.scrape();
        assert_eq!(now.sum("kstrobe_workload_calls_total", &[("workload", "web")]), 3700.0);
        (!now.has("kstrobe_pod_calls_total", &[("pod", &old)])).then_some(())
    });
    agent.stop();
}

/// The kubelet signs its own certificate, and is asked every ten seconds; the API server is asked for owners alone.
#[test]
#[ignore = "needs root"]
fn root_names_of_pods_come_from_the_kubelet_too() {
    let (api, kubelet) = (FakeApi::start(), FakeKubelet::start());
    kubelet.set_token(&api.token());
    let [a, b] = [TestPod::new("shop", "web", 31), TestPod::new("bank", "ledger", 32)];
    kubelet.set_pods(vec![a.object.clone(), b.object.clone()]);
    let folder = Folder::new();
    let file = folder.write("kubeconfig", &api.kubeconfig());
    let config = format!(
        "kubernetes: {{ source: kubelet, node: node-a, kubeconfig: {}, kubelet_url: '{}' }}\n\
         workloads: {{ walk: 500ms, grace: 1s, wait: 60s }}\n",
        file.display(),
        kubelet.url()
    );
    let probes = PROBES.replace("COMM", COMM);
    let agent = Setup { probes: &[("pods", &probes)], config: &config, ..Setup::default() }.start();
    let counted = loads_of_both(&agent, &a, &b);
    assert_eq!(counted.sum("kstrobe_shop_calls_total", &[("pod", &a.name)]), 3000.0);
    assert_eq!((api.count("list pods"), api.count("watch pods")), (0, 0));

    // It is away while a pod comes: nothing is shown under another's name, and all of it once it is back.
    kubelet.set_down(true);
    wait_for("a failure", LIMIT, || {
        let failures = agent.scrape().sum("kstrobe_kubernetes_failures_total", &[("request", "kubelet")]);
        (failures > 0.0).then_some(())
    });
    let next = TestPod::new("shop", "web", 33);
    next.group.call(700);
    let now = agent.scrape();
    assert_eq!((of(&now, &a), of(&now, &b), of(&now, &next)), (3000.0, 5000.0, 0.0));
    kubelet.set_pods(vec![a.object.clone(), b.object.clone(), next.object.clone()]);
    kubelet.set_down(false);
    let limit = Duration::from_secs(120);
    wait_for("the next pod's name", limit, || (of(&agent.scrape(), &next) == 700.0).then_some(()));
    let now = agent.scrape();
    assert_eq!((of(&now, &a), of(&now, &b)), (3000.0, 5000.0));
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_pod_that_is_told_late_waits_for_its_name() {
    let api = FakeApi::start();
    let (agent, _folder) = start(&api, "30s");
    let pod = TestPod::new("shop", "late", 4);
    pod.group.call(100);
    wait_for("the key that waits", LIMIT, || {
        (agent.scrape().sum("kstrobe_series_waiting", &[("probe", "pod_calls")]) >= 1.0).then_some(())
    });
    assert!(!agent.scrape().has("kstrobe_pod_calls_total", &[]), "absent is not nameless");
    api.put(pod.object.clone());
    let named = wait_for("the name", LIMIT, || {
        let now = agent.scrape();
        now.has("kstrobe_pod_calls_total", &[("pod", &pod.name)]).then_some(now)
    });
    assert_eq!(named.sum("kstrobe_pod_calls_total", &[]), 100.0, "nothing under any other name");
    assert_eq!(named.sum("kstrobe_pod_calls_total", &[("workload", "late")]), 100.0);
    meant(&agent, 2.0);
    pod.group.call(10);
    assert_eq!(agent.scrape().sum("kstrobe_shop_calls_total", &[("pod", &pod.name)]), 10.0);
    agent.stop();
}

/// Captures of pods: of what happens on the node, the recording has the pod's part.
#[test]
#[ignore = "needs root"]
fn root_a_capture_of_a_pod_has_nobody_elses_events() {
    let api = FakeApi::start();
    let [shop, bank] = pods::shop_and_bank(&api, 51);
    let home = Home::new();
    let agent = home.start(&[], "max_duration: 60s", &pods::cluster(&home.write("kubeconfig", &api.kubeconfig())));
    let mut busy = [&shop, &bank].map(|pod| pod.group.spawn("sh -c 'while :; do sleep 0.01; done'"));
    let record = |pods: &[String]| {
        let id = agent.begin(&json!({ "events": "raw_syscalls:sys_enter", "pods": pods, "duration": "2s" }));
        (agent.ended(&id), id)
    };
    let (ended, id) = record(&[format!("shop/{}", shop.name)]);
    assert_eq!(ended["state"], "done", "{ended}");
    let trace = agent.recorded(&id);
    let calls = |pid: u32| trace.events().filter(|event| event.pid().cast_unsigned() == pid).count();
    assert!(calls(busy[0].id()) > 10, "{} of the pod's shell", calls(busy[0].id()));
    assert_eq!(calls(busy[1].id()), 0, "of the other pod's");
    assert_eq!(calls(agent.pid()), 0, "of the agent");

    for wanted in ["bank/".to_owned() + &shop.name, "shop/nobody".to_owned()] {
        let (ended, _) = record(std::slice::from_ref(&wanted));
        let error = ended["error"].as_str().unwrap_or_default();
        let told = error.contains(&wanted) && error.contains("is not on this node");
        assert!(ended["state"] == "failed" && told, "{ended}");
    }
    busy.iter_mut().for_each(|shell| {
        shell.kill().unwrap();
        shell.wait().unwrap();
    });
    agent.stop();
}
