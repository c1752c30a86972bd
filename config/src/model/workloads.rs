//! What is asked about the workloads of a node.

use super::Spanned;

/// `kubernetes:` where the names of pods come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// `source:` default [`PodSource::Auto`].
    pub source: PodSource,
    /// `node:` the name of this node; absent means the variable `NODE_NAME`, else the host's name.
    pub node: Option<String>,
    /// `kubelet_url:` default `https://NODE_IP:10250` where the variable says the node's address, else `https://127.0.0.1:10250`.
    pub kubelet_url: Option<String>,
    /// `kubelet_ca:` a path to the authorities of the kubelet's certificate; absent means those of the system, and that a kubelet on
    /// this host is taken as it is.
    pub kubelet_ca: Option<String>,
    /// `kubeconfig:` a path; absent means the service account of the agent's pod.
    pub kubeconfig: Option<String>,
}

/// Where the agent gets the pods of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodSource {
    /// The API server where there is a service account or a kubeconfig; else no source.
    #[default]
    Auto,
    /// The API server.
    Api,
    /// The kubelet of this node.
    Kubelet,
    /// No source: cgroups are named by their paths.
    None,
}

/// One of `probes.override:` what is added to a probe, or to all of a pack, without its file being changed.
#[derive(Clone, Debug)]
pub struct Override {
    /// Of a probe or a pack.
    pub name: Spanned<String>,
    /// `labels:` names of workloads by which its metrics are split besides.
    pub labels: Vec<Spanned<String>>,
    /// `where:` a condition besides its own.
    pub filter: Option<Spanned<String>>,
    /// `max_series:` of its metrics, in place of their own.
    pub max_series: Option<u32>,
}

/// `workloads:` how cgroups are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workloads {
    /// `walk:` nanoseconds between two looks at which cgroups there are, default 5s.
    pub walk_ns: u64,
    /// `grace:` nanoseconds for which the names and series of a cgroup are kept after its end, default 60s.
    pub grace_ns: u64,
    /// `wait:` nanoseconds that a series waits for the names of its cgroup before it is shown without, default 30s.
    pub wait_ns: u64,
    /// `sandboxes:` which series have what no container of a pod does, default `pod`.
    pub sandboxes: Sandboxes,
}

/// What a pod does outside of its containers: its sandbox (`pause`) and what the runtime does to set it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sandboxes {
    /// It is counted with the pod's main container.
    #[default]
    Pod,
    /// It is left out of the pod, and counted with what is in no pod.
    Node,
    /// It has series of its own, in which `container` is empty.
    Apart,
}
