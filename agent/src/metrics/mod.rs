//! From kernel memory to series: words are folded over CPUs, keys become label text, and the result is a plain
//! [`kstrobe_export::snapshot::Snapshot`] that every exporter reads.
//!
//! Nothing here makes a system call on its own or looks at a clock: memory, index and time are passed in.

pub mod events;
pub mod fold;
pub mod functions;
pub mod labels;
pub mod polled;
pub mod profiles;
pub mod series;
pub mod stacks;
pub mod telemetry;
pub mod workload_names;
