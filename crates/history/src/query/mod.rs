//! Queries: what may be asked, and how it is written.

pub(crate) mod answer;
mod evaluate;
mod matcher;
mod summary;
mod sums;

pub use matcher::Matcher;

use crate::store::{History, Record};
use answer::Answer;
use evaluate::Part;
use std::time::Duration;
use thiserror::Error;

/// Groups in an answer, if the query names no number.
const DEFAULT_GROUPS: usize = 10;
const MAX_GROUPS: usize = 1000;
/// Columns in an answer, if the query names no step.
const DEFAULT_COLUMNS: u64 = 300;
const MAX_COLUMNS: u64 = 3600;
/// Groups times columns: each such cell has figures and the counts of its buckets, a few hundred bytes of memory and of JSON.
const MAX_CELLS: u64 = MAX_GROUPS as u64 * DEFAULT_COLUMNS;
/// Range of a query that names none.
const DEFAULT_RANGE: Duration = Duration::from_secs(300);

/// A query of one metric.
#[derive(Clone, Debug)]
pub struct Query {
    /// With or without `kstrobe_`.
    pub metric: String,
    /// A series is in the answer when all of them accept it.
    pub matchers: Vec<Matcher>,
    /// Labels by whose values series are grouped; without any, there is one group of everything.
    pub by: Vec<String>,
    pub from: Time,
    pub to: Time,
    /// Seconds of a column.
    pub step: Option<u64>,
    /// Groups in the answer.
    pub top: usize,
    /// Which groups these are: those that have most of it.
    pub sort: Sort,
}

/// A moment of a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Time {
    /// Unix time in seconds.
    At(f64),
    /// Seconds before the end of the newest second.
    Ago(f64),
}

/// What the order of groups is by. Counters have only counts, and gauges are ordered by the last value, or the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Count,
    Sum,
    P50,
    P99,
    Max,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    #[error("the query names no metric")]
    NoMetric,
    #[error("there is no metric `{0}` in the history")]
    Metric(String),
    #[error("`{metric}` has no label `{label}`")]
    Label { metric: String, label: String, labels: Vec<String> },
    #[error("`{0}` is no matcher")]
    Matcher(String),
    #[error("`{pattern}` is no regular expression: {reason}")]
    Pattern { pattern: String, reason: String },
    #[error("{name}={value} is no {wanted}")]
    Value { name: String, value: String, wanted: &'static str },
    #[error("there is no option `{0}`")]
    Option(String),
    #[error("the range ends before it begins")]
    Range,
    #[error("{0} columns are more than {MAX_COLUMNS}")]
    Columns(u64),
    #[error("{columns} columns of up to {groups} groups are more than {MAX_CELLS} together")]
    Cells { columns: u64, groups: usize },
}

impl QueryError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            QueryError::NoMetric => "write metric=NAME; /api/v1/history lists the metrics".into(),
            QueryError::Metric(_) => {
                "/api/v1/history lists the metrics; `_count`, `_sum` and `_bucket` are no part of a name".into()
            }
            QueryError::Label { labels, .. } if labels.is_empty() => "it has no labels".into(),
            QueryError::Label { labels, .. } => format!("its labels are {}", labels.join(", ")),
            QueryError::Matcher(_) => "write label=\"value\"; the operators are =, !=, =~ and !~".into(),
            QueryError::Pattern { .. } => "it must match the whole value, as in Prometheus".into(),
            QueryError::Value { .. } => "times are Unix seconds, or -S for S seconds ago".into(),
            QueryError::Option(_) => "the options are metric, match, by, from, to, step, top and sort".into(),
            QueryError::Range => "from is before to".into(),
            QueryError::Columns(_) => "write a longer step, or a shorter range".into(),
            QueryError::Cells { .. } => "write a smaller top, a longer step, or a shorter range".into(),
        }
    }
}

impl Query {
    /// All of a metric in the default range.
    pub fn of(metric: &str) -> Query {
        Query {
            metric: metric.to_owned(),
            matchers: Vec::new(),
            by: Vec::new(),
            from: Time::Ago(DEFAULT_RANGE.as_secs_f64()),
            to: Time::Ago(0.0),
            step: None,
            top: DEFAULT_GROUPS,
            sort: Sort::default(),
        }
    }

    /// Groups in the answer at most.
    fn groups(&self) -> usize {
        if self.by.is_empty() { 1 } else { self.top }
    }

    /// Reads the options of a request. `None` when they name no metric and need none.
    pub fn parse<'a>(options: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Option<Query>, QueryError> {
        let mut query = Query::of("");
        let mut any = false;
        for (name, value) in options {
            let bad = |wanted| QueryError::Value { name: name.to_owned(), value: value.to_owned(), wanted };
            any = true;
            match name {
                "metric" => query.metric = value.to_owned(),
                "match" => query.matchers.push(value.parse()?),
                "by" => query.by.extend(value.split(',').map(str::trim).filter(|by| !by.is_empty()).map(str::to_owned)),
                "from" => query.from = time(value).ok_or_else(|| bad("time"))?,
                "to" => query.to = time(value).ok_or_else(|| bad("time"))?,
                "step" => query.step = Some(step(value).ok_or_else(|| bad("whole number of seconds, 1 to 86400"))?),
                "top" => {
                    let top = value.parse().ok().filter(|top| (1..=MAX_GROUPS).contains(top));
                    query.top = top.ok_or_else(|| bad("whole number, 1 to 1000"))?;
                }
                "sort" => query.sort = sort(value).ok_or_else(|| bad("order: rate, count, sum, p50, p99 or max"))?,
                _ => return Err(QueryError::Option(name.to_owned())),
            }
        }
        match query.metric.is_empty() {
            true if any => Err(QueryError::NoMetric),
            true => Ok(None),
            false => Ok(Some(query)),
        }
    }
}

