//! Nodes to the model: every rule of the language that needs no knowledge of a kernel.

mod agent;
pub(crate) mod buckets;
mod capture;
mod captures;
mod exporters;
mod function;
mod history;
pub(crate) mod hook;
pub(crate) mod library;
pub(crate) mod metric;
pub(crate) mod owner;
pub(crate) mod sampling;
pub(crate) mod slow;
pub(crate) mod stacks;
pub(crate) mod steps;
mod user;
mod web;
pub(crate) mod workloads;

pub(crate) use agent::{
    DEFAULT_KEPT_EVENTS, DEFAULT_NATIVE_BUCKETS, MAX_KEPT_EVENTS, MAX_NATIVE_BUCKETS, agent, is_configuration,
};
pub(crate) use capture::capture;
pub use capture::option_setter;
pub(crate) use captures::beyond;
pub use exporters::EXPORTER_HEADERS;
pub(crate) use web::web;

use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Engine, Keep, Limits, Metric, MetricMeta, Owner, Probe, Program, Shape, Span, Spanned, SpannedStr};
use crate::names;
use crate::quantity;
use crate::raw::{Entry, Kind, Node};
use crate::report::{Problem, Report};
use kstrobe_ebpf::program;
use std::collections::HashMap;
use std::ops::RangeInclusive;

pub(crate) const PROBE: Keys = Keys {
    of: "a probe",
    known: &[
        "probe",
        "summary",
        "replaces",
        "cost",
        "enabled",
        "let",
        "at",
        "span",
        "state",
        "steps",
        "poll",
        "where",
        "owner",
        "metrics",
        "slow",
        "max_map_bytes",
        "budget_cpu_percent",
        "engine",
    ],
    later: &[],
};
pub(crate) const SPAN: Keys =
    Keys { of: "`span`", known: &["start", "end", "by", "save", "where", "keep", "max_entries"], later: &[] };
pub(crate) const BY: Keys = Keys { of: "`by`", known: &["start", "end"], later: &[] };
pub(crate) const WHERE: Keys = Keys { of: "`where`", known: &["start", "end"], later: &[] };
pub(crate) const POLL: Keys = Keys { of: "`poll`", known: &["source", "every"], later: &[] };
const SHAPES: [&str; 4] = ["at", "span", "steps", "poll"];

pub(crate) const MAX_LETS: usize = 16;

pub(crate) const DEFAULT_MAP_BYTES: u64 = 16 << 20;
/// One page: the smallest map there is.
pub(crate) const MIN_MAP_BYTES: u64 = 4096;
pub(crate) const MAX_MAP_BYTES: u64 = 1 << 30;
/// Of spans and of series: more would take the memory of a node.
pub(crate) const MAX_ENTRIES: u64 = 1_000_000;
pub(crate) const DEFAULT_MAX_OPEN: u64 = 16_384;
pub(crate) const DEFAULT_EVERY_NS: u64 = 5_000_000_000;
/// A netlink dump of a busy node takes milliseconds.
pub(crate) const MIN_EVERY_NS: u64 = 100_000_000;

const PPM_PER_PERCENT: u64 = 10_000;
pub(crate) const DEFAULT_BUDGET_PPM: u64 = 2 * PPM_PER_PERCENT;
/// A hundred CPUs.
const MAX_BUDGET_PPM: u64 = 10_000 * PPM_PER_PERCENT;

/// Names of probes so far, over all files.
#[derive(Default)]
pub(crate) struct Seen {
    probes: HashMap<String, SpannedStr>,
}

impl Seen {
    fn probe(&mut self, name: &SpannedStr, report: &mut Report) {
        if let Some(first) = self.probes.get(&name.value) {
            let message = format!("probe `{}` is defined twice", name.value);
            report.push(Diagnostic::error(&name.at, message).hint(first_is(first)));
        } else {
            self.probes.insert(name.value.clone(), name.clone());
        }
    }
}

/// Metrics by family: one name in OpenMetrics.
#[derive(Default)]
pub(crate) struct Families(HashMap<String, SpannedStr>);

