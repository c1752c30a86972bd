//! Errors of requests to agents.

use crate::target::NoAgent;
use http::StatusCode;
use std::io;
use std::time::Duration;

/// Error of a connection to an agent, as its transport describes it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TransportError(Box<dyn std::error::Error + Send + Sync>);

impl TransportError {
    /// Wraps the error of a transport, or a message.
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TransportError {
        TransportError(error.into())
    }
}

/// Maximum bytes of a response other than a download: probes take tens of kilobytes, tables of metrics megabytes.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// Why a request to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    NoAgent(#[from] NoAgent),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("no whole download within {} s", .0.as_secs())]
    DownloadTimeout(Duration),
    #[error("{}", refusal(*status, message))]
    Refused {
        status: StatusCode,
        /// Message of the agent or the API server, on one line; may be empty.
        message: String,
    },
    #[error("the answer was cut off: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the download was cut off: {0}")]
    Download(#[source] TransportError),
    #[error("the answer does not end")]
    Endless,
    #[error("no answer of an agent: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the agent is too old: its clock response has no `unix_ns`")]
    NoClock,
    #[error("our own clock was set meanwhile")]
    ClockSet,
    #[error("the agent's answer has no id of a capture")]
    NoId,
    #[error("it runs no probe `{name}`; there are {}", there.join(", "))]
    NoProbe { name: String, there: Vec<String> },
    #[error("probe `{probe}` cannot be recorded: {}; say what to record by --event or --graph-root", hooks_of(hooks))]
    Unrecordable { probe: String, hooks: Vec<String> },
    #[error("it cannot be stored here: {0}")]
    Store(#[source] io::Error),
    #[error(transparent)]
    Closed(#[from] tokio::sync::AcquireError),
}

impl Error {
    /// Whether a retry would fail in the same way.
    pub fn is_permanent(&self) -> bool {
        match self {
            // 408, 429 and 5xx may succeed on a retry.
            Error::Refused { status, .. } => {
                !matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
                    && !status.is_server_error()
            }
            Error::NoAgent(_)
            | Error::NoClock
            | Error::NoId
            | Error::NoProbe { .. }
            | Error::Unrecordable { .. }
            | Error::Store(_)
            | Error::Closed(_) => true,
            Error::Transport(_)
            | Error::Timeout(_)
            | Error::DownloadTimeout(_)
            | Error::Body(_)
            | Error::Download(_)
            | Error::Endless
            | Error::Json(_)
            | Error::ClockSet => false,
        }
    }
}

fn refusal(status: StatusCode, message: &str) -> String {
    match message {
        "" => format!("HTTP status {}", status.as_u16()),
        said => format!("{said} (HTTP status {})", status.as_u16()),
    }
}

fn hooks_of(hooks: &[String]) -> String {
    if hooks.is_empty() { "it has no hooks".to_owned() } else { format!("its hooks are {}", hooks.join(", ")) }
}
