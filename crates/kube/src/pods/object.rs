//! Reads `Pod` objects.

use kstrobe_workloads::{Container, Owner, Pod};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pod with its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePod {
    /// Identity and containers.
    pub pod: Pod,
    /// `metadata.labels`
    pub labels: BTreeMap<String, String>,
    /// Direct controller from `metadata.ownerReferences`: the ReplicaSet where `pod.owner` is the Deployment.
    pub controller: Option<Owner>,
}

/// Reads an object of the API server or the kubelet; `None` if it is no pod.
pub fn pod(object: &Value) -> Option<NodePod> {
    let metadata = &object["metadata"];
    let labels = object_of_texts(&metadata["labels"]);
    let controller = controller(object);
    Some(NodePod {
        pod: Pod {
            uid: text(&metadata["uid"])?,
            config_hash: config_hash(metadata, controller.as_ref()),
            namespace: text(&metadata["namespace"])?,
            name: text(&metadata["name"])?,
            node: text(&object["spec"]["nodeName"]),
            owner: controller.as_ref().map(|owner| owner.by_name(|label| labels.get(label).map(String::as_str))),
            main: main_container(object),
            containers: containers(&object["status"]),
        },
        labels,
        controller,
    })
}

/// The controlling owner reference.
pub fn controller(object: &Value) -> Option<Owner> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some(Owner { kind: text(&owner["kind"])?, name: text(&owner["name"])? })
}

/// Uid of a static pod on its node. Users choose annotations, so this one is trusted only on pods that the kubelet created: from
/// a file, or as a mirror pod, whose owner is the node.
fn config_hash(metadata: &Value, controller: Option<&Owner>) -> Option<Arc<str>> {
    let hash = text(&metadata["annotations"]["kubernetes.io/config.hash"])?;
    let is_mirror = controller.is_some_and(|owner| &*owner.kind == "Node");
    // The kubelet lists the static pod itself under this uid.
    let is_own = text(&metadata["uid"]).as_ref() == Some(&hash);
    (is_mirror || is_own).then_some(hash)
}

/// Default container of `kubectl logs` and `kubectl exec`.
fn main_container(object: &Value) -> Option<Arc<str>> {
    let all = || object["spec"]["containers"].as_array().into_iter().flatten().filter_map(|one| text(&one["name"]));
    let said = text(&object["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]);
    said.filter(|said| all().any(|name| name == *said)).or_else(|| all().next())
}

/// Distinct containers of all kinds with a current or last id.
fn containers(status: &Value) -> Vec<Container> {
    let mut found: Vec<Container> = Vec::new();
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    for one in lists.iter().filter_map(|list| status[*list].as_array()).flatten() {
        let Some(name) = text(&one["name"]) else { continue };
        let running = one["state"]["running"].is_object();
        let ids = [
            (&one["containerID"], running),
            (&one["state"]["terminated"]["containerID"], false),
            (&one["lastState"]["terminated"]["containerID"], false),
        ];
        for (id, running) in ids {
            let id = id.as_str().and_then(Container::parse_id).map(|(_, id)| id);
            if let Some(id) = id.filter(|id| found.iter().all(|container| &*container.id != *id)) {
                found.push(Container { id: id.into(), name: name.clone(), running });
            }
        }
    }
    found
}

fn text(value: &Value) -> Option<Arc<str>> {
    value.as_str().filter(|text| !text.is_empty()).map(Arc::from)
}

fn object_of_texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_fake_api::objects;

    fn read(object: Value) -> Pod {
        pod(&object).unwrap().pod
    }

    fn workload(object: Value) -> String {
        let workload = read(object).workload();
        format!("{} {}", workload.kind, workload.name)
    }

    #[test]
    fn a_pod_of_a_deployment() {
        let NodePod { pod, labels, .. } = pod(&objects::web()).unwrap();
        assert_eq!((&*pod.namespace, &*pod.name), ("shop", "web-5d8f7c9b6d-x7k2p"));
        assert_eq!((&*pod.uid, pod.node.as_deref()), ("6a1c9e52-0f5b-4d0e-9f3a-1c2d3e4f5a6b", Some("node-a")));
        assert_eq!((pod.config_hash.as_deref(), labels["app"].as_str()), (None, "web"));
        let containers: Vec<_> = pod.containers.iter().map(|c| (&*c.name, c.running, c.id.len())).collect();
        // After a restart the previous container is kept from `lastState`.
        let expected = [("migrate", false, 64), ("envoy", true, 64), ("app", true, 64), ("app", false, 64)];
        assert_eq!(containers, expected);
        assert_eq!(pod.container(&pod.containers[3].id).map(|name| &**name), Some("app"));
    }

    #[test]
    fn owners_of_pods() {
        for (object, expected) in [
            (objects::web(), "Deployment web"),
            (objects::mysql(), "StatefulSet mysql"),
            (objects::node_exporter(), "DaemonSet node-exporter"),
            (objects::backup(), "CronJob backup"),
            // By name alone; the Job object says otherwise.
            (objects::import(), "CronJob import"),
            (objects::canary(), "Rollout checkout"),
            (objects::toolbox(), "Pod toolbox"),
            (objects::etcd(), "Pod etcd"),
            (objects::etcd_kubelet(), "Pod etcd"),
        ] {
            assert_eq!(workload(object), expected);
        }
    }

    #[test]
    fn a_static_pod_is_known_by_its_hash() {
        let hash = Some("8f3c1b7a5d9e2f4c6a8b0d1e3f5a7c9b");
        let mirror = read(objects::etcd());
        assert_eq!((mirror.config_hash.as_deref(), &*mirror.uid), (hash, "55556666-7777-4888-8999-aaaabbbbcccc"));
        let own = read(objects::etcd_kubelet());
        assert_eq!((own.config_hash.as_deref(), Some(&*own.uid)), (hash, hash));
        // A user-created pod with the annotation of another one.
        let mut pretender = objects::toolbox();
        pretender["metadata"]["annotations"] =
            serde_json::json!({"kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file"});
        assert_eq!(read(pretender).config_hash, None);
    }

    #[test]
    fn containers_of_all_kinds_and_of_none() {
        let names = |object| read(object).containers.iter().map(|c| c.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(objects::toolbox()), ["toolbox", "debugger-4x2fk"]);
        assert_eq!(names(objects::web_pending()), [""; 0]);
        assert_eq!(names(objects::backup()), ["dump"]);
        let mut web = objects::web();
        assert_eq!(read(web.clone()).main, web["spec"]["containers"][0]["name"].as_str().map(Arc::from));
        let last = web["spec"]["containers"].as_array().unwrap().last().unwrap()["name"].clone();
        web["metadata"]["annotations"] = serde_json::json!({"kubectl.kubernetes.io/default-container": last});
        assert_eq!(read(web.clone()).main.as_deref(), last.as_str());
        web["metadata"]["annotations"] = serde_json::json!({"kubectl.kubernetes.io/default-container": "gone"});
        assert_eq!(read(web.clone()).main.as_deref(), web["spec"]["containers"][0]["name"].as_str());
        assert!(pod(&serde_json::json!({"metadata": {"name": "a", "namespace": "b"}})).is_none());
        assert!(pod(&Value::Null).is_none());
    }
}
