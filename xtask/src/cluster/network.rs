//! The node's network: a namespace with a bridge as the node's device, so that nothing of the machine's network changes. The
//! address of the service `kubernetes` leads to the API server by nftables, in place of a kube-proxy.

use crate::apt::finished;
use crate::programs::finish;
use anyhow::{Result, ensure};
use std::io::Write;
use std::process::{Command, Stdio};

pub const NAMESPACE: &str = "kstrobe-cluster";
/// Address of the node and of all that listens on it.
pub const NODE: &str = "10.250.0.1";
/// Port of the API server.
pub const API_PORT: u16 = 6443;
/// Address of the service `kubernetes`: the first one of `SERVICES`.
pub const API_SERVICE: &str = "10.96.0.1";
/// Addresses of services.
pub const SERVICES: &str = "10.96.0.0/16";
/// Addresses of pods of all nodes.
pub const PODS: &str = "10.244.0.0/16";
/// Addresses of pods of this node.
pub const PODS_OF_NODE: &str = "10.244.0.0/24";

/// Words before a command that runs in the namespace.
pub fn inside() -> [String; 2] {
    ["nsenter".to_owned(), format!("--net=/run/netns/{NAMESPACE}")]
}

pub fn up() -> Result<()> {
    finish(Command::new("ip").args(["netns", "add", NAMESPACE]))?;
    for line in [
        "link set lo up".to_owned(),
        // A bridge without ports: some kernels have no dummy devices.
        "link add node0 type bridge".to_owned(),
        format!("address add {NODE}/24 dev node0"),
        "link set node0 up".to_owned(),
        "route add default dev node0".to_owned(),
    ] {
        finish(Command::new("ip").args(["-n", NAMESPACE]).args(line.split(' ')))?;
    }
    let [nsenter, net] = inside();
    finish(Command::new(&nsenter).arg(&net).args(["sysctl", "-qw", "net.ipv4.ip_forward=1"]))?;
    let rule = format!("ip daddr {API_SERVICE} tcp dport 443 dnat to {NODE}:{API_PORT}");
    let rules = format!(
        "table ip services {{\n\
         chain from_pods {{ type nat hook prerouting priority -100; {rule}; }}\n\
         chain from_node {{ type nat hook output priority -100; {rule}; }}\n}}\n"
    );
    let mut nft = Command::new(nsenter).arg(net).args(["nft", "-f", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        input.write_all(rules.as_bytes())?;
    }
    let status = nft.wait()?;
    ensure!(status.success(), "nft ended with {status}");
    Ok(())
}

/// Takes it away, if it is there.
pub fn down() {
    let _ = finished(Command::new("ip").args(["netns", "delete", NAMESPACE]));
}
