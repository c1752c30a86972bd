//! `docs/probes.md`: the library of probes as tables, and the tools that they replace.

use crate::catalogue::{Catalogue, ProbeMetrics};
use crate::topics::TOPICS;
use kstrobe_config::PREFIX;
use std::collections::BTreeMap;
use std::fmt::Write;

pub fn page(catalogue: &Catalogue) -> String {
    let mut out = String::from(HEAD);
    for topic in TOPICS {
        let _ = write!(out, "\n## {}\n\n{}\n\n{COLUMNS}", topic.title, topic.about);
        for probe in topic.probes(catalogue) {
            let _ = writeln!(out, "{}", row(probe));
        }
    }
    out.push_str(TOOLS);
    for (tool, probes) in by_tool(catalogue) {
        let probes: Vec<String> = probes.iter().map(|probe| format!("`{}`", probe.name)).collect();
        let _ = writeln!(out, "| `{tool}` | {} |", probes.join(" "));
    }
    out
}

const HEAD: &str = "\
<!-- Made by `cargo xtask mixin`; do not edit. -->

# Probes

The library of probes that kstrobe ships, by area. Those marked *on* run by default, all others by name: `kstrobe run --enable NAME`, or
`probes: { enable: NAME }` in `kstrobe.yaml`. `kstrobe list probes TOOL` finds the probe that answers what [a classic
tool](#tools) was asked, `kstrobe explain PROBE` says what it becomes on your kernel, and [metrics.md](metrics.md) has each metric with
its labels. On which kernels a probe runs is in [kernels.md](kernels.md). `probes.override` adds labels of pods, namespaces and
workloads to any of them ([workloads.md](workloads.md)).

The class of **cost** is for a busy node. *low*: events are rare, or read at a scrape; *medium*: thousands of events a second, each below
a microsecond; *high*: more than that, so that [its budget](language.md#budget) may hold it back. What one event takes is in
[metrics.md](metrics.md).
";

const COLUMNS: &str = "\
| probe | default | answers | replaces | metrics | hooks | cost |
|---|---|---|---|---|---|---|
";

const TOOLS: &str = "
## Tools

| tool | probes |
|---|---|
";

fn row(probe: &ProbeMetrics) -> String {
    let code = |text: &str| format!("`{}`", text.replace('|', "\\|"));
    let metrics = probe.metrics.iter().map(|metric| code(metric.name.trim_start_matches(PREFIX)));
    let columns = [
        format!("[`{}`](../probes/{}/{}.yaml)", probe.name, probe.area, probe.pack),
        if probe.enabled { "on" } else { "off" }.to_owned(),
        probe.summary.replace('|', "\\|"),
        probe.replaces.iter().map(|tool| code(tool)).collect::<Vec<_>>().join(" "),
        metrics.collect::<Vec<_>>().join(" "),
        probe.hooks.iter().map(|hook| code(hook)).collect::<Vec<_>>().join(" "),
        probe.cost.as_ref().map_or("", |cost| cost.class.name()).to_owned(),
    ];
    format!("| {} |", columns.join(" | "))
}

fn by_tool(catalogue: &Catalogue) -> BTreeMap<&str, Vec<&ProbeMetrics>> {
    let mut found: BTreeMap<&str, Vec<&ProbeMetrics>> = BTreeMap::new();
    for probe in &catalogue.probes {
        probe.replaces.iter().for_each(|tool| found.entry(tool).or_default().push(probe));
    }
    found
}
