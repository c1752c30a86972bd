//! Metrics of captures and rules.

use super::{Observed, family, single};
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
    single(out, "captures_running", "Captures that run.", None, ConstGauge::new(used.running))?;
    // Its unit is within the name, where the crate would not have it.
    let stored = ConstGauge::new(used.stored_bytes);
    single(out, "captures_stored_bytes", "Bytes of all captures that are stored.", None, stored)?;
    let evicted = [("ttl", used.evicted.ttl), ("quota", used.evicted.quota)];
    let evicted = evicted.into_iter().map(|(reason, n)| ([("reason", reason)], ConstCounter::new(n)));
    family(out, "captures_evicted", "Captures removed to keep the limits.", None, evicted)
}
