//! What each metric of a probe is, for exporters: made once when the probe starts.

use std::sync::Arc;

use kstrobe_config::model::{MetricKind, Probe};
use kstrobe_ebpf::layout::Table;

use crate::metrics::snapshot::{Descriptor, Kind};

/// Every exported name begins with it.
const PREFIX: &str = "kstrobe_";

/// Descriptors of a probe's metrics, in the order of the file.
pub(super) fn descriptors(probe: &Probe) -> Vec<Arc<Descriptor>> {
    let of = |m: &kstrobe_config::model::Metric| Descriptor {
        name: format!("{PREFIX}{}", m.name.value),
        help: m.help.clone().unwrap_or_else(|| probe.summary.clone()),
        kind: match m.kind {
            MetricKind::Counter => Kind::Counter,
            MetricKind::Gauge => Kind::Gauge,
            MetricKind::Histogram(_) => Kind::Histogram,
        },
        unit: m.unit.clone(),
        raw_per_unit: m.raw_per_unit,
        label_names: m.labels.iter().map(|(name, _)| name.value.clone()).collect(),
    };
    probe.metrics.iter().map(|m| Arc::new(of(m))).collect()
}

/// Those of a table's cells.
pub(super) fn of_table(all: &[Arc<Descriptor>], table: &Table) -> Vec<Arc<Descriptor>> {
    table.cells.iter().map(|c| all[c.metric as usize].clone()).collect()
}
