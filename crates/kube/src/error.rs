//! Errors of requests to an API server.

use crate::answer::Status;
use std::time::Duration;

/// A request error; [`Error::reason`] is its metric label.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration, or a file that it names, is invalid.
    #[error("{0}")]
    Config(String),
    /// No token or certificate could be obtained.
    #[error("{0}")]
    Credentials(String),
    /// TCP connect or TLS handshake failed.
    #[error("{0}")]
    Connect(String),
    /// The connection broke after connecting.
    #[error("{0}")]
    Connection(String),
    /// No response in time.
    #[error("no answer from {from} within {after:?}")]
    Timeout {
        /// The server.
        from: String,
        /// The time limit.
        after: Duration,
    },
    /// A response with an error status.
    #[error("{0}")]
    Status(Box<Status>),
    /// The response body exceeds the limit.
    #[error("an answer of more than {limit} bytes to {to}")]
    TooLarge {
        /// Method and path of the request.
        to: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The response body cannot be parsed.
    #[error("{0}")]
    BadAnswer(String),
}

impl Error {
    /// Label value for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Config(_) => "config",
            Error::Credentials(_) => "credentials",
            Error::Connect(_) => "connect",
            Error::Connection(_) => "connection",
            Error::Timeout { .. } => "timeout",
            Error::Status(status) => status.word(),
            Error::TooLarge { .. } => "too_large",
            Error::BadAnswer(_) => "bad_answer",
        }
    }

    /// The Kubernetes status of an error response.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Error::Status(status) => Some(status),
            _ => None,
        }
    }

    /// Whether this is an error response with this HTTP status code.
    pub fn is(&self, code: u16) -> bool {
        self.status().is_some_and(|status| status.code == code)
    }

    /// `Retry-After` of the response.
    pub fn retry_after(&self) -> Option<Duration> {
        self.status().and_then(|status| status.retry_after)
    }
}
