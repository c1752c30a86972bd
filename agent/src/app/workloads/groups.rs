//! Finds cgroups for the table: by walks over cgroupfs, and by the kernel's reports in between.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kstrobe_workloads::cgroups::{Alarm, Hierarchies, Hierarchy, Walk, Walker};
use kstrobe_workloads::{Group, Table, Workload};

use super::{Event, EventSender};
use crate::app::task::{self, Task};
use crate::config::files::Sandboxes;
use crate::kernel::events;
use crate::kernel::groups::{self, Change, Feed, GroupsError};
use thiserror::Error;

/// A node has a thousand; more than this is no node.
const MAX_GROUPS: usize = 1 << 16;
/// Reports within this time are handled together.
const GATHER: Duration = Duration::from_millis(100);
/// Interval of the check whether the thread is to end.
const LISTEN: Duration = Duration::from_secs(1);

/// The hierarchy whose ids programs in the kernel see.
pub(super) struct Groups {
    walker: Walker,
    /// When the last whole walk began.
    walked: Option<Instant>,
    took: Duration,
    failed: u64,
    /// Offsets for programs that see them; `None` where such programs cannot run.
    programs: Option<groups::Groups>,
    /// Changes that found no room in the ring buffer.
    lost: u64,
    /// Ends the threads.
    over: Arc<AtomicBool>,
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Groups {
    /// The hierarchy of version 2, or of version 1 where that is not mounted. Changes are sent to `sender`.
    pub fn here(sender: &EventSender) -> Result<Groups, FollowError> {
        let found = Hierarchies::here(None).map_err(FollowError::Mounts)?;
        let Some((hierarchy, controller)) = found.followed() else {
            return Err(FollowError::NotMounted);
        };
        tracing::info!(at = %hierarchy.mount_point.display(), controller, "following cgroups");
        let mut walker = Walker::new(hierarchy.clone(), MAX_GROUPS);
        let over = Arc::new(AtomicBool::new(false));
        let fed = fed(hierarchy, controller).and_then(|(programs, feed)| {
            let (sender, over) = (sender.clone(), over.clone());
            task::spawn(move || Records { feed, sender, over })?;
            Ok(programs)
        });
        let programs = match fed {
            Ok(programs) => Some(programs),
            Err(reason) => {
                tracing::info!(
                    %reason,
                    "programs do not see cgroups come and go: one that ends at once may have no name"
                );
                // Without it there are still the walks.
                if let Err(error) = walker.watch().and_then(|alarm| {
                    let (sender, over) = (sender.clone(), over.clone());
                    task::spawn(move || Notifications { alarm, sender, over, changed: false })
                }) {
                    tracing::warn!(%error, "new cgroups are found by walks alone: the kernel does not tell of them");
                }
                None
            }
        };
        Ok(Groups { walker, walked: None, took: Duration::ZERO, failed: 0, programs, lost: 0, over })
    }

    /// Offsets for programs that see cgroups.
    pub fn programs(&self) -> Option<&groups::Groups> {
        self.programs.as_ref()
    }

    /// Counts changes that found no room. Returns whether they are the first.
    pub fn lose(&mut self, lost: u64) -> bool {
        let first = self.lost == 0 && lost > 0;
        self.lost += lost;
        first
    }

    /// Walks all cgroups and updates the table.
    pub fn walk(&mut self, table: &mut Table) -> Result<(), FollowError> {
        let began = Instant::now();
        let walk = self.walker.walk().map_err(|error| self.failed(error))?;
        tell(&walk, table, began);
        self.took = began.elapsed();
        if walk.whole {
            self.walked = Some(began);
        }
        Ok(())
    }

    /// Reads the folders in which the kernel reported changes.
    pub fn changes(&mut self, table: &mut Table) -> Result<(), FollowError> {
        let walk = self.walker.changes().map_err(|error| self.failed(error))?;
        tell(&walk, table, Instant::now());
        Ok(())
    }

    fn failed(&mut self, error: io::Error) -> FollowError {
        self.failed += 1;
        FollowError::Walk { at: self.walker.hierarchy().mount_point.clone(), error }
    }

    /// When the last whole walk began.
    pub fn walked(&self) -> Option<Instant> {
        self.walked
    }

    /// How long the last walk took, and how often something could not be read.
    pub fn cost(&self) -> (Duration, u64) {
        let counts = self.walker.counts();
        (self.took, self.failed + self.lost + counts.unreadable + counts.limited)
    }
}

fn tell(walk: &Walk, table: &mut Table, now: Instant) {
    // An id that was given again has gone and has come: the end of the old first.
    walk.gone.iter().for_each(|id| table.cgroup_gone(*id, now));
    walk.came.iter().for_each(|group| table.cgroup_seen(group.id, &group.path, now));
}

/// Puts the changes that programs saw into the table. Returns whether some group came without a path.
pub(super) fn hear(changes: &[Change], table: &mut Table, now: Instant) -> bool {
    let mut unnamed = false;
    for change in changes {
        match change {
            Change::Made(id, Some(path)) => table.cgroup_seen(*id, path, now),
            Change::Made(_, None) => unnamed = true,
            Change::Removed(id) => table.cgroup_gone(*id, now),
        }
    }
    unnamed
}

/// Why cgroups have no names.
#[derive(Debug, Error)]
pub(super) enum FollowError {
    /// What is mounted cannot be read.
    #[error(transparent)]
    Mounts(kstrobe_workloads::cgroups::Error),
    /// No hierarchy that container runtimes use.
    #[error("neither cgroup2 nor a controller of version 1 that pods have groups of is mounted")]
    NotMounted,
    /// A walk failed.
    #[error("{}: {error}", at.display())]
    Walk {
        /// Where the hierarchy is mounted.
        at: PathBuf,
        /// Of the folder.
        error: io::Error,
    },
}

/// Why programs do not report cgroups.
#[derive(Debug, Error)]
enum NoFeed {
    #[error("groups of version 1 are followed")]
    Version1,
    #[error("only a part of the hierarchy is mounted here")]
    Part,
    #[error(transparent)]
    Kernel(#[from] GroupsError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The programs that see groups of this hierarchy come and go, and the feed of their records.
fn fed(hierarchy: &Hierarchy, controller: Option<&str>) -> Result<(groups::Groups, Feed), NoFeed> {
    /// Inode number of the root of a hierarchy.
    const ROOT: u64 = 1;
    if controller.is_some() {
        return Err(NoFeed::Version1);
    }
    let root = std::fs::metadata(&hierarchy.mount_point)?;
    if root.ino() != ROOT {
        return Err(NoFeed::Part);
    }
    let programs = groups::Groups::here()?;
    let feed = programs.feed()?;
    Ok((programs, feed))
}

/// Passes the records of programs on to the table's thread.
struct Records {
    feed: Feed,
    sender: EventSender,
    over: Arc<AtomicBool>,
}

impl Task for Records {
    const NAME: &'static str = "cgroup-changes";

    fn run(&mut self) {
        let (changes, lost) = self.feed.changes();
        if !changes.is_empty() || lost > 0 {
            self.sender.send(Event::Changes(changes, lost));
        }
    }

    fn wait(&mut self) -> ControlFlow<()> {
        if self.over.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        match events::wait(&[self.feed.ready().as_fd()], LISTEN) {
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                tracing::warn!(%error, "cgroups are found by walks alone from now on");
                ControlFlow::Break(())
            }
        }
    }
}

/// Passes the notifications of inotify on to the table's thread.
struct Notifications {
    alarm: Alarm,
    sender: EventSender,
    over: Arc<AtomicBool>,
    /// Something changed since the last pass.
    changed: bool,
}

impl Task for Notifications {
    const NAME: &'static str = "cgroup-changes";

