//! `exporters:`

use super::Spanned;

/// A receiver that the agent sends to.
#[derive(Clone, Debug)]
pub struct Exporter {
    /// `name:` in logs and metrics, default `otlp` or `remote_write`, numbered where there are several.
    pub name: String,
    /// What it understands.
    pub protocol: Protocol,
    /// `endpoint:` or `url:`, with its scheme. OTLP over HTTP appends the path of the signal.
    pub url: Spanned<String>,
    /// `interval:` between reports, nanoseconds, default 60 s.
    pub interval_ns: u64,
    /// `timeout:` or `remote_timeout:` of a request, nanoseconds, default 10 s for OTLP and 30 s for remote write.
    pub timeout_ns: u64,
    /// `headers:` in file order.
    pub headers: Vec<(String, String)>,
    /// `headers_file:` of lines `Name: value`.
    pub headers_file: Option<String>,
    /// `compression:` whether bodies of OTLP are compressed by gzip, default true.
    pub gzip: bool,
    /// `temporality:` whether OTLP has differences instead of totals, default false.
    pub delta: bool,
    /// `tls:` or `tls_config:`
    pub tls: ExporterTls,
    /// `retry_on_failure.initial_interval:` or `queue_config.min_backoff:` first pause, nanoseconds.
    pub first_pause_ns: u64,
    /// `retry_on_failure.max_interval:` or `queue_config.max_backoff:` longest pause, nanoseconds.
    pub longest_pause_ns: u64,
    /// `queue_bytes:` most bytes of unsent reports, default 64 MiB.
    pub queue_bytes: u64,
    /// `resource:` attributes besides, or instead of, those that the agent finds.
    pub resource: Vec<(String, String)>,
    /// `logs:` whether slow events are sent as OTLP logs, default false.
    pub logs: bool,
    /// `traces:` whether captures, and slow events with `span`, are sent as OTLP spans, default false.
    pub traces: bool,
}

/// What a receiver understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `otlp` with `protocol: grpc`, the default.
    OtlpGrpc,
    /// `otlp` with `protocol: http`.
    OtlpHttp,
    RemoteWrite,
}

/// `tls:`, files of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExporterTls {
    pub ca_file: Option<String>,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    pub server_name: Option<String>,
}
