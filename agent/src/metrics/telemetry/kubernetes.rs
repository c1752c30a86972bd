//! Metrics of what the cluster was asked for.

use super::family;
use kstrobe_kube::Counts;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use std::fmt;

pub(super) fn encode(out: &mut DescriptorEncoder, counts: &Counts) -> fmt::Result {
    let failures = counts.failures.iter().map(|((of, reason), n)| {
        ([("request", (*of).to_owned()), ("reason", (*reason).to_owned())], ConstCounter::new(*n))
    });
    let help = "Requests to Kubernetes that failed, by what was asked for and why.";
    family(out, "kubernetes_failures", help, None, failures)?;
    let events = counts.events.iter().map(|(event, n)| ([("event", (*event).to_owned())], ConstCounter::new(*n)));
    family(out, "kubernetes_events", "What was done and seen with Kubernetes, by name.", None, events)
}
