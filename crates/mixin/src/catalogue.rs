//! Every metric as plain data: those of probes from their definitions, the agent's own from its exposition.

use kstrobe_config::PREFIX;
use kstrobe_config::model::{Cost, Hook, HookKind, MetricKind, Probe, Program, Shape};
use serde::{Deserialize, Serialize};

/// All metrics there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// Probes in the order of their files.
    pub probes: Vec<ProbeMetrics>,
    /// The agent's own metrics, by name.
    pub own: Vec<Metric>,
}

/// A probe and what it exports.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeMetrics {
    pub name: String,
    /// Stem of the file it stands in.
    pub pack: String,
    /// Folder in `probes` that its file stands in; empty of probes that are not shipped.
    pub area: String,
    /// One sentence.
    pub summary: String,
    /// Tools whose question it answers.
    pub replaces: Vec<String>,
    /// Whether it runs without being named.
    pub enabled: bool,
    /// As the user wrote them; a poll's source as `poll:NAME`.
    pub hooks: Vec<String>,
    pub cost: Option<Cost>,
    /// In the order of the file.
    pub metrics: Vec<Metric>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Full name, `kstrobe_` and a counter's `_total` included.
    pub name: String,
    pub kind: Kind,
    /// Unit of the exported values (`seconds`), empty when there is none.
    pub unit: String,
    /// Label names.
    pub labels: Vec<String>,
    /// One sentence.
    pub help: String,
    /// A histogram's classic upper bounds in the exported unit, ascending, without `+Inf`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<f64>,
}

/// Kinds of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A sum that never goes back.
    Counter,
    /// The last value.
    Gauge,
    /// A distribution, in classic and native form.
    Histogram,
    /// The same in classic form only.
    ClassicHistogram,
    /// A constant 1 whose labels say something.
    Info,
    /// Sums by call stack, which are no series.
    Stacks,
}

impl Kind {
    /// The word for people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::ClassicHistogram => "histogram (classic)",
            Kind::Info => "info",
            Kind::Stacks => "stacks",
        }
    }
}

impl Catalogue {
    /// What these probes and the agent itself export.
    pub fn new(probes: &[Probe], own: Vec<Metric>) -> Self {
        Self { probes: probes.iter().map(probe_metrics).collect(), own }
    }

    /// The metric of that name, with or without the prefix, and its probe if it is of one.
    pub fn find(&self, name: &str) -> Option<(Option<&ProbeMetrics>, &Metric)> {
        let is = |metric: &&Metric| metric.name == name || metric.name.strip_prefix(PREFIX) == Some(name);
        let probes = self.probes.iter().find_map(|p| Some((Some(p), p.metrics.iter().find(is)?)));
        probes.or_else(|| Some((None, self.own.iter().find(is)?)))
    }

    /// Every metric.
    pub fn metrics(&self) -> impl Iterator<Item = &Metric> {
        self.probes.iter().flat_map(|probe| &probe.metrics).chain(&self.own)
    }
}

fn probe_metrics(probe: &Probe) -> ProbeMetrics {
    let metrics = probe.metrics().map(|(m, meta)| Metric {
        name: format!("{PREFIX}{}", m.name.value),
        kind: match m.kind {
            MetricKind::Counter => Kind::Counter,
            MetricKind::Gauge(_) => Kind::Gauge,
            MetricKind::Histogram(_) => Kind::Histogram,
            MetricKind::Stacks(_) => Kind::Stacks,
        },
        unit: meta.unit.clone(),
        labels: m.labels.iter().map(|label| label.name.value.clone()).collect(),
        help: meta.help.clone(),
        bounds: match &m.kind {
            MetricKind::Histogram(buckets) => buckets.classic.iter().filter_map(|text| text.parse().ok()).collect(),
            _ => Vec::new(),
        },
    });
    ProbeMetrics {
        name: probe.name().to_owned(),
        pack: probe.pack.clone(),
        area: kstrobe_config::area(&probe.program.name.at.file).unwrap_or_default().to_owned(),
        summary: probe.summary.clone(),
        replaces: probe.replaces.clone(),
        enabled: probe.enabled,
        hooks: hooks(&probe.program),
        cost: probe.cost.clone(),
        metrics: metrics.collect(),
    }
}

fn hooks(program: &Program) -> Vec<String> {
    if let Shape::Poll { source, .. } = &program.shape {
        return vec![format!("poll:{}", source.value)];
    }
    // Steps share hooks; the first mention stands.
    let mut texts = Vec::new();
    for text in program.written_hooks().into_iter().map(hook_text) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

fn hook_text(hook: &Hook) -> String {
    match &hook.kind {
        HookKind::FirstOf(hooks) => hooks.iter().map(hook_text).collect::<Vec<_>>().join(" or "),
        _ => hook.text.value.clone(),
    }
}
