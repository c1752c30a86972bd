//! Which cgroups there are: walks over the file system, told to the table.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kstrobe_cgroups::{Hierarchies, Walker};
use kstrobe_workloads::{Table, Workload};

/// A node has a thousand; more than this is no node.
const MOST: usize = 1 << 16;

/// The hierarchy whose ids programs in the kernel see.
pub(super) struct Groups {
    walker: Walker,
    /// When the last whole walk began.
    walked: Option<Instant>,
    took: Duration,
    failed: u64,
}

impl Groups {
    /// That of version 2, where it is mounted.
    pub fn here() -> Result<Groups, String> {
        let found = Hierarchies::here(None).map_err(|error| error.to_string())?;
        let unified =
            found.unified.ok_or("no cgroup2 file system is mounted, and the kernel tells ids of that one alone")?;
        tracing::info!(at = %unified.mount_point.display(), "following cgroups");
        Ok(Groups { walker: Walker::new(unified, MOST), walked: None, took: Duration::ZERO, failed: 0 })
    }

    /// Looks at all of them, and tells what came and went.
    pub fn walk(&mut self, table: &mut Table) -> Result<(), String> {
        let began = Instant::now();
        let walk = self.walker.walk().map_err(|error| {
            self.failed += 1;
            format!("{}: {error}", self.walker.hierarchy().mount_point.display())
        })?;
        // An id that was given again is gone and has come: the end of the old first.
        walk.gone.iter().for_each(|id| table.cgroup_gone(*id, began));
        walk.came.iter().for_each(|group| table.cgroup_seen(group.id, &group.path, began));
        self.took = began.elapsed();
        if walk.whole {
            table.walked(began);
            self.walked = Some(began);
        }
        Ok(())
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

/// What all groups are called.
pub(super) fn owners(table: &Table) -> HashMap<u64, Option<Arc<Workload>>> {
    table.groups().map(|group| (group.id, group.workload.cloned())).collect()
}
