//! Text for terminals: aligned tables, times with three digits.

use std::fmt::Write;

/// A table whose columns are as wide as their widest cell. Columns whose title begins with `>` are aligned right.
pub(super) struct Table {
    titles: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(titles: &[&'static str]) -> Table {
        Table { titles: titles.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(super) fn render(&self, out: &mut String) {
        let title = |column: usize| self.titles[column].trim_start_matches('>');
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.max().unwrap_or_default().max(title(column).len())
        };
        let widths: Vec<usize> = (0..self.titles.len()).map(width).collect();
        let mut line = |cell: &dyn Fn(usize) -> String| {
            let mut text = String::new();
            for (column, width) in widths.iter().enumerate() {
                let (cell, right) = (cell(column), self.titles[column].starts_with('>'));
                // Writing to a String cannot fail.
                let _ = if right { write!(text, "  {cell:>width$}") } else { write!(text, "  {cell:<width$}") };
            }
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line(&|column| title(column).to_owned());
        for row in &self.rows {
            line(&|column| row.get(column).cloned().unwrap_or_default());
        }
    }
}

/// A time: microseconds below ten milliseconds, else milliseconds.
pub(super) fn time(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{}.{:03} us", ns / 1000, ns % 1000),
        _ => format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000),
    }
}

/// A time, or `-` for one that is not known.
pub(super) fn time_or_dash(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), time)
}

/// A point in time as the kernel writes it: seconds and six digits.
pub(super) fn moment(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), |ns| format!("{}.{:06}", ns / 1_000_000_000, ns / 1000 % 1_000_000))
}

/// A share of a whole in tenths of a percent, rounded; nothing of nothing is 0.
pub(super) fn permille(part: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        _ => ((u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole)) as u64,
    }
}

pub(super) fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// A thread, as the kernel writes it.
pub(super) fn task(comm: Option<&str>, pid: Option<i32>) -> String {
    match (comm, pid) {
        (Some(comm), Some(pid)) => format!("{comm}-{pid}"),
        (Some(comm), None) => comm.to_owned(),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => "-".to_owned(),
    }
}

/// The head of a report.
pub(super) fn head(out: &mut String, title: &str) {
    out.push_str(title);
    out.push('\n');
}

/// Says which events a report would need. Returns whether any is missing.
pub(super) fn not_recorded(out: &mut String, missing: &[String]) -> bool {
    if !missing.is_empty() {
        let _ = writeln!(out, "  not recorded: {}", missing.join(", "));
    }
    !missing.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        assert_eq!(time(0), "0.000 us");
        assert_eq!(time(6_114_798), "6114.798 us");
        assert_eq!(time(11_280_507_000), "11280.507 ms");
        assert_eq!(moment(Some(14_701_813_999)), "14.701813");
        assert_eq!(percent(permille(6025261, 6114798)), "98.5 %");
        assert_eq!(permille(u64::MAX, u64::MAX), 1000);
        assert_eq!(permille(1, 0), 0);
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = Table::new(&["name", ">count"]);
        table.row(vec!["long name".into(), "1".into()]);
        table.row(vec!["a".into(), "1234567".into()]);
        let mut out = String::new();
        table.render(&mut out);
        assert_eq!(out, "  name         count\n  long name        1\n  a          1234567\n");
    }
}
