//! What a page needs of the agent, and how often.

use super::answers::{Events, History, Probes, Query};
use kstrobe_kube::encode;
use serde::Serialize;
use std::time::Duration;

/// Events that a page shows at most.
pub const MAX_EVENTS: usize = 200;
/// Rows of a table of labels.
pub const MAX_ROWS: usize = 100;
/// What the agent measures changes each second.
const EACH_SECOND: Duration = Duration::from_secs(1);
/// Which probes run changes seldom.
const SELDOM: Duration = Duration::from_secs(3);

/// A range of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Unix time of its end; `None` for the newest second.
    pub end: Option<u64>,
    pub seconds: u64,
    /// Seconds of a column.
    pub step: u64,
}

/// An order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sort {
    #[default]
    Rate,
    P50,
    P99,
    Max,
    Name,
}

impl Sort {
    pub fn next(self) -> Sort {
        match self {
            Sort::Rate => Sort::P50,
            Sort::P50 => Sort::P99,
            Sort::P99 => Sort::Max,
            Sort::Max => Sort::Name,
            Sort::Name => Sort::Rate,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::P50 => "p50",
            Sort::P99 => "p99",
            Sort::Max => "max",
            Sort::Name => "name",
        }
    }
}

/// A label and its value.
pub type Chosen = Vec<(String, String)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Probes,
    History,
    /// A metric as one group.
    Total {
        metric: String,
        chosen: Chosen,
        span: Span,
    },
    /// A metric by labels; totals are all that is shown.
    Table {
        metric: String,
        by: Vec<String>,
        chosen: Chosen,
        sort: Sort,
        span: Span,
    },
    /// Of a probe, or of all.
    Events {
        probe: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    Probes(Probes),
    History(History),
    Query(Query),
    Events(Events),
}

impl Request {
    /// Path and query of the API.
    pub fn path(&self) -> String {
        self.path_for(MAX_ROWS)
    }

    /// The same with so many rows of a table.
    pub fn path_for(&self, rows: usize) -> String {
        match self {
            Request::Probes => "/api/v1/probes".to_owned(),
            Request::History => "/api/v1/history".to_owned(),
            Request::Total { metric, chosen, span } => query(metric, chosen, span),
            Request::Table { metric, by, chosen, sort, span } => {
                // The agent knows no order by name: the rows of most events are those that are wanted.
                let sort = if *sort == Sort::Name { Sort::Rate } else { *sort };
                let by = encode(&by.join(","));
                format!("{}&by={by}&top={rows}&sort={}", query(metric, chosen, span), sort.name())
            }
            Request::Events { probe: None } => format!("/api/v1/events?limit={MAX_EVENTS}"),
            Request::Events { probe: Some(probe) } => {
                format!("/api/v1/events?limit={MAX_EVENTS}&probe={}", encode(probe))
            }
        }
    }

    /// Until it is asked again; `None` where the answer stays.
    pub fn interval(&self) -> Option<Duration> {
        match self {
            Request::Probes => Some(SELDOM),
            Request::History | Request::Events { .. } => Some(EACH_SECOND),
            Request::Total { span, .. } | Request::Table { span, .. } => {
                span.end.is_none().then(|| Duration::from_secs(span.step.min(5)))
            }
        }
    }

    /// Reads an agent's answer.
    pub fn read(&self, json: &[u8]) -> Result<Answer, serde_json::Error> {
        Ok(match self {
            Request::Probes => Answer::Probes(serde_json::from_slice(json)?),
            Request::History => Answer::History(serde_json::from_slice(json)?),
            Request::Total { .. } | Request::Table { .. } => Answer::Query(serde_json::from_slice(json)?),
            Request::Events { .. } => Answer::Events(serde_json::from_slice(json)?),
        })
    }
}

/// A query of the history, without the options of its groups.
fn query(metric: &str, chosen: &Chosen, span: &Span) -> String {
    let (from, to) = match span.end {
        Some(end) => (end.saturating_sub(span.seconds).to_string(), end.to_string()),
        None => (format!("-{}", span.seconds), "0".to_owned()),
    };
    let matches = chosen.iter().map(|(label, value)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("&match={}", encode(&format!("{label}=\"{value}\"")))
    });
    let matches: String = matches.collect();
    format!("/api/v1/query?metric={}&from={from}&to={to}&step={}{matches}", encode(metric), span.step)
}
