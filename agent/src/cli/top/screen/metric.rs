//! One metric: its heat map over time, a table of its labels, its slow events.

use super::events::node;
use super::{DIM, HEAD, Look, clock, optional, put, text};
use crate::cli::draw::heat::{self, Axis, HeatMap};
use crate::cli::draw::quantity::grouped;
use crate::cli::draw::{figures, fit};
use crate::cli::top::answers::{Event, Group, Kind, Query};
use crate::cli::top::merge::NODE;
use crate::cli::top::screen::metrics::counter_rate;
use crate::cli::top::state::{MAP_EVENTS, MetricPage, State, plain, strip_values};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Columns of the axis of latencies.
pub const AXIS_WIDTH: u64 = 7;
/// Lines of the table at least, its head included.
const MIN_TABLE: u16 = 8;
/// Widest column of labels.
const MAX_LABELS: usize = 60;

pub fn draw(state: &State, page: &MetricPage, look: Look, buffer: &mut Buffer, area: Rect) {
    let map = state.map(page);
    text(buffer, area.y, &title(page, map), HEAD);
    let probe = state.summary(&page.metric).map(|summary| summary.probe.as_str());
    let mut slow = state.events_of(Some(probe.unwrap_or_default()));
    if let Some((_, node)) = page.chosen.iter().find(|(label, _)| label == NODE) {
        slow.retain(|event| event.node.is_empty() || event.node == *node);
    }
    let events = slow.len().min(MAP_EVENTS) as u16 + 1;
    let picture = area.height.saturating_sub(1 + 1 + MIN_TABLE + events).clamp(1, area.height.max(8) / 2);
    if let Some(map) = map {
        text(buffer, area.y + 1, &map.help, DIM);
        let place = Rect { y: area.y + 2, height: picture, ..area };
        match map.kind {
            Kind::Histogram => heat_map(map, look, buffer, place),
            Kind::Counter | Kind::Gauge => chart(map, buffer, place),
        }
        time_axis(map, buffer, place.bottom());
    } else {
        text(buffer, area.y + 1, "waiting for the agent", DIM);
    }
    let table = area.y + picture + 3;
    let bottom = area.bottom().saturating_sub(events);
    draw_table(state, page, look, buffer, Rect { y: table, height: bottom.saturating_sub(table), ..area });
    draw_events(&slow, probe.unwrap_or_default(), buffer, bottom);
}

fn title(page: &MetricPage, map: Option<&Query>) -> String {
    let labels: Vec<String> = page.chosen.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let figures = map.and_then(|map| Some(title_figures(map, map.groups.first()?))).unwrap_or_default();
    format!("{}{labels}{figures}", plain(&page.metric))
}

/// Of the whole range.
fn title_figures(map: &Query, group: &Group) -> String {
    let mark = if map.sampled { "~" } else { "" };
    let [rate, p50, p99, max] = row_figures(map, group);
    let minutes = figures::seconds(map.measured_seconds(group));
    match map.kind {
        Kind::Histogram => {
            let count = grouped(group.total.count.unwrap_or_default() as u64);
            format!("  {mark}{rate}  p50 {p50}  p99 {p99}  max {max}  {mark}{count} in {minutes}")
        }
        Kind::Counter => format!("  {rate}  in {minutes}"),
        Kind::Gauge => format!("  {rate}"),
    }
}

fn row_figures(query: &Query, group: &Group) -> [String; 4] {
    let total = &group.total;
    let rate = group.mean_rate();
    let first = match query.kind {
        Kind::Histogram => rate.map(figures::rate).unwrap_or_default(),
        Kind::Counter => {
            rate.map(|rate| counter_rate(rate, &query.unit, if query.sampled { "~" } else { "" })).unwrap_or_default()
        }
        Kind::Gauge => optional(total.last, &query.unit),
    };
    match query.kind {
        Kind::Histogram => {
            let [p50, p99, max] = super::quantiles([total.p50, total.p99, total.max], &query.unit);
            [first, p50, p99, max]
        }
        Kind::Counter | Kind::Gauge => [first, String::new(), String::new(), String::new()],
    }
}