    fn run(&mut self) {
        if std::mem::take(&mut self.changed) {
            std::thread::sleep(GATHER);
            self.sender.send(Event::Groups);
            // Give the pass time to read the folders before the next report.
            std::thread::sleep(GATHER);
        }
    }

    fn wait(&mut self) -> ControlFlow<()> {
        if self.over.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        match self.alarm.wait(LISTEN) {
            Ok(changed) => {
                self.changed = changed;
                ControlFlow::Continue(())
            }
            Err(error) => {
                tracing::warn!(%error, "new cgroups are found by walks alone from now on");
                ControlFlow::Break(())
            }
        }
    }
}

/// Labels of all groups.
pub(super) fn workloads(table: &Table, sandboxes: Sandboxes) -> HashMap<u64, Option<Arc<Workload>>> {
    table.groups().map(|group| (group.id, shown(&group, sandboxes))).collect()
}

/// Labels of a group; of one in a pod and in no container, by `workloads.sandboxes`.
fn shown(group: &Group<'_>, sandboxes: Sandboxes) -> Option<Arc<Workload>> {
    let workload = group.workload?;
    if workload.pod.is_none() || workload.container.is_some() {
        return Some(workload.clone());
    }
    Some(match (sandboxes, group.main) {
        (Sandboxes::Pod, Some(main)) => {
            Arc::new(Workload { container: Some(main.clone()), ..Workload::clone(workload) })
        }
        (Sandboxes::Node, _) => {
            let (node, cgroup_path) = (workload.node.clone(), workload.cgroup_path.clone());
            Arc::new(Workload { node, cgroup_path, ..Workload::default() })
        }
        (Sandboxes::Pod, None) | (Sandboxes::Apart, _) => workload.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_container_does_is_shown_as_is_wanted() {
        let named = |container: Option<&str>| {
            Arc::new(Workload {
                namespace: Some("shop".into()),
                pod: Some("web-1".into()),
                container: container.map(Arc::from),
                node: Some("n1".into()),
                ..Workload::default()
            })
        };
        let (sandbox, main) = (named(None), Arc::from("nginx"));
        let group = |workload, main| Group { id: 1, path: "/", workload: Some(workload), ended: false, main };
        let of = |group: &Group<'_>, sandboxes| {
            let workload = shown(group, sandboxes).expect("a name");
            let text = |name: &Option<Arc<str>>| name.as_deref().unwrap_or("-").to_owned();
            [text(&workload.pod), text(&workload.container), text(&workload.node)]
        };
        let pause = group(&sandbox, Some(&main));
        assert_eq!(of(&pause, Sandboxes::Pod), ["web-1", "nginx", "n1"]);
        assert_eq!(of(&pause, Sandboxes::Node), ["-", "-", "n1"]);
        assert_eq!(of(&pause, Sandboxes::Apart), ["web-1", "-", "n1"]);
        assert_eq!(of(&group(&sandbox, None), Sandboxes::Pod), ["web-1", "-", "n1"]);
        let other = named(Some("envoy"));
        for sandboxes in [Sandboxes::Pod, Sandboxes::Node, Sandboxes::Apart] {
            assert_eq!(of(&group(&other, Some(&main)), sandboxes), ["web-1", "envoy", "n1"]);
        }
        assert_eq!(shown(&Group { workload: None, ..pause }, Sandboxes::Pod), None);
    }
}
