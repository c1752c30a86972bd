//! Identity of a pod and its containers.

use crate::owner::Owner;
use crate::path::Runtime;
use std::sync::Arc;

/// A pod of this node, from the API server or the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`
    pub uid: Arc<str>,
    /// Annotation `kubernetes.io/config.hash`: a static pod's uid on its node, and so in the paths of its groups; the API server
    /// has given its mirror pod another one.
    pub config_hash: Option<Arc<str>>,
    /// `metadata.namespace`
    pub namespace: Arc<str>,
    /// `metadata.name`
    pub name: Arc<str>,
    /// `spec.nodeName`
    pub node: Option<Arc<str>>,
    /// Top-level owner, such as the Deployment of a ReplicaSet; `None` without an owner.
    pub owner: Option<Owner>,
    /// Default container: that of the `kubectl.kubernetes.io/default-container` annotation, else the first.
    pub main: Option<Arc<str>>,
    /// Containers in `status`: init, regular and ephemeral ones, and those before a restart (`lastState`).
    pub containers: Vec<Container>,
}

/// A container with a current or last id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Id without the runtime, as in cgroup paths: see [`Container::parse_id`].
    pub id: Arc<str>,
    /// Container name in the pod.
    pub name: Arc<str>,
    /// Whether the container is running.
    pub running: bool,
}

impl Pod {
    /// Workload of the pod; a pod without an owner is its own. So is a static pod, without the node name that the kubelet appends.
    pub fn workload(&self) -> Owner {
        let made = self.owner.clone().filter(|owner| &*owner.kind != "Node");
        made.unwrap_or_else(|| {
            let name = self.config_hash.as_ref().and(self.name_on_every_node()).map(Arc::from);
            Owner { kind: "Pod".into(), name: name.unwrap_or_else(|| self.name.clone()) }
        })
    }

    /// The name without `-NODE`, which is in small letters there.
    fn name_on_every_node(&self) -> Option<&str> {
        let node = self.node.as_ref()?.to_lowercase();
        self.name.strip_suffix(&node)?.strip_suffix('-').filter(|name| !name.is_empty())
    }

    /// The name of the container with this id.
    pub fn container(&self, id: &str) -> Option<&Arc<str>> {
        self.containers.iter().find(|container| &*container.id == id).map(|container| &container.name)
    }
}

impl Container {
    /// The id in a `containerID` of the API, such as `containerd://3f1c`, and which runtime it is; `None` while there is no
    /// container.
    pub fn parse_id(text: &str) -> Option<(Option<Runtime>, &str)> {
        let (runtime, id) = match text.split_once("://") {
            Some((scheme, id)) => (Runtime::of_scheme(scheme), id),
            None => (None, text),
        };
        (!id.is_empty()).then_some((runtime, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_the_api() {
        assert_eq!(Container::parse_id("containerd://3f1c"), Some((Some(Runtime::Containerd), "3f1c")));
        assert_eq!(Container::parse_id("cri-o://3f1c"), Some((Some(Runtime::CriO), "3f1c")));
        assert_eq!(Container::parse_id("docker://3f1c"), Some((Some(Runtime::Docker), "3f1c")));
        assert_eq!(Container::parse_id("frakti://3f1c"), Some((None, "3f1c")));
        assert_eq!(Container::parse_id("3f1c"), Some((None, "3f1c")));
        assert_eq!(Container::parse_id("containerd://"), None);
        assert_eq!(Container::parse_id(""), None);
    }

    #[test]
    fn a_pod_without_an_owner_stands_for_itself() {
        let owner = |kind: &str, name: &str| Owner { kind: kind.into(), name: name.into() };
        let mut pod = Pod {
            uid: "u".into(),
            config_hash: None,
            namespace: "shop".into(),
            name: "web-0".into(),
            node: None,
            owner: Some(owner("StatefulSet", "web")),
            main: None,
            containers: Vec::new(),
        };
        assert_eq!(pod.workload(), owner("StatefulSet", "web"));
        pod.owner = None;
        assert_eq!(pod.workload(), owner("Pod", "web-0"));
        pod.owner = Some(owner("Node", "node-1"));
        assert_eq!(pod.workload(), owner("Pod", "web-0"));
    }

    #[test]
    fn a_static_pod_has_one_workload_on_all_nodes() {
        let workload = |name: &str, node: &str, hash: Option<&str>| {
            let pod = Pod {
                uid: "u".into(),
                config_hash: hash.map(Arc::from),
                namespace: "kube-system".into(),
                name: name.into(),
                node: Some(node.into()),
                owner: None,
                main: None,
                containers: Vec::new(),
            };
            pod.workload().name.to_string()
        };
        assert_eq!(workload("etcd-node-a", "node-a", Some("h")), "etcd");
        assert_eq!(workload("kube-apiserver-node-a.example", "Node-A.example", Some("h")), "kube-apiserver");
        assert_eq!(workload("etcd-node-b", "node-a", Some("h")), "etcd-node-b");
        assert_eq!(workload("-node-a", "node-a", Some("h")), "-node-a");
        assert_eq!(workload("etcd-node-a", "node-a", None), "etcd-node-a", "a user-chosen name");
    }
}
