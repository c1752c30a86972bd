//! Bounded recordings of kernel traces: requests, runs, and the store of their files.
//!
//! ```text
//!  Request ── select_events ──▶ events ── settings ──▶ Instance ── spool ──▶ files of pages ── collect ──▶ Trace
//!                                     ▲
//!  pods ──▶ control groups ──▶ scope: threads by name, process, control group
//! ```
//!
//! [`run::run`] strings them together. Everything it sets it takes back, however it ends.

pub mod access;
pub mod api;
mod collect;
pub mod engine;
pub mod error;
pub mod format;
pub mod report;
pub mod request;
pub mod rules;
pub mod run;
pub mod scope;
pub mod select_events;
pub mod service;
mod settings;
pub mod spans;
mod spool;
pub mod store;
pub mod unfinished;
pub mod write;

pub use error::Error;
pub use run::{Ended, Paths, Progress, Recorded, Stop, run};

/// Writes a request and its outcome into the audit log. `client` is its sender: a user, an address, or an object of the
/// cluster.
pub fn audit(client: &str, what: &str, capture: &str, result: &str) {
    tracing::info!(audit = true, client, what, capture, result, "captures");
}
