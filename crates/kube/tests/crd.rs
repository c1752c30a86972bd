//! Captures and probes as objects: what nodes write into them, all at once and with failures.

mod support;

use kstrobe_fake_api::{FakeApi, Fault};
use kstrobe_kube::crd::{
    CAPTURES, CaptureState, Kind, NodeCapture, PROBES, Probe, Reporter, Step, capture, node_labels, probe, watched,
};
use kstrobe_kube::watch::{Change, follow};
use kstrobe_kube::{Client, Counters};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use support::client;

const MADE: &str = "2026-11-20T08:15:32Z";

fn object(kind: &str, spec: Value) -> Value {
    let metadata = json!({"name": "slow", "namespace": "kstrobe", "creationTimestamp": MADE});
    json!({"apiVersion": "kstrobe.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
}

fn captures(api: &FakeApi) -> Value {
    api.get("apis/kstrobe.dev/v1alpha1/captures", "kstrobe", "slow").unwrap()
}

fn reporter(client: Client, kind: Kind) -> Reporter {
    let backoff =
        kstrobe_kube::watch::backoff::Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(100) };
    Reporter { client, counters: Arc::new(Counters::default()), kind, backoff, settle: Duration::from_millis(20) }
}

/// What the node has to write, given what it has.
fn reports(object: &Value, node: &str, own: NodeCapture) -> Vec<kstrobe_kube::crd::Report> {
    let capture = capture::read(object).unwrap();
    let has = BTreeMap::from([(capture.head.uid.clone(), own)]);
    let me = kstrobe_kube::crd::Me { node, labels: &BTreeMap::new(), pods: &[] };
    let steps = capture::steps(&[capture], &me, &has, 0);
    steps.into_iter().filter_map(|step| if let Step::Report(report) = step { Some(report) } else { None }).collect()
}

fn own(state: CaptureState, message: Option<&str>) -> NodeCapture {
    NodeCapture { state, message: message.map(str::to_owned), ..NodeCapture::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_write_into_one_object() {
    let api = FakeApi::start();
    let made = api.put(object("Capture", json!({"capture": {"events": ["sched"]}})));
    let client = client(&api);
    let mut tasks = Vec::new();
    for number in 0..20 {
        let (made, reporter) = (made.clone(), reporter(client.clone(), Kind::Capture));
        tasks.push(tokio::spawn(async move {
            let node = format!("node-{number}");
            for state in [CaptureState::Running, if number == 7 { CaptureState::Failed } else { CaptureState::Done }] {
                let message = (state == CaptureState::Running).then_some("recording");
                for report in reports(&made, &node, own(state, message)) {
                    reporter.write(&report).await.unwrap();
                }
            }
            reporter.counters.counts()
        }));
    }
    let mut sums = (0, 0);
    for task in tasks {
        let counts = task.await.unwrap();
        assert_eq!(counts.event("status_entries"), 2);
        sums.0 += counts.event("status_sums");
        sums.1 += counts.event("status_sums_left_to_others");
    }
    let status = captures(&api)["status"].clone();
    assert_eq!(status["nodes"].as_object().unwrap().len(), 20);
    // Whatever order they came in, the last one has summed up.
    assert_eq!(
        (&status["running"], &status["done"], &status["failed"]),
        (&json!(0), &json!(19), &json!(1)),
        "{sums:?}"
    );
    let done = &status["nodes"]["node-3"];
    assert_eq!((&done["state"], done.get("message")), (&json!("Done"), None), "the earlier message is removed");
    assert_eq!(captures(&api)["spec"], made["spec"]);
}

#[tokio::test]
async fn entries_are_written_in_spite_of_failures() {
    let api = FakeApi::start();
    let made = api.put(object("Capture", json!({"capture": {"events": ["sched"]}})));
    let reporter = reporter(client(&api), Kind::Capture);
    for fault in [
        Fault::Status(409, "Conflict", "Operation cannot be fulfilled: the object has been modified"),
        Fault::TooMany(1),
        Fault::Status(500, "InternalError", "etcdserver: leader changed"),
        Fault::Close,
    ] {
        api.next("patch captures/status", fault);
    }
    let report = reports(&made, "node-a", own(CaptureState::Done, None)).remove(0);
    reporter.write(&report).await.unwrap();
    assert_eq!(captures(&api)["status"]["nodes"]["node-a"]["state"], "Done");
    let counts = reporter.counters.counts();
    let failures: Vec<u64> = ["conflict", "throttled", "server_error", "connection"]
        .iter()
        .map(|why| counts.failure("status", why))
        .collect();
    assert_eq!(failures, [1, 1, 1, 1]);

    // Somebody else's change between an entry and the sums.
    api.forbid("patch captures/status");
    let error = reporter.write(&report).await.unwrap_err();
    assert_eq!(error.reason(), "forbidden");
    api.permit("patch captures/status");

    // The same name, another object: the entry of the first does not stay in it.
    api.remove(&made);
    let other = api.put(object("Capture", json!({"capture": {"events": ["net"]}})));
    assert_ne!(made["metadata"]["uid"], other["metadata"]["uid"]);
    reporter.write(&report).await.unwrap();
    assert_eq!(captures(&api)["status"], json!({"nodes": {}}));
    api.remove(&other);
    reporter.write(&report).await.unwrap();
}

#[tokio::test]
async fn objects_are_watched_in_their_namespace() {
    let api = FakeApi::start();
    api.put(object("Probe", json!({"yaml": "name: x\n"})));
    let mut elsewhere = object("Probe", json!({"yaml": "name: y\n"}));
    elsewhere["metadata"]["namespace"] = json!("default");
    api.put(elsewhere);
    let (sender, mut changes) = tokio::sync::mpsc::channel::<Change<Probe>>(8);
    let counters = Arc::new(Counters::default());
    let watching = watched(&PROBES, "kstrobe");
    let task = tokio::spawn(follow(client(&api), watching, probe::read, counters, sender));
    let Some(Change::Seen(first)) = changes.recv().await else { panic!("no probe") };
    assert_eq!((first.head.name.as_str(), first.head.generation), ("slow", 1));
    assert!(matches!(changes.recv().await, Some(Change::Synced)));
    api.put(object("Probe", json!({"probe": {"name": "x"}})));
    let Some(Change::Seen(second)) = changes.recv().await else { panic!("no change") };
    assert_eq!((second.head.generation, second.spec.unwrap().probe), (2, Some(json!({"name": "x"}))));
    let reporter = reporter(client(&api), Kind::Probe);
    let me = kstrobe_kube::crd::Me { node: "node-a", labels: &BTreeMap::new(), pods: &[] };
    let now = probe::read(&api.get("apis/kstrobe.dev/v1alpha1/probes", "kstrobe", "slow").unwrap()).unwrap();
    let state = kstrobe_kube::crd::NodeProbe {
        state: kstrobe_kube::crd::ProbeState::Refused,
        message: Some("no such hook".into()),
        observed_generation: 2,
    };
    let has = BTreeMap::from([(now.head.uid.clone(), state)]);
    for report in probe::reports(std::slice::from_ref(&now), &me, &has) {
        reporter.write(&report).await.unwrap();
    }
    let Some(Change::Seen(third)) = changes.recv().await else { panic!("no change") };
    assert_eq!(third.nodes["node-a"].message.as_deref(), Some("no such hook"));
    let stored = api.get("apis/kstrobe.dev/v1alpha1/probes", "kstrobe", "slow").unwrap();
    assert_eq!((&stored["status"]["failed"], &stored["metadata"]["generation"]), (&json!(1), &json!(2)));
    task.abort();
    assert_eq!(CAPTURES.plural, "captures");
}

#[tokio::test]
async fn labels_of_a_node() {
    let api = FakeApi::start();
    let labels = json!({"kubernetes.io/hostname": "node-a", "topology.kubernetes.io/zone": "a"});
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": labels}}));
    let found = node_labels(&client(&api), "node-a").await.unwrap();
    assert_eq!(found["topology.kubernetes.io/zone"], "a");
    assert!(node_labels(&client(&api), "node-b").await.unwrap_err().is(404));
}
