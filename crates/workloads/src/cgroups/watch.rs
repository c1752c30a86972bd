//! inotify watches for groups created and removed between two walks.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Maximum inotify watches: half of the default `max_user_watches` of a small machine, since the kubelet and systemd run as the
/// same user. A node has 110 pods and so less than a thousand groups.
const MAX_WATCHES: usize = 4096;

/// Above this number of changed directories a full walk is cheaper.
const MAX_FOLDERS: usize = 64;

/// inotify watches on directories: they need no privileges, and the kernel reports a queue overflow.
#[derive(Debug)]
pub(crate) struct Watches {
    inotify: Arc<Inotify>,
    /// Paths below the mount point.
    folders: HashMap<WatchDescriptor, PathBuf>,
    most: usize,
}

/// Changed directories.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// At or below these paths, relative to the mount point.
    At(BTreeSet<PathBuf>),
    /// Unknown after an overflow, or too many.
    Anywhere,
}

/// Waits for changes of groups; usable from another thread than the walker.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<Inotify>);

impl Alarm {
    /// Waits up to `limit` for unread inotify events; returns whether there are any.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let mut files = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Watches {
    /// Creates an empty set.
    pub fn new() -> io::Result<Watches> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Watches { inotify: Arc::new(inotify), folders: HashMap::new(), most: MAX_WATCHES })
    }

    /// Sets the maximum number of watches.
    #[cfg(test)]
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    pub fn alarm(&self) -> Alarm {
        Alarm(self.inotify.clone())
    }

    /// Watches a directory for new and removed subdirectories.
    pub fn add(&mut self, mount_point: &Path, folder: &Path) -> io::Result<WatchDescriptor> {
        let what = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVE;
        let flags = what | AddWatchFlags::IN_ONLYDIR | AddWatchFlags::IN_DONT_FOLLOW;
        let watch = self.inotify.add_watch(&mount_point.join(folder), flags)?;
        if self.folders.len() >= self.most && !self.folders.contains_key(&watch) {
            let _ = self.inotify.rm_watch(watch);
            return Err(Errno::ENOSPC.into());
        }
        // A renamed directory keeps its watch.
        self.folders.insert(watch, folder.to_owned());
        Ok(watch)
    }

    /// Removes a watch. The kernel keeps it after the group is removed, and so its inode.
    pub fn remove(&mut self, watch: WatchDescriptor) {
        self.folders.remove(&watch);
        let _ = self.inotify.rm_watch(watch);
    }

    /// Drains the inotify events since the last call.
    pub fn changed(&mut self) -> Changed {
        let mut places = BTreeSet::new();
        let mut anywhere = false;
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                Err(_) => {
                    anywhere = true;
                    break;
                }
            };
            for event in events {
                let lost = AddWatchFlags::IN_Q_OVERFLOW | AddWatchFlags::IN_MOVE;
                anywhere |= event.mask.intersects(lost);
                // IN_IGNORED of a removed group.
                let Some(folder) = self.folders.get(&event.wd) else { continue };
                if let Some(name) = event.name.filter(|_| event.mask.contains(AddWatchFlags::IN_ISDIR)) {
                    places.insert(folder.join(name));
                }
            }
        }
        if anywhere || places.len() > MAX_FOLDERS { Changed::Anywhere } else { Changed::At(places) }
    }
}
