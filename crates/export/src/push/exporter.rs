//! The settings of an exporter, as plain data.

use crate::otlp::{Resource, Temporality};
use http::Uri;
use std::path::PathBuf;
use std::time::Duration;

/// Headers that the transport sets, in lower case: `headers` of an exporter must not.
pub const OUR_HEADERS: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "user-agent",
    "x-prometheus-remote-write-version",
];

/// An exporter. A reload keeps the task of one whose settings are equal.
#[derive(Clone, Debug, PartialEq)]
pub struct Exporter {
    /// Its name in logs and metrics.
    pub name: String,
    /// The protocol.
    pub kind: Kind,
    /// `http://` or `https://`; for HTTP with the whole path.
    pub url: Uri,
    /// Between two reports.
    pub interval: Duration,
    /// For one request, connecting included.
    pub timeout: Duration,
    /// Sent with each request.
    pub headers: Vec<(String, String)>,
    /// Lines `Name: value`, read anew for each report: secrets do not belong into a configuration.
    pub headers_file: Option<PathBuf>,
    /// Whether bodies of OTLP are compressed. Those of remote write always are, by snappy.
    pub gzip: bool,
    /// For `https://`.
    pub tls: Tls,
    /// Pauses after failures.
    pub retry: Retry,
    /// For OTLP.
    pub temporality: Temporality,
    /// Most bytes of unsent reports kept in memory.
    pub queue_bytes: usize,
    /// Attributes of the sender.
    pub resource: Resource,
    /// Whether slow events are sent to it, as OTLP logs.
    pub logs: bool,
    /// Whether captures are sent to it, as OTLP spans.
    pub traces: bool,
}

impl Exporter {
    /// The URL for messages, without user information and query, which may be secrets.
    pub fn shown(&self) -> String {
        let host = self.url.authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default());
        let path = self.url.path();
        let path = if path == "/" { "" } else { path };
        format!("{}://{}{path}", self.url.scheme_str().unwrap_or_default(), host.unwrap_or_default())
    }
}

/// The protocol of an exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// OTLP over gRPC.
    OtlpGrpc,
    /// OTLP over HTTP, binary.
    OtlpHttp,
    /// Prometheus remote write 2.0.
    RemoteWrite,
}

/// Files of TLS, read anew for each report, so that certificates can be replaced while the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Authorities that the receiver's certificate may be from; those of the system when absent.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and the chain to its authority.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// The name that the receiver's certificate must have, when it is not the URL's.
    pub server_name: Option<String>,
}

/// Pauses after failures: each is `multiplier` times the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// After the first failure.
    pub initial: Duration,
    /// The longest.
    pub max: Duration,
    /// From one to the next.
    pub multiplier: f64,
    /// A pause is longer or shorter by up to this part of it, so that agents do not come back all at once.
    pub jitter: f64,
}

impl Default for Retry {
    /// As the OpenTelemetry collector's exporters.
    fn default() -> Self {
        Self { initial: Duration::from_secs(5), max: Duration::from_secs(30), multiplier: 1.5, jitter: 0.5 }
    }
}

impl Retry {
    /// The pause after so many failures in a row. `random` is in `0..1`.
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let (initial, max) = (self.initial.as_secs_f64(), self.max.as_secs_f64());
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        // An overflow is infinite, and then the longest.
        let pause = (initial * self.multiplier.max(1.0).powi(exponent)).min(max);
        let jitter = self.jitter.clamp(0.0, 1.0) * (2.0 * random.clamp(0.0, 1.0) - 1.0);
        Duration::try_from_secs_f64(pause * (1.0 + jitter)).unwrap_or(self.max)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_secrets() {
        for (url, expected) in [
            ("http://h:4317/", "http://h:4317"),
            ("https://u:p@h/api/v1/write?token=x", "https://h/api/v1/write"),
            ("https://[::1]:1/?token=x", "https://[::1]:1"),
        ] {
            let receiver = Exporter { url: url.parse().unwrap(), ..receiver() };
            assert_eq!(receiver.shown(), expected);
        }
    }

    /// One that tests change.
    pub(crate) fn receiver() -> Exporter {
        Exporter {
            name: "test".into(),
            kind: Kind::OtlpHttp,
            url: "http://test".parse().unwrap(),
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            headers: Vec::new(),
            headers_file: None,
            gzip: false,
            tls: Tls::default(),
            retry: Retry::default(),
            temporality: Temporality::Cumulative,
            queue_bytes: 0,
            resource: Resource::default(),
            logs: false,
            traces: false,
        }
    }

    #[test]
    fn pauses_grow_up_to_the_longest_and_differ_by_chance() {
        let retry = Retry::default();
        for (failures, random, millis) in [
            (1, 0.5, 5_000),
            (2, 0.5, 7_500),
            (3, 0.5, 11_250),
            (6, 0.5, 30_000),
            (u32::MAX, 0.5, 30_000),
            (1, 0.0, 2_500),
            (1, 1.0, 7_500),
            (u32::MAX, 1.0, 45_000),
            (0, 0.5, 5_000),
        ] {
            assert_eq!(retry.pause(failures, random), Duration::from_millis(millis), "{failures} {random}");
        }
        let still = Retry { multiplier: 0.0, jitter: f64::NAN, ..retry };
        assert!(still.pause(9, f64::NAN) <= retry.max);
    }
}
