//! A history of metrics: for each second, by how much the series have changed, and what queries make of it.
//!
//! A [`Cursor`] takes the readings of a probe and gives differences; [`History`] packs them, one [`Second`] after the other,
//! within a limit of time and memory. Nothing is rounded: the counts of a query are the sums of the differences. Pure functions
//! over plain data, but for [`disk`]: no I/O, no clock.
#![forbid(unsafe_code)]

mod cursor;
pub mod disk;
mod mark;
mod query;
mod record;
mod registry;
pub mod segment;
mod store;
#[cfg(test)]
mod tests;

/// Of the histograms in [`MetricChanges`].
pub use kstrobe_ebpf::buckets::{BucketSpec, Scheme};

pub use cursor::{Change, Cursor, Labels, MetricChanges, Row};
pub use mark::{Mark, MarkKind};
pub use query::answer::{Answer, DiskOverview, Group, MetricSummary, Overview, SecondSummary, Total, Values};
pub use query::{Past, Query, QueryError};
pub use store::{History, Limits, Lost, ProbeChanges, Second, Usage};
