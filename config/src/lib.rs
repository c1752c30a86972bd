//! YAML text to checked, plain-data definitions of probes and of the agent itself.
//!
//! Nothing here does I/O. A probe becomes the compiler's input ([`kstrobe_ebpf::Program`]), whose expressions stay texts with a
//! place until it reads them. The only failures are [`Diagnostic`]s, all of them in one run.
#![forbid(unsafe_code)]

pub mod diag;
pub mod model;

mod check;
mod fields;
mod load;
mod names;
pub mod oneliner;
mod quantity;
mod raw;
mod reference;
mod report;
mod resolve;
pub mod schema;
mod secrets;
mod tools;
mod when;

pub use check::{EXPORTER_HEADERS, option_setter};
pub use diag::{Diagnostic, Severity, render, render_ansi};
pub use kstrobe_ebpf::diag::did_you_mean;
pub use load::{agent, all_probes, area, capture, embedded, probes, web};
pub use names::{OWN_METRICS, PREFIX};
pub use quantity::{QuantityError, read as quantity};
pub use reference::{limits, perf_events, words};
pub use report::in_order;
pub use resolve::{check_rules, unique_metrics};
pub use tools::probes_replacing;
