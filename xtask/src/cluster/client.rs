//! What tests ask the cluster: by kubectl, and of pods directly in the node's network.

use super::network::inside;
use crate::apt::finished;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Namespace of the agent.
pub const NAMESPACE: &str = "kstrobe";
/// Port of the agent.
const PORT: u16 = 9779;

/// kubectl as the cluster's administrator.
pub struct Client {
    /// The program.
    pub kubectl: PathBuf,
    pub kubeconfig: String,
    /// Whether the server knows all fields of today's objects; an older one drops those that it does not know.
    pub knows_all_fields: bool,
}

impl Client {
    fn command(&self, arguments: &[&str]) -> Command {
        let [nsenter, net] = inside();
        let mut command = Command::new(nsenter);
        command.arg(net).arg(&self.kubectl).args(["--kubeconfig", &self.kubeconfig, "--request-timeout=30s"]);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// What kubectl prints; it must end well.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        finished(&mut self.command(arguments)).with_context(|| format!("kubectl {}", arguments.join(" ")))
    }

    /// Whether it ends well, and all that it prints.
    pub fn ask(&self, arguments: &[&str]) -> Result<(bool, String)> {
        let Output { status, stdout, stderr } = self.command(arguments).output()?;
        Ok((status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()))
    }

    /// The object or list that it prints.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("kubectl {} prints no JSON", arguments.join(" ")))
    }

    /// Makes objects, or changes them.
    pub fn apply(&self, objects: &str) -> Result<()> {
        let mut arguments = vec!["apply", "-f", "-"];
        if !self.knows_all_fields {
            arguments.push("--validate=false");
        }
        let mut kubectl = self.command(&arguments);
        let mut child = kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(objects.as_bytes())?;
        }
        let Output { status, stderr, .. } = child.wait_with_output()?;
        ensure!(status.success(), "kubectl apply: {}", String::from_utf8_lossy(&stderr).trim());
        Ok(())
    }

    /// The agent's pod, once it is ready: its name and address.
    pub fn agent(&self) -> Result<(String, String)> {
        let pods = self.json(&["-n", NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/component=agent"])?;
        let pods = pods["items"].as_array().context("no list of pods")?;
        let living: Vec<&Value> = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect();
        let [pod] = &living[..] else { bail!("{} pods of agents", living.len()) };
        ensure!(is_ready(pod), "the agent's pod is not ready: {}", pod["status"]);
        let text = |value: &Value| value.as_str().map(str::to_owned).context("the agent's pod has no name or address");
        Ok((text(&pod["metadata"]["name"])?, text(&pod["status"]["podIP"])?))
    }
}

/// Whether no pod of the agent is left.
pub fn is_gone(cluster: &super::Cluster) -> Result<bool> {
    let pods = cluster.client.json(&["-n", NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/component=agent"])?;
    Ok(pods["items"].as_array().is_some_and(Vec::is_empty))
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// A page of the agent, which needs no API server.
pub fn page(address: &str, path: &str) -> Result<String> {
    let [nsenter, net] = inside();
    let url = format!("http://{address}:{PORT}{path}");
    finished(Command::new(nsenter).arg(net).args(["curl", "-sf", "--max-time", "20", &url]))
}

/// Samples of a metric on a page: labels and value.
pub fn samples<'a>(page: &'a str, name: &str) -> Vec<(&'a str, f64)> {
    let line = |line: &'a str| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) =
            if rest.starts_with('{') { rest.rsplit_once(' ')? } else { ("", rest.strip_prefix(' ')?) };
        Some((labels, value.parse().ok()?))
    };
    page.lines().filter_map(line).collect()
}

/// Sum of the samples whose labels contain all of these.
pub fn sum(page: &str, name: &str, labels: &[&str]) -> f64 {
    let found = samples(page, name);
    found.iter().filter(|(has, _)| labels.iter().all(|label| has.contains(label))).map(|(_, value)| value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_metric_are_found_by_their_labels() {
        let page = "# HELP a_total A.\na_total{x=\"1\",y=\"2\"} 3\na_total{x=\"2\"} 4\na_total_more 5\na 6\n";
        assert_eq!(samples(page, "a_total"), [(r#"{x="1",y="2"}"#, 3.0), (r#"{x="2"}"#, 4.0)]);
        assert_eq!(samples(page, "a"), [("", 6.0)]);
        assert!((sum(page, "a_total", &["x=\"2\""]) - 4.0).abs() < f64::EPSILON);
        assert!(sum(page, "a_total", &["x=\"3\""]).abs() < f64::EPSILON);
    }
}
