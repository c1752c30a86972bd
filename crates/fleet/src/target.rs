//! Selects the agents for a capture from the pods of the API server.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Label selector for agent pods of any release of the chart; excludes its test pods.
pub const AGENTS: &str = "app.kubernetes.io/part-of=kstrobe,app.kubernetes.io/component=agent";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// `spec.nodeName`; empty until scheduled.
    pub node: String,
    /// Addresses of the pod and its node.
    pub addresses: Vec<String>,
    /// Whether the phase is `Running` and the pod is not being deleted.
    pub runs: bool,
    /// Whether the `Ready` condition is true.
    pub ready: bool,
    /// `metadata.creationTimestamp`; sorts by time as text.
    pub created: String,
    /// Kubernetes reason why the pod does not run.
    pub reason: String,
}

impl Pod {
    /// Reads an API object; `None` if it is no pod.
    pub fn from_object(object: &Value) -> Option<Pod> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (metadata, status) = (&object["metadata"], &object["status"]);
        let name = metadata["name"].as_str()?.to_owned();
        let phase = text(&status["phase"]);
        let ends = !metadata["deletionTimestamp"].is_null();
        let conditions = status["conditions"].as_array();
        let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
        let addresses = [&status["podIP"], &status["hostIP"]].map(text);
        let reason = text(&status["reason"]);
        Some(Pod {
            namespace: text(&metadata["namespace"]),
            name,
            uid: text(&metadata["uid"]),
            node: text(&object["spec"]["nodeName"]),
            addresses: addresses.into_iter().filter(|address| !address.is_empty()).collect(),
            runs: phase == "Running" && !ends,
            ready: conditions.is_some_and(|all| all.iter().any(ready)),
            created: text(&metadata["creationTimestamp"]),
            reason: if ends {
                "is being deleted".to_owned()
            } else if reason.is_empty() {
                phase
            } else {
                reason
            },
        })
    }

    /// `NAMESPACE/NAME`
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Node selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All nodes with an agent.
    All,
    /// Nodes by name.
    Nodes(BTreeSet<String>),
    /// Nodes that run these pods.
    Of(Vec<Pod>),
}

/// An agent that takes part in a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Node name.
    pub node: String,
    pub agent: Pod,
    /// Selected pods on the node, `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

/// A selected node without a usable agent, or a selected pod without a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Node name; empty for an unscheduled pod.
    pub node: String,
    pub reason: NoAgent,
}

/// Why a node has no usable agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAgent {
    #[error("no agent runs there")]
    None,
    #[error("its agent {agent} does not run: {reason}")]
    NotRunning {
        /// `NAMESPACE/NAME`
        agent: String,
        /// Kubernetes reason.
        reason: String,
    },
}

/// Returns one agent per selected node, sorted by node name, and the selected nodes without one.
pub fn choose(agents: &[Pod], wanted: &Wanted) -> (Vec<Target>, Vec<Missing>) {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for agent in agents.iter().filter(|agent| !agent.node.is_empty()) {
        by_node.entry(&agent.node).or_default().push(agent);
    }
    let mut missing = Vec::new();
    let mut nodes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    match wanted {
        Wanted::All => nodes.extend(by_node.keys().map(|node| (*node, Vec::new()))),
        Wanted::Nodes(names) => nodes.extend(names.iter().map(|node| (node.as_str(), Vec::new()))),
        Wanted::Of(pods) => {
            // Finished pods are still listed.
            for pod in pods.iter().filter(|pod| pod.runs) {
                nodes.entry(&pod.node).or_default().push(pod.full_name());
            }
        }
    }
    let mut targets = Vec::new();
    for (node, mut pods) in nodes {
        pods.sort();
        let here = by_node.get(node).map_or(&[][..], Vec::as_slice);
        // During a rollout a node has two agents.
        let best = here.iter().filter(|agent| agent.runs).max_by_key(|agent| (agent.ready, &agent.created));
        match (best, here.first()) {
            (Some(agent), _) => targets.push(Target { node: node.to_owned(), agent: (*agent).clone(), pods }),
            (None, Some(agent)) => {
                let reason = NoAgent::NotRunning { agent: agent.full_name(), reason: agent.reason.clone() };
                missing.push(Missing { node: node.to_owned(), reason });
            }
            (None, None) => {
                missing.push(Missing { node: node.to_owned(), reason: NoAgent::None });
            }
        }
    }
    (targets, missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, node: &str, phase: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "kstrobe", "creationTimestamp": "2026-11-21T10:00:00Z"},
            "spec": {"nodeName": node},
            "status": {"phase": phase, "podIP": "10.1.0.7", "hostIP": "192.0.2.1", "conditions": [{"type": "Ready", "status": "True"}]},
        })
    }

    fn read(object: &Value) -> Pod {
        Pod::from_object(object).unwrap()
    }

    #[test]
    fn a_pod_of_the_api() {
        let found = read(&pod("kstrobe-x", "n1", "Running"));
        assert!(found.runs && found.ready);
        assert_eq!(found.addresses, ["10.1.0.7", "192.0.2.1"]);
        assert_eq!(found.full_name(), "kstrobe/kstrobe-x");
        let mut ends = pod("kstrobe-x", "n1", "Running");
        ends["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z".into();
        assert!(!read(&ends).runs);
        let mut evicted = pod("kstrobe-x", "n1", "Failed");
        evicted["status"]["reason"] = "Evicted".into();
        assert_eq!(read(&evicted).reason, "Evicted");
        assert_eq!(Pod::from_object(&json!({"kind": "Status"})), None);
    }

    #[test]
    fn one_agent_for_each_node_that_is_wanted() {
        let mut newer = pod("a2", "n1", "Running");
        newer["metadata"]["creationTimestamp"] = "2026-11-21T11:00:00Z".into();
        let mut starting = pod("b2", "n2", "Running");
        starting["metadata"]["creationTimestamp"] = "2026-11-21T11:00:00Z".into();
        starting["status"]["conditions"] = json!([]);
        let objects = [
            pod("a1", "n1", "Running"),
            newer,
            pod("b1", "n2", "Running"),
            starting,
            pod("c1", "n3", "Pending"),
            pod("d1", "", "Pending"),
        ];
        let agents: Vec<Pod> = objects.iter().map(read).collect();
        let (targets, missing) = choose(&agents, &Wanted::All);
        let names: Vec<_> = targets.iter().map(|target| target.agent.name.as_str()).collect();
        assert_eq!(names, ["a2", "b1"], "the newer one, but not one that is not ready yet");
        assert_eq!(missing.len(), 1);
        assert!(missing[0].node == "n3" && missing[0].reason.to_string().contains("Pending"), "{missing:?}");

        let nodes = Wanted::Nodes(["n1", "n9"].map(String::from).into());
        let (targets, missing) = choose(&agents, &nodes);
        assert_eq!((targets.len(), missing.len()), (1, 1));
        assert_eq!(missing[0], Missing { node: "n9".into(), reason: NoAgent::None });

        let mysql = ["mysql-1", "mysql-0"].map(|name| read(&pod(name, "n2", "Running")));
        let ended = read(&pod("mysql-2", "n1", "Succeeded"));
        let (targets, missing) = choose(&agents, &Wanted::Of([&mysql[..], &[ended]].concat()));
        assert_eq!((targets.len(), missing.len()), (1, 0));
        assert_eq!(targets[0].pods, ["kstrobe/mysql-0", "kstrobe/mysql-1"]);
    }
}
