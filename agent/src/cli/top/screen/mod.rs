//! What a terminal shows of the state: cells in a buffer, and no terminal.

pub mod events;
pub mod metric;
pub mod metrics;

use super::source::Failure;
use super::state::{Page, State};
use crate::cli::draw::{figures, fit, heat};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Colours that a terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    None,
    /// 256.
    Indexed,
    Full,
}

/// How a screen looks beside its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub colours: Colours,
    /// Whether the terminal's background is light.
    pub is_light: bool,
    /// Whether there is a row that keys act on.
    pub has_cursor: bool,
}

impl Look {
    /// Cells of a heat map of this intensity.
    fn colour(self, intensity: f64) -> Option<Color> {
        let [red, green, blue] = heat::colour(intensity, self.is_light);
        match self.colours {
            Colours::None => None,
            // Nothing is the terminal's own background.
            _ if intensity == 0.0 => Some(Color::Reset),
            Colours::Indexed => Some(Color::Indexed(heat::indexed([red, green, blue]))),
            Colours::Full => Some(Color::Rgb(red, green, blue)),
        }
    }

    fn row(self, is_chosen: bool) -> Style {
        if is_chosen && self.has_cursor { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() }
    }
}

const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

const HELP: &[&str] = &[
    "enter     open a metric; in its table, show only the series of a row",
    "esc       back, or no filter",
    "up down   move; also k j, page up, page down, home, end",
    "s         sort by rate, p50, p99, max or name",
    "/         show metrics whose names contain a text; enter ends it",
    "b         divide a metric by all its labels, or by one of them or the node",
    "e         slow events",
    "[ ]       older, newer",
    "q         quit",
    "",
    "Figures are of the last 10 s; max is the end of the highest bucket.",
    "LAST MINUTE has p99 of histograms on a logarithmic scale, an eighth for at",
    "least half as much again; of counters the rate, of gauges the value.",
    "COST is the share of the machine that the programs of a metric's probe took",
    "in the last second.",
    "~ marks estimates: the probe is sampled, an event counts for several.",
    "A dot in a heat map is a time in which nothing was measured.",
];

/// Draws the page, its header and its line of keys.
pub fn draw(state: &State, look: Look, buffer: &mut Buffer) {
    let area = buffer.area;
    if area.height < 3 {
        return;
    }
    text(buffer, 0, &header(state), Style::new());
    let page = Rect { y: 1, height: area.height - 2, ..area };
    match state.page() {
        _ if state.shows_help => {
            HELP.iter().zip(page.y + 1..page.bottom()).for_each(|(help, y)| text(buffer, y, help, Style::new()));
        }
        Page::Metrics => metrics::draw(state, look, buffer, page),
        Page::Metric(of) => metric::draw(state, of, look, buffer, page),
        Page::Events(probe) => events::draw(state, probe.as_deref(), look, buffer, page),
    }
    let (line, style) = last_line(state);
    text(buffer, area.bottom() - 1, &line, style);
}

/// The machine, what the agent costs it, and what makes figures inexact.
fn header(state: &State) -> String {
    let mut parts = vec!["kstrobe".to_owned()];
    if let Some(probes) = &state.probes {
        let node = &probes.node;
        parts.push(match state.nodes() {
            Some((some, all)) if some < all => format!("{some} of {all} nodes"),
            _ => node.name.clone(),
        });
        parts.extend(Some(node.kernel.clone()).filter(|kernel| !kernel.is_empty()));
        parts.push(format!("{} CPU{}", node.cpus, if node.cpus == 1 { "" } else { "s" }));
        let cost = node.percent(probes.probes.iter().filter_map(|probe| probe.cost_ppm).sum());
        let budget = node.budget_ppm.map_or(String::new(), |ppm| format!(" of {} %", node.percent(ppm)));
        parts.push(format!("cost {}{budget}", percent(cost)));
    }
    if state.own_probes {
        parts.push("own probes".to_owned());
    }
    if let Some(end) = state.end {
        parts.push(format!("until {} UTC", clock(end)));
    }
    if let Some(lost) = state.history.as_ref().map(|history| history.lost_seconds).filter(|lost| *lost > 0) {
        parts.push(format!("{lost} s lost"));
    }
    if let Some(probes) = &state.probes {
        let missing = probes.probes.iter().filter(|probe| !probe.attached && !probe.idle).count();
        if missing > 0 {
            parts.push(format!("{missing} not attached"));
        }
        let sampled = probes.probes.iter().filter_map(|probe| Some(format!("{} 1/{}", probe.name, probe.one_of?)));
        let sampled: Vec<String> = sampled.collect();
        if !sampled.is_empty() {
            parts.push(format!("sampled: {}", sampled.join(", ")));
        }
    }
    parts.join("  ")
}

fn last_line(state: &State) -> (String, Style) {
    match (&state.error, state.page()) {
        _ if state.edits_filter => (format!("/{}_", state.filter), HEAD),
        (Some(error), _) => (error.lines().next().unwrap_or_default().to_owned(), HEAD),
        _ if !state.failures().is_empty() => (failed(state), HEAD),
        (None, Page::Metrics) => {
            let filter = if state.filter.is_empty() { String::new() } else { format!(": {}", state.filter) };
            let line = format!(
                "enter metric  s sort: {}  / filter{filter}  e events  [ ] time  ? help  q quit",
                state.sort.name()
            );
            (line, DIM)
        }
        (None, Page::Metric(_)) => {
            let line =
                format!("enter series  s sort: {}  b labels  e events  [ ] time  esc back  q quit", state.sort.name());
            (line, DIM)
        }
        (None, Page::Events(_)) => ("esc back  ? help  q quit".to_owned(), DIM),
    }
}

/// The first of the nodes that have no part in what is shown.
fn failed(state: &State) -> String {
    let failures = state.failures();
    let more = if failures.len() > 1 { format!("  ({} more)", failures.len() - 1) } else { String::new() };
    let first = failures.first().map(|Failure { node, error }| format!("{node}: {error}{more}"));
    first.unwrap_or_default()
}

/// A share of the machine.
pub fn percent(percent: f64) -> String {
    match percent {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.01 => "<0.01 %".to_owned(),
        percent => format!("{percent:.2} %"),
    }
}

/// A value of a metric in its unit.
pub fn value(value: f64, unit: &str) -> String {
    match unit {
        "seconds" => figures::seconds(value),
        "bytes" => figures::bytes(value as u64),
        _ => figures::number(value),
    }
}

fn optional(figure: Option<f64>, unit: &str) -> String {
    figure.map(|figure| value(figure, unit)).unwrap_or_default()
}

/// p50, p99 and the maximum, which the agent leaves out where it is beyond the last bound.
pub fn quantiles([p50, p99, max]: [Option<f64>; 3], unit: &str) -> [String; 3] {
    let max = match (p99, max) {
        (Some(_), None) => "+Inf".to_owned(),
        _ => optional(max, unit),
    };
    [optional(p50, unit), optional(p99, unit), max]
}

/// `12:03:04` of a Unix time.
fn clock(time: u64) -> String {
    format!("{:02}:{:02}:{:02}", time / 3600 % 24, time / 60 % 60, time % 60)
}

/// A line of text, cut to the screen.
fn text(buffer: &mut Buffer, y: u16, text: &str, style: Style) {
    put(buffer, 0, y, text, style);
}

fn put(buffer: &mut Buffer, x: u16, y: u16, text: &str, style: Style) {
    let width = buffer.area.width.saturating_sub(x);
    if y < buffer.area.bottom() && width > 0 {
        buffer.set_string(x, y, fit(text, width.into()), style);
    }
}
