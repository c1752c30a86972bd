//! Files of captures: they hold arguments and paths of everything that ran on a node, so that only their owner may read them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Mode of such a file.
pub const MODE: u32 = 0o600;

/// Creates a file with this mode, or empties one that is there, which keeps its mode.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)
}
