//! The last line of an interval: how many, how large, and what is missing.

use super::quantity::{grouped, quantity};
use super::table::max;
use super::{Distribution, Metric};
use crate::app::Account;

/// `nothing lost`, or what is missing, by name.
pub fn missing(of: &Account) -> String {
    let lost: Vec<String> = of.lost.iter().map(|(reason, events)| format!("{} {reason}", grouped(*events))).collect();
    let mut parts = Vec::new();
    if !lost.is_empty() {
        parts.push(format!("lost: {}", lost.join(", ")));
    }
    if of.merged > 0 {
        parts.push(format!("{} events in `other` (max_series)", grouped(of.merged)));
    }
    match (of.one_of, of.throttled) {
        (0 | 1, 0) => {}
        (0 | 1, _) => parts.push("sampled for a while: counts are estimates".into()),
        (one_of, _) => parts.push(format!("sampled 1/{one_of}: counts are estimates")),
    }
    if !of.reason.is_empty() {
        parts.push(format!("not measured everywhere: {}", of.reason));
    }
    parts.extend(of.unread.iter().map(|error| format!("unread: {error}")));
    if parts.is_empty() { "nothing lost".into() } else { parts.join("; ") }
}

/// Count, quantiles and maximum of a distribution.
pub fn distribution(of: &Distribution, metric: &Metric) -> String {
    let mut parts = vec![format!("{} events", grouped(of.count()))];
    for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        let raw = of.quantile(share, metric.scale);
        parts.extend(raw.map(|raw| format!("{name} {}", quantity(raw, metric.scale, &metric.unit))));
    }
    if of.count() > 0 {
        parts.push(format!("max {}", max(of, metric)));
    }
    parts.join("   ")
}
