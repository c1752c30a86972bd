//! Manifest of a fleet capture: `.kstrobe/manifest.json`.

use crate::clock::Offset;
use crate::node_session::{CaptureStatus, NodeSession, Stage};
use crate::target::Target;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Version of the format.
pub const VERSION: u32 = 1;

/// Content of the manifest.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// [`VERSION`]
    pub kstrobe_fleet_capture: u32,
    /// Program and version that wrote the file.
    pub recorder: String,
    /// Parameters of the capture.
    pub asked: Asked,
    /// Common start by the common clock, UTC; empty if no node got that far.
    pub started: String,
    /// The same in nanoseconds since the Unix epoch.
    pub started_unix_ns: i64,
    /// Offset of the common clock to the clock of the recorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Offset>,
    /// Number of nodes that delivered.
    pub downloaded: usize,
    /// Number of nodes that failed.
    pub failed: usize,
    pub nodes: Vec<Node>,
    /// Other files of the archive.
    pub files: Vec<File>,
    /// trace-cmd command that shows the events of all nodes by time.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trace_cmd: String,
}

/// Parameters of the capture.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Asked {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Request sent to the agents, without the members added by the probe.
    pub request: Value,
    /// Duration in milliseconds.
    pub duration_ms: u64,
}

/// Result of a node.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// Node name.
    pub node: String,
    /// Pod of its agent, `NAMESPACE/NAME`; empty without an agent.
    pub agent: String,
    /// Selected pods on the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// Last stage.
    pub status: Stage,
    /// Stage before the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<Stage>,
    /// Reason of the failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Errors that did not fail the capture.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Capture id in the API of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_id: Option<String>,
    /// Last status of the capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureStatus>,
    /// Offset of its wall clock to the clock of the recorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_clock: Option<Offset>,
    /// Nanoseconds by which its wall clock is ahead of the common clock, subtracted from its times; 0 if within the error.
    pub corrected_ns: i64,
    /// Machine id in the merged trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<u32>,
    /// First and last event, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_unix_ns: Option<(i64, i64)>,
}

/// A file beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct File {
    /// Path in the archive.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, in hexadecimal digits.
    pub sha256: String,
}

impl Node {
    /// Result of a node with an agent.
    pub fn new(target: &Target, session: &NodeSession) -> Node {
        Node {
            agent: target.agent.full_name(),
            pods: target.pods.clone(),
            capture: session.id().map(|_| session.status().clone()),
            ..Node::without_agent(&target.node, session)
        }
    }

    /// Result of a node without an agent.
    pub fn without_agent(node: &str, session: &NodeSession) -> Node {
        Node {
            node: node.to_owned(),
            agent: String::new(),
            pods: Vec::new(),
            status: session.stage(),
            failed_at: session.failed_at(),
            error: session.reason().to_owned(),
            warnings: session.warnings().to_vec(),
            capture_id: session.id().map(str::to_owned),
            capture: None,
            wall_clock: None,
            corrected_ns: 0,
            machine: None,
            events_unix_ns: None,
        }
    }
}

/// Formats nanoseconds since the Unix epoch as RFC 3339 in UTC.
pub fn rfc3339(unix_ns: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(unix_ns.into());
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}
