//! What a tool prints: events as they come, and figures at the end of each interval.

use std::io::{self, IsTerminal, Stdout, Write};
use std::time::{Duration, Instant, SystemTime};

use kstrobe_config::did_you_mean;

use super::frame::Before;
use super::{Args, json, width};
use crate::app::{Account, Session, Totals};
use crate::cli::Output;
use crate::cli::draw::columns::Columns;
use crate::cli::draw::quantity::grouped;
use crate::cli::draw::summary;
use crate::cli::draw::{self, Look, Metric, Values};
use crate::cli::terminal::{Environment, LiveLines};
use crate::config::plan::{PREFIX, ProbeMeta, ProbePlan};
use crate::metrics::events::line::{Event, rfc3339};

/// Time between two drawings of what came so far.
const REDRAW: Duration = Duration::from_secs(1);
/// How long to wait for the first rows of a poll.
const FIRST_POLL: Duration = Duration::from_secs(1);

/// A metric or label that the probe does not have, or a probe that is not drawn.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Choice {
    #[error("the probe `{probe}` has no {what} `{name}`{}", known(.has, .near))]
    No { what: &'static str, name: String, probe: String, has: Vec<String>, near: Option<String> },
    #[error("`{0}` sums by call stack: `kstrobe stacks {0} -d 10s` writes folded text, pprof or a flame graph")]
    Stacks(String),
}

fn known(has: &[String], near: &Option<String>) -> String {
    match (near, has) {
        (Some(near), _) => format!(": did you mean `{near}`?"),
        (None, []) => String::new(),
        (None, has) => format!(": it has {}", has.join(", ")),
    }
}

/// When figures are drawn.
pub enum When {
    /// What came in each interval, below the one before.
    Each(Duration),
    /// What came so far, again and again in the same place of the terminal.
    SoFar,
    AtEnd,
}

impl When {
    pub fn of(args: &Args) -> When {
        match args.interval {
            Some(every) => When::Each(every),
            None if args.output == Output::Text && can_place() => When::SoFar,
            None => When::AtEnd,
        }
    }

    /// Time between two drawings before the end.
    pub fn every(&self) -> Option<Duration> {
        match self {
            When::Each(every) => Some(*every),
            When::SoFar => Some(REDRAW),
            When::AtEnd => None,
        }
    }
}

/// Prints what a probe measures.
pub struct Printer {
    probe: String,
    output: Output,
    look: Look,
    /// Names of labels to tell events apart by; `None` for the usual drawing.
    by: Option<Vec<String>>,
    /// Metrics to draw, without the prefix.
    metrics: Vec<String>,
    /// Whether what is counted is the sum of a table that was there before.
    polls: bool,
    /// Set once an event has come.
    columns: Option<Columns>,
    sends_events: bool,
    events: u64,
    before: Before,
    from: SystemTime,
    when: When,
    live: LiveLines<Stdout>,
}

impl Printer {
    pub fn new(args: &Args, plan: &ProbePlan) -> Result<Printer, Choice> {
        let meta = plan.meta();
        let by = (!args.by.is_empty()).then(|| args.by.clone());
        by.iter().flatten().try_for_each(|label| has("label", label, labels(meta), meta))?;
        args.metric.iter().try_for_each(|name| has("metric", name, names(meta), meta))?;
        let metrics = if args.metric.is_empty() { drawn(plan) } else { args.metric.clone() };
        if metrics.is_empty() && !meta.slow {
            return Err(Choice::Stacks(meta.name.clone()));
        }
        let when = match When::of(args) {
            // A probe that sends a record of each event draws those as they come, and nothing else.
            When::SoFar if metrics.is_empty() => When::AtEnd,
            when => when,
        };
        Ok(Printer {
            probe: meta.name.clone(),
            output: args.output,
            look: Look { width: width(), top: args.top.max(1) },
            by,
            metrics,
            polls: meta.poll.is_some(),
            columns: None,
            sends_events: meta.slow,
            events: 0,
            before: Before::default(),
            from: SystemTime::now(),
            when,
            live: LiveLines::of(io::stdout()),
        })
    }

    /// Time between two drawings before the end.
    pub fn every(&self) -> Option<Duration> {
        self.when.every()
    }

    pub fn counts_totals(&self) -> bool {
        self.polls
    }

