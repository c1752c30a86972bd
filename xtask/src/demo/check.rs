//! Whether every query of the dashboards and rules has an answer on a node that is busy.

use super::prometheus::Prometheus;
use anyhow::{Result, bail};
use kstrobe_mixin::catalogue::Catalogue;
use kstrobe_mixin::{Expression, catalogue, expressions};

/// What a rate is taken over: a few scrapes.
const WINDOW: &str = "30s";

/// Metrics that have nothing to say on a healthy machine, each with what would have to happen.
const QUIET: &[(&str, &str)] = &[];

/// Asks for each of them. A query has to have data unless its probe is not among `probes` or it is said why not.
pub fn run(prometheus: &Prometheus, probes: &[&str]) -> Result<()> {
    let catalogue = catalogue();
    let (mut answered, mut excused, mut empty) = (0, Vec::new(), Vec::new());
    for expression in expressions(&catalogue, WINDOW) {
        let samples = prometheus.query(&expression.text)?;
        if expression.quiet || samples.iter().any(|sample| !sample.value.is_nan()) {
            answered += 1;
        } else if let Some(reason) = excuse(&catalogue, &expression, probes) {
            excused.push((expression.place, reason));
        } else {
            empty.push(expression);
        }
    }
    println!("{answered} queries of dashboards and rules have data");
    for (place, reason) in &excused {
        println!("no data   {place}: {reason}");
    }
    for expression in &empty {
        println!("NO DATA   {}: {}", expression.place, expression.text);
    }
    if empty.is_empty() { Ok(()) } else { bail!("{} queries have no data", empty.len()) }
}

fn excuse(catalogue: &Catalogue, expression: &Expression, probes: &[&str]) -> Option<String> {
    expression.metrics.iter().find_map(|name| {
        if let Some((_, reason)) = QUIET.iter().find(|(quiet, _)| name == quiet) {
            return Some((*reason).to_owned());
        }
        let (probe, _) = catalogue.find(name)?;
        let probe = probe.filter(|probe| !probe.enabled && !probes.contains(&probe.pack.as_str()))?;
        Some(format!("the probe {} is not run here", probe.name))
    })
}
