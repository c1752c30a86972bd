//! The agent's own metrics: what they are is read from what it exports, so that there is one list of them.

use crate::catalogue::{Kind, Metric};
use kstrobe_export::own::{OwnFamily, OwnKind, OwnValue};

/// Recorded from an agent that has a series of each; a test of the agent compares it with what the agent says.
pub const RECORDED: &str = include_str!("../own_metrics.json");

/// The recorded list.
///
/// # Panics
/// Never with the file as it is recorded, which a test reads.
pub fn recorded() -> Vec<Metric> {
    serde_json::from_str(RECORDED).expect("the recorded list is what `record` wrote")
}

/// The text of the list.
pub fn record(metrics: &[Metric]) -> String {
    let text = serde_json::to_string_pretty(metrics).unwrap_or_default();
    text + "\n"
}

/// What these families are, by name.
pub fn metrics(families: &[OwnFamily]) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = families.iter().map(metric).collect();
    metrics.sort_by(|a, b| a.name.cmp(&b.name));
    metrics
}

fn metric(family: &OwnFamily) -> Metric {
    let kind = match family.kind {
        OwnKind::Counter => Kind::Counter,
        OwnKind::Gauge if family.name.ends_with("_info") => Kind::Info,
        OwnKind::Gauge => Kind::Gauge,
        OwnKind::Histogram => Kind::ClassicHistogram,
    };
    let mut labels: Vec<String> = Vec::new();
    let mut bounds: Vec<f64> = Vec::new();
    for series in &family.series {
        for (label, _) in &series.labels {
            if !labels.contains(label) {
                labels.push(label.clone());
            }
        }
        if let OwnValue::Histogram(histogram) = &series.value {
            bounds = histogram.cumulative.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite()).collect();
        }
    }
    Metric {
        name: family.name.clone(),
        kind,
        unit: family.unit.clone(),
        labels,
        help: family.help.trim_end_matches('.').to_owned() + ".",
        bounds,
    }
}
