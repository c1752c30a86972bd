//! What happened on the node or in the agent, on the time line of the metrics.

use serde::Serialize;

/// A moment worth a line in a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Unix time in seconds.
    pub time: f64,
    pub kind: MarkKind,
    /// One line.
    pub text: String,
    /// Path of the API that has more of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkKind {
    /// A single event of a probe.
    Event,
    Capture,
    /// Another configuration runs, or was refused.
    Reload,
    /// A probe is sampled, suspended, or measures all events again.
    Budget,
    /// A warning or an error of the kernel.
    Kernel,
    /// A pod or container begins or ends.
    Pod,
}
