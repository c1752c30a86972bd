//! The per-node agent: the only crate that does I/O.
#![deny(unsafe_code)]

pub mod app;
pub mod cli;
pub mod export;
pub mod http;
#[allow(unsafe_code, reason = "the one room that talks to the kernel")]
pub mod kernel;
pub mod logging;
pub mod metrics;
pub mod plan;
pub mod polls;
pub mod prepare;
pub mod sources;
pub mod telemetry;
