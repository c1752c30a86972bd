//! The forms Prometheus can ask for, and one exposition in any of them.

use crate::snapshot::{Exemplar, Snapshot};
use crate::{protobuf, text};

/// Forms of an exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `text/plain; version=0.0.4`
    Text004,
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics100,
    /// `application/vnd.google.protobuf`, delimited `io.prometheus.client.MetricFamily`: the only one with native histograms.
    Protobuf,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 3] = [Format::Text004, Format::OpenMetrics100, Format::Protobuf];

    /// Value of the Content-Type header.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text004 => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics100 => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// Last line of OpenMetrics.
pub const END: &[u8] = b"# EOF\n";

/// A whole exposition: the snapshot, then the agent's own metrics, given in the same format. Text 0.0.4 has no exemplars.
/// Native histograms have at most so many populated buckets (0: as many as there are).
pub fn exposition(
    snapshot: &Snapshot,
    exemplars: &[Exemplar],
    own: &[u8],
    format: Format,
    native_bucket_limit: usize,
) -> Vec<u8> {
    let mut out = Vec::new();
    match format {
        Format::Text004 => {
            text::write(&mut out, snapshot, &[], false);
            out.extend_from_slice(own);
        }
        Format::OpenMetrics100 => {
            text::write(&mut out, snapshot, exemplars, true);
            out.extend_from_slice(own.strip_suffix(END).unwrap_or(own));
            out.extend_from_slice(END);
        }
        Format::Protobuf => {
            protobuf::write(&mut out, snapshot, exemplars, native_bucket_limit);
            out.extend_from_slice(own);
        }
    }
    out
}
