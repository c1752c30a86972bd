//! Creates capture files with owner-only access: they hold arguments and paths of all processes of a node.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// File mode.
pub const MODE: u32 = 0o600;

/// Creates a file with this mode, or truncates an existing one, which keeps its mode.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)
}
