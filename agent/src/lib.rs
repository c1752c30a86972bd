//! The per-node agent: the only crate that does I/O.
#![deny(unsafe_code)]

pub mod app;
pub mod capture;
pub mod cli;
pub mod config;
pub mod http;
pub mod kernel;
pub mod kubernetes;
pub mod metrics;
pub mod probe;

/// Who asks servers of HTTP.
pub(crate) const USER_AGENT: &str = concat!("kstrobe/", env!("CARGO_PKG_VERSION"));
