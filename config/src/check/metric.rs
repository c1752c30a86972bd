//! `metrics:`.

use super::{Families, buckets, expression, expressions, stacks};
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Aggregate, Label, Metric, MetricKind, MetricMeta, Spanned};
use crate::names;
use crate::quantity;
use crate::raw::{Entry, Node};
use crate::report::{Problem, Report};

pub(crate) const KEYS: Keys = Keys {
    of: "a metric",
    known: &[
        "type",
        "help",
        "value",
        "where",
        "unit",
        "labels",
        "max_series",
        "ttl",
        "buckets",
        "stacks",
        "depth",
        "taken",
        "unwind",
        "keep",
        "allow_high_cardinality",
    ],
    later: &["exemplar"],
};
pub(crate) const KINDS: [&str; 4] = ["counter", "gauge", "histogram", "stacks"];
pub(crate) const MAX_SERIES: u64 = super::MAX_ENTRIES;
pub(crate) const DEFAULT_MAX_SERIES: u64 = 1024;
pub(crate) const DEFAULT_TTL_NS: u64 = 900_000_000_000;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Suffixes of a metric's name that are its unit when `unit:` is absent.
pub(crate) const UNIT_SUFFIXES: [&str; 12] = [
    "seconds",
    "bytes",
    "packets",
    "segments",
    "connections",
    "ratio",
    "joules",
    "watts",
    "celsius",
    "volts",
    "amperes",
    "hertz",
];

/// The unit a metric is exported in.
pub(super) struct Unit {
    /// `seconds`, or empty.
    pub name: String,
    /// Nanoseconds per second, else 1.
    pub raw_per_unit: u64,
}

impl Unit {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), raw_per_unit: if name == "seconds" { SECOND_NS } else { 1 } }
    }

    pub(super) fn is_seconds(&self) -> bool {
        self.name == "seconds"
    }
}

/// A metric as it was read.
pub(super) struct Read {
    pub metric: Metric,
    pub meta: MetricMeta,
    /// Whether name and type are right. If not, the name says nothing of what the value must be.
    pub is_named: bool,
}

/// All metrics of a probe with this summary, with the correct parts of those with mistakes.
pub(super) fn metrics(node: &Node, summary: &str, report: &mut Report) -> Vec<Read> {
    let Some(entries) = fields::mapping(node, "`metrics`", report) else { return Vec::new() };
    if entries.is_empty() {
        report.push(Diagnostic::error(&node.at, "a probe needs at least one metric"));
    }
    let mut families = Families::default();
    entries.iter().filter_map(|entry| metric(entry, summary, &mut families, report)).collect()
}

fn metric(entry: &Entry, summary: &str, families: &mut Families, report: &mut Report) -> Option<Read> {
    let before = report.errors();
    let name = &entry.key;
    if report.accept(&name.at, &name.value, names::no_own_metric(&name.value)).is_some()
        && let Err(twice) = families.take(name)
    {
        report.push(twice);
    }
    let fields = Fields::read(&entry.value, &name.at, &KEYS, report)?;
    let kind_name = fields
        .need("type", "a metric", report)
        .and_then(|node| fields::choice(node, "a type of metric", &KINDS, &[], report));
    if let Some(kind) = kind_name {
        report.accept(&name.at, &name.value, names::metric(&name.value, kind == "counter"));
    }
    let unit = unit(name, fields.get("unit"), report);
    let named = report.errors() == before;
    let kind = kind_name.zip(unit.as_ref()).and_then(|(kind, unit)| self::kind(kind, unit, &fields, report));
    let value = fields.get("value").and_then(|node| expression(node, report));
    if fields.get("value").is_none()
        && !fields.meant("value")
        && kind_name.is_some_and(|k| k != "counter" && k != "stacks")
    {
        let diagnostic = Diagnostic::error(&name.at, format!("a {} needs `value`", kind_name.unwrap_or_default()));
        report.push(diagnostic.hint("only a counter and stacks can do without: they count events"));
    }
    let filter = fields.get("where").and_then(|node| expression(node, report));
    let help = fields.get("help").and_then(|node| fields::text(node, "text", report));
    let labels =
        fields.get("labels").map(|node| expressions(node, "`labels`", report, names::label)).unwrap_or_default();
    let most = if kind_name == Some("stacks") { stacks::DEFAULT_MAX_SERIES } else { DEFAULT_MAX_SERIES };
    let max_series = fields.get("max_series").map_or(Some(most), |node| fields::integer(node, 1..=MAX_SERIES, report));
    let ttl_ns = fields.get("ttl").map_or(Some(DEFAULT_TTL_NS), |node| ttl(node, report));
    let allow_high_cardinality =
        fields.get("allow_high_cardinality").map_or(Some(false), |node| fields::boolean(node, report));
    let unit = unit.unwrap_or_else(|| Unit::new(""));
    let is_named = named && kind.is_some();
    let metric = Metric {
        name: name.clone(),
        kind: kind.unwrap_or(MetricKind::Gauge(None)),
        value,
        filter,
        labels: labels.into_iter().map(|(name, value)| Label { name, value }).collect(),
        allow_high_cardinality: allow_high_cardinality.unwrap_or(false),
        max_series: max_series.unwrap_or(most) as u32,
    };
    let meta = MetricMeta {
        help: help.map_or_else(|| summary.to_owned(), |help| super::one_line(&help.value)),
        unit: unit.name,
        raw_per_unit: unit.raw_per_unit,
        ttl_ns: ttl_ns.unwrap_or(DEFAULT_TTL_NS),
    };
    Some(Read { metric, meta, is_named })
}

