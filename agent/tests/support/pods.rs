//! Pods of `node-a` in a fake API server, and agents that ask it.

use super::agent::{Agent, Setup};
use super::groups::Group;
use super::{Folder, wait_for};
use kstrobe_fake_api::FakeApi;
use kstrobe_fake_api::objects::{deployed, runs};
use kstrobe_testing::containers::Driver;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

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
