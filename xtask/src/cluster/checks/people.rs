//! The agent's rights at the API server, and users' ways to the agent.

use super::agent::TOKEN;
use super::owners::{SHOP, WEB};
use crate::apt::finished;
use crate::cluster::Cluster;
use crate::cluster::client::{NAMESPACE, page, samples};
use crate::cluster::network::inside;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::process::Command;

/// The agent's own account, as RBAC names it.
const AGENT: &str = "system:serviceaccount:kstrobe:kstrobe";
/// An account that has the chart's role for users, and no other.
const PERSON: &str = "system:serviceaccount:kstrobe:person";

/// What the agent's account may do, and what it may not; and nothing was refused to the agent.
pub fn roles(cluster: &mut Cluster) -> Result<String> {
    let allowed = ["get pods", "list pods", "watch pods", "get replicasets.apps", "get jobs.batch", "get nodes"];
    let refused = [
        "get secrets",
        "create pods",
        "delete pods",
        "create pods/exec",
        "get pods/log",
        "list nodes",
        "watch jobs.batch",
        "update replicasets.apps",
        "impersonate users",
        "create serviceaccounts/token",
    ];
    for (questions, wanted) in [(&allowed[..], true), (&refused[..], false)] {
        for question in questions {
            let can = can(cluster, AGENT, SHOP, question)?;
            ensure!(can == wanted, "{AGENT} and `{question}` in {SHOP}: {can}");
        }
    }
    let (_, address) = cluster.client.agent()?;
    let metrics = page(&address, "/metrics")?;
    let failures = samples(&metrics, "kstrobe_kubernetes_failures_total");
    let forbidden: Vec<_> = failures.iter().filter(|(labels, _)| labels.contains("forbidden")).collect();
    ensure!(forbidden.is_empty(), "the agent asked for more than it may: {forbidden:?}");
    Ok(format!("{} allowed, {} refused", allowed.len(), refused.len()))
}

fn can(cluster: &Cluster, user: &str, namespace: &str, question: &str) -> Result<bool> {
    let (verb, resource) = question.split_once(' ').context("a verb and a resource")?;
    // After a slash kubectl takes the name of an object.
    let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
    let part = format!("--subresource={part}");
    let (success, said) =
        cluster.client.ask(&["-n", namespace, "auth", "can-i", verb, resource, &part, "--as", user])?;
    let answer = said.lines().find(|line| matches!(*line, "yes" | "no"));
    ensure!(answer.is_some_and(|answer| (answer == "yes") == success), "can-i {question}: {said}");
    Ok(success)
}

/// The chart's role for users: the agent's pages and its API of captures, and nothing of other namespaces.
pub fn proxy(cluster: &mut Cluster) -> Result<String> {
    let bound = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "person", "namespace": NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kstrobe-users"},
        "subjects": [{"kind": "ServiceAccount", "name": "person", "namespace": NAMESPACE}],
    });
    cluster.client.apply(&bound.to_string())?;
    let (pod, _) = cluster.client.agent()?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9779/proxy");
    let metrics = cluster.client.run(&["get", "--raw", &format!("{path}/metrics"), "--as", PERSON])?;
    ensure!(
        !samples(&metrics, "kstrobe_cluster_forks_total").is_empty(),
        "the page through the API server has no counts"
    );
    // Without the token the agent refuses, not the API server.
    let (success, said) = cluster.client.ask(&["get", "--raw", &format!("{path}/api/v1/captures"), "--as", PERSON])?;
    ensure!(!success && !said.contains("cannot get resource"), "captures without a token: {said}");
    let elsewhere = format!("/api/v1/namespaces/{SHOP}/pods/toolbox:80/proxy/");
    let (success, said) = cluster.client.ask(&["get", "--raw", &elsewhere, "--as", PERSON])?;
    ensure!(!success && said.to_lowercase().contains("forbidden"), "a pod of another namespace: {said}");
    Ok(format!("{} bytes of metrics", metrics.len()))
}

/// The plugin finds the pods' node, records there and fetches the files.
pub fn plugin(cluster: &mut Cluster) -> Result<String> {
    let plugin = cluster.folder.join("kubectl-kstrobe");
    let _ = fs::remove_file(&plugin);
    std::os::unix::fs::symlink(&cluster.agent, &plugin)?;
    let token = cluster.folder.join("token");
    fs::write(&token, TOKEN)?;
    let (out, token) = (cluster.folder.join("out.tar"), token.display().to_string());
    let reach = ["--kubeconfig", &cluster.client.kubeconfig, "--agent-namespace", NAMESPACE, "--token-file", &token];
    let run = |arguments: &[&str]| {
        let [nsenter, net] = inside();
        // As kubectl finds it: by its name in PATH.
        let mut kubectl = Command::new(nsenter);
        let path = std::env::var("PATH").unwrap_or_default();
        kubectl.env("PATH", format!("{}:{path}", cluster.folder.display()));
        finished(kubectl.arg(net).arg(&cluster.client.kubectl).arg("kstrobe").args(arguments).args(reach))
            .with_context(|| format!("kubectl kstrobe {}", arguments.join(" ")))
    };
    let probes = run(&["probes"])?;
    ensure!(probes.contains("cluster_forks"), "kubectl kstrobe probes prints\n{probes}");
    let top = run(&["top", "--once"])?;
    ensure!(top.contains("cluster_forks_total"), "kubectl kstrobe top prints\n{top}");
    let file = out.display().to_string();
    run(&["capture", "-n", SHOP, "--selector", WEB, "-e", "sched:sched_switch", "-d", "2s", "-o", &file])?;
    let listed = finished(Command::new("tar").arg("-tvf").arg(&out))?;
    let recorded =
        listed.lines().find(|line| line.ends_with(".dat")).with_context(|| format!("no trace in\n{listed}"))?;
    Ok(recorded.split_whitespace().collect::<Vec<_>>().join(" "))
}
