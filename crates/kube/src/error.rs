//! What can go wrong between us and an API server.

use crate::answer::Status;
use std::time::Duration;

/// A failure, for people ([`Display`](std::fmt::Display)) and for metrics ([`Error::reason`]).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something in the configuration, or in a file that it names, cannot be used.
    #[error("{0}")]
    Config(String),
    /// There is no token or certificate to show.
    #[error("{0}")]
    Credentials(String),
    /// Nobody answers there, or not by the TLS that we accept.
    #[error("{0}")]
    Connect(String),
    /// The connection broke.
    #[error("{0}")]
    Connection(String),
    /// The other side is silent.
    #[error("no answer from {from} within {after:?}")]
    Timeout {
        /// Who.
        from: String,
        /// How long we waited.
        after: Duration,
    },
    /// An answer that is a refusal.
    #[error("{0}")]
    Status(Box<Status>),
    /// An answer that is larger than any real one.
    #[error("an answer of more than {limit} bytes to {to}")]
    TooLarge {
        /// What was asked.
        to: String,
        /// Bytes that are read at most.
        limit: usize,
    },
    /// An answer that means nothing to us.
    #[error("{0}")]
    BadAnswer(String),
}

impl Error {
    /// A word for metrics.
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

    /// The status of a refusal.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Error::Status(status) => Some(status),
            _ => None,
        }
    }

    /// Whether the refusal has this status of HTTP.
    pub fn is(&self, code: u16) -> bool {
        self.status().is_some_and(|status| status.code == code)
    }

    /// How long the other side asks us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.status().and_then(|status| status.retry_after)
    }
}
