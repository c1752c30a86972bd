//! Being told of groups that come and go between two walks.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The most watches: half of what the kernel grants a user by default on a small machine, as others of the same user, the
/// kubelet and systemd among them, need some, too. A node has 110 pods and so less than a thousand groups.
const MOST_WATCHES: usize = 4096;

/// With more folders than this, looking at everything is less work than looking at each.
const MOST_FOLDERS: usize = 64;

/// Watches on folders, by inotify: it needs no rights, and the kernel says what it lost.
#[derive(Debug)]
pub(crate) struct Watches {
    inotify: Arc<Inotify>,
    /// Below the mount point.
    folders: HashMap<WatchDescriptor, PathBuf>,
    most: usize,
}

/// Where something changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// At these places below the mount point, or below these.
    At(BTreeSet<PathBuf>),
    /// Nobody knows, or nearly everywhere.
    Anywhere,
}

/// Tells when groups come or go. It may be asked by another thread than the walker's.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<Inotify>);

impl Alarm {
    /// Waits until there are changes that the walker has not looked at, but not longer than `limit`. Says whether there are.
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
    /// None yet.
    pub fn new() -> io::Result<Watches> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Watches { inotify: Arc::new(inotify), folders: HashMap::new(), most: MOST_WATCHES })
    }

    /// At most so many.
    #[cfg(test)]
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    pub fn alarm(&self) -> Alarm {
        Alarm(self.inotify.clone())
    }

    /// Watches a folder. What comes into it from now on is told.
    pub fn add(&mut self, mount_point: &Path, folder: &Path) -> io::Result<WatchDescriptor> {
        let what = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVE;
        let flags = what | AddWatchFlags::IN_ONLYDIR | AddWatchFlags::IN_DONT_FOLLOW;
        let watch = self.inotify.add_watch(&mount_point.join(folder), flags)?;
        if self.folders.len() >= self.most && !self.folders.contains_key(&watch) {
            let _ = self.inotify.rm_watch(watch);
            return Err(Errno::ENOSPC.into());
        }
        // A folder that is watched already, and has another name now, keeps its watch.
        self.folders.insert(watch, folder.to_owned());
        Ok(watch)
    }

    /// Ends a watch. The kernel does not do so by itself when a group goes, and its inode would stay.
    pub fn remove(&mut self, watch: WatchDescriptor) {
        self.folders.remove(&watch);
        let _ = self.inotify.rm_watch(watch);
    }

    /// What changed since it was asked last.
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
                // Of a group that is gone, the last words.
                let Some(folder) = self.folders.get(&event.wd) else { continue };
                if let Some(name) = event.name.filter(|_| event.mask.contains(AddWatchFlags::IN_ISDIR)) {
                    places.insert(folder.join(name));
                }
            }
        }
        if anywhere || places.len() > MOST_FOLDERS { Changed::Anywhere } else { Changed::At(places) }
    }
}
