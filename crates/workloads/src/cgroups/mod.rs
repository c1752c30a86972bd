//! Control groups of a node: which there are, under which ids, which came and which went.
//!
//! [`Hierarchies`] finds where they are mounted, a [`Walker`] looks at all of one hierarchy again and again and says what
//! changed; between two walks the kernel tells it where to look. What their paths mean is nobody's business here.

mod hierarchy;
mod limit;
mod walk;
mod watch;

pub use hierarchy::{Error, Hierarchies, Hierarchy, Mode};
pub use limit::MemoryLimit;
pub use walk::{Cgroup, Counts, Walk, Walker};
pub use watch::Alarm;
