//! What the agent answers: functions that the routes of `http` call.

use crate::capture::access::{Access, Denied};
use crate::capture::rules::engine::RuleEngine;
use crate::kubernetes::other_nodes::Neighbours;
use crate::metrics::events::tail::Tail;
use crate::metrics::profiles::Format as ProfileFormat;
use crate::probe::status::Status;
use kstrobe_export::Format;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What the routes call. All of these may block: they run on threads of their own.
pub struct Endpoints {
    /// Reads everything now and writes a whole exposition.
    pub scrape: Box<dyn Fn(Format) -> Vec<u8> + Send + Sync>,
    /// Writes this age into a whole exposition.
    pub late: Box<Late>,
    /// What was asked of the agent, and what became of it.
    pub status: Box<dyn Fn() -> Status + Send + Sync>,
    /// The stacks metrics of the enabled probes.
    pub stacks: Box<dyn Fn() -> Vec<StacksStatus> + Send + Sync>,
    /// A profile, written in the form asked for.
    pub profile: Box<Profile>,
    /// The last single events.
    pub events: Arc<Tail>,
    /// Captures, and who may ask for them, now.
    pub captures: Box<dyn Fn() -> Captures + Send + Sync>,
    /// The agents of other nodes, where alerts about those are handed on to.
    pub neighbours: Option<Arc<Neighbours>>,
    /// Reads the configuration again.
    pub reload: Reload,
    /// Of the agent.
    pub version: String,
    /// Where the metrics are; checked by `http::telemetry_path`.
    pub telemetry_path: String,
    /// Scrapes at once, those that wait included; 0 for any number.
    pub most_requests: usize,
}

type Late = dyn Fn(Format, Vec<u8>, Duration) -> Vec<u8> + Send + Sync;
type Profile = dyn Fn(&ProfileRequest) -> Result<Vec<u8>, ProfileError> + Send + Sync;

/// How the configuration is read again.
pub struct Reload {
    /// Whether everybody may ask who can reach the agent (`--web.enable-lifecycle`), rather than those who may ask for
    /// captures.
    pub open: bool,
    /// Does it, and says what came of it or why nothing did. Blocks meanwhile.
    pub ask: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

/// What the routes of captures need.
#[derive(Clone)]
pub struct Captures {
    /// Rules and captures, or why there are none.
    pub rules: Result<Arc<RuleEngine>, Denied>,
    /// Who may ask.
    pub access: Access,
}

/// A stacks metric, as `/api/v1/stacks` lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StacksStatus {
    /// Name.
    pub name: String,
    /// Its probe.
    pub probe: String,
    /// One sentence.
    pub help: String,
    /// What it sums: `count`, `nanoseconds` or `bytes`.
    pub unit: &'static str,
    /// Label names.
    pub labels: Vec<String>,
    /// Whether its probe is attached.
    pub attached: bool,
    /// Why not, empty when it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// What is wanted of a stacks metric.
#[derive(Clone, Debug)]
pub struct ProfileRequest {
    /// Its name.
    pub metric: String,
    /// Over how long a time; 0 for all since the start.
    pub seconds: u64,
    /// In which form.
    pub format: ProfileFormat,
    /// Set when nobody waits for the answer any more.
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
