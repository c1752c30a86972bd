//! Whether every query of the dashboards and rules has an answer on a node that is busy.

use crate::prometheus::Prometheus;
use anyhow::{Result, bail};
use kstrobe_mixin::catalogue::Catalogue;
use kstrobe_mixin::{Expression, catalogue, expressions, objectives};
use std::collections::{BTreeMap, BTreeSet};

/// What a rate is taken over: a few scrapes.
const WINDOW: &str = "30s";

/// Metrics, or beginnings of their names, that have nothing to say here, each with the reason.
const QUIET: &[(&str, &str)] = &[
    ("kstrobe_read_errors_total", "no table of the kernel failed to be read"),
    ("kstrobe_poll_errors_total", "no polled source failed to be read"),
    ("kstrobe_export_", "the demonstration has no exporters"),
    ("kstrobe_kubernetes_", "the demonstration has no cluster"),
    ("kstrobe_web_config_", "the demonstration has no web configuration"),
    ("kstrobe_slow_syscalls_total", "no system call of the load is slow enough"),
    ("kstrobe_tcp_synack_retransmits_total", "over loopback no SYN-ACK is sent again"),
];

/// Matcher of what belongs to a pod.
const OF_PODS: &str = r#"pod!="""#;

/// Asks for each of them. A query has to have data, unless its probe is not among `packs`, this kernel has no hook for it, or
/// it is known why not.
pub fn run(prometheus: &Prometheus, packs: &[&str]) -> Result<()> {
    let unattached = prometheus.query("sum by (probe) (kstrobe_probe_attached) == 0")?;
    let unattached = unattached.iter().map(|sample| sample.label("probe").to_owned()).collect();
    let expected = Expected { catalogue: catalogue(), packs, unattached };
    let (mut answered, mut excused, mut empty) = (0, BTreeMap::new(), Vec::new());
    for expression in expressions(&expected.catalogue, WINDOW) {
        let samples = prometheus.query(&expression.text)?;
        if expression.quiet || samples.iter().any(|sample| !sample.value.is_nan()) {
            answered += 1;
        } else if let Some(reason) = expected.excuse(&expression) {
            *excused.entry(reason).or_insert(0) += 1;
        } else {
            empty.push(expression);
        }
    }
    println!("{answered} queries of dashboards and rules have data");
    for (reason, queries) in &excused {
        println!("{queries} have none: {reason}");
    }
    for expression in &empty {
        println!("NO DATA  {}: {}", expression.place, expression.text);
    }
    if empty.is_empty() { Ok(()) } else { bail!("{} queries have no data", empty.len()) }
}

/// What can have data.
struct Expected<'a> {
    catalogue: Catalogue,
    packs: &'a [&'a str],
    /// Probes without any hook on this kernel.
    unattached: BTreeSet<String>,
}

impl Expected<'_> {
    fn excuse(&self, expression: &Expression) -> Option<String> {
        if expression.text.contains(OF_PODS) {
            return Some("the demonstration has no pods".to_owned());
        }
        // A recorded series has the name of its objective, not of its metric.
        let objectives = objectives::shipped().into_iter().filter(|o| expression.text.contains(&quoted(&o.id())));
        let recorded = objectives.map(|objective| objective.metric).collect::<Vec<_>>();
        expression.metrics.iter().chain(&recorded).find_map(|name| self.quiet(name))
    }

    fn quiet(&self, metric: &str) -> Option<String> {
        if let Some((_, reason)) = QUIET.iter().find(|(name, _)| metric.starts_with(name)) {
            return Some(format!("{metric}: {reason}"));
        }
        let probe = self.catalogue.find(metric)?.0?;
        if !probe.enabled && !self.packs.contains(&probe.pack.as_str()) {
            Some(format!("the probe {} is not run here", probe.name))
        } else if self.unattached.contains(&probe.name) {
            Some(format!("this kernel has no hook for the probe {}", probe.name))
        } else {
            None
        }
    }
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}
