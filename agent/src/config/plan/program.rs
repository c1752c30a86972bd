//! Model -> the compiler's input. Every piece of user text gets an id, under which its place is kept for diagnostics.

use std::collections::HashMap;

use super::linked::{self, Fields};
use kstrobe_config::model::{self, Location, Spanned};
use kstrobe_ebpf::buckets::BucketSpec;
use kstrobe_ebpf::diag::TextId;
use kstrobe_ebpf::program::{
    Binary, Edge, Engine, Every, Hook, HookKind, Keep, Label, Limits, Metric, MetricKind, Owner, PerfEvent, Program,
    Sampling, Shape, Slow, Span, StackSpec, Step, Steps, Text, Via,
};

/// Where each text stands, and the text as the compiler saw it.
pub(super) type Places = HashMap<TextId, (Location, String)>;

#[derive(Default)]
struct Texts {
    places: Places,
    /// All texts stand nowhere.
    placeless: bool,
}

impl Texts {
    fn add(&mut self, text: &str, at: &Location) -> Text {
        let id = TextId(self.places.len() as u32);
        self.places.insert(id, (at.clone(), text.to_string()));
        let (line, column) = if self.placeless { (0, 0) } else { (at.line, at.column) };
        Text { id, text: text.to_string(), line, column }
    }
    fn text(&mut self, s: &Spanned<String>) -> Text {
        self.add(&s.value, &s.at)
    }
    fn all(&mut self, texts: &[Spanned<String>]) -> Vec<Text> {
        texts.iter().map(|t| self.text(t)).collect()
    }
    fn pairs(&mut self, pairs: &[(Spanned<String>, Spanned<String>)]) -> Vec<(Text, Text)> {
        pairs.iter().map(|(name, value)| (self.text(name), self.text(value))).collect()
    }
    fn fields(&mut self, fields: &Fields<'_>) -> Vec<(Text, Text)> {
        fields.all.iter().map(|(name, value)| (self.text(name), self.text(value))).collect()
    }
    fn hooks(&mut self, hooks: &[Spanned<model::Hook>]) -> Vec<Hook> {
        hooks
            .iter()
            .map(|h| {
                // Diagnostics about a hook mean all of it.
                let text = match &h.value {
                    model::Hook::FirstOf(hooks) => {
                        let hooks: Vec<&str> = hooks.iter().map(hook_text).collect();
                        self.add(&format!("first_of [{}]", hooks.join(", ")), &h.at)
                    }
                    _ => self.add(hook_text(h), &h.at),
                };
                Hook { kind: hook(&h.value, self), text }
            })
            .collect()
    }
}

/// A hook as it stands in the file, without quotes.
fn hook_text(hook: &Spanned<model::Hook>) -> &str {
    hook.at.file.text.get(hook.at.start..hook.at.end).unwrap_or_default().trim_matches(['"', '\''])
}

pub(super) fn program(probe: &model::Probe) -> (Program, Places) {
    let mut texts = Texts::default();
    let mut program = written(probe, &mut texts);
    let file = &probe.name.at.file;
    (program.file, program.source) = (file.name.clone(), file.text.clone());
    (program, texts.places)
}

/// The same without the places: equal for definitions that only stand elsewhere, or between other comments.
pub(super) fn placeless(probe: &model::Probe) -> Program {
    written(probe, &mut Texts { placeless: true, ..Texts::default() })
}

fn written(probe: &model::Probe, texts: &mut Texts) -> Program {
    Program {
        name: texts.text(&probe.name),
        file: String::new(),
        source: String::new(),
        engine: match probe.engine {
            model::Engine::Auto | model::Engine::Bpf => Engine::Bpf,
            model::Engine::Ftrace => Engine::Ftrace,
        },
        shape: shape(&probe.shape, &probe.metrics, texts),
        filter: probe.filter.as_ref().map(|f| texts.text(f)),
        also: probe.also.as_ref().map(|f| texts.text(f)),
        owner: match &probe.owner {
            model::Owner::Current => Owner::Current,
            model::Owner::None => Owner::None,
            model::Owner::Of { end, start } => {
                Owner::Of { end: texts.text(end), start: start.as_ref().map(|start| texts.text(start)) }
            }
        },
        metrics: probe.metrics.iter().map(|m| metric(m, texts)).collect(),
        slow: probe.slow.as_ref().map(|s| Slow {
            when: texts.text(&s.when),
            fields: linked::fields(probe).map(|fields| texts.fields(&fields)).unwrap_or_default(),
            max_per_second: s.max_per_second,
            buffer_bytes: s.buffer_bytes,
        }),
        limits: Limits {
            map_bytes: probe.max_map_bytes,
            steered: budget_ppm(probe) > 0 && probe.engine != model::Engine::Ftrace,
            ..Limits::default()
        },
    }
}

/// Its budget in millionths of one CPU's time; 0 for none.
pub(super) fn budget_ppm(probe: &model::Probe) -> u64 {
    probe.budget_ppm.unwrap_or(model::Agent::default().budget_ppm)
}

/// Hooks as the user wrote them; a poll's source as `poll:NAME`.
pub(super) fn hook_texts(program: &Program) -> Vec<String> {
    let texts = |hooks: &[Hook]| hooks.iter().map(|h| h.text.text.clone()).collect::<Vec<_>>();
    match &program.shape {
        Shape::At(hooks) => texts(hooks),
        Shape::Span(s) => [texts(&s.start), texts(&s.end)].concat(),
        Shape::Steps(s) => s.steps.iter().flat_map(|step| texts(&step.hooks)).collect(),
        Shape::Poll { source, .. } => vec![format!("poll:{}", source.text)],
    }
}

