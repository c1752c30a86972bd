//! The chart's custom resources: by the API server, and as the agent carries them out.

use super::owners::{SHOP, WEB};
use crate::cluster::Cluster;
use crate::cluster::certificates::NODE_NAME;
use crate::cluster::client::{NAMESPACE, page, samples};
use crate::cluster::network::{API_PORT, NODE};
use crate::cluster::process::until;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

/// How long an object may take to be carried out.
const SOON: Duration = Duration::from_secs(120);

/// The API server takes the definitions, and judges right and wrong objects as the chart's tests expect.
pub fn judged(cluster: &mut Cluster) -> Result<String> {
    cluster
        .client
        .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}).to_string())?;
    let [authority, certificate, key] =
        ["ca.crt", "admin.crt", "admin.key"].map(|name| cluster.certificates.path(name));
    cluster.chart.judge(&format!("https://{NODE}:{API_PORT}"), &authority, [&certificate, &key])
}

/// A `Capture` is done on the node of the pods that it selects, and a `Probe` counts.
pub fn carried_out(cluster: &mut Cluster) -> Result<String> {
    let (label, value) = WEB.split_once('=').unwrap_or((WEB, ""));
    let object = |kind: &str, spec: Value| json!({"apiVersion": "kstrobe.dev/v1alpha1", "kind": kind, "metadata": {"name": "test", "namespace": NAMESPACE}, "spec": spec});
    let mut selector = json!({"matchLabels": {}});
    selector["matchLabels"][label] = json!(value);
    let capture = json!({"podNamespace": SHOP, "podSelector": selector,
        "capture": {"events": ["sched:sched_switch"], "duration": "2s"}});
    let probe = json!({"nodeName": NODE_NAME, "probe": {"probe": "of_the_cluster", "summary": "Programs started.",
        "at": "rawtracepoint:sched_process_exec", "metrics": {"of_the_cluster_total": {"type": "counter"}}}});
    cluster.client.apply(&object("Capture", capture).to_string())?;
    cluster.client.apply(&object("Probe", probe).to_string())?;
    let state = |kind: &str, wanted: &str| {
        until(kind, SOON, || {
            let object = cluster.client.json(&["-n", NAMESPACE, "get", kind, "test"])?;
            let of_node = &object["status"]["nodes"][NODE_NAME];
            ensure!(of_node["state"] == wanted, "{}", object["status"]);
            Ok(of_node.clone())
        })
    };
    let capture = state("captures.kstrobe.dev", "Done")?;
    ensure!(capture["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{capture}");
    state("probes.kstrobe.dev", "Attached")?;
    let (_, address) = cluster.client.agent()?;
    until("counts of the probe", SOON, || {
        let metrics = page(&address, "/metrics")?;
        let counts = samples(&metrics, "kstrobe_of_the_cluster_total");
        ensure!(counts.iter().any(|(_, value)| *value > 0.0), "{counts:?}");
        Ok(())
    })?;
    cluster.client.run(&["-n", NAMESPACE, "delete", "probes.kstrobe.dev", "test"])?;
    Ok(format!("a capture of {} bytes, and counts of a probe", capture["bytes"]))
}