fn kind(name: &str, unit: &Unit, fields: &Fields<'_>, report: &mut Report) -> Option<MetricKind> {
    if name != "stacks" {
        stacks::refuse(name, fields, report);
    }
    if let Some(entry) = fields.entry("keep").filter(|_| name != "gauge") {
        let message = format!("a {name} has no `keep`");
        report.push(Diagnostic::error(&entry.key.at, message).hint("only `type: gauge` has"));
    }
    let entry = fields.entry("buckets");
    if name == "histogram" {
        return buckets::buckets(entry, unit, report).map(MetricKind::Histogram);
    }
    if let Some(entry) = entry {
        let what = if name == "stacks" { "`type: stacks` has".to_owned() } else { format!("a {name} has") };
        let diagnostic = Diagnostic::error(&entry.key.at, format!("{what} no buckets"));
        report.push(diagnostic.hint("only `type: histogram` has"));
    }
    match name {
        "stacks" => stacks::stacks(fields, report),
        "counter" => Some(MetricKind::Counter),
        _ => gauge(fields, report),
    }
}

/// A gauge with its `keep:`.
fn gauge(fields: &Fields<'_>, report: &mut Report) -> Option<MetricKind> {
    let Some(node) = fields.get("keep") else { return Some(MetricKind::Gauge(None)) };
    let names = Aggregate::ALL.map(Aggregate::name);
    let name = fields::choice(node, "what a gauge keeps", &names, &[], report)?;
    Some(MetricKind::Gauge(Aggregate::ALL.into_iter().find(|keep| keep.name() == name)))
}

/// `unit:`, or what the name's suffix says; the two must agree.
fn unit(name: &Spanned<String>, node: Option<&Node>, report: &mut Report) -> Option<Unit> {
    let stem = name.value.strip_suffix("_total").unwrap_or(&name.value);
    let suffix = stem.rsplit('_').next().filter(|last| UNIT_SUFFIXES.contains(last)).unwrap_or("");
    let Some(node) = node else { return Some(Unit::new(suffix)) };
    let unit = fields::parsed(node, "a unit such as `seconds`", report, |text| {
        if let Some(base) = names::base_unit(text) {
            let problem = Problem::new(format!("metrics are exported in base units, not in `{text}`"));
            return Err(problem.hint(format!("write `unit: {base}`, and name the metric `.._{base}`")));
        }
        names::identifier(text, "unit")?;
        if matches!(suffix, "seconds" | "bytes") && suffix != text {
            return Err(Problem::new(format!("the name says {suffix}, and the unit `{text}`"))
                .hint("leave `unit` out: the name's suffix says it"));
        }
        if matches!(text, "seconds" | "bytes") && suffix != text {
            let total = &name.value[stem.len()..];
            return Err(Problem::new(format!("the name of a metric in {text} must say so"))
                .hint(format!("name it `{stem}_{text}{total}`")));
        }
        Ok(())
    });
    unit.and_then(|_| fields::text(node, "a unit", report)).map(|text| Unit::new(&text.value))
}

/// A duration, or plain `0` for never.
fn ttl(node: &Node, report: &mut Report) -> Option<u64> {
    let ttl = fields::parsed(node, "a duration such as `15m`", report, |text| match text {
        "0" => Ok(0),
        _ => quantity::duration_ns(text).and_then(|ns| match ns {
            1..SECOND_NS => Err(Problem::new(format!("{text} is too short")).hint("use at least 1s, or 0 for never")),
            _ => Ok(ns),
        }),
    });
    ttl.map(|t| t.value)
}