impl Families {
    /// Takes a name, or says which other metric has it already.
    pub(crate) fn take(&mut self, name: &SpannedStr) -> Result<(), Diagnostic> {
        let family = names::family(&name.value);
        let Some(first) = self.0.get(family) else {
            self.0.insert(family.to_owned(), name.clone());
            return Ok(());
        };
        let message = match first.value == name.value {
            true => format!("metric `{}` is defined twice", name.value),
            false => format!("metrics `{}` and `{}` are one family in OpenMetrics", first.value, name.value),
        };
        Err(Diagnostic::error(&name.at, message).hint(first_is(first)))
    }
}

fn first_is(first: &SpannedStr) -> String {
    format!("the first is in {}, line {}", first.at.file.name, first.at.line)
}

/// One document, and whether it has no mistakes; its correct parts, so that the compiler can report further mistakes in
/// the same run. `None` without a usable part.
pub(crate) fn probe(node: &Node, pack: &str, seen: &mut Seen, report: &mut Report) -> Option<(Probe, bool)> {
    let before = report.errors();
    if let Kind::Sequence(_) = &node.kind {
        let diagnostic = Diagnostic::error(&node.at, "a document is one probe, found a list");
        report.push(diagnostic.hint("write each probe as a document of its own, with lines `---` between them"));
        return None;
    }
    let fields = Fields::read(node, &node.at, &PROBE, report)?;
    let name = fields.need("probe", "a probe", report).and_then(|node| fields::text(node, "a probe's name", report));
    if let Some(name) = &name {
        report.accept(&name.at, &name.value, names::identifier(&name.value, "probe name"));
        seen.probe(name, report);
    }
    let at = name.as_ref().map_or(fields.at, |name| &name.at);
    let fields = fields.blaming(at);
    let summary = fields.need("summary", "a probe", report).and_then(|node| fields::text(node, "a sentence", report));
    let enabled = fields.get("enabled").map_or(Some(true), |node| fields::boolean(node, report));
    let replaces = fields.get("replaces").map(|node| library::replaces(node, report)).unwrap_or_default();
    let cost = fields.entry("cost").and_then(|entry| library::cost(entry, report));
    let summary = summary.map(|summary| one_line(&summary.value)).unwrap_or_default();
    let metrics = fields.get("metrics").map(|node| metric::metrics(node, &summary, report)).unwrap_or_default();
    let lets = fields.get("let").map(|node| lets(node, report)).unwrap_or_default();
    let shape = shape(&fields, &metrics, report);
    let filter = fields.get("where").and_then(|node| expression(node, report));
    let owner = fields.entry("owner").map_or(Some(Owner::Current), |e| owner::owner(e, shape.as_ref(), report));
    fields.need("metrics", "a probe", report);
    if let Some(shape) = &shape {
        metrics.iter().for_each(|read| stacks::check_shape(&read.metric, shape, report));
    }
    let slow = fields.entry("slow").and_then(|entry| slow::slow(entry, shape.as_ref(), report));
    let max_map_bytes = fields
        .get("max_map_bytes")
        .map_or(Some(DEFAULT_MAP_BYTES), |node| size(node, MIN_MAP_BYTES..=MAX_MAP_BYTES, report));
    let budget_ppm = fields.get("budget_cpu_percent").map(|node| budget(node, report));
    let engine = fields.get("engine").map_or(Some(Engine::Bpf), |node| engine(node, report));
    let engine = engine.unwrap_or_default();
    let unnamed = Spanned::new(String::new(), fields.at.clone());
    let (metrics, metas) = metrics.into_iter().map(metric_of_program).unzip();
    let program = Program {
        name: name.unwrap_or(unnamed),
        engine: if engine == Engine::Ftrace { program::Engine::Ftrace } else { program::Engine::Bpf },
        lets,
        shape: shape?,
        filter,
        extra_filter: None,
        owner: owner.unwrap_or_default(),
        metrics,
        slow,
        limits: Limits { map_bytes: max_map_bytes.unwrap_or(DEFAULT_MAP_BYTES), ..Limits::default() },
    };
    let probe = Probe {
        program,
        pack: pack.to_owned(),
        summary,
        replaces,
        cost,
        enabled: enabled.unwrap_or(true),
        metrics: metas,
        budget_ppm: budget_ppm.flatten(),
        engine,
    };
    Some((probe, report.errors() == before))
}

