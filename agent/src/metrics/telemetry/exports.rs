//! Metrics of what is sent to receivers.

use super::{ExportUse, Observed, family};
use kstrobe_export::push::Usage;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;
use std::time::UNIX_EPOCH;

pub(super) fn encode(out: &mut DescriptorEncoder, observed: &Observed) -> fmt::Result {
    let ExportUse { now, past } = &observed.exports;
    let all = || now.iter().chain(past);
    let name = |usage: &Usage| [("exporter", usage.receiver.clone())];
    let by_reason = |counts: fn(&Usage) -> &BTreeMap<&'static str, u64>| {
        all().flat_map(move |usage| {
            counts(usage).iter().map(|(reason, n)| {
                ([("exporter", usage.receiver.clone()), ("reason", (*reason).to_owned())], ConstCounter::new(*n))
            })
        })
    };
    let help = "Data points that a receiver took.";
    let rows = all().map(|usage| (name(usage), ConstCounter::new(usage.sent)));
    family(out, "export_points_sent", help, None, rows)?;
    family(out, "export_failures", "Requests to a receiver that failed.", None, by_reason(|usage| &usage.failed))?;
    let rows = all().map(|usage| (name(usage), ConstCounter::new(usage.retried)));
    family(out, "export_retries", "Requests to a receiver that were sent another time.", None, rows)?;
    let help = "Data points lost: refused by the receiver, memory full, or unsent when sending there stopped.";
    family(out, "export_points_dropped", help, None, by_reason(|usage| &usage.dropped))?;
    let help = "Data points that were not sent as a later report had newer totals of the same series.";
    let rows = all().map(|usage| (name(usage), ConstCounter::new(usage.superseded)));
    family(out, "export_points_superseded", help, None, rows)?;
    let rows = now.iter().map(|usage| (name(usage), ConstGauge::new(usage.queue_points)));
    family(out, "export_queue_points", "Data points that wait to be sent.", None, rows)?;
    // Its unit is within the name, where the crate would not have it.
    let rows = now.iter().map(|usage| (name(usage), ConstGauge::new(usage.queue_bytes)));
    family(out, "export_queue_bytes", "Bytes of requests that wait to be sent.", None, rows)?;
    let rows = now.iter().filter_map(|usage| {
        let since = usage.last_success?.duration_since(UNIX_EPOCH).ok()?;
        Some((name(usage), ConstGauge::new(since.as_millis() as f64 / 1000.0)))
    });
    family(out, "export_last_success_timestamp_seconds", "When a receiver last took a request.", None, rows)
}
