//! Segments in files: the one part of this crate with I/O.

mod append;
mod archive;
mod replay;
#[cfg(test)]
mod tests;

pub use append::{Appender, Retention};
pub use archive::{Archive, Segment};
pub use replay::{Damaged, Replayed};

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// End of the names of segments, and of exports of them.
pub const SUFFIX: &str = "kstrobe";

/// How the history on disk stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Of all files.
    pub bytes: u64,
    /// Nothing is written, for a failure.
    pub is_stopped: bool,
    /// Since the start.
    pub lost: NotWritten,
    /// Marks that were not written, as there were too many in a second.
    pub lost_marks: u64,
}

/// Seconds that are not on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotWritten {
    /// The disk was full, or a write failed.
    pub failed: u64,
    /// The disk was too slow.
    pub slow: u64,
    /// Cut at the start, as a process before had not written them whole.
    pub torn: u64,
}

#[derive(Debug, Error)]
pub enum DiskError {
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}: another process writes a history there", .0.display())]
    InUse(PathBuf),
    #[error("{}: there is no history in it", .0.display())]
    NoHistory(PathBuf),
}

impl DiskError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> DiskError {
        move |error| DiskError::Io { path: path.to_owned(), error }
    }
}
