//! What a test can have go wrong.

use serde_json::Value;
use std::time::Duration;

/// What happens to a request instead of its answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A `Status` of Kubernetes.
    Status(u16, &'static str, &'static str),
    /// Priority and fairness: 429, and when to come again, in seconds.
    TooMany(u64),
    /// This status and text, as of a load balancer.
    Text(u16, &'static str),
    /// A success with this body.
    Body(Value),
    /// The connection is closed without a word.
    Close,
    /// Nothing comes for this time, then the answer.
    Late(Duration),
}

/// How open watches end.
#[derive(Clone, Debug)]
pub enum End {
    /// As after `timeoutSeconds`.
    Clean,
    /// The connection breaks in the middle of a line.
    Cut,
    /// `ERROR` with this status, as 410 when the version is too old by now.
    Error(u16, &'static str),
    /// A line that is not JSON.
    Garbage,
    /// Nothing more comes, and the connection stays open.
    Silence,
}
