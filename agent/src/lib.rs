//! The per-node agent: the only crate that does I/O.

pub mod export;
pub mod metrics;
pub mod polls;
