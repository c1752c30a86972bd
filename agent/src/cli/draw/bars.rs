//! A histogram as bars, one row for each power of two.

use super::quantity::{grouped, quantity};
use super::{Distribution, Look, pad};
use crate::config::adhoc::scale::Scale;

/// Eighths of a full block, from one to seven.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
/// Widest bar: longer ones say no more.
const MAX_BAR: usize = 60;

/// A row: values from `low` up to, but not including, `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    pub low: u64,
    /// `None` for the last row, which has no end.
    pub high: Option<u64>,
    pub count: u64,
}

/// Where the rows of these buckets begin. The bucket of the smallest values begins at 0 and that of the largest has no end: rows
/// within them are one.
pub fn lows(of: &Distribution, scale: Scale) -> Vec<u64> {
    let zero_end = of.upper.first().copied().unwrap_or(0);
    let last_end = of.upper.last().copied().unwrap_or(0);
    let bounds = scale.bounds().into_iter().filter(|bound| *bound > zero_end && *bound <= last_end.saturating_add(1));
    [0].into_iter().chain(bounds).collect()
}

/// The rows from the first to the last that has a count, each the sum of the kernel's buckets that end in it. Where rows begin at
/// bounds of buckets, as in buckets that the tool asked for, each bucket lies whole in one row.
pub fn rows(of: &Distribution, scale: Scale) -> Vec<Bar> {
    let lows = lows(of, scale);
    let open = lows.len() - 1;
    let mut counts = vec![0; lows.len()];
    for (bucket, count) in of.counts.iter().enumerate() {
        let row = of.upper.get(bucket).map_or(open, |end| lows.partition_point(|low| low <= end) - 1);
        counts[row] += count;
    }
    let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
    let end = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    (first..end).map(|row| Bar { low: lows[row], high: lows.get(row + 1).copied(), count: counts[row] }).collect()
}

/// Rows as text: bounds, count, bar.
pub fn histogram(of: &Distribution, scale: Scale, unit: &str, look: &Look) -> String {
    let bars = rows(of, scale);
    let label = |bar: &Bar| {
        let low = quantity(bar.low as f64, scale, unit);
        match bar.high {
            Some(high) if high == bar.low + 1 => low,
            Some(high) => format!("{low} - {}", quantity(high as f64, scale, unit)),
            None => format!("{low} and more"),
        }
    };
    let labels: Vec<String> = bars.iter().map(label).collect();
    let counts: Vec<String> = bars.iter().map(|bar| grouped(bar.count)).collect();
    let head = if scale == Scale::Time { "time" } else { unit };
    let wide = |texts: &[String], head: &str| {
        texts.iter().map(|text| text.chars().count()).chain([head.len()]).max().unwrap_or(0)
    };
    let (first, second) = (wide(&labels, head).max(15), wide(&counts, "count").max(9));
    let room = look.width.saturating_sub(first + second + 6).clamp(4, MAX_BAR);
    let most = bars.iter().map(|bar| bar.count).max().unwrap_or(0);
    let mut text = format!("{}  {}\n", pad(head, first, true), pad("count", second, true));
    for ((bar, label), count) in bars.iter().zip(&labels).zip(&counts) {
        let drawn = block(bar.count, most, room);
        text += &format!("{}  {} |{}|\n", pad(label, first, true), pad(count, second, true), pad(&drawn, room, false));
    }
    text
}

/// A bar of at most `room` characters. What is there is never drawn as nothing.
fn block(count: u64, most: u64, room: usize) -> String {
    if count == 0 {
        return String::new();
    }
    let eighths = (count as f64 / most.max(1) as f64 * room as f64 * 8.0).round().max(1.0) as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.extend((eighths % 8).checked_sub(1).map(|part| EIGHTHS[part]));
    bar
}
