//! Which dashboards there are, and the panels that several of them have.

mod agent;
mod fleet;
mod node;
mod slo;
mod topic;

use crate::catalogue::{Catalogue, Kind, Metric};
use crate::dashboard::{Dashboard, Row};
use crate::panel::{Look, MATCHERS, Panel, Target, WINDOW};
use crate::promql::{Form, Histogram, braces, rate, sum, top};
use crate::topics::TOPICS;

/// All of them, in the order of the menu.
pub fn all(catalogue: &Catalogue) -> Vec<Dashboard> {
    let mut boards = vec![fleet::board(), node::board(catalogue)];
    boards.extend(TOPICS.iter().map(|topic| topic::board(topic, catalogue)));
    boards.push(agent::board(catalogue));
    boards.push(slo::board());
    boards
}

/// Series of one panel at most.
const MAX_SERIES: u32 = 10;

fn panel(title: &str, about: &str, unit: &'static str, look: Look, targets: Vec<Target>) -> Panel {
    Panel { title: title.to_owned(), about: about.to_owned(), unit, look, targets, width: 12 }
}

fn histogram<'a>(name: &'a str, matchers: &'a str, form: Form) -> Histogram<'a> {
    Histogram { name, matchers, window: WINDOW, form }
}

/// `{{a}} {{b}}`
fn legend(labels: &[String]) -> String {
    let names: Vec<String> = labels.iter().map(|label| format!("{{{{{label}}}}}")).collect();
    if names.is_empty() { "all".to_owned() } else { names.join(" ") }
}

/// Grafana's word for the unit of a metric's values.
fn unit(metric: &Metric) -> &'static str {
    match metric.unit.as_str() {
        "seconds" => "s",
        "bytes" => "bytes",
        _ if metric.name.ends_with("_timestamp_seconds") => "dateTimeAsIso",
        _ if metric.name.ends_with("_bytes") => "bytes",
        _ if metric.name.ends_with("_ratio") => "percentunit",
        _ => "short",
    }
}

/// The same for what a counter gains in a second. A second per second is a part of one CPU or of one request.
fn rate_unit(metric: &Metric) -> &'static str {
    match unit(metric) {
        "bytes" => "Bps",
        "s" => "percentunit",
        _ => "cps",
    }
}

/// Rate, errors (the slow share, where an objective says what slow is) and duration of a latency.
fn red(metric: &Metric, matchers: &str, threshold: Option<(f64, String)>) -> Vec<Panel> {
    let name = metric.name.as_str();
    let by = metric.labels.join(", ");
    let count = |form| top(MAX_SERIES, &histogram(name, matchers, form).count(&by));
    let mut panels =
        vec![panel("Rate", &metric.help, "cps", Look::Lines, Target::forms(&legend(&metric.labels), count))];
    if let Some((bound, says)) = threshold {
        let share = |form| format!("100 * ({})", histogram(name, matchers, form).share_above(bound, ""));
        let about = format!("Share of observations above the objective's bound. Objective: {says}.");
        panels.push(panel("Slow share", &about, "percent", Look::Lines, Target::forms("slow", share)));
    }
    panels.push(quantiles(metric, matchers));
    if !metric.labels.is_empty() {
        let p99 = |form| top(MAX_SERIES, &histogram(name, matchers, form).quantile(0.99, &by));
        let targets = Target::forms(&legend(&metric.labels), p99);
        panels.push(panel("99th percentile of each", &metric.help, unit(metric), Look::Lines, targets));
    }
    panels.push(heatmap(metric, matchers));
    panels
}

fn quantiles(metric: &Metric, matchers: &str) -> Panel {
    let targets = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")]
        .iter()
        .flat_map(|(q, legend)| Target::forms(legend, |form| histogram(&metric.name, matchers, form).quantile(*q, "")));
    panel("Quantiles", &metric.help, unit(metric), Look::Lines, targets.collect())
}

fn heatmap(metric: &Metric, matchers: &str) -> Panel {
    let targets = Target::forms("{{le}}", |form| histogram(&metric.name, matchers, form).buckets());
    let about = format!("{} Observations by bucket.", metric.help);
    panel("Distribution", &about, unit(metric), Look::Heatmap, targets)
}

/// A counter as rates, the largest of them.
fn rates(title: &str, metric: &Metric) -> Panel {
    let expr = top(MAX_SERIES, &rate(&metric.name, MATCHERS, WINDOW, &metric.labels.join(", ")));
    let target = Target::new(expr, legend(&metric.labels));
    panel(title, &metric.help, rate_unit(metric), Look::Lines, vec![target])
}

/// A gauge as it is, the largest of them.
fn values(title: &str, metric: &Metric) -> Panel {
    let selector = format!("{}{}", metric.name, braces(MATCHERS, ""));
    let expr = top(MAX_SERIES, &sum(&metric.labels.join(", "), &selector));
    panel(title, &metric.help, unit(metric), Look::Lines, vec![Target::new(expr, legend(&metric.labels))])
}

/// A row with what can be said of any metric; none for sums by stack, which are no series.
fn generic(metric: &Metric, collapsed: bool) -> Option<Row> {
    let panels = match metric.kind {
        Kind::Counter => vec![rates("Rate", metric)],
        Kind::Gauge => vec![values("Value", metric)],
        Kind::Histogram => {
            let objective = crate::objectives::shipped().into_iter().find(|o| o.metric == metric.name);
            // The share above a bound is of what the objective is about, which may be a part of the metric.
            let threshold = objective.filter(|o| o.matchers.is_empty()).map(|o| (o.threshold, o.says));
            red(metric, MATCHERS, threshold)
        }
        Kind::ClassicHistogram | Kind::Info | Kind::Stacks => return None,
    };
    Some(Row { title: metric.name.clone(), collapsed, panels })
}
