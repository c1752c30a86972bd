//! Model -> the compiler's input. Every piece of user text gets an id, under which its place is kept for diagnostics.

use std::collections::HashMap;

use kstrobe_config::model::{self, Location, Spanned};
use kstrobe_ebpf::buckets::BucketSpec;
use kstrobe_ebpf::diag::TextId;
use kstrobe_ebpf::program::{
    Edge, Hook, HookKind, Keep, Label, Limits, Metric, MetricKind, Program, Shape, Span, Text,
};

/// Where each text stands, and the text as the compiler saw it.
pub(super) type Places = HashMap<TextId, (Location, String)>;

#[derive(Default)]
struct Texts(Places);

impl Texts {
    fn add(&mut self, text: &str, at: &Location) -> Text {
        let id = TextId(self.0.len() as u32);
        self.0.insert(id, (at.clone(), text.to_string()));
        Text { id, text: text.to_string(), line: at.line, column: at.column }
    }
    fn text(&mut self, s: &Spanned<String>) -> Text {
        self.add(&s.value, &s.at)
    }
    fn hooks(&mut self, hooks: &[Spanned<model::Hook>]) -> Vec<Hook> {
        hooks
            .iter()
            .map(|h| {
                // Diagnostics about a hook mean all of it.
                let text = h.at.file.text.get(h.at.start..h.at.end).unwrap_or_default();
                Hook { kind: hook(&h.value), text: self.add(text, &h.at) }
            })
            .collect()
    }
}

pub(super) fn program(probe: &model::Probe) -> (Program, Places) {
    let mut texts = Texts::default();
    let file = &probe.name.at.file;
    let program = Program {
        name: texts.text(&probe.name),
        file: file.name.clone(),
        source: file.text.clone(),
        shape: shape(&probe.shape, &mut texts),
        filter: probe.filter.as_ref().map(|f| texts.text(f)),
        metrics: probe.metrics.iter().map(|m| metric(m, &mut texts)).collect(),
        limits: Limits { map_bytes: probe.max_map_bytes, ..Limits::default() },
    };
    (program, texts.0)
}

/// Hooks as the user wrote them; a poll's source as `poll:NAME`.
pub(super) fn hook_texts(program: &Program) -> Vec<String> {
    let texts = |hooks: &[Hook]| hooks.iter().map(|h| h.text.text.trim_matches('"').to_string()).collect::<Vec<_>>();
    match &program.shape {
        Shape::At(hooks) => texts(hooks),
        Shape::Span(s) => [texts(&s.start), texts(&s.end)].concat(),
        Shape::Poll { source, .. } => vec![format!("poll:{}", source.text)],
    }
}

/// Every expression of a probe.
pub(super) fn expressions(program: &Program) -> Vec<&str> {
    let mut texts: Vec<&Text> = program.filter.iter().collect();
    if let Shape::Span(s) = &program.shape {
        texts.extend(s.by.iter().chain(s.save.iter().map(|(_, e)| e)).chain(&s.filter));
    }
    for m in &program.metrics {
        texts.extend(m.value.iter().chain(&m.filter).chain(m.labels.iter().map(|l| &l.value)));
    }
    texts.into_iter().map(|t| t.text.as_str()).collect()
}

fn shape(shape: &model::Shape, texts: &mut Texts) -> Shape {
    match shape {
        model::Shape::At(hooks) => Shape::At(texts.hooks(hooks)),
        model::Shape::Span(s) => Shape::Span(Span {
            start: texts.hooks(&s.start),
            end: texts.hooks(&s.end),
            by: s.by.iter().map(|e| texts.text(e)).collect(),
            save: s.save.iter().map(|(name, e)| (texts.text(name), texts.text(e))).collect(),
            filter: s.filter.as_ref().map(|f| texts.text(f)),
            keep: if s.keep_first { Keep::First } else { Keep::Last },
            max_open: s.max_open,
        }),
        model::Shape::Poll { source, every_ns } => Shape::Poll { source: texts.text(source), every_ns: *every_ns },
    }
}

fn hook(hook: &model::Hook) -> HookKind {
    match hook {
        model::Hook::Tracepoint { system, event } => {
            HookKind::Tracepoint { system: system.clone(), event: event.clone() }
        }
        model::Hook::RawTracepoint { event } => HookKind::RawTracepoint { event: event.clone() },
        model::Hook::Syscall { names, exit } => {
            HookKind::Syscall { names: names.clone(), edge: if *exit { Edge::Exit } else { Edge::Enter } }
        }
        model::Hook::Interval { period_ns } => HookKind::Interval { period_ns: *period_ns },
    }
}

fn metric(m: &model::Metric, texts: &mut Texts) -> Metric {
    Metric {
        name: texts.text(&m.name),
        kind: match &m.kind {
            model::MetricKind::Counter => MetricKind::Counter,
            model::MetricKind::Gauge => MetricKind::Gauge,
            model::MetricKind::Histogram(b) => MetricKind::Histogram(BucketSpec {
                schema: b.schema,
                raw_per_unit: m.raw_per_unit,
                min: b.min,
                max: b.max,
                classic: b.classic.clone(),
            }),
        },
        value: m.value.as_ref().map(|v| texts.text(v)),
        filter: m.filter.as_ref().map(|f| texts.text(f)),
        labels: m
            .labels
            .iter()
            .map(|(name, value)| Label {
                name: texts.text(name),
                value: texts.text(value),
                allow_high_cardinality: m.allow_high_cardinality,
            })
            .collect(),
        max_series: m.max_series,
    }
}
