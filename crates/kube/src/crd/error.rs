//! Why an object is refused.

use std::sync::Arc;

/// What is wrong with an object for this node; mostly its `spec`.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpecError {
    /// Objects are cloned, and this error cannot be.
    #[error("spec: {0}")]
    Unreadable(#[source] Arc<serde_json::Error>),
    #[error("spec: either `{0}` or `{1}`, and not both")]
    NotOneOf(&'static str, &'static str),
    #[error("spec.probe: not a mapping")]
    NotAMapping,
    #[error("startAt: `{0:.40}` is no time such as 2026-11-20T08:15:32Z")]
    StartAt(String),
    #[error("the pods that it selects no longer run here")]
    NoPods,
}

impl From<serde_json::Error> for SpecError {
    fn from(error: serde_json::Error) -> SpecError {
        SpecError::Unreadable(Arc::new(error))
    }
}
