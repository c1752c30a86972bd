//! The compiler's input: one probe as plain data, every expression still as text.
//!
//! The reader of YAML (`kstrobe-config`) makes it; nothing here knows YAML.

use crate::buckets::BucketSpec;
use crate::diag::Place;
pub use crate::hook::{Binary, Edge, Every, Hook, HookKind, PerfEvent, Sampling, Via};
use crate::source::{Location, SpannedStr, TextId};

/// One probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The probe's name: a C identifier.
    pub name: SpannedStr,
    /// What runs it.
    pub engine: Engine,
    /// `let:` names and the expressions that they stand for, each in those behind it and in all others.
    pub lets: Vec<(SpannedStr, SpannedStr)>,
    /// Where it runs.
    pub shape: Shape,
    /// `where`: events (for a span: ends) for which this is false are ignored.
    pub filter: Option<SpannedStr>,
    /// What a configuration adds to it: both must hold.
    pub extra_filter: Option<SpannedStr>,
    /// Whose its events are, where a label or a condition asks by name.
    pub owner: Owner,
    /// What it measures, in the user's order.
    pub metrics: Vec<Metric>,
    /// `slow:` one record per measurement that is worth looking at.
    pub slow: Option<Slow>,
    /// What it may use at most.
    pub limits: Limits,
}

impl Program {
    /// All that is asked of every measurement.
    pub fn filters(&self) -> impl Iterator<Item = &SpannedStr> {
        self.filter.iter().chain(&self.extra_filter)
    }

    /// Every expression, each a text of its own.
    pub fn expressions(&self) -> Vec<&SpannedStr> {
        let mut texts: Vec<&SpannedStr> = self.lets.iter().map(|(_, value)| value).collect();
        texts.extend(self.filters().chain(self.owner.texts()));
        match &self.shape {
            Shape::Span(span) => {
                texts.extend(span.by.iter().chain(&span.by_end));
                texts.extend(span.save.iter().map(|(_, value)| value));
                texts.extend(span.filter.iter().chain(&span.filter_end));
            }
            Shape::Steps(steps) => {
                texts.extend(&steps.by);
                for step in &steps.steps {
                    texts.extend(step.filter.iter().chain(&step.by));
                    texts.extend(step.set.iter().map(|(_, value)| value));
                }
            }
            Shape::At(_) | Shape::Poll { .. } => {}
        }
        for Metric { value, filter, labels, .. } in &self.metrics {
            texts.extend(value);
            texts.extend(filter);
            texts.extend(labels.iter().map(|l| &l.value));
        }
        if let Some(slow) = &self.slow {
            texts.push(&slow.when);
            texts.extend(slow.values());
        }
        texts
    }

    /// Every text: expressions, names and hooks.
    pub fn texts(&self) -> Vec<&SpannedStr> {
        let mut texts = vec![&self.name];
        texts.extend(self.lets.iter().map(|(name, _)| name));
        let written = self.written_hooks();
        texts.extend(written.iter().flat_map(|hook| hook.texts()));
        texts.extend(self.expressions());
        match &self.shape {
            Shape::Span(span) => texts.extend(span.save.iter().map(|(name, _)| name)),
            Shape::Steps(steps) => {
                texts.extend(steps.fields.iter().flat_map(|(name, ty)| [name, ty]));
                texts.extend(steps.steps.iter().flat_map(|step| &step.set).map(|(name, _)| name));
            }
            Shape::Poll { source, .. } => texts.push(source),
            Shape::At(_) => {}
        }
        for metric in &self.metrics {
            texts.push(&metric.name);
            texts.extend(metric.labels.iter().map(|label| &label.name));
        }
        texts.extend(self.slow.iter().flat_map(|slow| &slow.fields).map(|(name, _)| name));
        texts
    }

    /// Gives each text an id of its own, which diagnostics and the kernel's line info need. To be called after the last text is added.
    pub fn number_texts(&mut self) {
        let mut next = 0;
        self.for_each_text(&mut |text| {
            text.id = TextId(next);
            next += 1;
        });
    }

