//! Answers, as the API writes them.

use crate::mark::Mark;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a metric was in a range of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub metric: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub unit: String,
    pub help: String,
    pub probe: Arc<str>,
    /// Unix time of the first column's beginning.
    pub from: u64,
    /// Unix time of the last column's end.
    pub to: u64,
    /// Seconds of a column.
    pub step: u64,
    pub columns: usize,
    /// Bounds of the buckets that occur, ascending: a value in a bucket is above the first, up to the second; `None` is +Inf.
    pub bounds: Vec<(f64, Option<f64>)>,
    pub groups: Vec<Group>,
    /// Groups beyond the number that was asked for.
    pub left_out: usize,
    /// Whether the probe was sampled in the range: then all counts are estimates.
    pub sampled: bool,
    pub marks: Vec<Mark>,
}

/// Series of the same values of the labels that the query groups by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    pub labels: BTreeMap<String, Arc<str>>,
    pub total: Total,
    #[serde(flatten)]
    pub values: Values,
}

/// Of a group, over the whole range.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Total {
    /// Quantiles are linear within a bucket, and absent where nothing was observed.
    Histogram {
        count: u64,
        sum: f64,
        p50: Option<f64>,
        p90: Option<f64>,
        p99: Option<f64>,
        /// Upper bound of the highest bucket that has an observation; `None` when there is none, or the bound is +Inf.
        max: Option<f64>,
    },
    /// Its increase.
    Counter {
        count: f64,
    },
    Gauge {
        min: Option<f64>,
        max: Option<f64>,
        last: Option<f64>,
    },
}

/// Of a group, by column. `None` where no second of the column was sampled, or where there was nothing to make a value of.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Values {
    Histogram {
        /// Observations a second.
        rate: Vec<Option<f64>>,
        sum: Vec<Option<f64>>,
        p50: Vec<Option<f64>>,
        p99: Vec<Option<f64>>,
        max: Vec<Option<f64>>,
        /// Number in `bounds` and count, one after the other.
        heat: Vec<Vec<u64>>,
    },
    Counter {
        rate: Vec<Option<f64>>,
    },
    /// The last value of a column. Values of several series are added.
    Gauge {
        value: Vec<Option<f64>>,
    },
}

/// All metrics, and what they were in the last seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overview {
    /// Unix time of the beginning of the oldest second.
    pub oldest: Option<u64>,
    /// Unix time of the end of the newest second.
    pub newest: Option<u64>,
    pub step: u64,
    pub bytes: usize,
    pub max_bytes: usize,
    /// Seconds that went for want of memory, or were not sampled, since the start.
    pub lost_seconds: u64,
    /// Where seconds are written to disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskOverview>,
    /// Where counts by bucket are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Vec<(f64, Option<f64>)>>,
    pub metrics: Vec<MetricSummary>,
}

/// The folder of `history.dir`, and how far back its files go.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskOverview {
    pub dir: String,
    /// Unix time of the beginning of the oldest second.
    pub oldest: Option<u64>,
    pub bytes: u64,
    pub max_bytes: u64,
    /// Files of seconds.
    pub segments: usize,
    /// Why nothing is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

/// A metric in some seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricSummary {
    pub metric: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub unit: String,
    pub help: String,
    pub probe: Arc<str>,
    pub labels: Vec<String>,
    /// That occur in the history.
    pub series: usize,
    /// Observations, or the increase, a second; `None` of gauges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Observations, or the increase; `None` of gauges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The sum over the series of a gauge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Whether its probe was sampled.
    pub sampled: bool,
    /// Number in `bounds` and count, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heat: Option<Vec<u64>>,
}

/// One second of all metrics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SecondSummary {
    /// Unix time of its beginning.
    pub time: u64,
    pub bounds: Vec<(f64, Option<f64>)>,
    pub metrics: Vec<MetricSummary>,
    pub marks: Vec<Mark>,
}
