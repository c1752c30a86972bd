//! YAML text to checked, plain-data definitions of probes and of the agent itself.
//!
//! Nothing here does I/O or knows eBPF: expressions stay text with a place, and the compiler reads them later. Its only
//! failures are [`Diagnostic`](diag::Diagnostic)s, all of them in one run.
#![forbid(unsafe_code)]

pub mod model;
