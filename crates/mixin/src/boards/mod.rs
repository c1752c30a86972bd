//! Which dashboards there are, and the panels that several of them have.

mod agent;
mod fleet;
mod node;
mod off;
mod slo;
mod start;
mod topic;

use crate::catalogue::{Catalogue, Kind, Metric};
use crate::dashboard::Dashboard;
use crate::panel::{Look, MATCHERS, Panel, Target, WINDOW};
use crate::promql::{Form, Histogram, braces, rate, sum, top};
use crate::topics::TOPICS;
use kstrobe_config::PREFIX;

/// The set that reads one form of histograms, in the order of the menu.
pub fn all(catalogue: &Catalogue, form: Form) -> Vec<Dashboard> {
    let mut boards = vec![start::board(catalogue, form), fleet::board(form), node::board(catalogue, form)];
    boards.extend(TOPICS.iter().map(|topic| topic::board(topic, catalogue, form)));
    boards.push(agent::board(catalogue));
    boards.push(slo::board());
    for board in &mut boards {
        let rows = std::mem::take(&mut board.rows);
        board.rows = rows.into_iter().flat_map(|row| off::apart(row, catalogue)).collect();
    }
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

/// A metric's name without what all names begin with.
fn short(metric: &Metric) -> &str {
    metric.name.trim_start_matches(PREFIX)
}

/// Rate, errors (the slow share, where an objective says what slow is) and duration of a latency. Titles begin with `name`.
fn red(name: &str, metric: &Metric, matchers: &str, threshold: Option<(f64, String)>, form: Form) -> Vec<Panel> {
    let histogram = histogram(&metric.name, matchers, form);
    let by = metric.labels.join(", ");
    let lines =
        |title: &str, about: &str, unit, targets| panel(&format!("{name}: {title}"), about, unit, Look::Lines, targets);
    let each = |expr: String| vec![Target::of(form, top(MAX_SERIES, &expr), legend(&metric.labels))];
    let mut panels = vec![lines("rate", &metric.help, "cps", each(histogram.count(&by)))];
    if let Some((bound, says)) = threshold {
        let share = Target::of(form, format!("100 * ({})", histogram.share_above(bound, "")), "slow");
        let about = format!("Share of observations above the objective's bound. Objective: {says}.");
        panels.push(lines("slow share", &about, "percent", vec![share]));
    }
    let quantiles = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")];
    let quantiles = quantiles.map(|(q, legend)| Target::of(form, histogram.quantile(q, ""), legend));
    panels.push(lines("quantiles", &metric.help, unit(metric), quantiles.to_vec()));
    if !metric.labels.is_empty() {
        let p99 = each(histogram.quantile(0.99, &by));
        panels.push(lines("99th percentile of each", &metric.help, unit(metric), p99));
    }
    let about = format!("{} Observations by bucket.", metric.help);
    let buckets = vec![Target::of(form, histogram.buckets(), "{{le}}")];
    panels.push(panel(&format!("{name}: distribution"), &about, unit(metric), Look::Heatmap, buckets));
    panels
}

/// A counter as rates, the largest of them.
fn rates(metric: &Metric) -> Panel {
    let expr = top(MAX_SERIES, &rate(&metric.name, MATCHERS, WINDOW, &metric.labels.join(", ")));
    let target = Target::new(expr, legend(&metric.labels));
    panel(short(metric), &metric.help, rate_unit(metric), Look::Lines, vec![target])
}

/// A gauge as it is, the largest of them.
fn values(metric: &Metric) -> Panel {
    let selector = format!("{}{}", metric.name, braces(MATCHERS, ""));
    let expr = top(MAX_SERIES, &sum(&metric.labels.join(", "), &selector));
    panel(short(metric), &metric.help, unit(metric), Look::Lines, vec![Target::new(expr, legend(&metric.labels))])
}

/// What can be said of any metric; nothing of sums by stack, which are no series.
fn generic(metric: &Metric, form: Form) -> Vec<Panel> {
    match metric.kind {
        Kind::Counter => vec![rates(metric)],
        Kind::Gauge => vec![values(metric)],
        Kind::Histogram => {
            let objective = crate::objectives::shipped().into_iter().find(|o| o.metric == metric.name);
            // The share above a bound is of what the objective is about, which may be a part of the metric.
            let threshold = objective.filter(|o| o.matchers.is_empty()).map(|o| (o.threshold, o.says));
            red(short(metric), metric, MATCHERS, threshold, form)
        }
        Kind::ClassicHistogram | Kind::Info | Kind::Stacks => Vec::new(),
    }
}
