//! The per-node agent: the only crate that does I/O.

pub mod export;
pub mod http;
pub mod metrics;
pub mod polls;
pub mod telemetry;
