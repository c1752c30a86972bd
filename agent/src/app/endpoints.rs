//! What the agent answers: functions that the routes of `http` call.

use super::history::HistoryStore;
use crate::capture::access::{Access, Denied};
use crate::capture::rules::engine::RuleEngine;
use crate::kubernetes::other_nodes::OtherNodes;
use crate::metrics::events::tail::Tail;
use crate::metrics::profiles::Format as ProfileFormat;
use crate::probe::status::Status;
use kstrobe_export::Format;
use kstrobe_export::reading::Reading;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Functions for the routes. All may block: they run on blocking threads.
pub struct Endpoints {
    /// Reads all probes.
    pub read: Box<dyn Fn() -> Reading + Send + Sync>,
    /// Writes an exposition of a reading.
    pub write: Box<Write>,
    /// The status of the probes and of the configuration.
    pub status: Box<dyn Fn() -> Status + Send + Sync>,
    /// The stacks metrics of the enabled probes.
    pub stacks: Box<dyn Fn() -> Vec<StacksStatus> + Send + Sync>,
    /// A profile in the requested format.
    pub profile: Box<Profile>,
    /// The last single events.
    pub events: Arc<Tail>,
    /// What metrics were in the last minutes.
    pub history: Arc<HistoryStore>,
    /// Captures and the access to them; a reload changes both.
    pub captures: Box<dyn Fn() -> Captures + Send + Sync>,
    /// Hands alerts about other nodes on to their agents.
    pub other_nodes: Option<Arc<OtherNodes>>,
    /// Reads the configuration again.
    pub reload: Reload,
    /// The agent's version.
    pub version: String,
    /// Path of the metrics; checked by `http::telemetry_path`.
    pub telemetry_path: String,
    /// Limit of concurrent scrapes, with those that wait; 0 for none.
    pub most_requests: usize,
}

type Write = dyn Fn(&Exposition<'_>, &mut kstrobe_export::Send<'_>) -> Result<(), kstrobe_export::Gone> + Send + Sync;
type Profile = dyn Fn(&ProfileRequest) -> Result<Vec<u8>, ProfileError> + Send + Sync;

/// What is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Exposition<'a> {
    pub reading: &'a Reading,
    /// How old the reading is, when it is the answer because another takes too long.
    pub late: Option<Duration>,
    pub format: Format,
    pub gzip: bool,
}

/// Reloads of the configuration.
pub struct Reload {
    /// `--web.enable-lifecycle`. Otherwise a reload requires the captures token.
    pub open: bool,
    /// Reloads and returns a summary, or the reasons of the refusal. Blocks meanwhile.
    pub ask: Box<dyn Fn() -> Result<String, ReloadRefused> + Send + Sync>,
}

/// Why the previous configuration stays in force: mistakes with their source lines, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReloadRefused(pub String);

/// Captures and the access to them.
#[derive(Clone)]
pub struct Captures {
    /// Rules and captures, or why there are none.
    pub rules: Result<Arc<RuleEngine>, Denied>,
    /// Which requests are allowed.
    pub access: Access,
}

/// A stacks metric, as `/api/v1/stacks` lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StacksStatus {
    pub name: String,
    pub probe: String,
    /// One sentence.
    pub help: String,
    /// What it sums: `count`, `nanoseconds` or `bytes`.
    pub unit: &'static str,
    /// Label names.
    pub labels: Vec<String>,
    /// Whether its probe is attached.
    pub attached: bool,
    /// The reason if not; else empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

#[derive(Clone, Debug)]
pub struct ProfileRequest {
    /// Its name.
    pub metric: String,
    /// Seconds to collect; 0 for all since the start.
    pub seconds: u64,
    /// The file format.
    pub format: ProfileFormat,
    /// Set when the client is gone.
    pub cancelled: Arc<AtomicBool>,
}

/// Why there is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// There is no such metric.
    #[error("{0}")]
    NoSuch(String),
    /// Its probe is not attached.
    #[error("its probe is not attached: {0}")]
    NotAttached(String),
    /// Something could not be read.
    #[error("{0}")]
    Failed(String),
}
