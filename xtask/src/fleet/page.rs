//! The tables of `docs/scale.md`. Pure.

use super::measure::{Measured, Pace};
use super::model::{Costs, Expected, Node, fitted};
use super::node::{Recording, Tick};
use super::size::{self, Form};
use crate::bench::table::markdown;
use anyhow::{Context, Result};
use kstrobe_export::message::MetricFamily;
use std::fmt::Write;

/// A fleet larger than this machine can run.
const THOUSAND: u64 = 1000;
/// Between two scrapes, in seconds.
const INTERVALS: [u64; 2] = [15, 60];
/// A bucket limit far below the default.
const FEW_BUCKETS: usize = 40;

pub struct Results<'a> {
    /// The node.
    pub recording: &'a Recording,
    /// A server without targets, and all others.
    pub measured: &'a [Measured],
    /// How they were measured.
    pub pace: Pace,
    /// Where.
    pub machine: &'a str,
    /// What to type for it.
    pub command: &'a str,
}

/// The generated part of the page.
pub fn text(results: &Results) -> Result<String> {
    let families = &typical(results.recording);
    let mut text = format!("`{}`\n\n{}.\n\n### One node\n\n", results.command, results.machine);
    text += &one_node(families)?;
    text += "\n### Measured\n\n";
    text += &measured(results);
    if let Some(costs) = costs(results)? {
        text += "\n### The model's costs\n\n";
        text += &costs_table(&costs);
        text += "\n### Model and measurement\n\n";
        text += &checked(results, &costs)?;
        text += "\n### A thousand nodes, by the model\n\n";
        text += &thousand(families, &costs)?;
    }
    text += "\n### What a lever is worth\n\n";
    text += &levers(families)?;
    Ok(text)
}

/// A page with this part instead of the one it had.
pub fn with_results(page: &str, results: &str) -> Result<String> {
    const BEGIN: &str = "<!-- measured: written by cargo xtask fleet --write -->\n";
    const END: &str = "<!-- end of measured -->\n";
    let (head, rest) = page.split_once(BEGIN).context("docs/scale.md has no place for the results")?;
    let (_, tail) = rest.split_once(END).context("docs/scale.md has no end of the results")?;
    Ok(format!("{head}{BEGIN}\n{results}\n{END}{tail}"))
}

/// A node like the others after some scrapes, when numbers have grown longer.
fn typical(recording: &Recording) -> Vec<MetricFamily> {
    recording.exposition(Tick { node: 0, scrape: 10 })
}

fn node(families: &[MetricFamily], form: Form) -> Result<Node> {
    Ok(Node { series: size::series(families, form), bytes: size::bytes(families, form.format())?.1 })
}

fn one_node(families: &[MetricFamily]) -> Result<String> {
    let mut rows = Vec::new();
    for form in Form::ALL {
        let (series, (plain, packed)) = (size::series(families, form), size::bytes(families, form.format())?);
        rows.push(vec![
            form.name().to_owned(),
            series.floats.to_string(),
            series.histograms.to_string(),
            kb(plain as f64),
            kb(packed as f64),
        ]);
    }
    let head = ["histograms", "float series", "histogram series", "answer, kB", "gzip, kB"];
    Ok(markdown(&head, rows.into_iter()))
}

fn measured(results: &Results) -> String {
    let rows = results.measured.iter().map(|m| {
        vec![
            format!("{} {}", m.nodes, m.form.map_or("nodes", Form::name)),
            format!("{:.0}", m.series),
            format!("{:.0}", m.samples),
            if m.nodes == 0 { "-".to_owned() } else { kb(m.bytes_a_scrape) },
            format!("{:.0}", m.scrape_seconds.0 * 1e3),
            format!("{:.0}", m.scrape_seconds.1 * 1e3),
            mib(m.live_heap),
            mib(m.resident),
            format!("{:.2}", m.cpus),
            if m.nodes == 0 { "-".to_owned() } else { format!("{:.1}", m.log_bytes_a_sample) },
        ]
    });
    let head = [
        "nodes, histograms",
        "head series",
        "samples/s",
        "kB a scrape",
        "scrape, ms",
        "longest, ms",
        "live heap, MiB",
        "RSS, MiB",
        "CPUs",
        "WAL B/sample",
    ];
    let (time, interval) = (results.pace.time.as_secs(), results.pace.interval.as_secs());
    format!("Every node scraped each {interval} s, over {time} s.\n\n") + &markdown(&head, rows)
}

fn costs(results: &Results) -> Result<Option<Costs>> {
    let none = results.measured.iter().find(|m| m.form.is_none());
    let (Some(none), Some(nodes)) = (none, fitted(results.measured)) else { return Ok(None) };
    let families = &typical(results.recording);
    let of = |form| {
        let measured = results.measured.iter().find(|m| m.nodes == nodes && m.form == Some(form));
        measured.context("a form that was fitted")
    };
    let (classic, native) = (of(Form::Classic)?, of(Form::Native)?);
    Ok(Some(Costs::from(none, (classic, &node(families, Form::Classic)?), (native, &node(families, Form::Native)?))))
}

