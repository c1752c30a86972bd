//! The agent's own metrics: what they are is read from their exposition, so that there is one list of them.

use crate::catalogue::{Kind, Metric};
use std::collections::BTreeMap;

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

/// The metrics of an OpenMetrics exposition, by name.
pub fn from_openmetrics(text: &str) -> Vec<Metric> {
    let mut found: BTreeMap<&str, Metric> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (Some(keyword), Some(family)) = (words.next(), words.next()) else { continue };
            let said = words.next().unwrap_or_default();
            let metric = found.entry(family).or_insert_with(|| Metric {
                name: family.to_owned(),
                kind: Kind::Gauge,
                unit: String::new(),
                labels: Vec::new(),
                help: String::new(),
                bounds: Vec::new(),
            });
            match keyword {
                "HELP" => metric.help = said.trim_end_matches('.').to_owned() + ".",
                "UNIT" => metric.unit = said.to_owned(),
                "TYPE" => {
                    let (kind, suffix) = match said {
                        "counter" => (Kind::Counter, "_total"),
                        "histogram" => (Kind::ClassicHistogram, ""),
                        "info" => (Kind::Info, "_info"),
                        _ => (Kind::Gauge, ""),
                    };
                    metric.kind = kind;
                    metric.name = format!("{family}{suffix}");
                }
                _ => {}
            }
        } else if let Some((name, labels)) = line.split_once('{')
            && let Some(family) = family_of(name, &found)
            && let Some(metric) = found.get_mut(family)
        {
            for (label, value) in pairs(labels) {
                if label != "le" && !metric.labels.iter().any(|known| known == label) {
                    metric.labels.push(label.to_owned());
                }
                let bound = (label == "le").then(|| value.parse::<f64>().ok()).flatten();
                metric.bounds.extend(bound.filter(|b| b.is_finite() && !metric.bounds.contains(b)));
            }
        }
    }
    let mut metrics: Vec<_> = found.into_values().filter(|metric| metric.name != "EOF").collect();
    metrics.sort_by(|a, b| a.name.cmp(&b.name));
    metrics
}

fn family_of<'a>(name: &'a str, found: &BTreeMap<&str, Metric>) -> Option<&'a str> {
    let suffixes = ["", "_total", "_bucket", "_sum", "_count", "_info", "_created"];
    suffixes.iter().filter_map(|suffix| name.strip_suffix(suffix)).find(|family| found.contains_key(family))
}

/// Labels and their values as they are written, up to the closing brace.
fn pairs(mut text: &str) -> Vec<(&str, &str)> {
    let mut pairs = Vec::new();
    while let Some((label, rest)) = text.split_once("=\"") {
        let mut escaped = false;
        let end = rest.find(|c: char| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        let Some(end) = end else { break };
        pairs.push((label.trim_start_matches(','), &rest[..end]));
        text = &rest[end + 1..];
        if text.starts_with('}') {
            break;
        }
    }
    pairs
}
