//! The cluster that this node is part of, as the configuration says, or as a pod finds it around itself.

pub mod capture_controller;
mod error;
pub mod other_nodes;
pub mod pods;
pub mod probe_controller;

pub use error::{BoxError, Error};

use crate::config::files::{Kubernetes, PodSource};
use kstrobe_kube::config::Pem;
use kstrobe_kube::pods::{Kubelet, Source};
use kstrobe_kube::{Client, Config, Env, Wanted};
use std::path::PathBuf;

/// Where a kubelet listens.
const KUBELET_PORT: u16 = 10250;

/// Where the API server is and who we are to it: by `kubernetes.kubeconfig`, else as kubectl finds it.
pub fn config(asked: &Kubernetes) -> Result<Config, kstrobe_kube::Error> {
    let kubeconfig = asked.kubeconfig.as_ref().map(PathBuf::from);
    Config::find(&Wanted { kubeconfig, ..Wanted::default() }, &Env::own())
}

/// A client that says who asks.
pub fn client(config: Config) -> Result<Client, kstrobe_kube::Error> {
    Client::new(config, crate::USER_AGENT)
}

/// The name of this node, where somebody says it: `kubernetes.node` or the pod's environment.
pub fn node(asked: &Kubernetes) -> Option<String> {
    asked.node.clone().or_else(|| variable("NODE_NAME"))
}

/// The node's name, or else the host's.
pub fn node_or_host(asked: &Kubernetes) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    node(asked).unwrap_or_else(host)
}

/// Who is asked for the pods of a node.
pub fn pods(asked: &Kubernetes, node: &str) -> Result<Source, Error> {
    match asked.source {
        PodSource::None => Err(Error::NoSource),
        PodSource::Kubelet => kubelet(asked),
        PodSource::Auto | PodSource::Api => Ok(Source::Api { client: client(config(asked)?)?, node: node.to_owned() }),
    }
}

/// The kubelet, shown the token that the API server would be shown, which is asked about owners. A pod finds it at its node's
/// address, another process at this host's.
fn kubelet(asked: &Kubernetes) -> Result<Source, Error> {
    let own = variable("NODE_IP").unwrap_or_else(|| "127.0.0.1".to_owned());
    let url = asked.kubelet_url.clone().unwrap_or_else(|| own_kubelet(&own));
    let server: hyper::Uri = url.parse().map_err(|_| Error::KubeletUrl(url))?;
    // A kubelet signs its own certificate unless it was given another; no other server has this machine's port.
    let host = server.host().map(|host| host.trim_matches(['[', ']']));
    let local = host.is_some_and(|host| ["127.0.0.1", "localhost", "::1", &own].contains(&host));
    let ca = asked.kubelet_ca.as_ref().map(|file| Pem::File(file.into()));
    let api = config(asked)?;
    let kubelet = client(api.clone().kubelet(server, ca.clone(), local && ca.is_none()))?;
    Ok(Source::Kubelet { kubelet: Kubelet::new(kubelet), api: Some(client(api)?) })
}

fn own_kubelet(address: &str) -> String {
    if address.contains(':') {
        format!("https://[{address}]:{KUBELET_PORT}")
    } else {
        format!("https://{address}:{KUBELET_PORT}")
    }
}

/// What the pod's environment says.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::own_kubelet;

    #[test]
    fn the_kubelet_at_addresses_of_both_kinds() {
        assert_eq!(own_kubelet("10.0.0.7"), "https://10.0.0.7:10250");
        assert_eq!(own_kubelet("fd00::7"), "https://[fd00::7]:10250");
    }
}
