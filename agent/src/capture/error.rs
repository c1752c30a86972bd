//! Why there is no recording.

use crate::kernel::instance::global::TakeError;
use std::io;

/// Why there is no recording: in words for whoever asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for cannot be, here or anywhere.
    #[error("{0}")]
    Wrong(String),
    /// Somebody else uses what it needs.
    #[error("{0}")]
    InUse(String),
    /// The kernel or the machine refused.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// Says what was being done.
    pub fn while_doing(what: &str, error: &io::Error) -> Error {
        Error::Failed(format!("{what}: {error}"))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => ": recording needs root, or CAP_SYS_ADMIN and tracefs",
            _ => "",
        };
        Error::Failed(format!("{error}{hint}"))
    }
}

impl From<TakeError> for Error {
    fn from(error: TakeError) -> Error {
        match error {
            TakeError::Io(error) => error.into(),
            in_use => Error::InUse(format!("{in_use}. Stop that first; nothing of it was changed")),
        }
    }
}
