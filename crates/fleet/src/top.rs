//! Latencies over all nodes, from the histograms of two scrapes.

use crate::views::{Table, one_line};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Histograms of a scrape in the Prometheus text format, by series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape(BTreeMap<(String, String), Histogram>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Histogram {
    /// Ascending upper bounds with cumulative counts.
    buckets: Vec<(f64, f64)>,
    sum: f64,
    count: f64,
}

/// A series between two scrapes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Node name.
    pub node: String,
    /// Metric name without `kstrobe_`.
    pub metric: String,
    /// Labels in Prometheus syntax.
    pub labels: String,
    /// Observations per second.
    pub rate: f64,
    /// Median, in the unit of the metric.
    pub p50: f64,
    /// 99th percentile, in the unit of the metric.
    pub p99: f64,
    /// Sum per second: for a duration, the average number of threads in it.
    pub per_second: f64,
}

impl Scrape {
    /// Parses an exposition; other metric types are skipped.
    pub fn parse(text: &str) -> Scrape {
        let mut found: BTreeMap<(String, String), Histogram> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, labels, value)) = sample(line) else { continue };
            let Some((stem, part)) = name.rsplit_once('_') else { continue };
            let stem = stem.strip_prefix("kstrobe_").unwrap_or(stem);
            let (le, labels) = split_le(labels);
            let series = || (stem.to_owned(), labels.clone());
            match (part, le) {
                ("bucket", Some(le)) => found.entry(series()).or_default().buckets.push((le, value)),
                ("sum", None) => found.entry(series()).or_default().sum = value,
                ("count", None) => found.entry(series()).or_default().count = value,
                _ => {}
            }
        }
        found.retain(|_, histogram| !histogram.buckets.is_empty());
        for histogram in found.values_mut() {
            histogram.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        Scrape(found)
    }
}

/// Difference of two scrapes of a node.
pub fn between(node: &str, before: &Scrape, after: &Scrape, elapsed: Duration) -> Vec<Row> {
    let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let nothing = Histogram::default();
    let row = |((metric, labels), now): (&(String, String), &Histogram)| {
        let then = before.0.get(&(metric.clone(), labels.clone())).unwrap_or(&nothing);
        // A restarted agent counts from zero.
        let then = if then.count > now.count { &nothing } else { then };
        let count = now.count - then.count;
        if count <= 0.0 {
            return None;
        }
        let earlier = |at: usize| then.buckets.get(at).map_or(0.0, |(_, n)| *n);
        let buckets: Vec<(f64, f64)> =
            now.buckets.iter().enumerate().map(|(at, (le, n))| (*le, n - earlier(at))).collect();
        Some(Row {
            node: node.to_owned(),
            metric: metric.clone(),
            labels: labels.clone(),
            rate: count / seconds,
            p50: quantile(&buckets, 0.5),
            p99: quantile(&buckets, 0.99),
            per_second: (now.sum - then.sum) / seconds,
        })
    };
    after.0.iter().filter_map(row).collect()
}

/// Sorts by sum per second, descending.
pub fn most(mut rows: Vec<Row>, metric: Option<&str>, limit: usize) -> Vec<Row> {
    rows.retain(|row| metric.is_none_or(|metric| row.metric == metric.strip_prefix("kstrobe_").unwrap_or(metric)));
    rows.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
    rows.truncate(limit);
    rows
}

/// Formats the rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let row = |row: &Row| {
        let seconds = row.metric.ends_with("_seconds");
        let value = |value: f64| if seconds { duration(value) } else { format!("{value:.1}") };
        let metric = row.metric.clone();
        let rate = format!("{:.1}", row.rate);
        let sum = format!("{:.3}", row.per_second);
        vec![row.node.clone(), metric, one_line(&row.labels), rate, value(row.p50), value(row.p99), sum]
    };
    Table {
        header: vec!["NODE", "METRIC", "LABELS", "RATE/s", "P50", "P99", "SUM/s"],
        rows: rows.iter().map(row).collect(),
    }
}

/// Formats a value with three digits and a unit.
fn duration(seconds: f64) -> String {
    let units = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)];
    let (unit, scale) = units.into_iter().find(|(_, scale)| seconds >= *scale).unwrap_or(("ns", 1e-9));
    let value = seconds / scale;
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}

/// Quantile as in `histogram_quantile` of Prometheus: linear within a bucket, the lower bound of the last one.
fn quantile(buckets: &[(f64, f64)], share: f64) -> f64 {
    let Some((_, all)) = buckets.last() else { return 0.0 };
    let rank = share * all;
    let at = buckets.iter().position(|(_, n)| *n >= rank).unwrap_or(buckets.len() - 1);
    let (low, before) = if at == 0 { (0.0, 0.0) } else { buckets[at - 1] };
    let (high, n) = buckets[at];
    if high.is_infinite() || n <= before { low } else { low + (high - low) * (rank - before) / (n - before) }
}

