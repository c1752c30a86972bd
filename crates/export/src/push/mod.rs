//! Exporters: send metrics, logs and traces to receivers by OTLP and Prometheus remote write.
//!
//! Decisions are pure functions without a clock: [`schedule`] when to read a snapshot, send and wait, [`send_queue`] which
//! requests wait, [`outcome`] what a response means. Sockets and files are in [`task`] and the transports below it.

pub mod batch_queue;
mod connection_error;
mod error;
pub mod exporter;
mod files;
mod grpc_transport;
mod http_transport;
pub mod outcome;
mod payload;
pub mod schedule;
pub mod send_queue;
pub mod task;
mod tls;
mod tls_errors;
mod transport;
pub mod usage;

pub use batch_queue::BatchQueue;
pub use exporter::{Exporter, Kind};
pub use task::{DeltaBaseline, ExporterTask, Reading, Watch, start, start_logs, start_traces};
pub use usage::Usage;
