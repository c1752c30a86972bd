//! Markdown tables that are readable as plain text too.

/// A table: the first column to the left, the others to the right.
pub fn markdown<S: AsRef<str>>(head: &[&str], rows: impl Iterator<Item = Vec<S>>) -> String {
    let rows: Vec<Vec<S>> = rows.collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.as_ref().chars().count());
        cells.chain([head[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, &width)| match column {
        0 => "-".repeat(width),
        _ => format!("{}:", "-".repeat(width - 1)),
    });
    let rule: Vec<String> = rule.collect();
    let mut text = line(head.to_vec());
    text += &line(rule.iter().map(String::as_str).collect());
    for row in &rows {
        text += &line(row.iter().map(AsRef::as_ref).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text = super::markdown(&["what", "n"], [vec!["a", "1000"], vec!["longer", "1"]].into_iter());
        assert_eq!(text, "| what   |    n |\n| ------ | ---: |\n| a      | 1000 |\n| longer |    1 |\n");
    }
}
