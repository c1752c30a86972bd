//! `kubernetes:`, `workloads:` and `probes.override:`.

use super::metric;
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Kubernetes, Override, PodSource, Sandboxes, Spanned, Workloads};
use crate::names::suggestion;
use crate::raw::{Entry, Node};
use crate::report::{Problem, Report};
use crate::schema;

const KUBERNETES: Keys = Keys { of: "`kubernetes`", known: &schema::names(&schema::KUBERNETES), later: &[] };
const WORKLOADS: Keys = Keys { of: "`workloads`", known: &schema::names(&schema::WORKLOADS), later: &[] };
const OVERRIDE: Keys = Keys { of: "an override", known: &schema::names(&schema::OVERRIDE), later: &[] };
const SOURCES: [&str; 4] = ["auto", "api", "kubelet", "none"];
const SANDBOXES: [&str; 3] = ["pod", "node", "apart"];
/// By which a metric may be split without its probe being changed.
const LABELS: [&str; 6] = ["namespace", "pod", "container", "workload", "unit", "cgroup_path"];

pub(crate) const DEFAULT_WALK_NS: u64 = 5_000_000_000;
/// A walk over the thousand cgroups of a busy node takes milliseconds.
pub(crate) const MIN_WALK_NS: u64 = 500_000_000;
/// Of the other two.
pub(crate) const MIN_NS: u64 = 1_000_000_000;
pub(crate) const DEFAULT_GRACE_NS: u64 = 60_000_000_000;
pub(crate) const DEFAULT_WAIT_NS: u64 = 30_000_000_000;

impl Default for Workloads {
    fn default() -> Self {
        let sandboxes = Sandboxes::default();
        Self { walk_ns: DEFAULT_WALK_NS, grace_ns: DEFAULT_GRACE_NS, wait_ns: DEFAULT_WAIT_NS, sandboxes }
    }
}

/// `workloads:`, with what is absent or wrong at its default.
pub(super) fn workloads(entry: &Entry, report: &mut Report) -> Workloads {
    let mut workloads = Workloads::default();
    let Some(fields) = Fields::read(&entry.value, &entry.key.at, &WORKLOADS, report) else { return workloads };
    for (key, least, to) in [
        ("walk", MIN_WALK_NS, &mut workloads.walk_ns),
        ("grace", MIN_NS, &mut workloads.grace_ns),
        ("wait", MIN_NS, &mut workloads.wait_ns),
    ] {
        if let Some(ns) = fields.get(key).and_then(|node| fields::duration(node, least, report)) {
            *to = ns;
        }
    }
    let choice = |node| fields::choice(node, "`pod`, `node` or `apart`", &SANDBOXES, &[], report);
    workloads.sandboxes = match fields.get("sandboxes").and_then(choice) {
        Some("node") => Sandboxes::Node,
        Some("apart") => Sandboxes::Apart,
        _ => Sandboxes::Pod,
    };
    workloads
}

/// `kubernetes:`, likewise.
pub(super) fn kubernetes(entry: &Entry, report: &mut Report) -> Kubernetes {
    let Some(fields) = Fields::read(&entry.value, &entry.key.at, &KUBERNETES, report) else {
        return Kubernetes::default();
    };
    let source = fields
        .get("source")
        .and_then(|node| fields::choice(node, "`auto`, `api`, `kubelet` or `none`", &SOURCES, &[], report));
    let mut text = |key: &str, what: &str| {
        fields.get(key).and_then(|node| fields::text(node, what, report)).map(|text| text.value)
    };
    let (node, kubeconfig) = (text("node", "the name of a node"), text("kubeconfig", "a path"));
    let kubelet_ca = text("kubelet_ca", "a path");
    let kubelet_url = fields.get("kubelet_url").and_then(|node| {
        fields::parsed(node, "an address such as `https://127.0.0.1:10250`", report, |text| {
            match text.strip_prefix("https://").or(text.strip_prefix("http://")) {
                Some(rest) if !rest.is_empty() && !rest.starts_with('/') => Ok(text.trim_end_matches('/').to_owned()),
                _ => Err(Problem::new(format!("`{text}` is no address")).hint("write `https://127.0.0.1:10250`")),
            }
        })
    });
    let source = match source {
        Some("api") => PodSource::Api,
        Some("kubelet") => PodSource::Kubelet,
        Some("none") => PodSource::None,
        _ => PodSource::Auto,
    };
    if let (Some(url), false) = (&kubelet_url, matches!(source, PodSource::Kubelet)) {
        let diagnostic = Diagnostic::warning(&url.at, "the kubelet is not asked, as `source` does not say so");
        report.push(diagnostic.hint("write `source: kubelet`"));
    }
    Kubernetes { source, node, kubelet_url: kubelet_url.map(|url| url.value), kubelet_ca, kubeconfig }
}

/// `probes.override:` by probe or pack.
pub(super) fn overrides(node: &Node, report: &mut Report) -> Vec<Override> {
    let entries = fields::mapping(node, "`override`", report).unwrap_or_default();
    entries.iter().filter_map(|entry| one_override(entry, report)).collect()
}

fn one_override(entry: &Entry, report: &mut Report) -> Option<Override> {
    let fields = Fields::read(&entry.value, &entry.key.at, &OVERRIDE, report)?;
    let labels = fields.get("labels").map(|node| names(node, report)).unwrap_or_default();
    let filter = fields.get("where").and_then(|node| super::expression(node, report));
    let most = metric::MAX_SERIES;
    let max_series = fields.get("max_series").and_then(|node| fields::integer(node, 1..=most, report));
    Some(Override { name: entry.key.clone(), labels, filter, max_series: max_series.map(|n| n as u32) })
}

fn names(node: &Node, report: &mut Report) -> Vec<Spanned<String>> {
    let mut names: Vec<Spanned<String>> = Vec::new();
    for node in fields::one_or_many(node, "label", report) {
        let name = fields::parsed(node, "the name of a label", report, |text| match LABELS.contains(&text) {
            true => Ok(text.to_owned()),
            false => Err(Problem::new(format!("`{text}` is no name of a workload")).hint(suggestion(text, &LABELS))),
        });
        let Some(name) = name else { continue };
        match names.iter().any(|known| known.value == name.value) {
            true => report.push(Diagnostic::error(&name.at, format!("label `{}` is there twice", name.value))),
            false => names.push(name),
        }
    }
    names
}
