//! What the agent does when what it depends on is killed.

use super::owners::named;
use crate::apt::finished;
use crate::cluster::Cluster;
use crate::cluster::client::{page, sum};
use crate::cluster::control::ETCD;
use crate::cluster::network::inside;
use crate::cluster::process::until;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// How long a killed program and all that hangs on it may take to be back.
const BACK_WITHIN: Duration = Duration::from_secs(180);
/// How long it is away: several of the agent's attempts fail meanwhile.
const AWAY: Duration = Duration::from_secs(10);

/// Counts go on while the API server is away, with the labels that are known; then new pods have theirs.
pub fn api_server(cluster: &mut Cluster) -> Result<String> {
    let (_, address) = cluster.client.agent()?;
    let counted = |address: &str| -> Result<f64> {
        Ok(sum(&page(address, "/metrics")?, "kstrobe_cluster_forks_total", &["workload=\"web\""]))
    };
    let before = counted(&address)?;
    cluster.control.api_server.kill()?;
    sleep(AWAY);
    let away = counted(&address)?;
    ensure!(away > before, "without an API server nothing was counted: {before}, then {away}");
    page(&address, "/readyz").context("without an API server the agent is not ready")?;
    cluster.control.api_server.again()?;
    back(cluster)?;
    let seen = named(cluster, "after-api-server", BACK_WITHIN)?;
    Ok(format!("{} events meanwhile, then {seen}", away - before))
}

fn back(cluster: &mut Cluster) -> Result<()> {
    until("the API server", BACK_WITHIN, || {
        cluster.control.running()?;
        cluster.client.run(&["get", "--raw", "/readyz"])
    })
    .map(drop)
}

/// While the API server is away, etcd forgets all versions: the agent's watch cannot go on from its own, and it lists again.
pub fn gone(cluster: &mut Cluster) -> Result<String> {
    let (_, address) = cluster.client.agent()?;
    let seen = |what: &str, label: &str| -> Result<f64> { Ok(sum(&page(&address, "/metrics")?, what, &[label])) };
    let gone = || seen("kstrobe_kubernetes_failures_total", "reason=\"gone\"");
    let lists = || seen("kstrobe_kubernetes_events_total", "event=\"lists\"");
    let before = (gone()?, lists()?);
    cluster.control.api_server.kill()?;
    // Versions of the API server are etcd's revisions: each key that is written is another one.
    let mut revision = 0;
    for _ in 0..20 {
        revision = put()?;
    }
    etcd("kv/compaction", &format!(r#"{{"revision": "{revision}", "physical": true}}"#))?;
    cluster.control.api_server.again()?;
    back(cluster)?;
    let after = until("another list", BACK_WITHIN, || {
        let after = (gone()?, lists()?);
        ensure!(
            after.0 > before.0 && after.1 > before.1,
            "versions that are gone and lists: {before:?}, then {after:?}"
        );
        Ok(after)
    })?;
    let seen = named(cluster, "after-gone", BACK_WITHIN)?;
    Ok(format!("{} times 410, {} lists, then {seen}", after.0 - before.0, after.1 - before.1))
}

/// Writes a key that Kubernetes does not look at; its revision.
fn put() -> Result<u64> {
    // "kstrobe" and "x" in base64.
    let answer = etcd("kv/put", r#"{"key": "a3N0cm9iZQ==", "value": "eA=="}"#)?;
    let revision = answer["header"]["revision"].as_str().context("etcd names no revision")?;
    Ok(revision.parse()?)
}

fn etcd(path: &str, body: &str) -> Result<Value> {
    let [nsenter, net] = inside();
    let url = format!("{ETCD}/v3/{path}");
    let answer = finished(Command::new(nsenter).arg(net).args(["curl", "-sf", "--max-time", "20", "-d", body, &url]))?;
    Ok(serde_json::from_str(&answer)?)
}

/// Containers go on without a kubelet, and so do their counts; then new pods have their labels.
pub fn kubelet(cluster: &mut Cluster) -> Result<String> {
    let (pod, address) = cluster.client.agent()?;
    let counted = || -> Result<f64> {
        Ok(sum(&page(&address, "/metrics")?, "kstrobe_cluster_forks_total", &["workload=\"web\""]))
    };
    let before = counted()?;
    cluster.node.kubelet.kill()?;
    sleep(AWAY);
    let away = counted()?;
    ensure!(away > before, "without a kubelet nothing was counted: {before}, then {away}");
    cluster.node.kubelet.again()?;
    let seen = named(cluster, "after-kubelet", BACK_WITHIN)?;
    cluster.node.running()?;
    let (now, _) = until("the agent", BACK_WITHIN, || cluster.client.agent())?;
    ensure!(now == pod, "the agent's pod was made anew: {pod}, then {now}");
    Ok(format!("{} events meanwhile, then {seen}", away - before))
}
