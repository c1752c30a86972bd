//! Metrics of the server: connections, requests, its configuration.

use super::family;
use kstrobe_web::Counts;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

pub(super) fn encode(out: &mut DescriptorEncoder, counts: &Counts) -> fmt::Result {
    one(out, "http_open_connections", "Connections that are open.", ConstGauge::new(counts.open))?;
    one(out, "http_connections", "Connections that came.", ConstCounter::new(counts.accepted))?;
    let help = "Times that no connection could be taken from the kernel.";
    one(out, "http_accept_errors", help, ConstCounter::new(counts.accept_failed))?;
    let by_reason = |rows: &[(&'static str, u64)]| {
        rows.iter().map(|(reason, n)| ([("reason", *reason)], ConstCounter::new(*n))).collect::<Vec<_>>().into_iter()
    };
    let help = "Connections that the agent ended, by reason.";
    family(out, "http_connections_ended", help, None, by_reason(&counts.ended))?;
    one(out, "http_requests", "Requests that came.", ConstCounter::new(counts.requests))?;
    let help = "Requests that were refused before anything was done for them, by reason.";
    family(out, "http_requests_refused", help, None, by_reason(&counts.refused))?;
    if counts.reloaded_at_seconds == 0 {
        return Ok(());
    }
    let help = "Times that a changed web configuration was taken over.";
    one(out, "web_config_reloads", help, ConstCounter::new(counts.reloads))?;
    let help = "Times that a changed web configuration was wrong, and the one before it stayed.";
    one(out, "web_config_reload_failures", help, ConstCounter::new(counts.reload_failures))?;
    let help = "1 while the web configuration in use is what its files say.";
    one(out, "web_config_last_reload_successful", help, ConstGauge::new(u64::from(counts.reload_ok)))?;
    // The unit is within the name, where the crate would put it again.
    let help = "When the web configuration in use was read.";
    let at = ConstGauge::new(counts.reloaded_at_seconds);
    one(out, "web_config_last_reload_success_timestamp_seconds", help, at)
}

fn one(out: &mut DescriptorEncoder, name: &str, help: &str, value: impl EncodeMetric) -> fmt::Result {
    value.encode(out.encode_descriptor(name, help, None, value.metric_type())?)
}
