//! YAML text to checked, plain-data definitions of probes and of the agent itself.
//!
//! Nothing here does I/O or knows eBPF: expressions stay text with a place, and the compiler reads them later. Its only
//! failures are [`Diagnostic`]s, all of them in one run.
#![forbid(unsafe_code)]

pub mod diag;
pub mod model;
pub mod place;

mod check;
mod fields;
mod load;
mod names;
mod quantity;
mod raw;
mod reference;
mod report;
mod resolve;
pub mod schema;
mod secrets;
mod when;

pub use check::EXPORTER_HEADERS;
pub use diag::{Diagnostic, Severity, render, render_ansi};
pub use load::{agent, all_probes, capture, embedded, probes, web};
pub use names::{OWN_METRICS, PREFIX, did_you_mean};
pub use quantity::read as quantity;
pub use reference::{limits, perf_events, words};
pub use report::in_order;
pub use resolve::{check_rules, unique_metrics};
