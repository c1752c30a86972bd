//! All metrics, a row each.

use super::{HEAD, Look, optional, percent, put, text};
use crate::cli::draw::{figures, fit, heat};
use crate::cli::top::answers::{Kind, Query, Summary};
use crate::cli::top::state::{State, plain, strip_values};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Columns that are there beside the strip: a name of 25, figures, cost.
pub const FIXED_WIDTH: u64 = MIN_NAME as u64 + FIGURES as u64 + 2 + 1 + COST as u64;
const MIN_NAME: usize = 25;
const MAX_NAME: usize = 44;
/// Rate, p50, p99 and max.
const FIGURES: usize = 9 + 7 + 7 + 7;
const COST: usize = 7;

pub fn draw(state: &State, look: Look, buffer: &mut Buffer, area: Rect) {
    let strip = state.strip_width() as usize;
    let room = usize::from(area.width).saturating_sub(FIGURES + 2 + strip + 1 + COST);
    let name = room.clamp(MIN_NAME.min(room.max(1)), MAX_NAME);
    let head = line(name, "METRIC", ["RATE", "P50", "P99", "MAX"].map(str::to_owned), "LAST MINUTE", strip, "COST");
    text(buffer, area.y, &head, HEAD);
    let fit_rows = state.rows_that_fit();
    let (metrics, first) = (state.metrics(), state.first_row(fit_rows));
    if metrics.is_empty() {
        text(buffer, area.y + 1, nothing(state), super::DIM);
    }
    for (row, (metric, y)) in metrics.iter().skip(first).zip(area.y + 1..area.bottom()).enumerate() {
        let query = state.strip(&metric.metric);
        let cost = cost(state, metric);
        let of =
            line(name, plain(&metric.metric), figures_of(state, metric, query), &picture(query, strip), strip, &cost);
        put(buffer, 0, y, &of, look.row(first + row == state.row()));
    }
}

fn nothing(state: &State) -> &'static str {
    match &state.history {
        None => "waiting for the agent",
        Some(history) if history.metrics.is_empty() => "the agent has measured nothing yet",
        Some(_) => "no metric's name contains the filter",
    }
}

fn line(
    name: usize,
    metric: &str,
    [rate, p50, p99, max]: [String; 4],
    strip: &str,
    width: usize,
    cost: &str,
) -> String {
    let metric = fit(metric, name);
    format!("{metric:<name$}{rate:>9}{p50:>7}{p99:>7}{max:>7}  {strip:<width$} {cost:>COST$}")
}

/// Of the last ten seconds, or of the minute that is shown.
fn figures_of(state: &State, metric: &Summary, query: Option<&Query>) -> [String; 4] {
    let past = query.filter(|_| state.end.is_some()).and_then(|query| Some((query, query.groups.first()?)));
    let (rate, quantiles, last, is_estimate) = match (past, state.end) {
        (Some((query, group)), _) => {
            let total = &group.total;
            (group.mean_rate(), [total.p50, total.p99, total.max], total.last, query.sampled)
        }
        (None, Some(_)) => (None, [None; 3], None, false),
        (None, None) => (metric.rate, [metric.p50, metric.p99, metric.max], metric.value, metric.sampled),
    };
    let mark = if is_estimate { "~" } else { "" };
    match metric.kind {
        Kind::Gauge => [optional(last, &metric.unit), String::new(), String::new(), String::new()],
        Kind::Counter => [
            rate.map(|rate| counter_rate(rate, &metric.unit, mark)).unwrap_or_default(),
            String::new(),
            String::new(),
            String::new(),
        ],
        Kind::Histogram => {
            let [p50, p99, max] = super::quantiles(quantiles, &metric.unit);
            [rate.map(|rate| mark.to_owned() + &figures::rate(rate)).unwrap_or_default(), p50, p99, max]
        }
    }
}

/// A counter of bytes or seconds grows by so much of its unit.
pub fn counter_rate(rate: f64, unit: &str, mark: &str) -> String {
    match unit {
        "bytes" | "seconds" => format!("{mark}{}/s", super::value(rate, unit)),
        _ => mark.to_owned() + &figures::rate(rate),
    }
}

/// The last columns of the answer, which may have one more than fits.
fn picture(query: Option<&Query>, width: usize) -> String {
    let Some(query) = query else { return String::new() };
    let values = strip_values(query);
    let values = &values[values.len().saturating_sub(width)..];
    match query.kind {
        Kind::Histogram => heat::log_strip(values),
        Kind::Counter | Kind::Gauge => heat::linear_strip(values),
    }
}

fn cost(state: &State, metric: &Summary) -> String {
    let Some(probes) = &state.probes else { return String::new() };
    let probe = probes.probes.iter().find(|probe| probe.name == metric.probe);
    let share = probe.and_then(|probe| probe.cost_ppm).map(|ppm| percent(probes.node.percent(ppm)));
    share.map(|share| share.replace(' ', "")).unwrap_or_default()
}