/// `T`, `-S` or `0`.
fn time(text: &str) -> Option<Time> {
    let number: f64 = text.parse().ok()?;
    let is_ago = text.starts_with('-') || number == 0.0;
    number.is_finite().then_some(if is_ago { Time::Ago(-number) } else { Time::At(number) })
}

fn step(text: &str) -> Option<u64> {
    text.strip_suffix('s').unwrap_or(text).parse().ok().filter(|step| (1..=86_400).contains(step))
}

fn sort(text: &str) -> Option<Sort> {
    Some(match text {
        "rate" | "count" => Sort::Count,
        "sum" => Sort::Sum,
        "p50" => Sort::P50,
        "p99" => Sort::P99,
        "max" => Sort::Max,
        _ => return None,
    })
}

/// The columns of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub from: u64,
    pub to: u64,
    pub step: u64,
}

impl Window {
    /// `end` is the end of the newest second.
    fn of(query: &Query, end: u64) -> Result<Window, QueryError> {
        let at = |time| match time {
            Time::At(time) => time,
            Time::Ago(seconds) => end as f64 - seconds,
        };
        let (from, to) = (at(query.from).max(0.0), at(query.to).max(0.0));
        if from >= to {
            return Err(QueryError::Range);
        }
        // A column more may be needed where the range is not a multiple of the step.
        let step = query.step.unwrap_or_else(|| ((to - from) / (DEFAULT_COLUMNS - 1) as f64).ceil().max(1.0) as u64);
        let from = (from / step as f64).floor() as u64 * step;
        let to = (to / step as f64).ceil() as u64 * step;
        match (to - from) / step {
            columns if columns > MAX_COLUMNS => Err(QueryError::Columns(columns)),
            columns if columns * query.groups() as u64 > MAX_CELLS => {
                Err(QueryError::Cells { columns, groups: query.groups() })
            }
            _ => Ok(Window { from, to, step }),
        }
    }

    fn columns(&self) -> usize {
        ((self.to - self.from) / self.step) as usize
    }

    /// `None` outside of the range.
    fn column(&self, second: u64) -> Option<usize> {
        (self.from..self.to).contains(&second).then(|| ((second - self.from) / self.step) as usize)
    }
}

/// Seconds from before those of a history, in parts of which each is complete in itself.
pub trait Past {
    /// Calls `see` with each part that may have seconds or marks from one time to before another, the newest first.
    fn each(&self, from: u64, to: u64, see: &mut dyn FnMut(&History));
    /// The end of its newest second.
    fn newest(&self) -> Option<u64>;
}

impl History {
    /// The start of the oldest second.
    pub fn oldest(&self) -> Option<u64> {
        self.records.front().map(|record| record.second.start + 1 - record.second.seconds)
    }

    /// The end of the newest second.
    pub fn newest(&self) -> Option<u64> {
        self.records.back().map(|record| record.second.start + 1)
    }

    /// Answers a query. `now` is the Unix time, for a history that is still empty.
    pub fn query(&self, query: &Query, now: u64) -> Result<Answer, QueryError> {
        let window = Window::of(query, self.newest().unwrap_or(now))?;
        let records: Vec<&Record> = self.records.iter().collect();
        let part = Part { history: self, records: &records, until: u64::MAX };
        evaluate::evaluate(&|see| see(&part), query, window)
    }

    /// Whether a query is about time before the oldest second.
    pub fn begins_before(&self, query: &Query, now: u64) -> bool {
        let from = Window::of(query, self.newest().unwrap_or(now)).map_or(u64::MAX, |window| window.from);
        self.oldest().is_none_or(|oldest| from < oldest)
    }

    /// The same with what was before the oldest second.
    pub fn query_with(&self, past: &dyn Past, query: &Query, now: u64) -> Result<Answer, QueryError> {
        let window = Window::of(query, self.newest().or_else(|| past.newest()).unwrap_or(now))?;
        // Both have the seconds from here on.
        let oldest = self.oldest().unwrap_or(u64::MAX);
        let own: Vec<&Record> = self.records.iter().collect();
        let parts = |see: &mut dyn FnMut(&Part<'_>)| {
            see(&Part { history: self, records: &own, until: u64::MAX });
            past.each(window.from, window.to.min(oldest), &mut |history| {
                let earlier = history.records.iter().filter(|record| record.second.start < oldest);
                see(&Part { history, records: &earlier.collect::<Vec<_>>(), until: oldest });
            });
        };
        evaluate::evaluate(&parts, query, window)
    }

    /// The answer for one record alone, as one column; `None` when the record is not kept.
    pub fn query_second(&self, query: &Query, number: u64) -> Result<Option<Answer>, QueryError> {
        let Some(record) = self.record(number) else { return Ok(None) };
        let window = Window { from: record.second.start, to: record.second.start + 1, step: 1 };
        // A gauge has its value from the records before.
        let until = self.records.iter().take_while(|other| !std::ptr::eq(*other, record)).chain([record]);
        let until: Vec<&Record> = until.collect();
        let part = Part { history: self, records: &until, until: u64::MAX };
        evaluate::evaluate(&|see| see(&part), query, window).map(Some)
    }
}
