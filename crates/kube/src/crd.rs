//! Custom resources `Capture` and `Probe`: each agent carries out the part of its node.
//!
//! [`capture::steps`] and [`probe::wanted`] are pure functions of the objects and the state of the agent.
//! [`report::Reporter`] writes the entry of the node into the status of an object.

pub mod capture;
mod condition;
mod error;
pub mod probe;
pub mod reconciler;
pub mod report;
mod selector;
mod when;

pub use capture::{Alert, Capture, CaptureState, NodeCapture, Step, Work};
pub use error::SpecError;
pub use probe::{NodeProbe, Probe, ProbeState, WantedProbe};
pub use reconciler::{AttachStatus, Reconciler};
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

pub const CAPTURES: Resource = Resource { group: "kstrobe.dev", version: "v1alpha1", plural: "captures" };
pub const PROBES: Resource = Resource { group: "kstrobe.dev", version: "v1alpha1", plural: "probes" };

/// Core events, shown by `kubectl describe`.
const EVENTS: Resource = Resource { group: "", version: "v1", plural: "events" };
const NODES: Resource = Resource { group: "", version: "v1", plural: "nodes" };

/// The node of this agent.
#[derive(Clone, Copy, Debug)]
pub struct Me<'a> {
    /// Node name.
    pub node: &'a str,
    /// Node labels.
    pub labels: &'a BTreeMap<String, String>,
    pub pods: &'a [NodePod],
}

/// Watch parameters for captures or probes in the namespace of the agent. Security: creating objects there loads programs into
/// the kernels of all nodes.
pub fn watched(resource: &Resource, namespace: &str) -> Watched {
    Watched { limit: 1000, ..Watched::new(resource.plural, resource.all(Some(namespace))) }
}

pub async fn node_labels(client: &Client, node: &str) -> Result<BTreeMap<String, String>, Error> {
    let object: Value = client.get(&NODES.one(None, node)).await?;
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    Ok(labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect())
}

/// Whether the node name and selector of an object match this node; absent ones match all.
fn is_for(me: &Me<'_>, name: Option<&str>, selector: Option<&LabelSelector>) -> bool {
    name.is_none_or(|name| name == me.node) && selector.is_none_or(|selector| selector.matches(me.labels))
}

/// Maximum characters of a message. An object holds the messages of all nodes, and etcd limits objects to 1.5 MB.
const MAX_MESSAGE: usize = 300;

/// Cuts a message to [`MAX_MESSAGE`] characters.
fn brief(message: Option<&String>) -> Option<String> {
    let message = message?.trim_end();
    match message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => Some(format!("{}...", message[..end].trim_end())),
        None => Some(message.to_owned()),
    }
}

/// Metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.generation`: changes with `spec`.
    pub generation: i64,
    /// `metadata.creationTimestamp` in seconds since 1970.
    pub created: i64,
    /// Whether `metadata.deletionTimestamp` is set.
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
