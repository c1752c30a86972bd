//! Figures as text for a terminal: histograms, heat maps, tables, columns of events. Pure: data in, text out. The width is the caller's; no
//! colour is needed to read it.

pub mod bars;
pub mod columns;
pub mod data;
pub mod figures;
pub mod heat;
pub mod quantity;
pub mod strip;
pub mod summary;
pub mod table;

pub use data::{Distribution, Metric, Row, Values};

/// What the drawing depends on besides the data.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Columns of the terminal.
    pub width: usize,
    /// Rows of a table; the rest is one row.
    pub top: usize,
}

/// Columns without a terminal.
pub const USUAL_WIDTH: usize = 80;
/// Fewest columns that anything is drawn in.
pub const MIN_WIDTH: usize = 40;

/// A metric whose rows are already those that the user asked for: a histogram of one row as bars, all else as a table.
pub fn metric(metric: &Metric, look: &Look) -> String {
    match &metric.values {
        Values::Histograms(rows) => match rows.as_slice() {
            [only] if only.labels.iter().all(String::is_empty) => {
                bars::histogram(&only.value, metric.scale, &metric.unit, look)
            }
            rows => table::distributions(metric, rows, look),
        },
        Values::Counters(rows) => table::counters(metric, rows, look),
        Values::Gauges(rows) => table::gauges(metric, rows, look),
    }
}

/// Pads to a width in characters, at the right or at the left.
fn pad(text: &str, width: usize, right: bool) -> String {
    if right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// Cut to a width in characters, with two dots where something is left out. Names of processes go to a terminal: control
/// characters are shown as such.
pub fn fit(text: &str, width: usize) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(2)).chain("..".chars()).take(width).collect(),
        false => text,
    }
}