fn costs_table(costs: &Costs) -> String {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let rows = [
        row("`heap_0`: live heap of a Prometheus without targets, MiB", mib(costs.heap_of_none)),
        row("`heap_f`: live heap of a float series, B", format!("{:.0}", costs.heap_of_float)),
        row("`heap_h`: live heap of a native histogram series, B", format!("{:.0}", costs.heap_of_histogram)),
        row("`wal_f`: WAL of a float sample, B", format!("{:.1}", costs.log_of_float)),
        row("`wal_h`: WAL of a native histogram sample, B", format!("{:.1}", costs.log_of_histogram)),
    ];
    markdown(&["cost", "value"], rows.into_iter())
}

fn checked(results: &Results, costs: &Costs) -> Result<String> {
    let (fitted, interval) = (fitted(results.measured), results.pace.interval.as_secs_f64());
    let families = &typical(results.recording);
    let mut rows = Vec::new();
    for m in results.measured {
        let Some(form) = m.form else { continue };
        let expected = costs.expected(&node(families, form)?, m.nodes, interval);
        let source = fitted == Some(m.nodes) && form != Form::Both;
        rows.push(row_checked(m, form, &expected, source));
    }
    let head = ["nodes, histograms", "series", "samples/s", "bytes a scrape", "live heap", "WAL a sample"];
    let note =
        "How far the model is from what was measured. Costs come from the rows with a star; the others check them.\n\n";
    Ok(note.to_owned() + &markdown(&head, rows.into_iter()))
}

fn row_checked(measured: &Measured, form: Form, expected: &Expected, source: bool) -> Vec<String> {
    let error = |expected: f64, measured: f64| format!("{:+.1} %", (expected / measured - 1.0) * 100.0);
    vec![
        format!("{} {}{}", measured.nodes, form.name(), if source { " *" } else { "" }),
        error(expected.series, measured.series),
        error(expected.samples, measured.samples),
        error(expected.bytes_a_scrape, measured.bytes_a_scrape),
        error(expected.live_heap, measured.live_heap),
        error(expected.log_bytes_a_sample, measured.log_bytes_a_sample),
    ]
}

fn thousand(families: &[MetricFamily], costs: &Costs) -> Result<String> {
    let mut rows = Vec::new();
    for form in Form::ALL {
        for interval in INTERVALS {
            let node = node(families, form)?;
            let expected = costs.expected(&node, THOUSAND, interval as f64);
            rows.push(vec![
                format!("{}, every {interval} s", form.name()),
                format!("{:.2}", expected.series / 1e6),
                format!("{:.0}", expected.samples),
                format!("{:.1}", expected.bytes_a_scrape * THOUSAND as f64 / interval as f64 / 1e6),
                format!("{:.1}", expected.live_heap / f64::from(1 << 30)),
                format!("{:.1}", expected.log_bytes_a_sample * expected.samples * 7200.0 / 1e9),
            ]);
        }
    }
    let head = ["histograms", "million series", "samples/s", "MB/s in", "live heap, GiB", "WAL of two hours, GB"];
    Ok(markdown(&head, rows.into_iter()))
}

fn levers(families: &[MetricFamily]) -> Result<String> {
    let without = size::without(families, "comm");
    let limited = size::limited(families, FEW_BUCKETS);
    let cases: [(&str, &[MetricFamily], Form); 6] = [
        ("classic", families, Form::Classic),
        ("classic, label `comm` dropped in the probe", &without, Form::Classic),
        ("both", families, Form::Both),
        ("native", families, Form::Native),
        ("native, `comm` dropped", &without, Form::Native),
        ("native, `limits.native_bucket_limit: 40`", &limited, Form::Native),
    ];
    let mut rows = Vec::new();
    for (name, families, form) in cases {
        let (series, (plain, packed)) = (size::series(families, form), size::bytes(families, form.format())?);
        let buckets = if form == Form::Classic { "-".to_owned() } else { size::native_buckets(families).to_string() };
        rows.push(vec![name.to_owned(), series.all().to_string(), buckets, kb(plain as f64), kb(packed as f64)]);
    }
    let head = ["one node, with", "series", "native buckets", "answer, kB", "gzip, kB"];
    let mut text = markdown(&head, rows.into_iter());
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\nAnswers by protobuf hold both forms: who takes native histograms only pays for the bytes, not for the series."
    );
    Ok(text)
}

fn kb(bytes: f64) -> String {
    format!("{:.1}", bytes / 1e3)
}

fn mib(bytes: f64) -> String {
    format!("{:.0}", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_the_results_are_replaced() {
        let page = "# A\n<!-- measured: written by cargo xtask fleet --write -->\nold\n<!-- end of measured -->\nend\n";
        let new = super::with_results(page, "new").unwrap();
        assert!(new.starts_with("# A\n") && new.ends_with("end\n") && new.contains("new") && !new.contains("old"));
        assert_eq!(super::with_results(&new, "new").unwrap(), new);
        assert!(super::with_results("nothing", "new").is_err());
    }
}
