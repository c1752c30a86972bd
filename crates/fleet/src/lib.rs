//! Captures on many nodes: target selection, common start time, per-node state, merged archive.
//!
//! ```text
//!  pods ──▶ target ──▶ session (one a node) ──▶ merge ──▶ archive
//!                         │    ▲                 ▲
//!                         ▼    │                 │
//!                      run: Agents          clock: whose wall clock is right
//! ```
//!
//! [`clock`], [`node_session`], [`target`], [`hooks`] and [`views`] are pure and take the time as an argument. [`run`] sends
//! requests through the [`run::Agents`] transport, [`merge`] and [`archive`] write files.
#![forbid(unsafe_code)]

pub mod archive;
pub mod clock;
mod error;
pub mod hooks;
pub mod manifest;
pub mod merge;
pub mod node_session;
pub mod private;
pub mod route;
pub mod run;
pub mod target;
pub mod views;

pub use error::{Error, TransportError};
