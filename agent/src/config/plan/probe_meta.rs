//! What the running agent needs to know of a probe besides its programs: plain data, free of YAML and of the compiler.

use std::sync::Arc;
use std::time::Duration;

use kstrobe_config::model::{MetricKind, MetricMeta, Probe, Shape};
use kstrobe_ebpf::program;
use kstrobe_export::snapshot::{Descriptor, Kind};

use super::exemplar_links::{ExemplarLink, Links};
pub use kstrobe_config::PREFIX;
pub use kstrobe_config::model::{Cost, Engine};

/// A probe as the agent runs it.
#[derive(Clone, Debug)]
pub struct ProbeMeta {
    pub name: String,
    /// Stem of the file it stands in.
    pub pack: String,
    /// One sentence.
    pub summary: String,
    /// Tools whose question it answers.
    pub replaces: Vec<String>,
    pub cost: Option<Cost>,
    /// Whether it runs without being named.
    pub enabled: bool,
    /// Its hooks as the user wrote them; a poll's source as `poll:NAME`.
    pub hooks: Vec<String>,
    /// Its metrics, in the order of the file.
    pub metrics: Vec<Metric>,
    /// Whether it sends single events.
    pub slow: bool,
    /// Fields of these that are shown; those behind them are for links.
    pub shown_fields: usize,
    /// Histograms that they are counted in.
    pub exemplar_links: Arc<[ExemplarLink]>,
    /// Set when its events are rows that the agent reads.
    pub poll: Option<Poll>,
    /// What runs it.
    pub engine: Engine,
    pub budget: BudgetLimit,
}

/// Most time that the programs of a probe may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetLimit {
    None,
    /// Millionths of one CPU's time.
    Own(u64),
    /// What the other probes leave of the agent's budget, or an equal share of it.
    Shared,
}

/// A metric as the agent exports it.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// For exporters.
    pub about: Arc<Descriptor>,
    /// Time without change after which a series is given back; zero for never.
    pub ttl: Duration,
    /// Most label sets.
    pub max_series: usize,
    /// Set when it is sums by stack, which are no series for exporters.
    pub stacks: Option<Stacks>,
}

/// What sums by stack are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacks {
    /// Each event counts one.
    pub events: bool,
}

/// A source of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Its name.
    pub source: String,
    /// Time from one reading to the next.
    pub every: Duration,
}

pub(super) fn probe_meta(probe: &Probe, links: &Links) -> ProbeMeta {
    let program = &probe.program;
    let poll = match &program.shape {
        Shape::Poll { source, every_ns } => {
            Some(Poll { source: source.value.clone(), every: Duration::from_nanos(*every_ns) })
        }
        _ => None,
    };
    let hooks = match &poll {
        Some(poll) => vec![format!("poll:{}", poll.source)],
        None => program.written_hooks().into_iter().map(|hook| hook.text.value.clone()).collect(),
    };
    ProbeMeta {
        name: probe.name().to_owned(),
        pack: probe.pack.clone(),
        summary: probe.summary.clone(),
        replaces: probe.replaces.clone(),
        cost: probe.cost.clone(),
        enabled: probe.enabled,
        hooks,
        metrics: probe.metrics().map(|(m, meta)| metric(m, meta)).collect(),
        slow: program.slow.is_some(),
        shown_fields: program.slow.as_ref().map_or(0, |slow| slow.fields.len()),
        exemplar_links: links.exemplars.as_slice().into(),
        poll,
        engine: probe.engine,
        budget: match probe.budget_ppm {
            Some(0) => BudgetLimit::None,
            Some(ppm) => BudgetLimit::Own(ppm),
            None => BudgetLimit::Shared,
        },
    }
}

fn metric(metric: &program::Metric, meta: &MetricMeta) -> Metric {
    let about = Descriptor {
        name: format!("{PREFIX}{}", metric.name.value),
        help: meta.help.clone(),
        kind: match metric.kind {
            MetricKind::Counter | MetricKind::Stacks(_) => Kind::Counter,
            MetricKind::Gauge(_) => Kind::Gauge,
            MetricKind::Histogram(_) => Kind::Histogram,
        },
        unit: meta.unit.clone(),
        raw_per_unit: meta.raw_per_unit,
        label_names: metric.labels.iter().map(|label| label.name.value.clone()).collect(),
    };
    let stacks = matches!(metric.kind, MetricKind::Stacks(_)).then_some(Stacks { events: metric.value.is_none() });
    let (ttl, max_series) = (Duration::from_nanos(meta.ttl_ns), metric.max_series as usize);
    Metric { about: Arc::new(about), ttl, max_series, stacks }
}

#[cfg(test)]
mod tests {
    use kstrobe_mixin::catalogue::Catalogue;

    /// Dashboards, rules and docs/metrics.md name what is exported.
    #[test]
    fn the_catalogue_says_the_same() {
        let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
        let catalogue = Catalogue::new(&probes, Vec::new());
        assert!(probes.len() > 20 && probes.len() == catalogue.probes.len());
        for (probe, listed) in probes.into_iter().zip(&catalogue.probes) {
            let meta = crate::config::plan::plan(probe).meta().clone();
            assert_eq!((&listed.name, &listed.pack, listed.enabled), (&meta.name, &meta.pack, meta.enabled));
            let exported: Vec<_> = meta.metrics.iter().map(|metric| metric.about.clone()).collect();
            let exported = exported.iter().map(|about| {
                (about.name.as_str(), about.help.as_str(), about.unit.as_str(), about.label_names.as_slice())
            });
            let expected =
                listed.metrics.iter().map(|m| (m.name.as_str(), m.help.as_str(), m.unit.as_str(), m.labels.as_slice()));
            assert_eq!(exported.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
    }
}
