//! What `/metrics` says, as a table of series.

use std::collections::BTreeMap;

/// Labels of a series.
pub type Labels = BTreeMap<String, String>;

/// All series of one scrape.
#[derive(Debug, Default)]
pub struct Metrics(BTreeMap<(String, Labels), f64>);

/// A classic histogram: upper bounds in seconds (or the metric's unit) with cumulative counts, `+Inf` last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Bound and count of what is at or below it.
    pub buckets: Vec<(f64, f64)>,
    pub sum: f64,
    pub count: f64,
}

impl Metrics {
    /// Reads text format 0.0.4; a line that is not in it fails the test.
    #[track_caller]
    pub fn parse(text: &str) -> Metrics {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut found = BTreeMap::new();
        for line in lines {
            let series = parse_line(line).unwrap_or_else(|| panic!("not a sample: {line}"));
            assert!(found.insert((series.0, series.1), series.2).is_none(), "twice in one scrape: {line}");
        }
        Metrics(found)
    }

    /// Sum of the series of this name that have all these labels; 0 when there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.series(name, labels).map(|(_, value)| value).sum()
    }

    /// Whether there is such a series.
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.series(name, labels).next().is_some()
    }

    /// The series of this name that have all these labels.
    pub fn series<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = (&'a Labels, f64)> + 'a {
        let fits = |have: &Labels| labels.iter().all(|(key, value)| have.get(*key).is_some_and(|v| v == value));
        let all = self.0.range((name.to_owned(), Labels::new())..).take_while(move |((n, _), _)| n == name);
        all.filter(move |((_, have), _)| fits(have)).map(|((_, have), value)| (have, *value))
    }

    /// The histogram of this name, summed over all series that have these labels.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)]) -> Histogram {
        let mut by_bound: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (have, value) in self.series(&format!("{name}_bucket"), labels) {
            let le: f64 = have["le"].parse().expect("le is a number");
            // Bits of a positive number sort as the number does.
            by_bound.entry(le.to_bits()).or_insert((le, 0.0)).1 += value;
        }
        Histogram {
            buckets: by_bound.into_values().collect(),
            sum: self.sum(&format!("{name}_sum"), labels),
            count: self.sum(&format!("{name}_count"), labels),
        }
    }
}

impl Histogram {
    /// What was added since an earlier scrape. A series that was not there yet counts from nothing.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let before = |le: f64| earlier.buckets.iter().find(|(bound, _)| *bound == le).map_or(0.0, |(_, n)| *n);
        Histogram {
            buckets: self.buckets.iter().map(|&(le, n)| (le, n - before(le))).collect(),
            sum: self.sum - earlier.sum,
            count: self.count - earlier.count,
        }
    }

    /// Count of what is at or below this bound, which must be one of its own.
    #[track_caller]
    pub fn at_most(&self, le: f64) -> f64 {
        let found = self.buckets.iter().find(|(bound, _)| (bound - le).abs() <= le * 1e-9);
        found.unwrap_or_else(|| panic!("{le} is no bound of {self:?}")).1
    }

    pub fn mean(&self) -> f64 {
        self.sum / self.count
    }
}

/// `name{key="value",..} number [timestamp]`
fn parse_line(line: &str) -> Option<(String, Labels, f64)> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(key.trim_start_matches(',').trim().to_owned(), value);
            rest = after;
        }
        rest = &rest[1..];
    }
    let value = rest.trim().split(' ').next()?.parse().ok()?;
    Some((name.to_owned(), labels, value))
}

/// A label's value up to its closing quote, escapes undone, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            _ => value.push(c),
        }
    }
    None
}
