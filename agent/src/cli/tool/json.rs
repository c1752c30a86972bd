//! Intervals and events as lines of JSON.

use std::time::SystemTime;

use serde_json::{Map, Value, json};

use crate::app::Account;
use crate::cli::draw::data::{Distribution, Metric, Row, Values};
use crate::config::adhoc::scale::Scale;
use crate::metrics::events::line::{Event, rfc3339};

/// An interval: `{"interval":{..}}`.
pub fn interval(probe: &str, from: SystemTime, to: SystemTime, metrics: &[Metric], missing: &Account) -> String {
    let interval = json!({
        "probe": probe,
        "from": rfc3339(from),
        "to": rfc3339(to),
        "metrics": metrics.iter().map(metric).collect::<Vec<_>>(),
        "lost": missing.lost,
        "merged": missing.merged,
        "sampled_one_of": missing.one_of,
        "throttled": missing.throttled,
        "reason": missing.reason,
        "unread": missing.unread,
    });
    json!({ "interval": interval }).to_string()
}

/// An event: `{"event":{..}}`, within it what `/api/v1/events` gives.
pub fn event(event: &Event) -> String {
    format!("{{\"event\":{}}}", event.line())
}

fn metric(metric: &Metric) -> Value {
    let (kind, series): (&str, Vec<Value>) = match &metric.values {
        Values::Histograms(rows) => {
            ("histogram", rows.iter().map(|row| labelled(metric, row, histogram(&row.value, metric))).collect())
        }
        Values::Counters(rows) => {
            let value = |row: &Row<u64>| json!({ "value": exported(row.value as f64, metric) });
            ("counter", rows.iter().map(|row| labelled(metric, row, value(row))).collect())
        }
        Values::Gauges(rows) => {
            let value = |row: &Row<f64>| json!({ "value": exported(row.value, metric) });
            ("gauge", rows.iter().map(|row| labelled(metric, row, value(row))).collect())
        }
    };
    json!({ "name": metric.name, "type": kind, "unit": metric.unit, "series": series })
}

fn labelled<T>(metric: &Metric, row: &Row<T>, mut value: Value) -> Value {
    let labels: Map<String, Value> =
        metric.labels.iter().cloned().zip(row.labels.iter().map(|text| text.as_str().into())).collect();
    value["labels"] = labels.into();
    value
}

/// In the exported unit.
fn exported(raw: f64, metric: &Metric) -> Value {
    match metric.scale {
        Scale::Time => (raw / 1e9).into(),
        Scale::Count if raw.fract() == 0.0 && raw >= 0.0 => (raw as u64).into(),
        Scale::Count => raw.into(),
    }
}

/// Buckets are those of the kernel that have counts: `[above, up to and including, count]`, the last without an end.
fn histogram(of: &Distribution, metric: &Metric) -> Value {
    let counts = of.counts.iter().enumerate().filter(|(_, count)| **count > 0);
    let bucket = |(at, count): (usize, &u64)| {
        let end = |at: usize| of.upper.get(at).map(|end| exported(*end as f64, metric));
        let above = at.checked_sub(1).and_then(end).unwrap_or(0.into());
        json!([above, end(at), count])
    };
    let at = |share: f64| of.quantile(share, metric.scale).map(|raw| exported(raw, metric));
    json!({
        "count": of.count(),
        "sum": exported(of.sum as f64, metric),
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "max_at_most": of.max().map(|end| exported(end as f64, metric)),
        "buckets": counts.map(bucket).collect::<Vec<_>>(),
    })
}