/// The compiler draws no conclusion from a name that is wrong.
fn metric_of_program(read: metric::Read) -> (Metric, MetricMeta) {
    let metric::Read { mut metric, meta, is_named } = read;
    if !is_named {
        metric.name.value.clear();
    }
    (metric, meta)
}

fn engine(node: &Node, report: &mut Report) -> Option<Engine> {
    let name = fields::choice(node, "`auto`, `bpf` or `ftrace`", &["auto", "bpf", "ftrace"], &[], report)?;
    Some(match name {
        "bpf" => Engine::Bpf,
        "ftrace" => Engine::Ftrace,
        _ => Engine::Auto,
    })
}

fn shape(fields: &Fields<'_>, metrics: &[metric::Read], report: &mut Report) -> Option<Shape> {
    let given: Vec<&Entry> = SHAPES.iter().filter_map(|key| fields.entry(key)).collect();
    let Some(Entry { key, value }) = given.first() else {
        if SHAPES.iter().any(|key| fields.meant(key)) {
            return None;
        }
        let diagnostic = Diagnostic::error(fields.at, "the probe says nowhere to run");
        report.push(diagnostic.hint("add one of `at`, `span`, `steps` or `poll`"));
        return None;
    };
    for other in &given[1..] {
        let message = format!("a probe has `{}` or `{}`, not both", key.value, other.key.value);
        let diagnostic = Diagnostic::error(&other.key.at, message);
        report.push(diagnostic.hint("make two probes of it, with a line `---` between them"));
    }
    if let (Some(state), true) = (fields.entry("state"), key.value != "steps") {
        let diagnostic = Diagnostic::error(&state.key.at, "only steps have a state");
        report.push(diagnostic.hint(format!("use `steps` in place of `{}`", key.value)));
    }
    match key.value.as_str() {
        "at" => Some(Shape::At(hook::hooks(value, report))),
        "span" => span(key, value, report).map(Shape::Span),
        "steps" => steps::steps(fields, key, value, metrics, report).map(Shape::Steps),
        _ => poll(key, value, report),
    }
}

fn span(key: &SpannedStr, node: &Node, report: &mut Report) -> Option<Span> {
    let fields = Fields::read(node, &key.at, &SPAN, report)?;
    let start = fields.need("start", "a span", report).map(|node| hook::hooks(node, report));
    let end = fields.need("end", "a span", report).map(|node| hook::hooks(node, report));
    let (by, by_end) = fields.get("by").map(|node| keys_of_ends(node, report)).unwrap_or_default();
    let saved = |name: &str| names::identifier(name, "name of a saved value");
    let save = fields.get("save").map(|node| expressions(node, "`save`", report, saved)).unwrap_or_default();
    let (filter, filter_end) = fields.get("where").map(|node| conditions_of_ends(node, report)).unwrap_or_default();
    let keep = fields
        .get("keep")
        .map_or(Some("last"), |node| fields::choice(node, "`last` or `first`", &["last", "first"], &[], report));
    let max_open =
        fields.get("max_entries").map_or(Some(DEFAULT_MAX_OPEN), |node| fields::integer(node, 1..=MAX_ENTRIES, report));
    Some(Span {
        start: start.unwrap_or_default(),
        end: end.unwrap_or_default(),
        by,
        by_end,
        save,
        filter,
        filter_end,
        keep: if keep == Some("first") { Keep::First } else { Keep::Last },
        max_open: max_open.unwrap_or(DEFAULT_MAX_OPEN) as u32,
    })
}

/// The key at the start, and at the end where it is written otherwise there.
fn keys_of_ends(node: &Node, report: &mut Report) -> (Vec<SpannedStr>, Vec<SpannedStr>) {
    let Kind::Mapping(_) = &node.kind else { return (one_or_more(node, report), Vec::new()) };
    let Some(fields) = Fields::read(node, &node.at, &BY, report) else { return Default::default() };
    let mut of = |key| fields.need(key, "`by`", report).map(|node| one_or_more(node, report)).unwrap_or_default();
    (of("start"), of("end"))
}

