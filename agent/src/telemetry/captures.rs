//! Metrics of captures and rules.

use super::{Observed, family};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

pub(super) fn encode(out: &mut DescriptorEncoder, observed: &Observed) -> fmt::Result {
    let rules = observed
        .rules
        .iter()
        .map(|(rule, result, n)| ([("rule", rule.clone()), ("result", (*result).to_owned())], ConstCounter::new(*n)));
    family(out, "rule_captures", "Captures that rules and alerts asked for, by what came of it.", None, rules)?;
    let Some(used) = &observed.captures else { return Ok(()) };
    let ended = used.ended.iter().map(|(trigger, result, n)| {
        ([("trigger", trigger.clone()), ("result", (*result).to_owned())], ConstCounter::new(*n))
    });
    family(out, "captures", "Captures that ended or were refused, by who asked for them.", None, ended)?;
    let none: [(&str, &str); 0] = [];
    let running = std::iter::once((none, ConstGauge::new(used.running)));
    family(out, "captures_running", "Captures that run.", None, running)?;
    let bytes = std::iter::once((none, ConstGauge::new(used.stored_bytes)));
    // Spelled out: the crate would put a unit behind the name.
    family(out, "captures_stored_bytes", "Bytes of all captures that are stored.", None, bytes)?;
    let evicted = [("ttl", used.evicted.ttl), ("quota", used.evicted.quota)];
    let evicted = evicted.into_iter().map(|(reason, n)| ([("reason", reason)], ConstCounter::new(n)));
    family(out, "captures_evicted", "Captures removed to keep the limits.", None, evicted)
}
