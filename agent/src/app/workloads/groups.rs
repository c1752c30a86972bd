//! Which cgroups there are: walks over the file system, and what the kernel tells in between, told to the table.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kstrobe_cgroups::{Alarm, Hierarchies, Walk, Walker};
use kstrobe_workloads::{Table, Workload};

use super::{Asks, News};

/// A node has a thousand; more than this is no node.
const MOST: usize = 1 << 16;
/// What is told within this time is looked at together.
const GATHER: Duration = Duration::from_millis(100);
/// Between two looks whether anybody still wants to hear of changes.
const LISTEN: Duration = Duration::from_secs(1);

/// The hierarchy whose ids programs in the kernel see.
pub(super) struct Groups {
    walker: Walker,
    /// When the last whole walk began.
    walked: Option<Instant>,
    took: Duration,
    failed: u64,
    /// Set when nobody wants to hear of changes any more.
    over: Arc<AtomicBool>,
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Groups {
    /// That of version 2, or of version 1 where that is not mounted. Who is asked is told when something changes.
    pub fn here(asks: &Asks) -> Result<Groups, String> {
        let found = Hierarchies::here(None).map_err(|error| error.to_string())?;
        let Some((hierarchy, controller)) = found.followed() else {
            return Err("neither cgroup2 nor a controller of version 1 that pods have groups of is mounted".to_owned());
        };
        tracing::info!(at = %hierarchy.mount_point.display(), controller, "following cgroups");
        let mut walker = Walker::new(hierarchy.clone(), MOST);
        let over = Arc::new(AtomicBool::new(false));
        // Without it there are still the walks.
        if let Err(error) = walker.watch().and_then(|alarm| listen(alarm, asks.clone(), over.clone())) {
            tracing::warn!(%error, "new cgroups are found by walks alone: the kernel does not tell of them");
        }
        Ok(Groups { walker, walked: None, took: Duration::ZERO, failed: 0, over })
    }

    /// Looks at all of them, and tells what came and went.
    pub fn walk(&mut self, table: &mut Table) -> Result<(), String> {
        let began = Instant::now();
        let walk = self.walker.walk().map_err(|error| self.says(&error))?;
        tell(&walk, table, began);
        self.took = began.elapsed();
        if walk.whole {
            self.walked = Some(began);
        }
        Ok(())
    }

    /// Looks where the kernel told of changes.
    pub fn changes(&mut self, table: &mut Table) -> Result<(), String> {
        let walk = self.walker.changes().map_err(|error| self.says(&error))?;
        tell(&walk, table, Instant::now());
        Ok(())
    }

    fn says(&mut self, error: &io::Error) -> String {
        self.failed += 1;
        format!("{}: {error}", self.walker.hierarchy().mount_point.display())
    }

    /// When the last whole walk began.
    pub fn walked(&self) -> Option<Instant> {
        self.walked
    }

    /// How long the last walk took, and how often something could not be read.
    pub fn cost(&self) -> (Duration, u64) {
        let counts = self.walker.counts();
        (self.took, self.failed + counts.unreadable + counts.limited)
    }
}

fn tell(walk: &Walk, table: &mut Table, now: Instant) {
    // An id that was given again has gone and has come: the end of the old first.
    walk.gone.iter().for_each(|id| table.cgroup_gone(*id, now));
    walk.came.iter().for_each(|group| table.cgroup_seen(group.id, &group.path, now));
}

/// A thread that waits for the kernel's word.
fn listen(alarm: Alarm, asks: Asks, over: Arc<AtomicBool>) -> io::Result<()> {
    let wait = move || {
        while !over.load(Ordering::Relaxed) {
            match alarm.wait(LISTEN) {
                Ok(true) => {
                    std::thread::sleep(GATHER);
                    asks.tell(News::Groups);
                    // It is asked again when what was told has been looked at.
                    std::thread::sleep(GATHER);
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "new cgroups are found by walks alone from now on");
                    return;
                }
            }
        }
    };
    std::thread::Builder::new().name("cgroup-changes".into()).spawn(wait).map(drop)
}

/// What all groups are called.
pub(super) fn owners(table: &Table) -> HashMap<u64, Option<Arc<Workload>>> {
    table.groups().map(|group| (group.id, group.workload.cloned())).collect()
}
