//! Label sets as rows of a table: the largest first, the rest as one row.

use super::data::Add;
use super::quantity::{grouped, quantity};
use super::strip::{groups, strip};
use super::{Distribution, Look, Metric, Row, fit, pad};

/// Widest column of a label.
const MAX_LABEL: usize = 32;
/// Widest strip.
const MAX_STRIP: usize = 16;

/// Count, quantiles, maximum, sum and a strip of each label set, the most counts first.
pub fn distributions(metric: &Metric, rows: &[Row<Distribution>], look: &Look) -> String {
    let (shown, rest) = largest(rows, |distribution| distribution.count() as f64, look.top);
    let all: Vec<&Row<Distribution>> = shown.iter().chain(&rest).collect();
    let groups = groups(all.iter().map(|row| &row.value), metric.scale, MAX_STRIP);
    let cells = |row: &&Row<Distribution>| {
        let of = &row.value;
        let at = |share: f64| {
            of.quantile(share, metric.scale).map(|raw| quantity(raw, metric.scale, &metric.unit)).unwrap_or_default()
        };
        let numbers = [grouped(of.count()), at(0.5), at(0.99), max(of, metric), sum(of.sum, metric)];
        (row.labels.clone(), numbers.to_vec(), strip(of, metric.scale, &groups))
    };
    let heads = ["count", "p50", "p99", "max", "total"];
    table(&metric.labels, &heads, &all.iter().map(cells).collect::<Vec<_>>(), look)
}

/// Increases, the largest first.
pub fn counters(metric: &Metric, rows: &[Row<u64>], look: &Look) -> String {
    let (shown, rest) = largest(rows, |value| *value as f64, look.top);
    let head = if metric.unit.is_empty() { "count" } else { metric.unit.as_str() };
    let head = if head == "seconds" { "time" } else { head };
    let cells = |row: &Row<u64>| {
        (row.labels.clone(), vec![quantity(row.value as f64, metric.scale, &metric.unit)], String::new())
    };
    table(&metric.labels, &[head], &shown.iter().chain(&rest).map(cells).collect::<Vec<_>>(), look)
}

/// Values of this moment, the largest first. The rest of them is no sum that means anything, so only their number is shown.
pub fn gauges(metric: &Metric, rows: &[Row<f64>], look: &Look) -> String {
    let (shown, _) = largest(rows, |value| *value, look.top);
    let cells =
        |row: &Row<f64>| (row.labels.clone(), vec![quantity(row.value, metric.scale, &metric.unit)], String::new());
    let text = table(&metric.labels, &["value"], &shown.iter().map(cells).collect::<Vec<_>>(), look);
    match rows.len().saturating_sub(shown.len()) {
        0 => text,
        more => text + &format!("and {more} more\n"),
    }
}

/// The end of the highest bucket with a count, which the largest value does not exceed.
pub fn max(of: &Distribution, metric: &Metric) -> String {
    let shown = |raw: u64| quantity(raw as f64, metric.scale, &metric.unit);
    match of.max() {
        Some(end) => format!("≤{}", shown(end)),
        None if of.count() == 0 => String::new(),
        None => format!(">{}", shown(of.upper.last().copied().unwrap_or(0))),
    }
}

fn sum(raw: u64, metric: &Metric) -> String {
    quantity(raw as f64, metric.scale, &metric.unit)
}

/// The rows with the largest values, and one row for the others where there are some.
fn largest<T: Add + Clone>(rows: &[Row<T>], size: impl Fn(&T) -> f64, top: usize) -> (Vec<Row<T>>, Option<Row<T>>) {
    let mut sorted: Vec<Row<T>> = rows.to_vec();
    sorted.sort_by(|a, b| size(&b.value).total_cmp(&size(&a.value)).then_with(|| a.labels.cmp(&b.labels)));
    // One row in place of the last one alone would say less.
    let cut = if sorted.len() == top + 1 { sorted.len() } else { top.min(sorted.len()) };
    let others = sorted.split_off(cut);
    let number = others.len();
    let rest = others.into_iter().reduce(|mut sum, row| {
        sum.value.add(&row.value);
        sum
    });
    let rest = rest.map(|row| {
        let mut labels = vec![String::new(); row.labels.len()];
        if let Some(first) = labels.first_mut() {
            *first = format!("other ({number})");
        }
        Row { labels, ..row }
    });
    (sorted, rest)
}

/// Labels at the left, numbers at the right, what is drawn behind them.
fn table(labels: &[String], heads: &[&str], rows: &[(Vec<String>, Vec<String>, String)], look: &Look) -> String {
    let wide = |head: &str, cells: &mut dyn Iterator<Item = &String>| {
        cells.map(|cell| cell.chars().count()).chain([head.chars().count()]).max().unwrap_or(0)
    };
    let columns = |at: usize| rows.iter().filter_map(move |row| row.0.get(at));
    let mut label_widths: Vec<usize> =
        labels.iter().enumerate().map(|(at, head)| wide(head, &mut columns(at)).min(MAX_LABEL)).collect();
    let number_widths: Vec<usize> = heads
        .iter()
        .enumerate()
        .map(|(at, head)| wide(head, &mut rows.iter().filter_map(|row| row.1.get(at))).max(6))
        .collect();
    let strip = rows.iter().map(|row| row.2.chars().count()).max().unwrap_or(0);
    let fixed = number_widths.iter().sum::<usize>() + number_widths.len() + strip + usize::from(strip > 0) * 3;
    shrink(&mut label_widths, look.width.saturating_sub(fixed));
    let line = |labels: &mut dyn Iterator<Item = &str>, numbers: &mut dyn Iterator<Item = &str>, drawn: &str| {
        let mut cells: Vec<String> =
            labels.zip(&label_widths).map(|(text, width)| pad(&fit(text, *width), *width, false)).collect();
        cells.extend(numbers.zip(&number_widths).map(|(text, width)| pad(text, *width, true)));
        if !drawn.is_empty() {
            cells.push(format!("  {drawn}"));
        }
        cells.join(" ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut labels.iter().map(String::as_str), &mut heads.iter().copied(), "");
    for (labels, numbers, drawn) in rows {
        text += &line(&mut labels.iter().map(String::as_str), &mut numbers.iter().map(String::as_str), drawn);
    }
    text
}

/// Takes from the widest columns what there is no room for.
fn shrink(widths: &mut [usize], room: usize) {
    let needed = |widths: &[usize]| widths.iter().sum::<usize>() + widths.len();
    while needed(widths) > room {
        match widths.iter_mut().max() {
            Some(widest) if *widest > 6 => *widest -= 1,
            _ => break,
        }
    }
}
