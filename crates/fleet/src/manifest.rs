//! What a fleet capture's file says of itself: `.kstrobe/manifest.json`.

use crate::clock::Offset;
use crate::course::{Course, Stage, Standing};
use crate::target::Target;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Version of the form.
pub const VERSION: u32 = 1;

/// The whole.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// [`VERSION`]
    pub kstrobe_fleet_capture: u32,
    /// Who made it.
    pub recorder: String,
    /// What was asked for.
    pub asked: Asked,
    /// The common beginning by the clock that the nodes agree on, UTC; empty when none came so far.
    pub started: String,
    /// The same in nanoseconds since the Unix epoch.
    pub started_unix_ns: i64,
    /// By how much that clock is ahead of the one of who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Offset>,
    /// Nodes that delivered.
    pub downloaded: usize,
    /// Nodes that did not.
    pub failed: usize,
    /// All of them.
    pub nodes: Vec<Node>,
    /// What lies beside this.
    pub files: Vec<File>,
    /// Shows all nodes' events by time, where trace-cmd is installed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trace_cmd: String,
}

/// What was asked for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Asked {
    /// `--probe`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
    /// `--selector`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// What the agents were sent; a probe adds what it is made of there.
    pub request: Value,
    /// How long.
    pub duration_ms: u64,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// Its name.
    pub node: String,
    /// Its agent, `NAMESPACE/NAME`; empty when there is none.
    pub agent: String,
    /// The pods that are the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// How far it came.
    pub status: Stage,
    /// What it was doing when it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<Stage>,
    /// Why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// What went wrong and did not matter in the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Its capture's id with the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_id: Option<String>,
    /// What the agent said of it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Standing>,
    /// How far its wall clock is ahead of the one of who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_clock: Option<Offset>,
    /// How far its wall clock is ahead of what the nodes agree on, and its times were set back by; 0 when that cannot be told.
    pub corrected_ns: i64,
    /// Its number among the machines of the merged trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<u32>,
    /// Its first and last event, in nanoseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_unix_ns: Option<(i64, i64)>,
}

/// A file beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct File {
    /// Its name in the archive.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Of its contents, in hexadecimal digits.
    pub sha256: String,
}

impl Node {
    /// A node with an agent, as its course left it.
    pub fn new(target: &Target, course: &Course) -> Node {
        Node {
            agent: target.agent.full_name(),
            pods: target.pods.clone(),
            capture: course.id().map(|_| course.standing().clone()),
            ..Node::without_agent(&target.node, course)
        }
    }

    /// A node that has none.
    pub fn without_agent(node: &str, course: &Course) -> Node {
        Node {
            node: node.to_owned(),
            agent: String::new(),
            pods: Vec::new(),
            status: course.stage(),
            failed_at: course.failed_at(),
            error: course.reason().to_owned(),
            warnings: course.warnings().to_vec(),
            capture_id: course.id().map(str::to_owned),
            capture: None,
            wall_clock: None,
            corrected_ns: 0,
            machine: None,
            events_unix_ns: None,
        }
    }
}

/// Nanoseconds since the Unix epoch as RFC 3339 in UTC.
pub fn rfc3339(unix_ns: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(unix_ns.into());
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}