/// `NAME{LABELS} VALUE [TIME]`
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, labels, rest) = match line.find('{') {
        Some(open) => {
            let close = line.rfind("} ")?;
            (&line[..open], line.get(open + 1..close)?, &line[close + 2..])
        }
        None => {
            let (name, rest) = line.split_once(' ')?;
            (name, "", rest)
        }
    };
    Some((name, labels, rest.split(' ').next()?.parse().ok()?))
}

/// Splits labels into the bound in `le` and the others.
fn split_le(labels: &str) -> (Option<f64>, String) {
    // kstrobe writes `le` last; other exporters may not.
    let (before, bound) = match labels.find("le=\"") {
        Some(0) => ("", &labels[4..]),
        Some(at) if labels[..at].ends_with(',') => (&labels[..at - 1], &labels[at + 4..]),
        _ => return (None, labels.to_owned()),
    };
    let Some((bound, rest)) = bound.split_once('"') else { return (None, labels.to_owned()) };
    let rest = rest.trim_start_matches(',');
    let comma = if before.is_empty() || rest.is_empty() { "" } else { "," };
    (bound.replace("+Inf", "inf").parse().ok(), format!("{before}{comma}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fast: u32, slow: u32) -> String {
        let all = fast + slow;
        let sum = f64::from(fast) * 0.0005 + f64::from(slow) * 0.05;
        format!(
            "# HELP kstrobe_recv_wait_seconds Waits.\n# TYPE kstrobe_recv_wait_seconds histogram\n\
             kstrobe_recv_wait_seconds_bucket{{comm=\"a b\",le=\"0.001\"}} {fast}\n\
             kstrobe_recv_wait_seconds_bucket{{comm=\"a b\",le=\"0.1\"}} {all}\n\
             kstrobe_recv_wait_seconds_bucket{{comm=\"a b\",le=\"+Inf\"}} {all}\n\
             kstrobe_recv_wait_seconds_sum{{comm=\"a b\"}} {sum}\n\
             kstrobe_recv_wait_seconds_count{{comm=\"a b\"}} {all}\n\
             kstrobe_tcp_retransmits_total{{family=\"ipv4\"}} 3\nkstrobe_up 1\nrubbish\n"
        )
    }

    #[test]
    fn difference_of_two_scrapes() {
        let (before, after) = (Scrape::parse(&text(1000, 0)), Scrape::parse(&text(1090, 10)));
        let rows = between("n1", &before, &after, Duration::from_secs(2));
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.metric.as_str(), row.labels.as_str()), ("recv_wait_seconds", "comm=\"a b\""));
        assert_eq!(row.rate, 50.0);
        assert!((row.p50 - 0.001 * 50.0 / 90.0).abs() < 1e-9, "{row:?}");
        assert!((row.p99 - (0.001 + 0.099 * 0.9)).abs() < 1e-9, "{row:?}");
        assert!((row.per_second - 0.2725).abs() < 1e-6, "{row:?}");
        // No observations; a restarted agent.
        assert!(between("n1", &after, &after, Duration::from_secs(1)).is_empty());
        assert_eq!(between("n1", &after, &Scrape::parse(&text(20, 0)), Duration::from_secs(1))[0].rate, 20.0);
        // Without an earlier scrape all observations count.
        assert_eq!(between("n1", &Scrape::default(), &before, Duration::from_secs(1))[0].rate, 1000.0);
    }

    #[test]
    fn series_are_sorted_by_sum() {
        let row = |node: &str, metric: &str, per_second| Row {
            node: node.into(),
            metric: metric.into(),
            labels: String::new(),
            rate: 1.0,
            p50: 0.0005,
            p99: 12.0,
            per_second,
        };
        let rows = vec![row("n1", "a_seconds", 0.1), row("n2", "a_seconds", 0.3), row("n1", "b_seconds", 0.2)];
        let found: Vec<_> = most(rows.clone(), None, 2).into_iter().map(|row| row.per_second).collect();
        assert_eq!(found, [0.3, 0.2]);
        assert_eq!(most(rows.clone(), Some("kstrobe_b_seconds"), 9).len(), 1);
        assert_eq!(table(&rows[..1]).rows[0][3..], ["1.0", "500us", "12.0s", "0.100"]);
    }

    #[test]
    fn bounds_are_found_wherever_they_stand() {
        assert_eq!(split_le("le=\"0.5\""), (Some(0.5), String::new()));
        assert_eq!(split_le("a=\"1\",le=\"+Inf\",b=\"2\""), (Some(f64::INFINITY), "a=\"1\",b=\"2\"".into()));
        assert_eq!(split_le("table=\"x\""), (None, "table=\"x\"".into()));
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[(1.0, 0.0), (f64::INFINITY, 5.0)], 0.99), 1.0);
    }
}
