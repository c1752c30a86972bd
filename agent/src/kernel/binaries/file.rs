//! A file that may be hooked, and its identity.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// An open file that may be hooked. Open, so that what is read and what is hooked is the same file.
#[derive(Debug)]
pub struct File {
    /// To read it.
    pub handle: fs::File,
    pub id: FileId,
    /// As people should see it: with the process in whose mount namespace it lies, when that is not ours.
    pub shown: String,
}

impl File {
    /// A path that means this file to the kernel as long as it is open here, in whatever mount namespace it lies.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd())
    }
}

/// Tells files apart as uprobes do: by inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    overlay: bool,
}

impl FileId {
    /// `None` when it is no regular file.
    pub fn of(handle: &fs::File) -> std::io::Result<Option<FileId>> {
        let about = handle.metadata()?;
        let overlay = nix::sys::statfs::fstatfs(handle)?.filesystem_type() == nix::sys::statfs::OVERLAYFS_SUPER_MAGIC;
        let (device, inode, bytes) = (about.dev(), about.ino(), about.len());
        let id = FileId { device, inode, bytes, modified: (about.mtime(), about.mtime_nsec()), overlay };
        Ok(about.is_file().then_some(id))
    }

    /// Its inode number.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether a hook in the one is a hook in the other.
    ///
    /// Containers of one image have the same file below mounts of their own, each with a device number of its own. The
    /// kernel hooks the file below, so that hooking it through each mount would count each event once per container.
    pub fn same_file(&self, other: &FileId) -> bool {
        let through = self.overlay || other.overlay;
        self.inode == other.inode && (self.device == other.device || through && self.same_state(other))
    }

    /// Whether it is unchanged: an error in it is still there.
    pub fn unchanged(&self, other: &FileId) -> bool {
        self.same_file(other) && self.same_state(other)
    }

    fn same_state(&self, other: &FileId) -> bool {
        (self.bytes, self.modified) == (other.bytes, other.modified)
    }
}

/// Whether it begins as programs and libraries do.
pub fn is_elf(handle: &OwnedFd) -> bool {
    let mut magic = [0; 4];
    matches!(nix::sys::uio::pread(handle, &mut magic, 0), Ok(4)) && magic == *b"\x7fELF"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_below_several_overlays_is_one() {
        let plain = FileId { device: 1, inode: 7, bytes: 100, modified: (5, 6), overlay: false };
        let first = FileId { device: 40, overlay: true, ..plain };
        let second = FileId { device: 41, ..first };
        assert!(first.same_file(&second) && first.same_file(&plain) && plain.same_file(&first));
        assert!(!second.same_file(&FileId { bytes: 101, ..first }));
        assert!(!plain.same_file(&FileId { device: 2, ..plain }), "only overlays lend inodes");
        assert!(plain.same_file(&FileId { modified: (9, 9), ..plain }));
        assert!(plain.unchanged(&plain) && !plain.unchanged(&FileId { modified: (9, 9), ..plain }));
    }
}