/// Without colours a character is one step of the axis, as dark as its count; with colours it is two, as a half block has
/// two colours.
fn heat_map(map: &Query, look: Look, buffer: &mut Buffer, area: Rect) {
    let (Some(axis), Some(group)) = (Axis::of(&map.bounds), map.groups.first()) else {
        text(buffer, area.y, "nothing in this time", DIM);
        return;
    };
    let width = usize::from(area.width).saturating_sub(AXIS_WIDTH as usize);
    let is_measured = |column: usize| group.rate.get(column).is_some_and(Option::is_some);
    let columns = group.heat.iter().enumerate().map(|(column, heat)| is_measured(column).then_some(heat.as_slice()));
    let columns: Vec<Option<&[u64]>> = columns.collect();
    let columns = &columns[columns.len().saturating_sub(width)..];
    let is_plain = look.colour(1.0).is_none();
    let height = usize::from(area.height) * if is_plain { 1 } else { 2 };
    let lines = HeatMap::of(axis, &map.bounds, columns, height).lines;
    for column in 0..columns.len() {
        for (y, pair) in (area.y..).zip(lines.chunks(if is_plain { 1 } else { 2 })) {
            let (upper, lower) = (pair[0][column], pair.last().and_then(|line| line[column]));
            let (character, style) = cell(look, upper, lower);
            buffer.set_string(AXIS_WIDTH as u16 + column as u16, y, character.to_string(), style);
        }
    }
    for (line, decade) in axis.decades(area.height.into()) {
        let label = super::value(decade, &map.unit);
        put(buffer, 0, area.y + line as u16, &format!("{label:>5} "), DIM);
    }
}

fn cell(look: Look, upper: Option<f64>, lower: Option<f64>) -> (char, Style) {
    let (Some(upper), Some(lower)) = (upper, lower) else { return ('·', DIM) };
    match (look.colour(upper), look.colour(lower)) {
        (Some(above), Some(below)) if upper > 0.0 => ('▀', Style::new().fg(above).bg(below)),
        (Some(_), Some(below)) if lower > 0.0 => ('▄', Style::new().fg(below)),
        (Some(_), Some(_)) => (' ', Style::new()),
        _ => (heat::shade(upper), Style::new()),
    }
}

/// A counter's rate or a gauge's value.
fn chart(map: &Query, buffer: &mut Buffer, area: Rect) {
    let values = strip_values(map);
    let values = &values[values.len().saturating_sub(usize::from(area.width).saturating_sub(AXIS_WIDTH as usize))..];
    for (line, y) in heat::columns(values, area.height.into()).iter().zip(area.y..) {
        put(buffer, AXIS_WIDTH as u16, y, line, Style::new());
    }
    let most = values.iter().flatten().copied().fold(0.0, f64::max);
    put(buffer, 0, area.y, &format!("{:>6}", fit(&super::value(most, &map.unit), 6)), DIM);
    put(buffer, 0, area.bottom() - 1, "     0", DIM);
}

/// When the picture begins and ends.
fn time_axis(map: &Query, buffer: &mut Buffer, y: u16) {
    let (from, to) = (clock(map.from), clock(map.to) + " UTC");
    put(buffer, AXIS_WIDTH as u16, y, &from, DIM);
    put(buffer, buffer.area.width.saturating_sub(to.len() as u16), y, &to, DIM);
}

fn draw_table(state: &State, page: &MetricPage, look: Look, buffer: &mut Buffer, area: Rect) {
    let by = state.by(page).join(", ");
    let Some(table) = state.table(page) else { return };
    let room = usize::from(area.width).saturating_sub(9 + 7 + 7 + 7 + 10);
    let width = room.clamp(1, MAX_LABELS);
    let line = |labels: &str, [rate, p50, p99, max]: [String; 4], sum: &str| {
        format!("{:<width$}{rate:>9}{p50:>7}{p99:>7}{max:>7}{sum:>10}", fit(labels, width))
    };
    let heads = match table.kind {
        Kind::Histogram => (["RATE", "P50", "P99", "MAX"], "TOTAL"),
        Kind::Counter => (["RATE", "", "", ""], "TOTAL"),
        Kind::Gauge => (["VALUE", "", "", ""], ""),
    };
    let left_out = if table.left_out > 0 { format!(" ({} more)", table.left_out) } else { String::new() };
    text(buffer, area.y, &line(&format!("{}{left_out}", by.to_uppercase()), heads.0.map(str::to_owned), heads.1), HEAD);
    let fit_rows = usize::from(area.height).saturating_sub(1);
    let first = state.first_row(fit_rows);
    for (row, (group, y)) in table.groups.iter().skip(first).zip(area.y + 1..area.bottom()).enumerate() {
        let labels: Vec<&str> = group.labels.values().map(String::as_str).collect();
        let total = match table.kind {
            Kind::Histogram => optional(group.total.sum, &table.unit),
            Kind::Counter => optional(group.total.count, &table.unit),
            Kind::Gauge => String::new(),
        };
        let of = line(&labels.join(", "), row_figures(table, group), &total);
        put(buffer, 0, y, &of, look.row(first + row == state.row()));
    }
}

fn draw_events(events: &[&Event], probe: &str, buffer: &mut Buffer, y: u16) {
    if events.is_empty() {
        text(buffer, y, &format!("no slow events of {probe}"), DIM);
        return;
    }
    text(buffer, y, "SLOW EVENTS", HEAD);
    for (event, y) in events.iter().take(MAP_EVENTS).zip(y + 1..) {
        let node = node(event);
        let line = format!("{}{node}  {:>7}  {:<15}  {}", event.clock(), event.pid, event.comm(), event.text(3));
        text(buffer, y, &line, Style::new());
    }
}
