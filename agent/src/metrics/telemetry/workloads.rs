//! Metrics of the workloads that are followed.

use super::{WorkloadsUse, family, single};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;

pub(super) fn encode(out: &mut DescriptorEncoder, used: &WorkloadsUse) -> fmt::Result {
    let states = used.cgroups.iter().map(|(state, n)| ([("state", (*state).to_owned())], ConstGauge::new(*n)));
    let help = "Cgroups that have their names, wait for them, or have ended and are still named.";
    family(out, "workloads_cgroups", help, None, states)?;
    single(out, "workloads_pods", "Pods that can name cgroups.", None, ConstGauge::new(used.pods))?;
    let took = ConstGauge::new(used.walk.as_secs_f64());
    single(out, "workloads_walk", "Time of the last look at all cgroups.", Some(Unit::Seconds), took)?;
    let help = "Folders of cgroups that could not be read, and walks that failed or found too many.";
    single(out, "workloads_walk_errors", help, None, ConstCounter::new(used.walk_errors))?;
    let help = "Cgroups that were shown without the names of their pod, which no source named in time.";
    single(out, "workloads_unresolved", help, None, ConstCounter::new(used.unresolved))?;
    let help = "Cgroups whose names came, or became more, after they had been shown without.";
    single(out, "workloads_late", help, None, ConstCounter::new(used.late))?;
    single(
        out,
        "workloads_reused",
        "Ids of cgroups that meant another one before.",
        None,
        ConstCounter::new(used.reused),
    )?;
    let help = "Cgroups that were forgotten some time after their end.";
    single(out, "workloads_expired", help, None, ConstCounter::new(used.expired))?;
    let help = "Cgroups that a condition means and its map has no room for.";
    single(out, "workloads_unselected", help, None, ConstGauge::new(used.unselected))
}
