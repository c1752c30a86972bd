//! Objects as `kubectl get -o json` shows them: pods of `node-a` with each kind of owner, and some of those owners.

use serde_json::Value;

macro_rules! recorded {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            pub fn $name() -> Value {
                let text = include_str!(concat!("../objects/", stringify!($name), ".json"));
                serde_json::from_str(text).expect("recorded JSON")
            }
        )*
    };
}

recorded! {
    /// `shop/web-5d8f7c9b6d-x7k2p` of the Deployment `web`: an init container that has ended, a sidecar, and an application that
    /// was restarted once.
    web,
    /// Another pod of the same ReplicaSet, whose container is still being made.
    web_pending,
    /// A pod of an older ReplicaSet that is being deleted.
    web_terminating,
    /// The ReplicaSet of `web`.
    web_replicaset,
    /// `shop/mysql-0` of a StatefulSet, with two containers.
    mysql,
    /// `monitoring/node-exporter-8zq4d` of a DaemonSet, in the node's network, by CRI-O.
    node_exporter,
    /// `shop/backup-29384756-r8s2k`, which has ended: of a job of the CronJob `backup`.
    backup,
    /// The job of `backup`.
    backup_job,
    /// `shop/import-20261120-k2m9x`, of a job that has a date in its name and no CronJob.
    import,
    /// The job of `import`.
    import_job,
    /// `kube-system/etcd-node-a`: a static pod's mirror, as the API server has it.
    etcd,
    /// The same pod as the kubelet has it.
    etcd_kubelet,
    /// `default/toolbox`, which nobody made, with an ephemeral container.
    toolbox,
    /// `shop/checkout-68d9c7f5b-tq4wz` of a Rollout of Argo.
    canary,
}

/// All pods of `node-a`, as the API server has them.
pub fn node_a() -> Vec<Value> {
    let pods = [web, web_pending, web_terminating, mysql, node_exporter, backup, import, etcd, toolbox, canary];
    pods.iter().map(|pod| pod()).collect()
}
