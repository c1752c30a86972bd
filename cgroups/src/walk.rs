//! Looking at all groups of a hierarchy, again and again.

use crate::hierarchy::Hierarchy;
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cgroup {
    /// Inode number of its folder. Since Linux 5.5 that is what `bpf_get_current_cgroup_id` and the tracepoints of groups say.
    pub id: u64,
    /// Its path as in `/proc/PID/cgroup`.
    pub path: String,
}

/// What a walk found different from the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// New groups, parents first; also those whose id or name another group had before.
    pub came: Vec<Cgroup>,
    /// Ids of groups that are no more, ascending.
    pub gone: Vec<u64>,
    /// Whether every group was looked at. Where not, those that were not are neither new nor gone.
    pub whole: bool,
}

/// What happened on all walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Walks.
    pub walks: u64,
    /// Folders that could not be read, again on each walk.
    pub unreadable: u64,
    /// Walks that ended at the limit.
    pub limited: u64,
}

/// Looks at all groups of one hierarchy and remembers them.
#[derive(Debug)]
pub struct Walker {
    hierarchy: Hierarchy,
    /// The most groups to look at.
    most: usize,
    /// Folders below the mount point.
    known: HashMap<u64, PathBuf>,
    counts: Counts,
}

impl Walker {
    /// Knows nothing yet. A walk looks at `most` groups and no more.
    pub fn new(hierarchy: Hierarchy, most: usize) -> Walker {
        Walker { hierarchy, most, known: HashMap::new(), counts: Counts::default() }
    }

    /// The hierarchy it walks.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// How many groups there were at the last walk.
    pub fn groups(&self) -> usize {
        self.known.len()
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Looks at all groups. The error is that of the first folder, without which there is nothing to say; what cannot be read
    /// further down is counted.
    pub fn walk(&mut self) -> io::Result<Walk> {
        self.counts.walks += 1;
        let top = self.look(Path::new(""))?;
        let mut walk = Walk { whole: true, ..Walk::default() };
        let mut met: HashMap<u64, PathBuf> = HashMap::with_capacity(self.known.len());
        let mut ahead = vec![(PathBuf::new(), top)];
        while let Some((folder, metadata)) = ahead.pop() {
            if met.len() >= self.most {
                self.counts.limited += 1;
                walk.whole = false;
                break;
            }
            // A folder has two links and one more for each folder in it, where its file system counts them: most groups have
            // none, and reading what else is in there takes ten times as long as asking.
            if metadata.nlink() != 2 {
                match self.inside(&folder) {
                    Ok((inside, unreadable)) => {
                        self.counts.unreadable += unreadable;
                        walk.whole &= unreadable == 0;
                        ahead.extend(inside);
                    }
                    Err(error) if vanished(&error) => continue,
                    Err(_) => {
                        self.counts.unreadable += 1;
                        walk.whole = false;
                    }
                }
            }
            let id = metadata.ino();
            if self.known.get(&id) != Some(&folder) {
                walk.came.push(Cgroup { id, path: self.hierarchy.path_of(&folder) });
            }
            met.insert(id, folder);
        }
        for (id, folder) in std::mem::take(&mut self.known) {
            if met.contains_key(&id) {
                continue;
            }
            // It may lie where the walk did not come by.
            if !walk.whole && self.look(&folder).is_ok_and(|metadata| metadata.ino() == id) {
                met.insert(id, folder);
            } else {
                walk.gone.push(id);
            }
        }
        walk.gone.sort_unstable();
        self.known = met;
        Ok(walk)
    }

    fn look(&self, folder: &Path) -> io::Result<Metadata> {
        fs::symlink_metadata(self.hierarchy.mount_point.join(folder))
    }

    /// Folders in a folder, and how many of them could not be looked at.
    fn inside(&self, folder: &Path) -> io::Result<(Vec<(PathBuf, Metadata)>, u64)> {
        let mut found = Vec::new();
        let mut unreadable = 0;
        for entry in fs::read_dir(self.hierarchy.mount_point.join(folder))? {
            let entry = entry?;
            // The kernel says with the name what it is; a group is never a link.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match entry.metadata() {
                Ok(metadata) => found.push((folder.join(entry.file_name()), metadata)),
                Err(error) if vanished(&error) => {}
                Err(_) => unreadable += 1,
            }
        }
        Ok((found, unreadable))
    }
}

/// The group ended while it was looked at.
fn vanished(error: &io::Error) -> bool {
    /// What cgroupfs says of an open folder whose group is gone.
    const ENODEV: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}

#[cfg(test)]
mod tests;
