//! `docs/metrics.md`: every metric, what it is, where it comes from and what it costs.

use crate::catalogue::{Catalogue, Kind, Metric, ProbeMetrics};
use crate::objectives;
use crate::topics::TOPICS;
use kstrobe_export::bound_text;
use std::fmt::Write;

pub fn page(catalogue: &Catalogue) -> String {
    let mut out = String::from(HEAD);
    for topic in TOPICS {
        let _ = write!(out, "\n## {}\n\n{}\n", topic.title, topic.about);
        for probe in topic.probes(catalogue) {
            write_probe(&mut out, probe);
        }
    }
    out.push_str("\n## The agent itself\n\nThey are there whatever probes run. Nothing is hooked for them.\n\n");
    out.push_str("| metric | type | unit | labels | what it is |\n|---|---|---|---|---|\n");
    for metric in &catalogue.own {
        let _ = writeln!(out, "{}", row(metric));
    }
    out.push_str(BUCKETS);
    for (bounds, names) in by_bounds(catalogue) {
        let bounds: Vec<String> = bounds.iter().map(|bound| bound_text(*bound)).collect();
        let _ = writeln!(out, "- {}: `{}`", names.join(", "), bounds.join(" "));
    }
    out
}

const HEAD: &str = "\
<!-- Made by `cargo xtask mixin`; do not edit. -->

# Metrics

Every metric of the shipped probes and of the agent itself. What does not run by default is marked; `kstrobe run --enable NAME`
runs it. `kstrobe list metrics` prints those of your own probes, too, and `kstrobe explain PROBE` what a probe becomes on your kernel,
with the bound on an event's cost.

- A **histogram** has the series `_bucket`, `_sum` and `_count` ([bounds](#buckets)), and is a native one where the scrape takes those.
- **stacks** are sums by call stack, which are no series: `kstrobe stacks` and `/api/v1/stacks/METRIC` have them.
- A series exists once something was counted in it, and goes when its label set was idle for its time to live.
- [rules/](../dashboards/rules) has alerts on many of them, [dashboards/](../dashboards) panels on all.
";

const BUCKETS: &str = "
## Buckets

Upper bounds of the classic buckets, in the metric's unit, without `+Inf`. Native histograms have schema 3 (or the probe's own)
within the same range. `kstrobe slo` takes these bounds as thresholds.

";

fn write_probe(out: &mut String, probe: &ProbeMetrics) {
    let off = if probe.enabled { "" } else { " (off by default)" };
    let _ = write!(out, "\n### {}{off}\n\n{}\n\n", probe.name, probe.summary);
    let hooks: Vec<String> = probe.hooks.iter().map(|hook| format!("`{hook}`")).collect();
    let _ = writeln!(out, "- Pack: [{1}](../probes/{0}/{1}.yaml)", probe.area, probe.pack);
    let _ = writeln!(out, "- Hooks: {}", hooks.join(", "));
    if let Some(cost) = &probe.cost {
        let _ = writeln!(out, "- Cost: {cost}");
    }
    if !probe.replaces.is_empty() {
        let tools: Vec<String> = probe.replaces.iter().map(|tool| format!("`{tool}`")).collect();
        let _ = writeln!(out, "- Replaces: {}", tools.join(", "));
    }
    out.push_str("\n| metric | type | unit | labels | what it is |\n|---|---|---|---|---|\n");
    for metric in &probe.metrics {
        let _ = writeln!(out, "{}", row(metric));
        for objective in objectives::shipped().iter().filter(|objective| objective.metric == metric.name) {
            let _ = writeln!(out, "| | | | | Objective `{}`: {}. |", objective.id(), objective.says);
        }
    }
}

fn row(metric: &Metric) -> String {
    let code = |text: &String| format!("`{text}`");
    let labels: Vec<String> = metric.labels.iter().map(code).collect();
    let help = metric.help.replace('|', "\\|").replace('\n', " ");
    let unit = &metric.unit;
    format!("| `{}` | {} | {unit} | {} | {help} |", metric.name, metric.kind.name(), labels.join(" "))
}

/// Histograms that share their bounds.
fn by_bounds(catalogue: &Catalogue) -> Vec<(Vec<f64>, Vec<String>)> {
    let mut found: Vec<(Vec<f64>, Vec<String>)> = Vec::new();
    let histograms = catalogue.metrics().filter(|m| matches!(m.kind, Kind::Histogram | Kind::ClassicHistogram));
    for metric in histograms {
        let name = format!("`{}`", metric.name);
        match found.iter_mut().find(|(bounds, _)| *bounds == metric.bounds) {
            Some((_, names)) => names.push(name),
            None => found.push((metric.bounds.clone(), vec![name])),
        }
    }
    found
}