    fn for_each_text(&mut self, visit: &mut dyn FnMut(&mut SpannedStr)) {
        fn pairs(pairs: &mut [(SpannedStr, SpannedStr)], visit: &mut dyn FnMut(&mut SpannedStr)) {
            pairs.iter_mut().for_each(|(name, value)| [name, value].into_iter().for_each(&mut *visit));
        }
        visit(&mut self.name);
        pairs(&mut self.lets, visit);
        match &mut self.shape {
            Shape::At(hooks) => hooks.iter_mut().for_each(|hook| hook.for_each_text(visit)),
            Shape::Span(span) => {
                span.start.iter_mut().chain(&mut span.end).for_each(|hook| hook.for_each_text(visit));
                span.by.iter_mut().chain(&mut span.by_end).for_each(&mut *visit);
                pairs(&mut span.save, visit);
                span.filter.iter_mut().chain(&mut span.filter_end).for_each(&mut *visit);
            }
            Shape::Steps(steps) => {
                steps.by.iter_mut().for_each(&mut *visit);
                pairs(&mut steps.fields, visit);
                for step in &mut steps.steps {
                    step.hooks.iter_mut().for_each(|hook| hook.for_each_text(visit));
                    step.filter.iter_mut().chain(&mut step.by).for_each(&mut *visit);
                    pairs(&mut step.set, visit);
                }
            }
            Shape::Poll { source, .. } => visit(source),
        }
        self.filter.iter_mut().chain(&mut self.extra_filter).for_each(&mut *visit);
        if let Owner::Of { end, start } = &mut self.owner {
            [end].into_iter().chain(start).for_each(&mut *visit);
        }
        for Metric { name, value, filter, labels, .. } in &mut self.metrics {
            [name].into_iter().chain(value).chain(filter).for_each(&mut *visit);
            labels.iter_mut().for_each(|label| [&mut label.name, &mut label.value].into_iter().for_each(&mut *visit));
        }
        if let Some(slow) = &mut self.slow {
            visit(&mut slow.when);
            pairs(&mut slow.fields, visit);
            slow.otlp_span.iter_mut().for_each(|(_, value)| visit(value));
        }
    }

    /// Where a part of a text stands in its file; all of the text for a part of no length.
    pub fn locate(&self, place: Place) -> Option<Location> {
        let text = self.texts().into_iter().find(|text| text.id == place.text)?;
        let (start, end) = (place.span.start as usize, place.span.end as usize);
        Some(if start < end { text.at.sub(&text.value, start..end) } else { text.at.clone() })
    }

    /// Every hook as it is written, in the user's order.
    pub fn written_hooks(&self) -> Vec<&Hook> {
        match &self.shape {
            Shape::At(hooks) => hooks.iter().collect(),
            Shape::Span(s) => s.start.iter().chain(&s.end).collect(),
            Shape::Steps(s) => s.steps.iter().flat_map(|step| &step.hooks).collect(),
            Shape::Poll { .. } => Vec::new(),
        }
    }

    /// Every hook, in the user's order; alternatives stand for themselves.
    pub fn hooks(&self) -> Vec<&Hook> {
        self.written_hooks().into_iter().flat_map(Hook::alternatives).collect()
    }
}

/// Whose the events of a probe are: a cgroup's.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Owner {
    /// That of the task that runs.
    #[default]
    Current,
    /// No owner: the task that runs did not cause them.
    None,
    /// A cgroup's id, a task or a socket.
    Of {
        /// Where events are measured: the end of a span.
        end: SpannedStr,
        /// At the start of a span, where it is known there.
        start: Option<SpannedStr>,
    },
}

impl Metric {
    /// Whether its labels may have any number of values.
    pub fn takes_any_label(&self) -> bool {
        self.allow_high_cardinality || matches!(self.kind, MetricKind::Stacks(_))
    }
}

impl Owner {
    /// What is written of it.
    pub fn texts(&self) -> impl Iterator<Item = &SpannedStr> {
        let (end, start) = match self {
            Owner::Of { end, start } => (Some(end), start.as_ref()),
            Owner::Current | Owner::None => (None, None),
        };
        end.into_iter().chain(start)
    }
}

