//! Repeated scans of all groups of a hierarchy.

use crate::cgroups::hierarchy::Hierarchy;
use crate::cgroups::watch::{Alarm, Changed, Watches};
use nix::sys::inotify::WatchDescriptor;
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cgroup {
    /// Inode number of its directory; since Linux 5.5 equal to `bpf_get_current_cgroup_id` and the id in cgroup tracepoints.
    pub id: u64,
    /// Path as in `/proc/PID/cgroup`.
    pub path: String,
}

/// Differences from the previous walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// New groups, parents first; includes groups with a reused id or name.
    pub came: Vec<Cgroup>,
    /// Ids of removed groups, ascending.
    pub gone: Vec<u64>,
    /// Whether every group was scanned. If not, unscanned groups are neither new nor removed.
    pub whole: bool,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Complete walks.
    pub walks: u64,
    /// Unreadable directories, counted on each walk.
    pub unreadable: u64,
    /// Walks cut off at the limit.
    pub limited: u64,
    /// Directories without an inotify watch, over the limit. Walks find their changes.
    pub unwatched: u64,
}

/// Scans one hierarchy and keeps its groups for comparison.
#[derive(Debug)]
pub struct Walker {
    hierarchy: Hierarchy,
    /// Maximum groups to scan.
    most: usize,
    known: HashMap<u64, Known>,
    watches: Option<Watches>,
    counts: Counts,
}

/// A group of the last scan.
#[derive(Debug)]
struct Known {
    /// Path below the mount point.
    folder: PathBuf,
    watch: Option<WatchDescriptor>,
}

impl Walker {
    /// Creates a walker that scans at most `most` groups per walk.
    pub fn new(hierarchy: Hierarchy, most: usize) -> Walker {
        Walker { hierarchy, most, known: HashMap::new(), watches: None, counts: Counts::default() }
    }

    /// The scanned hierarchy.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Number of groups in the last scan.
    pub fn groups(&self) -> usize {
        self.known.len()
    }

    /// Counters since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Enables inotify from the next walk on, to find groups that live shorter than the walk interval. Call before the first walk:
    /// groups found earlier are not watched.
    pub fn watch(&mut self) -> io::Result<Alarm> {
        let watches = Watches::new()?;
        let alarm = watches.alarm();
        self.watches = Some(watches);
        Ok(alarm)
    }

    /// Scans all groups. Fails if the root directory cannot be read; unreadable directories below are counted.
    pub fn walk(&mut self) -> io::Result<Walk> {
        self.counts.walks += 1;
        let top = self.look(Path::new(""))?;
        // The scan covers all earlier inotify events.
        if let Some(watches) = &mut self.watches {
            watches.changed();
        }
        let mut walk = Walk { whole: true, ..Walk::default() };
        self.look_below(Path::new(""), Some(top), &mut walk);
        walk.gone.sort_unstable();
        Ok(walk)
    }

    /// Scans only the directories with inotify events since the last call.
    pub fn changes(&mut self) -> io::Result<Walk> {
        let mut walk = Walk::default();
        let places = match self.watches.as_mut().map(Watches::changed) {
            None => return Ok(walk),
            Some(Changed::Anywhere) => return self.walk(),
            Some(Changed::At(places)) => places,
        };
        let mut last: Option<PathBuf> = None;
        for place in places {
            // Directories below a scanned one are already scanned.
            if last.as_ref().is_some_and(|last| place.starts_with(last)) {
                continue;
            }
            let top = self.look(&place).ok().filter(Metadata::is_dir);
            self.look_below(&place, top, &mut walk);
            last = Some(place);
        }
        walk.whole = false;
        walk.gone.sort_unstable();
        Ok(walk)
    }

    /// Scans a directory, if it exists, and all below.
    fn look_below(&mut self, start: &Path, top: Option<Metadata>, walk: &mut Walk) {
        let notified = start != Path::new("");
        let mut before: HashMap<u64, Known> =
            self.known.extract_if(|_, group| group.folder.starts_with(start)).collect();
        let mut whole = true;
        let mut ahead: Vec<(PathBuf, Metadata)> = top.map(|top| (start.to_owned(), top)).into_iter().collect();
        while let Some((folder, mut metadata)) = ahead.pop() {
            if self.known.len() >= self.most {
                self.counts.limited += 1;
                whole = false;
                break;
            }
            let id = metadata.ino();
            let known = before.remove(&id);
            let same = known.as_ref().is_some_and(|known| known.folder == folder);
            let mut watch = known.and_then(|known| known.watch);
            // After an event it may be another directory with a reused inode number.
            if !same || notified {
                let old = watch;
                watch = self.watch_folder(&folder);
                self.unwatch(old.filter(|old| Some(*old) != watch));
                // Finds groups created between the scan and the watch.
                if let Some(now) = watch.and_then(|_| self.look(&folder).ok()).filter(|now| now.ino() == id) {
                    metadata = now;
                }
            }
            if !same {
                walk.came.push(Cgroup { id, path: self.hierarchy.path_of(&folder) });
            }
            // A directory has two links plus one per subdirectory, where the file system counts them. Most groups have none, and a stat
            // is much cheaper than reading their many files.
            if metadata.nlink() != 2 {
                match self.inside(&folder) {
                    Ok((inside, unreadable)) => {
                        self.counts.unreadable += unreadable;
                        whole &= unreadable == 0;
                        ahead.extend(inside);
                    }
                    // The next scan reports it as removed.
                    Err(error) if vanished(&error) => {}
                    Err(_) => {
                        self.counts.unreadable += 1;
                        whole = false;
                    }
                }
            }
            self.known.insert(id, Known { folder, watch });
        }
        for (id, group) in before {
            if self.known.contains_key(&id) {
                continue;
            }
            // The group may be in an unscanned part.
            if !whole && self.look(&group.folder).is_ok_and(|metadata| metadata.ino() == id) {
                self.known.insert(id, group);
                continue;
            }
            self.unwatch(group.watch);
            walk.gone.push(id);
        }
        walk.whole &= whole;
    }

    fn watch_folder(&mut self, folder: &Path) -> Option<WatchDescriptor> {
        let watches = self.watches.as_mut()?;
        match watches.add(&self.hierarchy.mount_point, folder) {
            Ok(watch) => Some(watch),
            Err(error) if vanished(&error) => None,
            Err(_) => {
                self.counts.unwatched += 1;
                None
            }
        }
    }

    fn unwatch(&mut self, watch: Option<WatchDescriptor>) {
        if let (Some(watches), Some(watch)) = (&mut self.watches, watch) {
            watches.remove(watch);
        }
    }

    fn look(&self, folder: &Path) -> io::Result<Metadata> {
        fs::symlink_metadata(self.hierarchy.mount_point.join(folder))
    }

    /// Subdirectories of a directory, and the number of unreadable ones.
    fn inside(&self, folder: &Path) -> io::Result<(Vec<(PathBuf, Metadata)>, u64)> {
        let mut found = Vec::new();
        let mut unreadable = 0;
        for entry in fs::read_dir(self.hierarchy.mount_point.join(folder))? {
            let entry = entry?;
            // readdir returns the file type; a group is never a symbolic link.
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

/// The group was removed during the scan.
fn vanished(error: &io::Error) -> bool {
    /// Error of cgroupfs for an open directory of a removed group.
    const ENODEV: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}

#[cfg(test)]
mod tests;
