//! Drawing for a terminal: each case is a file with the data as JSON, a line `---`, and what is drawn of it. `BLESS=1` rewrites
//! the drawing.

use kstrobe::app::Account;
use kstrobe::cli::draw::columns::Columns;
use kstrobe::cli::draw::data::{Distribution, Metric, Row, Values};
use kstrobe::cli::draw::quantity::grouped;
use kstrobe::cli::draw::summary::{distribution, missing};
use kstrobe::cli::draw::{self, Look, bars};
use kstrobe::config::adhoc::scale::Scale;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/draw/cases");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn text(of: &Value) -> String {
    of.as_str().unwrap_or_default().to_owned()
}

fn texts(of: &Value) -> Vec<String> {
    of.as_array().map(|items| items.iter().map(text).collect()).unwrap_or_default()
}

/// The kernel's buckets that the tool asks for: rows, each cut in four, so that quantiles are finer than rows.
fn upper(scale: Scale) -> Arc<[u64]> {
    let bounds: Vec<u64> = scale.bounds().into_iter().take_while(|bound| *bound <= 1 << 34).collect();
    let quarters = bounds.iter().flat_map(|bound| (4..8).map(move |part| (bound * part / 4).saturating_sub(1)));
    let mut upper: Vec<u64> = quarters.filter(|end| scale == Scale::Count || *end >= 255).collect();
    upper.sort_unstable();
    upper.dedup();
    upper.into()
}

/// Values, each with how often it occurs, in buckets.
fn histogram(values: &Value, scale: Scale) -> Distribution {
    let upper = upper(scale);
    let mut counts = vec![0; upper.len() + 1];
    let mut sum = 0;
    for pair in values.as_array().unwrap() {
        let (value, count) = (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap());
        counts[upper.partition_point(|end| *end < value)] += count;
        sum += value * count;
    }
    Distribution { upper, counts, sum }
}

fn metric(case: &Value) -> Metric {
    let scale = if case["unit"] == "seconds" { Scale::Time } else { Scale::Count };
    let rows = case["rows"].as_array().unwrap();
    let labels = |row: &Value| texts(&row["labels"]);
    let values = match case["type"].as_str().unwrap() {
        "histogram" => {
            let row = |row: &Value| Row { labels: labels(row), value: histogram(&row["values"], scale) };
            Values::Histograms(rows.iter().map(row).collect())
        }
        "counter" => Values::Counters(
            rows.iter().map(|row| Row { labels: labels(row), value: row["value"].as_u64().unwrap() }).collect(),
        ),
        _ => Values::Gauges(
            rows.iter().map(|row| Row { labels: labels(row), value: row["value"].as_f64().unwrap() }).collect(),
        ),
    };
    Metric { name: text(&case["name"]), scale, unit: text(&case["unit"]), labels: texts(&case["labels"]), values }
}

fn events(case: &Value) -> String {
    let fields = |event: &Value| -> Vec<(String, Value)> {
        event["fields"].as_array().unwrap().iter().map(|pair| (text(&pair[0]), pair[1].clone())).collect()
    };
    let all = case["events"].as_array().unwrap();
    let first = fields(&all[0]);
    let names: Vec<String> = first.iter().map(|(name, _)| name.clone()).collect();
    let mut columns = Columns::new(&names);
    let mut drawn = columns.head(&first);
    for event in all {
        drawn += &columns.line(&text(&event["time"]), event["pid"].as_u64().unwrap() as u32, &fields(event));
    }
    drawn
}

fn summary(case: &Value) -> String {
    let lost = case["lost"].as_object().into_iter().flatten();
    let of = Account {
        // Reasons are names in the code.
        lost: lost.map(|(reason, n)| (&*reason.clone().leak(), n.as_u64().unwrap())).collect(),
        merged: case["merged"].as_u64().unwrap_or(0),
        one_of: case["one_of"].as_u64().unwrap_or(1),
        throttled: case["throttled"].as_u64().unwrap_or(0),
        reason: text(&case["reason"]),
        unread: texts(&case["unread"]),
    };
    missing(&of) + "\n"
}

fn drawn(case: &Value) -> String {
    let look =
        Look { width: case["width"].as_u64().unwrap_or(80) as usize, top: case["top"].as_u64().unwrap_or(10) as usize };
    match case["type"].as_str().unwrap() {
        "events" => events(case),
        "missing" => summary(case),
        _ => {
            let metric = metric(case);
            let text = draw::metric(&metric, &look);
            match metric.clone().merged(&[]).values {
                Values::Histograms(rows) => text + &distribution(&rows[0].value, &metric) + "\n",
                _ => text,
            }
        }
    }
}

#[test]
fn cases_are_drawn_as_recorded() {
    let bless = std::env::var_os("BLESS").is_some();
    let files = cases();
    assert!(files.len() >= 10, "{files:?}");
    for path in files {
        let file = std::fs::read_to_string(&path).unwrap();
        let (input, expected) = file.split_once("---\n").expect("a line `---`");
        let case: Value = serde_json::from_str(input).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let drawn = drawn(&case);
        if bless {
            std::fs::write(&path, format!("{input}---\n{drawn}")).unwrap();
        } else {
            assert_eq!(drawn, expected, "{} differs (BLESS=1 rewrites it)", path.display());
        }
        let width = case["width"].as_u64().unwrap_or(80) as usize;
        let longest = drawn.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(longest <= width || case["wide"] == true, "{}: {longest} columns", path.display());
    }
}

/// For any counts in any buckets.
#[test]
fn rows_lose_and_add_no_count() {
    for scale in [Scale::Time, Scale::Count] {
        let upper = upper(scale);
        for seed in 0..200u64 {
            let count = |at: u64| (at * 7919 + seed * 104_729) % (seed % 17 + 1);
            let counts: Vec<u64> = (0..=upper.len() as u64).map(count).collect();
            let of = Distribution { upper: upper.clone(), counts, sum: 0 };
            let rows = bars::rows(&of, scale);
            assert_eq!(rows.iter().map(|bar| bar.count).sum::<u64>(), of.count());
            assert!(rows.iter().zip(rows.iter().skip(1)).all(|(bar, next)| bar.high == Some(next.low)), "{rows:?}");
            let look = Look { width: 80, top: 10 };
            let text = bars::histogram(&of, scale, "", &look);
            let shown = text.lines().skip(1).map(|line| {
                let count = line.split('|').next().unwrap().split_whitespace().last().unwrap();
                count.replace(',', "").parse::<u64>().unwrap()
            });
            assert_eq!(shown.sum::<u64>(), of.count(), "{}\n{text}", grouped(of.count()));
        }
    }
}

/// A value lies in the row that its bounds say.
#[test]
fn values_are_drawn_in_their_own_row() {
    for (scale, values) in [
        (Scale::Time, [300, 999, 1_000, 1_001, 2_000, 512_000, 999_999, 1_000_000]),
        (Scale::Count, [0, 1, 2, 3, 4, 4095, 4096, 8191]),
    ] {
        for value in values {
            let of = histogram(&serde_json::json!([[value, 5]]), scale);
            let rows = bars::rows(&of, scale);
            assert_eq!(rows.len(), 1, "{value}: {rows:?}");
            assert!(rows[0].low <= value && rows[0].high.is_none_or(|high| value < high), "{value}: {rows:?}");
        }
    }
}
