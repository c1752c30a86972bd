//! Finds the agent for an alert.
//!
//! Alertmanager posts to one address, which a Service routes to any agent. The alert names its node in a label, and the receiving
//! agent forwards it.

use crate::target::Pod;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Labels that name a node, the best first. `instance` is what Prometheus scrapes: `HOST:PORT`.
const LABELS: [&str; 3] = ["node", "kubernetes_node", "instance"];

/// Destination of an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// This agent: its node is named, or no node is.
    Here,
    /// Another agent.
    There(Pod),
    /// A node without a running agent; its name.
    Nowhere(String),
}

/// Identity of this agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Me {
    /// Node name.
    pub node: String,
    /// Pod or host name.
    pub names: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<String>,
}

/// Finds the agent named by the labels of an alert.
pub fn route(labels: &BTreeMap<String, String>, me: &Me, agents: &[Pod]) -> Route {
    let mut unknown = None;
    for label in LABELS {
        let Some(value) = labels.get(label).filter(|value| !value.is_empty()) else { continue };
        let name = host(value);
        let is_me = name == me.node || me.names.iter().chain(&me.addresses).any(|own| same(own, name));
        if is_me {
            return Route::Here;
        }
        let named =
            |pod: &&Pod| pod.node == name || pod.name == name || pod.addresses.iter().any(|own| same(own, name));
        if let Some(pod) = agents.iter().filter(|pod| pod.runs).find(named) {
            return if pod.node == me.node { Route::Here } else { Route::There(pod.clone()) };
        }
        unknown.get_or_insert_with(|| name.to_owned());
    }
    unknown.map_or(Route::Here, Route::Nowhere)
}

/// `HOST[:PORT]`, `[ADDRESS]:PORT`, an address of IPv6 alone.
fn host(text: &str) -> &str {
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => text,
    }
}

fn same(own: &str, name: &str) -> bool {
    match (own.parse::<IpAddr>(), name.parse::<IpAddr>()) {
        (Ok(own), Ok(name)) => own.to_canonical() == name.to_canonical(),
        _ => own.eq_ignore_ascii_case(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, address: &str) -> Pod {
        Pod { name: name.into(), node: node.into(), addresses: vec![address.into()], runs: true, ..Pod::default() }
    }

    fn found(labels: &[(&str, &str)]) -> Route {
        let me = Me { node: "n1".into(), names: vec!["kstrobe-a".into()], addresses: vec!["10.0.0.1".into()] };
        let gone = Pod { runs: false, ..pod("kstrobe-d", "n4", "10.0.0.4") };
        let agents = [pod("kstrobe-a", "n1", "10.0.0.1"), pod("kstrobe-b", "n2", "10.0.0.2"), gone];
        let agents = [&agents[..], &[pod("kstrobe-c", "n3", "fd00::3")]].concat();
        route(&labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(), &me, &agents)
    }

    #[test]
    fn an_alert_goes_to_the_node_that_it_names() {
        let there = |route: Route| match route {
            Route::There(pod) => pod.node,
            other => panic!("{other:?}"),
        };
        assert_eq!(found(&[]), Route::Here);
        assert_eq!(found(&[("node", "")]), Route::Here);
        for own in ["n1", "10.0.0.1:9779", "kstrobe-a", "::ffff:10.0.0.1", "[::ffff:10.0.0.1]:9779"] {
            assert_eq!(found(&[("instance", own)]), Route::Here, "{own}");
        }
        for other in ["n2", "n2:9100", "10.0.0.2:9779", "kstrobe-b"] {
            assert_eq!(there(found(&[("node", other)])), "n2", "{other}");
        }
        assert_eq!(there(found(&[("instance", "[fd00::3]:9779")])), "n3");
        assert_eq!(there(found(&[("instance", "fd00::3")])), "n3");
        // The node counts, even when Prometheus scrapes something else on it.
        assert_eq!(there(found(&[("instance", "10.0.0.1:9779"), ("node", "n2")])), "n2");
        assert_eq!(there(found(&[("instance", "10.0.0.2:9100"), ("node", "unheard-of")])), "n2");
        assert_eq!(found(&[("node", "n4")]), Route::Nowhere("n4".into()));
        assert_eq!(found(&[("node", "n9"), ("instance", "x:1")]), Route::Nowhere("n9".into()));
    }
}
