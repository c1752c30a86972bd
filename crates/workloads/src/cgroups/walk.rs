//! Looking at all groups of a hierarchy, again and again.

use crate::cgroups::hierarchy::Hierarchy;
use crate::cgroups::watch::{Alarm, Changed, Watches};
use nix::sys::inotify::WatchDescriptor;
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

/// What is different from the time before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// New groups, parents first; also those whose id or name another group had before.
    pub came: Vec<Cgroup>,
    /// Ids of groups that are no more, ascending.
    pub gone: Vec<u64>,
    /// Whether every group was looked at. Where not, those that were not are neither new nor gone.
    pub whole: bool,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Walks over everything.
    pub walks: u64,
    /// Folders that could not be read, again on each walk.
    pub unreadable: u64,
    /// Walks that ended at the limit.
    pub limited: u64,
    /// Folders that are not watched, as there are too many. Walks find what happens in them.
    pub unwatched: u64,
}

/// Looks at all groups of one hierarchy and remembers them.
#[derive(Debug)]
pub struct Walker {
    hierarchy: Hierarchy,
    /// The most groups to look at.
    most: usize,
    known: HashMap<u64, Known>,
    watches: Option<Watches>,
    counts: Counts,
}

/// A group that is there.
#[derive(Debug)]
struct Known {
    /// Below the mount point.
    folder: PathBuf,
    watch: Option<WatchDescriptor>,
}

impl Walker {
    /// Knows nothing yet. A walk looks at `most` groups and no more.
    pub fn new(hierarchy: Hierarchy, most: usize) -> Walker {
        Walker { hierarchy, most, known: HashMap::new(), watches: None, counts: Counts::default() }
    }

    /// The hierarchy it walks.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// How many groups there were the last time.
    pub fn groups(&self) -> usize {
        self.known.len()
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Has the kernel tell of groups that come and go, from the next walk on, so that those are found that do not live until the
    /// walk after it. Asked before the first walk: what is known by then is not watched.
    pub fn watch(&mut self) -> io::Result<Alarm> {
        let watches = Watches::new()?;
        let alarm = watches.alarm();
        self.watches = Some(watches);
        Ok(alarm)
    }

    /// Looks at all groups. The error is that of the first folder, without which there is nothing to say; what cannot be read
    /// further down is counted.
    pub fn walk(&mut self) -> io::Result<Walk> {
        self.counts.walks += 1;
        let top = self.look(Path::new(""))?;
        // What was told before this is found by looking.
        if let Some(watches) = &mut self.watches {
            watches.changed();
        }
        let mut walk = Walk { whole: true, ..Walk::default() };
        self.look_below(Path::new(""), Some(top), &mut walk);
        walk.gone.sort_unstable();
        Ok(walk)
    }

    /// Looks where the kernel has told of changes since the last time: this costs next to nothing.
    pub fn changes(&mut self) -> io::Result<Walk> {
        let mut walk = Walk::default();
        let places = match self.watches.as_mut().map(Watches::changed) {
            None => return Ok(walk),
            Some(Changed::Anywhere) => return self.walk(),
            Some(Changed::At(places)) => places,
        };
        let mut last: Option<PathBuf> = None;
        for place in places {
            // What is below one that was looked at was looked at.
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

    /// Looks at a folder, if it is there, and all below.
    fn look_below(&mut self, start: &Path, top: Option<Metadata>, walk: &mut Walk) {
        let told = start != Path::new("");
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
            // Where something was told, it may be another folder with the same number.
            if !same || told {
                let old = watch;
                watch = self.watch_folder(&folder);
                self.unwatch(old.filter(|old| Some(*old) != watch));
                // What came between its being seen and being watched.
                if let Some(now) = watch.and_then(|_| self.look(&folder).ok()).filter(|now| now.ino() == id) {
                    metadata = now;
                }
            }
            if !same {
                walk.came.push(Cgroup { id, path: self.hierarchy.path_of(&folder) });
            }
            // A folder has two links and one more for each folder in it, where its file system counts them. Most groups have none,
            // and to read what else is in there takes much longer than to ask.
            if metadata.nlink() != 2 {
                match self.inside(&folder) {
                    Ok((inside, unreadable)) => {
                        self.counts.unreadable += unreadable;
                        whole &= unreadable == 0;
                        ahead.extend(inside);
                    }
                    // It is found gone by those who look the next time.
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
            // It may lie where the walk did not come by.
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