/// What runs a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Programs in the kernel.
    #[default]
    Bpf,
    /// The agent, over the records of an ftrace session: events and nothing but what stands in them.
    Ftrace,
}

/// Records of single events, sent through a buffer and never more than so many a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// Measurements for which this is true are sent.
    pub when: SpannedStr,
    /// Names and their values, in the user's order; a value's outermost call may be a decoder.
    pub fields: Vec<(SpannedStr, SpannedStr)>,
    /// What a record has besides, where it is a span of OpenTelemetry as well; empty where it is none.
    pub otlp_span: Vec<(SpanField, SpannedStr)>,
    /// Most records a second on each CPU; what comes after is counted as lost.
    pub max_per_second: u32,
    /// Bytes of the ring buffer, or of each CPU's perf buffer; without it, room for two seconds up to 1 MiB.
    pub buffer_bytes: Option<u32>,
}

impl Slow {
    /// All that a record reads.
    pub fn values(&self) -> impl Iterator<Item = &SpannedStr> {
        self.fields.iter().map(|(_, value)| value).chain(self.otlp_span.iter().map(|(_, value)| value))
    }
}

/// What a record says of itself as a span of OpenTelemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanField {
    /// From its start to the event, in nanoseconds.
    Duration,
    /// The trace's id: its high 64 bits.
    TraceHigh,
    /// Its low 64 bits, or the whole of it as text.
    Trace,
    /// The id of the span that it is a part of.
    Parent,
    Id,
    Name,
}

impl SpanField {
    /// As a probe's file spells it.
    pub fn key(self) -> &'static str {
        match self {
            SpanField::Duration => "duration",
            SpanField::TraceHigh | SpanField::Trace => "trace_id",
            SpanField::Parent => "parent_id",
            SpanField::Id => "id",
            SpanField::Name => "name",
        }
    }
}

/// Where a probe runs and how many events make one measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// One measurement per event of any of these hooks.
    At(Vec<Hook>),
    /// One measurement per pair of a start and an end event that have the same key.
    Span(Span),
    /// State per key and steps in order, for what no span says.
    Steps(Steps),
    /// One measurement per row of a source that the agent reads in user space, each `every_ns`.
    Poll {
        /// Name of the source, one of [`Target::polls`](crate::Target::polls).
        source: SpannedStr,
        /// Nanoseconds between two reads.
        every_ns: u64,
    },
}

/// A start hook and an end hook paired by a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Hooks that start the span.
    pub start: Vec<Hook>,
    pub end: Vec<Hook>,
    /// The pairing key, evaluated at the start: `[tid]` by default.
    pub by: Vec<SpannedStr>,
    /// The same at the end, where it is named differently there; empty means `by`.
    pub by_end: Vec<SpannedStr>,
    /// Values computed at the start and readable at the end as `start.NAME`.
    pub save: Vec<(SpannedStr, SpannedStr)>,
    /// Starts for which this is false open no span.
    pub filter: Option<SpannedStr>,
    /// Ends for which this is false end no span. It is evaluated before the span is looked up, and counts no missing start.
    pub filter_end: Option<SpannedStr>,
    /// What a second start before the end does.
    pub keep: Keep,
    /// Most spans open at once (ignored with task storage and dense keys).
    pub max_open: u32,
}

/// State that lasts from event to event under a key, and what the events do with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// The key, evaluated at each step.
    pub by: Vec<SpannedStr>,
    /// The state's fields: name and type (`u64`, `string`, ...). All are zero or empty until set.
    pub fields: Vec<(SpannedStr, SpannedStr)>,
    /// Most keys at once; the least recently used goes first and is counted.
    pub max_entries: u32,
    /// What happens, in order. Steps at the same hook run one after the other on the same state.
    pub steps: Vec<Step>,
}

/// What an event does with the state of its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Where.
    pub hooks: Vec<Hook>,
    /// Events for which this is false change and measure nothing.
    pub filter: Option<SpannedStr>,
    /// Key of this step, where its hooks name it differently; empty means [`Steps::by`].
    pub by: Vec<SpannedStr>,
    /// Fields and their new values, all computed before the first is set.
    pub set: Vec<(SpannedStr, SpannedStr)>,
    /// Indices into [`Program::metrics`] of those measured here, before `set` (with the values of before).
    pub observe: Vec<u32>,
    /// Whether the state is forgotten at the end of the step; also when `where` is false, if it says so.
    pub delete: bool,
}

