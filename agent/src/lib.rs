//! The per-node agent: the only crate that does I/O.
#![deny(unsafe_code)]

pub mod app;
pub mod binaries;
pub mod capture;
pub mod cli;
pub mod events;
pub mod handed;
pub mod http;
pub mod kernel;
pub mod kubernetes;
pub mod logging;
pub mod memory;
pub mod metrics;
pub mod neighbours;
pub mod objects;
pub mod plan;
pub mod polls;
pub mod prepare;
pub mod receivers;
pub mod rules;
pub mod sources;
pub mod stacks;
pub mod stat;
pub mod telemetry;

/// Who asks servers of HTTP.
pub(crate) const USER_AGENT: &str = concat!("kstrobe/", env!("CARGO_PKG_VERSION"));