/// A condition at the start, or one for either end.
fn conditions_of_ends(node: &Node, report: &mut Report) -> (Option<SpannedStr>, Option<SpannedStr>) {
    let Kind::Mapping(entries) = &node.kind else { return (expression(node, report), None) };
    let Some(fields) = Fields::read(node, &node.at, &WHERE, report) else { return (None, None) };
    if entries.is_empty() {
        report.push(Diagnostic::error(&node.at, "`where` is empty").hint("give it `start`, `end` or both"));
    }
    let mut of = |key| fields.get(key).and_then(|node| expression(node, report));
    (of("start"), of("end"))
}

/// One expression or a list.
fn one_or_more(node: &Node, report: &mut Report) -> Vec<SpannedStr> {
    let nodes = fields::one_or_many(node, "expression", report);
    nodes.iter().filter_map(|node| expression(node, report)).collect()
}

fn poll(key: &SpannedStr, node: &Node, report: &mut Report) -> Option<Shape> {
    let fields = Fields::read(node, &key.at, &POLL, report)?;
    let source = fields.need("source", "a poll", report).and_then(|node| fields::text(node, "a source", report));
    if let Some(source) = &source {
        report.accept(&source.at, &source.value, names::identifier(&source.value, "source"));
    }
    let every_ns =
        fields.get("every").map_or(Some(DEFAULT_EVERY_NS), |node| fields::duration(node, MIN_EVERY_NS, report));
    Some(Shape::Poll { source: source?, every_ns: every_ns? })
}

/// A number of bytes within a range.
fn size(node: &Node, range: RangeInclusive<u64>, report: &mut Report) -> Option<u64> {
    let bytes = fields::parsed(node, "a size such as `16MiB`", report, |text| {
        let bytes = quantity::size_bytes(text)?;
        if range.contains(&bytes) {
            return Ok(bytes);
        }
        let [least, most] = [range.start(), range.end()].map(|bytes| quantity::show_bytes(*bytes));
        Err(Problem::new(format!("{text} is out of range")).hint(format!("use {least} to {most}")))
    });
    bytes.map(|b| b.value)
}

/// Percent of one CPU as millionths of its time.
fn budget(node: &Node, report: &mut Report) -> Option<u64> {
    let ppm = fields::parsed(node, "percent of one CPU such as `2`", report, |text| {
        let number = text.strip_suffix('%').map_or(text, str::trim_end);
        let percent = quantity::Decimal::parse(number)
            .map_err(|_| Problem::new(format!("expected percent of one CPU such as `2`, found `{text}`")))?;
        match percent.times(PPM_PER_PERCENT) {
            Some(ppm @ 1..=MAX_BUDGET_PPM) => Ok(ppm),
            Some(0) if percent.is_zero() => Ok(0),
            _ => Err(Problem::new(format!("{text} is out of range")).hint("use 0.0001 to 10000, or 0 for no budget")),
        }
    });
    ppm.map(|p| p.value)
}

/// An expression stays text: the compiler reads it. A number or `true` is its text too.
fn expression(node: &Node, report: &mut Report) -> Option<SpannedStr> {
    fields::text(node, "an expression", report)
}

/// A mapping of names to expressions; names are checked by `check_name`.
fn expressions(
    node: &Node,
    of: &str,
    report: &mut Report,
    check_name: impl Fn(&str) -> Result<(), Problem>,
) -> Vec<(SpannedStr, SpannedStr)> {
    let mut pairs = Vec::new();
    let entries = fields::mapping(node, of, report).unwrap_or_default();
    for (i, Entry { key, value }) in entries.iter().enumerate() {
        if matches!(value.kind, Kind::Nothing) {
            report.push(fields::rest_of_expression(key));
            continue;
        }
        if entries.get(i + 1).is_some_and(|_| fields::cut_before(entries, i + 1) == Some(i)) {
            continue;
        }
        report.accept(&key.at, &key.value, check_name(&key.value));
        pairs.extend(expression(value, report).map(|expression| (key.clone(), expression)));
    }
    pairs
}

/// `let:` names for expressions.
fn lets(node: &Node, report: &mut Report) -> Vec<(SpannedStr, SpannedStr)> {
    let pairs = expressions(node, "`let`", report, names::let_name);
    if let Some((name, _)) = pairs.get(MAX_LETS) {
        report.push(Diagnostic::error(&name.at, format!("`let` has at most {MAX_LETS} names")));
    }
    pairs
}

/// Folds the line breaks of a block scalar.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