    /// Takes the first reading as what everything grows from.
    pub fn baseline(&mut self, session: &Session) {
        let until = Instant::now() + FIRST_POLL;
        loop {
            let totals = session.read();
            let any = totals.families.iter().any(|family| !family.is_empty());
            self.before.advance_series(&totals);
            if any || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        self.events += 1;
        if self.output == Output::Json {
            return print(&format!("{}\n", json::event(event)));
        }
        let mut text = self.live.clear();
        let columns = self.columns.get_or_insert_with(|| {
            let names: Vec<String> = event.fields.iter().map(|(name, _)| name.clone()).collect();
            let mut columns = Columns::new(&names);
            text += &columns.head(&event.fields);
            columns
        });
        let at = rfc3339(event.at);
        // Hours, minutes and seconds of `2026-02-28T23:59:59.000001Z`.
        text += &columns.line(at.get(11..19).unwrap_or_default(), event.pid, &event.fields);
        print(&text)
    }

    /// What came since the last drawing, or so far.
    pub fn due(&mut self, totals: &Totals) -> io::Result<()> {
        if !matches!(self.when, When::SoFar) {
            return self.interval(totals);
        }
        let text = self.text(totals, &self.metrics(totals));
        let lines: Vec<&str> = text.lines().collect();
        print(&self.live.replace(&lines))
    }

    /// What came since the last interval.
    pub fn interval(&mut self, totals: &Totals) -> io::Result<()> {
        let metrics = self.metrics(totals);
        let text = match self.output {
            Output::Json => {
                let metrics: Vec<Metric> = metrics.into_iter().map(|metric| self.chosen(metric)).collect();
                let missing = self.before.missing(&totals.account);
                json::interval(&self.probe, self.from, totals.at, &metrics, &missing) + "\n"
            }
            Output::Text => self.live.clear() + &self.text(totals, &metrics),
        };
        self.before.advance(totals);
        self.from = totals.at;
        self.events = 0;
        print(&text)
    }

    /// What the metrics that are drawn have grown by.
    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        let grown = totals.families.iter().map(|family| self.before.grown(family));
        grown.filter(|metric| self.metrics.contains(&metric.name)).collect()
    }

    fn text(&self, totals: &Totals, metrics: &[Metric]) -> String {
        let mut text = String::new();
        if matches!(self.when, When::Each(_)) && !metrics.is_empty() {
            text += &format!("{}\n", rfc3339(totals.at).get(11..19).unwrap_or_default());
        }
        for metric in metrics.iter().filter(|metric| !metric.is_empty()) {
            text += &self.figures(metric, metrics.len() > 1);
        }
        text + &self.last_line(metrics, &self.before.missing(&totals.account))
    }

    /// A metric by the labels that were asked for, or by all of its own.
    fn chosen(&self, metric: Metric) -> Metric {
        let Some(by) = &self.by else { return metric };
        let places: Vec<usize> = by.iter().filter_map(|name| metric.labels.iter().position(|l| l == name)).collect();
        metric.merged(&places)
    }

    fn figures(&self, metric: &Metric, named: bool) -> String {
        let mut text = if named { format!("{}\n", metric.name) } else { String::new() };
        let total = match (&metric.values, &self.by) {
            // Of all label sets together, unless labels were asked for.
            (Values::Histograms(rows), None) if !rows.is_empty() => {
                let merged = metric.clone().merged(&[]);
                text += &draw::metric(&merged, &self.look);
                rows.len() == 1 || metric.labels.is_empty()
            }
            _ => false,
        };
        let rows = match &metric.values {
            Values::Histograms(rows) => rows.len(),
            Values::Counters(rows) => rows.len(),
            Values::Gauges(rows) => rows.len(),
        };
        if !total && rows > 0 {
            text += &draw::metric(&self.chosen(metric.clone()), &self.look);
        }
        text
    }

    fn last_line(&self, metrics: &[Metric], missing: &Account) -> String {
        let distribution = metrics.iter().find_map(|metric| match metric.clone().merged(&[]).values {
            Values::Histograms(rows) => rows.into_iter().next().map(|row| summary::distribution(&row.value, metric)),
            _ => None,
        });
        let mut parts: Vec<String> = distribution.into_iter().collect();
        if self.sends_events {
            parts.push(format!("{} records", grouped(self.events)));
        } else if parts.is_empty() && metrics.iter().all(Metric::is_empty) {
            parts.push("no events".into());
        }
        parts.push(summary::missing(missing));
        parts.join("   ") + "\n"
    }
}

/// Metrics that are drawn when none is named: of a probe that sends a record of each event the records say it all.
fn drawn(plan: &ProbePlan) -> Vec<String> {
    let sends_all = plan.program().slow.as_ref().is_some_and(|slow| slow.when.value.trim() == "true");
    if sends_all { Vec::new() } else { names(plan.meta()) }
}

/// Names of the metrics that are drawn, without the prefix.
fn names(meta: &ProbeMeta) -> Vec<String> {
    let drawn = meta.metrics.iter().filter(|metric| metric.stacks.is_none());
    drawn.map(|metric| metric.about.name.strip_prefix(PREFIX).unwrap_or(&metric.about.name).to_owned()).collect()
}

fn labels(meta: &ProbeMeta) -> Vec<String> {
    let mut names: Vec<String> = meta.metrics.iter().flat_map(|metric| metric.about.label_names.clone()).collect();
    names.sort();
    names.dedup();
    names
}

fn has(what: &'static str, name: &str, has: Vec<String>, meta: &ProbeMeta) -> Result<(), Choice> {
    if has.iter().any(|known| known == name) {
        return Ok(());
    }
    let near = did_you_mean(name, has.iter().map(String::as_str)).map(str::to_owned);
    Err(Choice::No { what, name: name.to_owned(), probe: meta.name.clone(), has, near })
}

/// Whether standard output is a terminal where figures can be drawn again in the same place.
fn can_place() -> bool {
    io::stdout().is_terminal() && Environment::own().can_draw()
}

/// At once: the reader of a pipe waits for it.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
