//! Pods of `node-a` in a fake API server: recorded objects, changed as a kubelet and controllers change them while a pod lives.

use super::agent::{Agent, Setup};
use super::groups::Group;
use super::{Folder, wait_for};
use kstrobe_fake_api::{FakeApi, objects};
use kstrobe_witness::containers::Driver;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// A pod of a Deployment, told from its others by a number, whose container `app` is being made.
pub fn deployed(namespace: &str, deployment: &str, number: u32, uid: &str) -> Value {
    let owner = format!("{deployment}-5d8f7c9b6d");
    let mut pod = called(objects::web(), namespace, &format!("{owner}-{number:05}"), uid, &owner);
    being_made(&mut pod);
    pod
}

/// The first pod of a StatefulSet, whose containers `mysql` and `exporter` are being made. The next one has its name.
pub fn stateful(namespace: &str, set: &str, uid: &str) -> Value {
    let mut pod = called(objects::mysql(), namespace, &format!("{set}-0"), uid, set);
    being_made(&mut pod);
    pod
}

fn called(mut pod: Value, namespace: &str, name: &str, uid: &str, owner: &str) -> Value {
    let metadata = &mut pod["metadata"];
    metadata["namespace"] = json!(namespace);
    metadata["name"] = json!(name);
    metadata["uid"] = json!(uid);
    metadata["ownerReferences"][0]["name"] = json!(owner);
    pod
}

/// As in a recorded pod at this time: no container has an id.
fn being_made(pod: &mut Value) {
    let status = &mut pod["status"];
    status.as_object_mut().expect("a status").remove("initContainerStatuses");
    status["phase"] = json!("Pending");
    for container in status["containerStatuses"].as_array_mut().expect("containers") {
        let name = container["name"].take();
        *container = objects::web_pending()["status"]["containerStatuses"][0].take();
        container["name"] = name;
    }
}

/// A container of it runs under this id, `RUNTIME://ID`. One that ran before has ended.
pub fn runs(pod: &mut Value, container: &str, id: &str) {
    let status = &mut pod["status"];
    status["phase"] = json!("Running");
    let all = status["containerStatuses"].as_array_mut().expect("containers");
    let status = all.iter_mut().find(|status| status["name"] == container).expect("a container of this name");
    if status["state"]["running"].is_object() {
        let restarts = status["restartCount"].as_u64().expect("a number");
        status["lastState"] = json!({"terminated": {"containerID": status["containerID"], "exitCode": 137}});
        status["restartCount"] = json!(restarts + 1);
    }
    status["containerID"] = json!(id);
    status["state"] = json!({"running": {"startedAt": "2026-11-20T09:02:11Z"}});
    (status["ready"], status["started"]) = (json!(true), json!(true));
}

/// A pod of a Deployment that runs, with a group of the test's own for its container `app`.
pub struct TestPod {
    pub name: String,
    pub object: Value,
    pub group: Group,
}

impl TestPod {
    /// `number` makes its uid and its container's id.
    pub fn new(namespace: &str, deployment: &str, number: u32) -> TestPod {
        let uid = format!("{:08x}-0f5b-4d0e-9f3a-{number:012x}", std::process::id());
        let id = format!("{number:08x}").repeat(8);
        let mut object = deployed(namespace, deployment, number, &uid);
        runs(&mut object, "app", &format!("containerd://{id}"));
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let group = Group::new(&Driver::Systemd.container(&uid, "cri-containerd", &id));
        TestPod { name, object, group }
    }
}

/// A pod in the namespace `shop` and one in `bank`, of which the server knows. `number` tells them from those of other tests.
pub fn shop_and_bank(api: &FakeApi, number: u32) -> [TestPod; 2] {
    let pods = [TestPod::new("shop", "web", number), TestPod::new("bank", "ledger", number + 1)];
    pods.iter().for_each(|pod| drop(api.put(pod.object.clone())));
    pods
}

/// The part of a configuration that makes an agent one of `node-a`.
pub fn cluster(kubeconfig: &Path) -> String {
    format!("kubernetes: {{ source: api, node: node-a, kubeconfig: {} }}\n", kubeconfig.display())
}

/// An agent of `node-a` that asks this server, over TLS and with a token.
pub fn agent(api: &FakeApi, probes: &str, wait: &str) -> (Agent, Folder) {
    agent_under(&[], api, probes, wait)
}

/// The same, started by another program.
pub fn agent_under(under: &[&str], api: &FakeApi, probes: &str, wait: &str) -> (Agent, Folder) {
    let folder = Folder::new();
    let kubeconfig = folder.write("kubeconfig", &api.kubeconfig());
    let config = format!("{}workloads: {{ walk: 500ms, grace: 1s, wait: {wait} }}\n", cluster(&kubeconfig));
    let agent = Setup { probes: &[("pods", probes)], config: &config, under, ..Setup::default() }.start();
    (agent, folder)
}

/// Waits until so many groups may pass a probe's condition. The pod's own group is meant as well as its container's, whose name
/// is told with the pod.
pub fn meant(agent: &Agent, probe: &str, count: f64) {
    wait_for("the condition's cgroups", Duration::from_secs(60), || {
        let labels = [("probe", probe), ("map", "ks_selected0")];
        (agent.scrape().sum("kstrobe_map_entries", &labels) == count).then_some(())
    });
}
