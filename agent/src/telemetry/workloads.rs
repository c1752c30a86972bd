//! Metrics of the workloads that are followed.

use super::{WorkloadsUse, family};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;

pub(super) fn encode(out: &mut DescriptorEncoder, used: &WorkloadsUse) -> fmt::Result {
    let none: [(&str, String); 0] = [];
    let one = |count: u64| std::iter::once((none.clone(), ConstCounter::new(count)));
    let states = used.cgroups.iter().map(|(state, n)| ([("state", (*state).to_owned())], ConstGauge::new(*n)));
    let help = "Cgroups that have their names, wait for them, or have ended and are still named.";
    family(out, "workloads_cgroups", help, None, states)?;
    let gauge = |n: u64| std::iter::once((none.clone(), ConstGauge::new(n)));
    family(out, "workloads_pods", "Pods that can name cgroups.", None, gauge(used.pods))?;
    let took = std::iter::once((none.clone(), ConstGauge::new(used.walk.as_secs_f64())));
    family(out, "workloads_walk", "Time of the last look at all cgroups.", Some(Unit::Seconds), took)?;
    let help = "Folders of cgroups that could not be read, and walks that failed.";
    family(out, "workloads_walk_errors", help, None, one(used.walk_errors))?;
    let help = "Cgroups that were shown without the names of their pod, which nobody told of in time.";
    family(out, "workloads_unresolved", help, None, one(used.unresolved))?;
    let help = "Cgroups whose names came, or became more, after they had been shown without.";
    family(out, "workloads_late", help, None, one(used.late))?;
    family(out, "workloads_reused", "Ids of cgroups that meant another one before.", None, one(used.reused))?;
    let help = "Cgroups that were forgotten some time after their end.";
    family(out, "workloads_expired", help, None, one(used.expired))?;
    let help = "Cgroups that a condition means and its map has no room for.";
    family(out, "workloads_unselected", help, None, gauge(used.unselected))
}
