//! The answers of an agent's API, as far as they are shown.

use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Histogram,
    Counter,
    Gauge,
}

/// `/api/v1/history`
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct History {
    /// End of the newest second.
    pub newest: Option<u64>,
    #[serde(default)]
    pub lost_seconds: u64,
    pub metrics: Vec<Summary>,
}

/// A metric in the last ten seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Summary {
    pub metric: String,
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(default)]
    pub unit: String,
    #[serde(default)]
    pub probe: String,
    #[serde(default)]
    pub labels: Vec<String>,
    pub rate: Option<f64>,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
    pub value: Option<f64>,
    /// Whether its figures are estimates.
    #[serde(default)]
    pub sampled: bool,
}

/// `/api/v1/query`
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Query {
    pub metric: String,
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(default)]
    pub unit: String,
    #[serde(default)]
    pub help: String,
    pub from: u64,
    pub to: u64,
    #[serde(default)]
    pub bounds: Vec<(f64, Option<f64>)>,
    pub groups: Vec<Group>,
    #[serde(default)]
    pub left_out: u64,
    #[serde(default)]
    pub sampled: bool,
}

impl Query {
    pub fn seconds(&self) -> f64 {
        self.to.saturating_sub(self.from) as f64
    }

    /// Seconds of the columns in which something was measured: the history may begin later than the range.
    pub fn measured_seconds(&self, group: &Group) -> f64 {
        let columns = group.rate.len().max(group.value.len()).max(1);
        let measured = group.rate.iter().chain(&group.value).flatten().count();
        self.seconds() * measured as f64 / columns as f64
    }
}

impl Group {
    /// Events a second of the measured time.
    pub fn mean_rate(&self) -> Option<f64> {
        let measured: Vec<f64> = self.rate.iter().flatten().copied().collect();
        (!measured.is_empty()).then(|| measured.iter().sum::<f64>() / measured.len() as f64)
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Group {
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub total: Total,
    #[serde(default)]
    pub rate: Vec<Option<f64>>,
    #[serde(default)]
    pub p99: Vec<Option<f64>>,
    #[serde(default)]
    pub value: Vec<Option<f64>>,
    #[serde(default)]
    pub heat: Vec<Vec<u64>>,
}

/// Of the whole range. Which fields there are is a matter of the metric's type.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Total {
    pub count: Option<f64>,
    pub sum: Option<f64>,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
    pub last: Option<f64>,
}

/// `/api/v1/probes`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Probes {
    #[serde(default)]
    pub node: Node,
    pub probes: Vec<Probe>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Node {
    pub name: String,
    pub kernel: String,
    pub cpus: u64,
    /// Millionths of one CPU's time.
    pub budget_ppm: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Probe {
    pub name: String,
    pub attached: bool,
    #[serde(default)]
    pub idle: bool,
    /// Millionths of one CPU's time.
    pub cost_ppm: Option<u64>,
    /// One of so many events is sampled.
    pub one_of: Option<u64>,
}

impl Node {
    /// Millionths of one CPU as percents of the machine.
    pub fn percent(&self, ppm: u64) -> f64 {
        ppm as f64 / 1e4 / self.cpus.max(1) as f64
    }
}

/// `/api/v1/events`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Events {
    pub events: Vec<Event>,
    /// Older events that are kept no more.
    #[serde(default)]
    pub gone: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Event {
    /// `2026-02-28T23:59:59.000001Z`
    pub time: String,
    pub probe: String,
    pub pid: u32,
    pub fields: serde_json::Map<String, serde_json::Value>,
}

impl Event {
    /// `23:59:59.000`, of the day that the caller knows.
    pub fn clock(&self) -> &str {
        self.time.get(11..23).unwrap_or(&self.time)
    }

    /// The program's name, where the probe records one.
    pub fn comm(&self) -> &str {
        self.fields.get("comm").and_then(|comm| comm.as_str()).unwrap_or_default()
    }

    /// All other fields on a line. Of a stack, the innermost frames.
    pub fn text(&self, frames: usize) -> String {
        let field = |(name, value): (&String, &serde_json::Value)| format!("{name}={}", shown(value, frames));
        self.fields.iter().filter(|(name, _)| *name != "comm").map(field).collect::<Vec<_>>().join(" ")
    }
}

/// A field's value as text.
pub fn shown(value: &serde_json::Value, frames: usize) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) => {
            let more = if items.len() > frames { ".." } else { "" };
            items.iter().take(frames).map(|item| shown(item, frames)).collect::<Vec<_>>().join("<") + more
        }
        other => other.to_string(),
    }
}
