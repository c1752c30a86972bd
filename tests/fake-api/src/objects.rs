//! Objects in the form in which `kubectl get -o json` shows them: pods of `node-a` with each kind of owner, and some of those owners;
//! and changed as a kubelet and controllers change them while a pod lives. They were written, not recorded: `cargo xtask helm`
//! validates them by Kubernetes' own schemas.

use serde_json::{Value, json};

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            pub fn $name() -> Value {
                let text = include_str!(concat!("../objects/", stringify!($name), ".json"));
                serde_json::from_str(text).expect("JSON")
            }
        )*
    };
}

objects! {
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
    backup_job,
    /// `shop/import-20261120-k2m9x`, of a job that has a date in its name and no CronJob.
    import,
    import_job,
    /// `kube-system/etcd-node-a`: a static pod's mirror, as the API server has it.
    etcd,
    /// The same pod as the kubelet has it.
    etcd_kubelet,
    /// `default/toolbox`, without an owner, with an ephemeral container.
    toolbox,
    /// `shop/checkout-68d9c7f5b-tq4wz` of a Rollout of Argo.
    canary,
}

/// All pods of `node-a`, as the API server has them.
pub fn node_a() -> Vec<Value> {
    let pods = [web, web_pending, web_terminating, mysql, node_exporter, backup, import, etcd, toolbox, canary];
    pods.iter().map(|pod| pod()).collect()
}

/// A pod of a Deployment, distinguished from its others by a number, whose container `app` is being made.
pub fn deployed(namespace: &str, deployment: &str, number: u32, uid: &str) -> Value {
    let owner = format!("{deployment}-5d8f7c9b6d");
    let mut pod = called(web(), namespace, &format!("{owner}-{number:05}"), uid, &owner);
    being_made(&mut pod);
    pod
}

/// The first pod of a StatefulSet, whose containers `mysql` and `exporter` are being made. The next one has its name.
pub fn stateful(namespace: &str, set: &str, uid: &str) -> Value {
    let mut pod = called(mysql(), namespace, &format!("{set}-0"), uid, set);
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

/// As a pod has them at this time: no container has an id.
fn being_made(pod: &mut Value) {
    let status = &mut pod["status"];
    status.as_object_mut().expect("a status").remove("initContainerStatuses");
    status["phase"] = json!("Pending");
    for container in status["containerStatuses"].as_array_mut().expect("containers") {
        let name = container["name"].take();
        *container = web_pending()["status"]["containerStatuses"][0].take();
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
