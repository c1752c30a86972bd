//! Probes that run, and how each stands.

pub mod status;