fn step(step: &model::Step, metrics: &[model::Metric], texts: &mut Texts) -> Step {
    // The configuration's check has found each name among the metrics.
    let index = |name: &model::Spanned<String>| metrics.iter().position(|m| m.name.value == name.value);
    Step {
        hooks: texts.hooks(&step.hooks),
        filter: step.filter.as_ref().map(|f| texts.text(f)),
        by: texts.all(&step.by),
        set: texts.pairs(&step.set),
        observe: step.observe.iter().filter_map(index).map(|i| i as u32).collect(),
        delete: step.delete,
    }
}

fn shape(shape: &model::Shape, metrics: &[model::Metric], texts: &mut Texts) -> Shape {
    match shape {
        model::Shape::At(hooks) => Shape::At(texts.hooks(hooks)),
        model::Shape::Span(s) => Shape::Span(Span {
            start: texts.hooks(&s.start),
            end: texts.hooks(&s.end),
            by: texts.all(&s.by),
            by_end: texts.all(&s.by_end),
            save: texts.pairs(&s.save),
            filter: s.filter.as_ref().map(|f| texts.text(f)),
            filter_end: s.filter_end.as_ref().map(|f| texts.text(f)),
            keep: if s.keep_first { Keep::First } else { Keep::Last },
            max_open: s.max_open,
        }),
        model::Shape::Steps(s) => Shape::Steps(Steps {
            by: texts.all(&s.by),
            fields: texts.pairs(&s.fields),
            max_entries: s.max_entries,
            steps: s.steps.iter().map(|step| self::step(step, metrics, texts)).collect(),
        }),
        model::Shape::Poll { source, every_ns } => Shape::Poll { source: texts.text(source), every_ns: *every_ns },
    }
}

fn hook(hook: &model::Hook, texts: &mut Texts) -> HookKind {
    let edge = |exit: bool| if exit { Edge::Exit } else { Edge::Enter };
    match hook {
        model::Hook::Tracepoint { system, event } => {
            HookKind::Tracepoint { system: system.clone(), event: event.clone() }
        }
        model::Hook::RawTracepoint { event } => HookKind::RawTracepoint { event: event.clone() },
        model::Hook::Syscall { names, exit } => HookKind::Syscall { names: names.clone(), edge: edge(*exit) },
        model::Hook::Interval { period_ns } => HookKind::Interval { period_ns: *period_ns },
        model::Hook::Function { name, module, offset, exit, via } => HookKind::Function {
            name: name.clone(),
            module: module.clone(),
            offset: *offset,
            edge: edge(*exit),
            via: match via {
                model::Via::Best => Via::Best,
                model::Via::Fentry => Via::Fentry,
                model::Via::Kprobe => Via::Kprobe,
            },
        },
        model::Hook::User { path, pid, symbol, offset, exit } => HookKind::User {
            binary: Binary { path: path.clone(), pid: *pid },
            symbol: symbol.clone(),
            offset: *offset,
            edge: edge(*exit),
        },
        model::Hook::Usdt { path, pid, provider, name } => HookKind::Usdt {
            binary: Binary { path: path.clone(), pid: *pid },
            provider: provider.clone(),
            name: name.clone(),
        },
        model::Hook::Sample { event, every } => HookKind::Sample(Sampling {
            event: match event {
                model::PerfEvent::CpuClock => PerfEvent::CpuClock,
                model::PerfEvent::Hardware(name) => PerfEvent::Hardware(name.clone()),
                model::PerfEvent::Software(name) => PerfEvent::Software(name.clone()),
            },
            every: match every {
                model::Every::Hertz(n) => Every::Hertz(*n),
                model::Every::Nanoseconds(n) => Every::Nanoseconds(*n),
                model::Every::Events(n) => Every::Events(*n),
            },
        }),
        model::Hook::Iter { object } => HookKind::Iter { object: object.clone() },
        model::Hook::FirstOf(hooks) => HookKind::FirstOf(texts.hooks(hooks)),
    }
}

fn metric(m: &model::Metric, texts: &mut Texts) -> Metric {
    Metric {
        name: match m.named {
            true => texts.text(&m.name),
            false => texts.add("", &m.name.at),
        },
        kind: match &m.kind {
            model::MetricKind::Counter => MetricKind::Counter,
            model::MetricKind::Gauge => MetricKind::Gauge,
            model::MetricKind::Stacks { kernel, user, depth, at_start } => {
                MetricKind::Stacks(StackSpec { kernel: *kernel, user: *user, depth: *depth, at_start: *at_start })
            }
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
                // Stacks are no series of Prometheus: their labels may be anything.
                allow_high_cardinality: m.allow_high_cardinality || is_stacks(m),
            })
            .collect(),
        max_series: m.max_series,
    }
}

fn is_stacks(m: &model::Metric) -> bool {
    matches!(m.kind, model::MetricKind::Stacks { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::attach::perf_event::known;

    #[test]
    fn the_kernel_room_knows_every_perf_event_of_the_language() {
        let (software, hardware) = kstrobe_config::perf_events();
        assert!(software.into_iter().all(|name| known(&PerfEvent::Software(name.into()))));
        assert!(hardware.into_iter().all(|name| known(&PerfEvent::Hardware(name.into()))));
    }
}
