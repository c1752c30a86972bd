//! Slow events, the newest first, and all fields of one of them.

use super::{DIM, HEAD, Look, put, text};
use crate::cli::draw::fit;
use crate::cli::top::answers::{Event, shown};
use crate::cli::top::state::State;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Columns of the name of a node.
const NODE_WIDTH: usize = 16;

/// Columns of a line of text: when, where, whose, what.
pub fn line(event: &Event) -> String {
    let (probe, comm) = (fit(&event.probe, 16), fit(event.comm(), 15));
    format!("{}{}  {probe:<16}  {:>7}  {comm:<15}  {}", event.clock(), node(event), event.pid, event.text(3))
}

/// The column of the node, where events of many are shown.
pub fn node(event: &Event) -> String {
    if event.node.is_empty() { String::new() } else { format!("  {:<NODE_WIDTH$}", fit(&event.node, NODE_WIDTH)) }
}

/// The head over such lines.
pub fn head(has_nodes: bool) -> String {
    let node = if has_nodes { format!("  {:<NODE_WIDTH$}", "NODE") } else { String::new() };
    format!("{:<12}{node}  {:<16}  {:>7}  {:<15}  FIELDS", "TIME", "PROBE", "PID", "COMM")
}

pub fn draw(state: &State, probe: Option<&str>, look: Look, buffer: &mut Buffer, area: Rect) {
    let events = state.events_of(probe);
    text(buffer, area.y, &head(events.iter().any(|event| !event.node.is_empty())), HEAD);
    if events.is_empty() {
        let of = probe.map_or(String::new(), |probe| format!(" of {probe}"));
        text(buffer, area.y + 1, &format!("no slow events{of}: probes with `slow:` record them"), DIM);
        return;
    }
    let details = area.height / 2;
    let list = Rect { height: area.height - details, ..area };
    let first = state.first_row(usize::from(list.height).saturating_sub(1));
    for (row, (event, y)) in events.iter().skip(first).zip(list.y + 1..list.bottom()).enumerate() {
        put(buffer, 0, y, &line(event), look.row(first + row == state.row()));
    }
    let Some(chosen) = events.get(state.row()) else { return };
    let on = if chosen.node.is_empty() { String::new() } else { format!(" on {}", chosen.node) };
    text(buffer, list.bottom(), &format!("{} of {} at {}{on}", chosen.probe, chosen.pid, chosen.time), HEAD);
    let fields = chosen.fields.iter().map(|(name, value)| format!("{name:>16}  {}", shown(value, usize::MAX)));
    fields.zip(list.bottom() + 1..area.bottom()).for_each(|(field, y)| text(buffer, y, &field, Style::new()));
}
