//! Which pod, container, workload or systemd unit a control group belongs to.
//!
//! ```text
//!  path of a group ── path::place ──▶ Place { pod uid, container id, unit } ─┐
//!                                                                            ├─▶ Table ─▶ Workload, Selector ─▶ ids
//!  pods of the API server or kubelet ──▶ Pod { names, owner, containers } ───┘
//! ```
//!
//! Everything is told: which groups came and went and where they lie, which pods there are, what time it is. Nothing but
//! [`cgroups`] reads files, and nothing asks a server or a clock.

#![forbid(unsafe_code)]

pub mod cgroups;
mod owner;
pub mod path;
mod pod;
mod selector;
mod table;
mod workload;

pub use owner::Owner;
pub use path::{Place, Runtime, place};
pub use pod::{Container, Pod};
pub use selector::{Difference, Selector, Term};
pub use table::{Counts, Decided, Group, Settings, Table};
pub use workload::{Field, Workload};
