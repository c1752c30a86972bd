//! Why there is no recording.

use crate::kernel::instance::global::TakeError;
use std::io;

/// The error of a recording; its text is for the user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid, on this kernel or on all.
    #[error("{0}")]
    Wrong(String),
    /// Another program uses the tracer.
    #[error("{0}")]
    InUse(String),
    /// A system call failed.
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