/// Which start counts when several come before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keep {
    /// The last one restarts the span.
    #[default]
    Last,
    /// The first one stands (a softirq raised again while pending).
    First,
}

/// One exported metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Name without the `kstrobe_` prefix, e.g. `syscall_duration_seconds`. Empty where the user's is wrong: it says nothing of the
    /// value's unit then.
    pub name: SpannedStr,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// What is added or observed; a counter without one counts events.
    pub value: Option<SpannedStr>,
    /// Measurements for which this is false are ignored by this metric.
    pub filter: Option<SpannedStr>,
    /// Label names and their values, in the user's order.
    pub labels: Vec<Label>,
    /// Whether `pid`, `tid` and raw pointers are allowed as labels. Those of stacks are no series of Prometheus, and may be anything.
    pub allow_high_cardinality: bool,
    /// Most label sets kept; what comes after goes to the series whose labels are all `other`.
    pub max_series: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MetricKind {
    /// A sum that never goes back.
    Counter,
    /// A number that may go down. `None`: the sum over the objects of an iterator, else the last value.
    Gauge(Option<Aggregate>),
    /// A distribution.
    Histogram(BucketSpec),
    /// Sums by call stack.
    Stacks(StackSpec),
}

/// What a gauge keeps of the values of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    Last,
    Min,
    Max,
    /// Values are added, negative ones too.
    Sum,
}

impl Aggregate {
    pub const ALL: [Aggregate; 4] = [Aggregate::Last, Aggregate::Min, Aggregate::Max, Aggregate::Sum];

    /// What is kept of two values that came in this order, as they are stored.
    pub fn of(self, before: u64, value: u64, signed: bool) -> u64 {
        let value_is_larger = if signed { value as i64 > before as i64 } else { value > before };
        match self {
            Aggregate::Last => value,
            Aggregate::Min => {
                if value_is_larger {
                    before
                } else {
                    value
                }
            }
            Aggregate::Max => {
                if value_is_larger {
                    value
                } else {
                    before
                }
            }
            Aggregate::Sum => before.wrapping_add(value),
        }
    }

    /// As `keep:` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Aggregate::Last => "last",
            Aggregate::Min => "min",
            Aggregate::Max => "max",
            Aggregate::Sum => "sum",
        }
    }
}

/// Which stacks a metric of kind `stacks` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackSpec {
    /// The kernel's.
    pub kernel: bool,
    /// The process's.
    pub user: bool,
    /// Most frames of each.
    pub depth: u32,
    /// At the start of a span, whose task may be another than that of its end; else where the value is measured.
    pub at_start: bool,
    /// How the process's is walked, where the kernel can do both.
    pub unwind: Unwind,
}

/// How a user stack is walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unwind {
    /// By tables made of `.eh_frame`, and by frame pointers where there is none.
    #[default]
    Tables,
    /// By the kernel, which follows frame pointers.
    FramePointers,
}

impl StackSpec {
    /// Key fields that it adds behind those of the labels; see [`crate::layout::CellKind::Stacks`].
    pub fn key_fields(&self) -> usize {
        usize::from(self.kernel) + 2 * usize::from(self.user)
    }
}

/// One label of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Prometheus label name.
    pub name: SpannedStr,
    /// Expression, whose outermost call may be a decoder (`errno(-retval)`).
    pub value: SpannedStr,
}

/// What a probe may use at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of kernel maps, all maps of the probe together.
    pub map_bytes: u64,
    /// Instructions of one program.
    pub instructions: u32,
    /// Places that all programs of the probe attach to, together.
    pub attach_points: u32,
    /// Whether the agent may sample events while the probe runs; costs each program a look at one word.
    pub sampled: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { map_bytes: 16 << 20, instructions: 4096, attach_points: 512, sampled: false }
    }
}
