//! Owners of events: pods of all kinds of controllers, and the labels that the agent gives them.

use crate::cluster::client::{page, samples};
use crate::cluster::node::static_pods;
use crate::cluster::process::until;
use crate::cluster::{Cluster, images};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// Namespace of the workloads.
pub const SHOP: &str = "shop";
/// The label by which `kubectl kstrobe` and a `Capture` find the pods of the Deployment.
pub const WEB: &str = "app=web";
/// The first version in which CronJob is stable.
const CRON_JOB: (u32, u32) = (1, 21);
/// How long a CronJob, which starts once a minute, and its labels may take.
const SOON: Duration = Duration::from_secs(240);

/// A pod that starts processes for as long as it runs.
fn pod(restarts: bool) -> Value {
    json!({
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": false,
        "restartPolicy": if restarts { "Always" } else { "Never" },
        "containers": [{"name": "work", "image": images::BUSYBOX, "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "while /bin/true; do /bin/sleep 0.2; done"]}],
    })
}

fn template(name: &str, restarts: bool) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": pod(restarts)})
}

fn object(api: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": SHOP, "labels": {"app": name}}, "spec": spec})
}

fn set(name: &str, more: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template(name, true)});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// One of each kind: the agent's labels say namespace, container and workload of each, and the pod that the API server knows.
pub fn labels(cluster: &mut Cluster) -> Result<String> {
    let cron_api = if cluster.version < CRON_JOB { "batch/v1beta1" } else { "batch/v1" };
    let job = json!({"template": template("backup", false)});
    let cron = json!({"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job}});
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}}),
        object("apps/v1", "Deployment", "web", &set("web", &json!({"replicas": 2}))),
        object("apps/v1", "StatefulSet", "db", &set("db", &json!({"serviceName": "db"}))),
        object("apps/v1", "DaemonSet", "scan", &set("scan", &json!({}))),
        object("batch/v1", "Job", "import", &json!({"template": template("import", false)})),
        object(cron_api, "CronJob", "backup", &cron),
        object("v1", "Pod", "toolbox", &pod(true)),
    ];
    for object in &objects {
        cluster.client.apply(&object.to_string())?;
    }
    let own = object("v1", "Pod", "proxy", &pod(true));
    fs::write(static_pods(&cluster.folder).join("proxy.json"), own.to_string())?;
    let workloads = ["web", "db", "scan", "import", "backup", "toolbox", "proxy"];
    let seen = until("labels of all workloads", SOON, || labelled(cluster, &workloads))?;
    Ok(format!("{seen} pods of {}", workloads.join(", ")))
}

/// Each running pod of these workloads has a series with its names; their number.
fn labelled(cluster: &Cluster, workloads: &[&str]) -> Result<usize> {
    let (_, address) = cluster.client.agent()?;
    let metrics = page(&address, "/metrics")?;
    let series = samples(&metrics, "kstrobe_cluster_forks_total");
    let pods = cluster.client.json(&["-n", SHOP, "get", "pods", "--field-selector", "status.phase=Running"])?;
    let pods = pods["items"].as_array().context("no list of pods")?;
    let mut seen = 0;
    for workload in workloads {
        let own: Vec<&str> = pods
            .iter()
            .filter(|pod| pod["metadata"]["labels"]["app"] == *workload)
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .collect();
        ensure!(!own.is_empty(), "no pod of {workload} runs");
        for pod in own {
            let wanted = [format!("namespace=\"{SHOP}\""), format!("pod=\"{pod}\""), "container=\"work\"".to_owned()];
            let found = series.iter().find(|(labels, _)| wanted.iter().all(|label| labels.contains(label.as_str())));
            let (labels, value) = found.with_context(|| format!("no series has the labels {}", wanted.join(", ")))?;
            let named = [format!("workload=\"{workload}\""), format!("workload=\"{workload}-")];
            // A static pod's has the node's name behind it.
            let right = labels.contains(&named[0]) || (*workload == "proxy" && labels.contains(&named[1]));
            ensure!(right && *value > 0.0, "{labels} {value}, and the workload is {workload}");
            seen += 1;
        }
    }
    Ok(seen)
}

/// A pod that is made while the agent runs.
pub fn watched(cluster: &mut Cluster) -> Result<String> {
    named(cluster, "late", SOON)
}

/// Makes a pod and waits until the agent counts under its name.
pub fn named(cluster: &Cluster, name: &str, limit: Duration) -> Result<String> {
    cluster.client.apply(&object("v1", "Pod", name, &pod(true)).to_string())?;
    until("labels of a new pod", limit, || labelled(cluster, &[name]))?;
    Ok(format!("the pod {name}"))
}
