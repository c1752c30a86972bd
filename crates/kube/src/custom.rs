//! Custom resources: captures and probes that are objects of the cluster, of which each agent does its node's part.
//!
//! Deciding is pure: [`capture::steps`] and [`probe::wanted`] say what a node has to do, given the objects and what the agent
//! has. [`report::Reporter`] writes each node's own entry of an object's status.

pub mod capture;
mod condition;
pub mod hand;
pub mod probe;
pub mod report;
mod selector;
mod when;

pub use capture::{Alert, Capture, CaptureState, NodeCapture, Step, Work};
pub use hand::{Hand, Stand};
pub use probe::{NodeProbe, Probe, ProbeState, WantedProbe};
pub use report::{Kind, Report, Reporter, Reports};
pub use selector::LabelSelector;
pub use when::{from_text, to_text};

use crate::client::Client;
use crate::error::Error;
use crate::path::Resource;
use crate::pods::NodePod;
use crate::watch::Watched;
use serde_json::Value;
use std::collections::BTreeMap;

/// Captures.
pub const CAPTURES: Resource = Resource { group: "kstrobe.dev", version: "v1alpha1", plural: "captures" };
/// Probes.
pub const PROBES: Resource = Resource { group: "kstrobe.dev", version: "v1alpha1", plural: "probes" };

/// What happened to objects, for `kubectl describe`.
const EVENTS: Resource = Resource { group: "", version: "v1", plural: "events" };
const NODES: Resource = Resource { group: "", version: "v1", plural: "nodes" };

/// The node that is asked what it has to do.
#[derive(Clone, Copy, Debug)]
pub struct Me<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its pods.
    pub pods: &'a [NodePod],
}

/// What is watched: captures or probes of one namespace, which is the agent's own. Who may make objects there may have programs
/// loaded into the kernels of all nodes.
pub fn watched(resource: &Resource, namespace: &str) -> Watched {
    Watched { limit: 1000, ..Watched::new(resource.plural, resource.all(Some(namespace))) }
}

/// The labels of a node, for selectors of nodes.
pub async fn node_labels(client: &Client, node: &str) -> Result<BTreeMap<String, String>, Error> {
    let object: Value = client.get(&NODES.one(None, node)).await?;
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    Ok(labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect())
}

/// Which nodes an object is for; all of them when it does not say.
fn is_for(me: &Me<'_>, name: Option<&str>, selector: Option<&LabelSelector>) -> bool {
    name.is_none_or(|name| name == me.node) && selector.is_none_or(|selector| selector.matches(me.labels))
}

/// Most characters of a message. An object holds those of all nodes, and etcd takes objects up to 1.5 MB.
const MOST_MESSAGE: usize = 300;

/// A message that is not longer than an object can hold for each of many nodes.
fn brief(message: Option<&String>) -> Option<String> {
    let message = message?.trim_end();
    match message.char_indices().nth(MOST_MESSAGE) {
        Some((end, _)) => Some(format!("{}...", message[..end].trim_end())),
        None => Some(message.to_owned()),
    }
}

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.generation`: another one for each change of `spec`.
    pub generation: i64,
    /// `metadata.creationTimestamp` in seconds since 1970.
    pub created: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
}

impl Head {
    fn read(object: &Value) -> Option<Head> {
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().map(str::to_owned);
        Some(Head {
            namespace: text("namespace")?,
            name: text("name")?,
            uid: text("uid")?,
            generation: metadata["generation"].as_i64().unwrap_or(0),
            created: metadata["creationTimestamp"].as_str().and_then(from_text).unwrap_or(0),
            deleting: metadata["deletionTimestamp"].is_string(),
        })
    }
}
