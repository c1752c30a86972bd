//! The answers of an agent's API, as far as they are shown or merged.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Histogram,
    Counter,
    Gauge,
}

/// A bucket: above the first, up to the second, which is `None` for +Inf.
pub type Bounds = (f64, Option<f64>);

/// `/api/v1/history`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct History {
    /// End of the newest second.
    pub newest: Option<u64>,
    #[serde(default)]
    pub lost_seconds: u64,
    /// Of the counts by bucket, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Vec<Bounds>>,
    pub metrics: Vec<Summary>,
}

/// A metric in the last ten seconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Summary {
    pub metric: String,
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(default)]
    pub unit: String,
    #[serde(default)]
    pub probe: String,
    #[serde(default)]
    pub help: String,
    #[serde(default)]
    pub labels: Vec<String>,
    #[serde(default)]
    pub series: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Whether its figures are estimates.
    #[serde(default)]
    pub sampled: bool,
    /// Place in `bounds` and count, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heat: Option<Vec<u64>>,
}

/// `/api/v1/query`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Query {
    pub metric: String,
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(default)]
    pub unit: String,
    #[serde(default)]
    pub help: String,
    #[serde(default)]
    pub probe: String,
    pub from: u64,
    pub to: u64,
    /// Seconds of a column.
    pub step: u64,
    #[serde(default)]
    pub bounds: Vec<Bounds>,
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

/// Figures by column are empty where the metric's type has none of the kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Group {
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub total: Total,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sum: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub p50: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub p99: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub value: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heat: Vec<Vec<u64>>,
}

/// Of the whole range. Which fields there are is a matter of the metric's type.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Total {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sum: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<f64>,
}

/// `/api/v1/probes`
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Probes {
    #[serde(default)]
    pub node: Node,
    /// Those that are merged; none where one agent answers for itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    pub probes: Vec<Probe>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Node {
    pub name: String,
    pub kernel: String,
    pub cpus: u64,
    /// Millionths of one CPU's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_ppm: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Probe {
    pub name: String,
    pub attached: bool,
    #[serde(default)]
    pub idle: bool,
    /// Millionths of one CPU's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_ppm: Option<u64>,
    /// One of so many events is sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_of: Option<u64>,
}

impl Node {
    /// Millionths of one CPU as percents of the machine.
    pub fn percent(&self, ppm: u64) -> f64 {
        ppm as f64 / 1e4 / self.cpus.max(1) as f64
    }
}

/// `/api/v1/events`
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Events {
    pub events: Vec<Event>,
    /// Older events that are kept no more.
    #[serde(default)]
    pub gone: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Event {
    /// `2026-02-28T23:59:59.000001Z`
    pub time: String,
    /// Empty where one agent answers for itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
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
