//! Discovers the cgroups of a node with their ids, and follows their creation and removal.
//!
//! [`Hierarchies`] finds the mounts of cgroupfs. A [`Walker`] scans one hierarchy repeatedly and returns the changes; between
//! two walks inotify shows where to look. The meaning of paths is left to [`crate::path`].

mod hierarchy;
mod limit;
mod walk;
mod watch;

pub use hierarchy::{Error, Hierarchies, Hierarchy, Mode};
pub use limit::MemoryLimit;
pub use walk::{Cgroup, Counts, Walk, Walker};
pub use watch::Alarm;
