//! The agent in the cluster: installed, ready, upgraded, gone.

use crate::cluster::Cluster;
use crate::cluster::client::{self, NAMESPACE, page, samples};
use crate::cluster::process::until;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// How long the agent may take to be ready: a development build on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(300);

/// The token of the agent's API.
pub const TOKEN: &str = "0123456789abcdef-of-a-test";

/// The namespace and the Secret, which the chart does not make.
fn prepare(cluster: &Cluster) -> Result<()> {
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kstrobe-token", "namespace": NAMESPACE},
            "stringData": {"token": TOKEN}}),
    ];
    // One after the other: the second needs the first.
    objects.iter().try_for_each(|object| cluster.client.apply(&object.to_string()))
}

/// `helm install`, which waits until all is ready.
pub fn installed(cluster: &mut Cluster) -> Result<String> {
    prepare(cluster)?;
    cluster.chart.helm(&cluster.client.kubeconfig, "install", &[&cluster.chart.values.display().to_string()])
}

/// The same objects without Helm, for a Kubernetes that is too old for the chart: it drops the fields that it does not know.
pub fn applied(cluster: &mut Cluster) -> Result<String> {
    prepare(cluster)?;
    let mut definitions = 0;
    for file in fs::read_dir(&cluster.chart.definitions)? {
        cluster.client.apply(&fs::read_to_string(file?.path())?)?;
        definitions += 1;
    }
    for kind in ["captures", "probes"] {
        until("the definitions", Duration::from_secs(60), || cluster.client.run(&["get", kind, "-A"]))?;
    }
    let objects = cluster.chart.render()?;
    cluster.client.apply(&objects)?;
    Ok(format!("{} objects, {definitions} definitions", objects.matches("\nkind: ").count()))
}

/// Its pod is ready, and each hook of each probe is attached.
pub fn ready(cluster: &mut Cluster) -> Result<String> {
    let client = &cluster.client;
    let (_, address) = until("the agent", READY_WITHIN, || client.agent())?;
    let metrics = page(&address, "/metrics")?;
    let attached = samples(&metrics, "kstrobe_probe_attached");
    let not: Vec<&str> = attached.iter().filter(|(_, value)| *value < 1.0).map(|(labels, _)| *labels).collect();
    ensure!(!attached.is_empty() && not.is_empty(), "not attached: {}", not.join(", "));
    let nodes = client.json(&["get", "nodes"])?;
    let runtime = nodes["items"][0]["status"]["nodeInfo"]["containerRuntimeVersion"].as_str();
    let runtime = runtime.context("the node names no runtime")?;
    ensure!(runtime.starts_with("containerd://"), "{runtime}");
    Ok(format!("{} hooks, {runtime}", attached.len()))
}

/// `helm upgrade` with another value, `helm rollback`, and `helm test`.
pub fn upgraded(cluster: &mut Cluster) -> Result<String> {
    let values = fs::read_to_string(&cluster.chart.values)?;
    let changed = cluster.folder.join("changed.yaml");
    fs::write(&changed, format!("{values}podLabels: {{ changed: \"yes\" }}\n"))?;
    let labelled = |cluster: &Cluster| -> Result<bool> {
        let set = cluster.client.json(&["-n", NAMESPACE, "get", "daemonset", "kstrobe"])?;
        Ok(set["spec"]["template"]["metadata"]["labels"]["changed"] == "yes")
    };
    let helm = |action: &str, more: &[&str]| cluster.chart.helm(&cluster.client.kubeconfig, action, more);
    helm("upgrade", &[&changed.display().to_string()])?;
    ensure!(labelled(cluster)?, "the upgrade changed nothing");
    helm("rollback", &[])?;
    ensure!(!labelled(cluster)?, "the rollback changed nothing");
    until("the agent", READY_WITHIN, || cluster.client.agent())?;
    helm("test", &[])?;
    let last: Value = serde_json::from_str(&helm("status", &[])?)?;
    Ok(last.to_string())
}

/// `helm uninstall` leaves nothing of the release but the definitions, which Helm keeps.
pub fn uninstalled(cluster: &mut Cluster) -> Result<String> {
    cluster.chart.helm(&cluster.client.kubeconfig, "uninstall", &[])?;
    let kinds = "daemonsets,services,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings";
    until("all objects to be gone", Duration::from_secs(60), || {
        let left =
            cluster.client.run(&["get", kinds, "-A", "-l", "app.kubernetes.io/instance=kstrobe", "-o", "name"])?;
        ensure!(left.trim().is_empty(), "left: {left}");
        ensure!(client::is_gone(cluster)?, "the agent's pod is still there");
        Ok(())
    })?;
    Ok("nothing is left".to_owned())
}
