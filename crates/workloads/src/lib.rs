//! Which pod, container, workload or systemd unit a control group belongs to.
//!
//! ```text
//!  path of a group ── path::place ──▶ Place { pod uid, container id, unit } ─┐
//!                                                                            ├─▶ Table ─▶ Workload, Selector ─▶ ids
//!  pods of the API server or kubelet ──▶ Pod { names, owner, containers } ───┘
//! ```
//!
//! Cgroups, pods and the time are inputs. Only [`cgroups`] reads files; no module contacts a server or reads a clock.

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
pub use selector::{Difference, Selector, Term, Wanted};
pub use table::{Counts, Decided, Group, Settings, Table};
pub use workload::{Field, Workload};
