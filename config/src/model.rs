//! Checked definitions. Fields are public and there are no setters: a value of these types is already valid.

mod capture;
mod exporter;
mod web;
mod workloads;

pub use capture::*;
pub use exporter::*;
use std::sync::Arc;
pub use web::*;
pub use workloads::*;

/// A YAML file: its name as shown to people and its text.
#[derive(Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Path or a name such as `<embedded>/softirq.yaml`.
    pub name: String,
    /// Text.
    pub text: String,
}

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it was written.
    pub at: Location,
}

/// A byte range in a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub file: Arc<SourceFile>,
    /// First byte of the scalar or key.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// 1-based.
    pub line: u32,
    /// 1-based, in characters.
    pub column: u32,
}

/// One probe (one YAML document).
#[derive(Clone, Debug)]
pub struct Probe {
    /// C identifier, unique among all probes loaded.
    pub name: Spanned<String>,
    /// Stem of the file it stands in: `--enable` takes it too.
    pub pack: String,
    /// One sentence.
    pub summary: String,
    /// Whether it runs without being named (`enabled:`, default true).
    pub enabled: bool,
    /// Where it runs.
    pub shape: Shape,
    /// `where:` of the document.
    pub filter: Option<Spanned<String>>,
    /// Another condition: `where:` of the probe's `probes.override`.
    pub also: Option<Spanned<String>>,
    /// `owner:`.
    pub owner: Owner,
    /// Metrics in file order.
    pub metrics: Vec<Metric>,
    /// `slow:`.
    pub slow: Option<Slow>,
    /// `max_map_bytes:`, default 16 MiB.
    pub max_map_bytes: u64,
    /// `budget_cpu_percent:` in millionths of one CPU's time, 0 for none; absent means the agent's own.
    pub budget_ppm: Option<u64>,
    /// `engine:`, default [`Engine::Bpf`].
    pub engine: Engine,
}

/// `owner:` whose the events are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// The task's that runs.
    #[default]
    Current,
    /// `none`
    None,
    /// An expression, or `{start: .., end: ..}`.
    Of {
        /// Where events are measured.
        end: Spanned<String>,
        /// At the start of a span.
        start: Option<Spanned<String>>,
    },
}

/// What runs a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Programs in the kernel; where it refuses them, an ftrace session.
    Auto,
    /// Programs in the kernel.
    #[default]
    Bpf,
    /// An ftrace session, whose records the agent reads.
    Ftrace,
}

/// `slow:` records of single events.
#[derive(Clone, Debug)]
pub struct Slow {
    /// `when:`.
    pub when: Spanned<String>,
    /// `fields:` name to expression, in file order.
    pub fields: Vec<(Spanned<String>, Spanned<String>)>,
    /// `max_per_second:` on each CPU, default 10.
    pub max_per_second: u32,
    /// `buffer:` bytes of the ring buffer, or of each CPU's perf buffer; without it, room for two seconds.
    pub buffer_bytes: Option<u32>,
}

/// Where a probe runs.
#[derive(Clone, Debug)]
pub enum Shape {
    /// `at:` one hook or a list.
    At(Vec<Spanned<Hook>>),
    /// `span:`.
    Span(Span),
    /// `state:` and `steps:`.
    Steps(Steps),
    /// `poll:`.
    Poll {
        /// `source:`.
        source: Spanned<String>,
        /// `every:`, default 5s.
        every_ns: u64,
    },
}

/// `span:`.
#[derive(Clone, Debug)]
pub struct Span {
    /// `start:` one hook or a list.
    pub start: Vec<Spanned<Hook>>,
    /// `end:` one hook or a list.
    pub end: Vec<Spanned<Hook>>,
    /// `by:` one expression or a list; empty means `tid`.
    pub by: Vec<Spanned<String>>,
    /// `by: {start: .., end: ..}` gives the end its own; else empty.
    pub by_end: Vec<Spanned<String>>,
    /// `save:` name to expression, in file order.
    pub save: Vec<(Spanned<String>, Spanned<String>)>,
    /// `where:` inside `span:`, or its `start`.
    pub filter: Option<Spanned<String>>,
    /// `where: {end: ..}` inside `span:`.
    pub filter_end: Option<Spanned<String>>,
    /// `keep: first|last`, default last.
    pub keep_first: bool,
    /// `max_entries:`, default 16384.
    pub max_open: u32,
}

/// `state:` and `steps:`.
#[derive(Clone, Debug)]
pub struct Steps {
    /// `state.by:` one expression or a list.
    pub by: Vec<Spanned<String>>,
    /// `state.fields:` name to type, in file order.
    pub fields: Vec<(Spanned<String>, Spanned<String>)>,
    /// `state.max_entries:`, default 16384.
    pub max_entries: u32,
    /// `steps:` in file order.
    pub steps: Vec<Step>,
}

/// One of `steps:`.
#[derive(Clone, Debug)]
pub struct Step {
    /// `at:` one hook or a list.
    pub hooks: Vec<Spanned<Hook>>,
    /// `where:`.
    pub filter: Option<Spanned<String>>,
    /// `by:`, empty means that of `state:`.
    pub by: Vec<Spanned<String>>,
    /// `set:` field to expression, in file order.
    pub set: Vec<(Spanned<String>, Spanned<String>)>,
    /// `observe:` names of metrics.
    pub observe: Vec<Spanned<String>>,
    /// `delete:`.
    pub delete: bool,
}

/// A hook, parsed from its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// `tracepoint:SYSTEM:EVENT`
    Tracepoint {
        /// Subsystem.
        system: String,
        /// Event.
        event: String,
    },
    /// `rawtracepoint:EVENT`
    RawTracepoint {
        /// Event.
        event: String,
    },
    /// `syscall:NAME:enter`, `syscall:[A, B]:exit`, `syscall:*:enter` (empty list)
    Syscall {
        /// Names.
        names: Vec<String>,
        /// `exit` rather than `enter`.
        exit: bool,
    },
    /// `interval:s:1`, `interval:ms:100`
    Interval {
        /// Nanoseconds.
        period_ns: u64,
    },
    /// `function:[MODULE:]NAME:entry|return`, `fentry:`, `fexit:`, `kprobe:[MODULE:]NAME[+OFFSET]`, `kretprobe:`
    Function {
        /// Name or pattern.
        name: String,
        /// Module.
        module: Option<String>,
        /// Bytes into the function.
        offset: u64,
        /// The return rather than the entry.
        exit: bool,
        /// Which mechanism.
        via: Via,
    },
    /// `uprobe:PATH:SYMBOL[+OFFSET]`, `uretprobe:PATH:SYMBOL`
    User {
        /// Path, pattern or library name.
        path: String,
        /// Only this process.
        pid: Option<u32>,
        /// Symbol or pattern.
        symbol: String,
        /// Bytes into the function.
        offset: u64,
        /// The return rather than the entry.
        exit: bool,
    },
    /// `usdt:PATH:PROVIDER:NAME`
    Usdt {
        /// Path, pattern or library name.
        path: String,
        /// Only this process.
        pid: Option<u32>,
        /// Provider.
        provider: String,
        /// Name.
        name: String,
    },
    /// `profile:hz:99`, `hardware:EVENT:PERIOD`, `software:EVENT:PERIOD`
    Sample {
        /// What is counted.
        event: PerfEvent,
        /// How often.
        every: Every,
    },
    /// `iter:task`
    Iter {
        /// Kind of object.
        object: String,
    },
    /// `first_of:` a list of hooks
    FirstOf(Vec<Spanned<Hook>>),
}

/// How a kernel function is hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// `function:`
    Best,
    /// `fentry:`, `fexit:`
    Fentry,
    /// `kprobe:`, `kretprobe:`
    Kprobe,
}

/// What a perf event counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerfEvent {
    /// `profile:`
    CpuClock,
    /// `hardware:`
    Hardware(String),
    /// `software:`
    Software(String),
}

/// How often a perf event runs its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// `hz:`
    Hertz(u64),
    /// `s:`, `ms:`, `us:`
    Nanoseconds(u64),
    /// A number of events.
    Events(u64),
}

/// One metric.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Without the `kstrobe_` prefix.
    pub name: Spanned<String>,
    /// Whether name and type are right. If not, the name says nothing of what the value must be.
    pub named: bool,
    /// `help:`; the probe's summary when absent.
    pub help: Option<String>,
    /// Kind.
    pub kind: MetricKind,
    /// `value:`.
    pub value: Option<Spanned<String>>,
    /// `where:`.
    pub filter: Option<Spanned<String>>,
    /// `unit:` or the name's suffix: `seconds`, `bytes`, ... ; empty when there is none.
    pub unit: String,
    /// Raw units per exported unit: 1e9 when the unit is `seconds`, else 1.
    pub raw_per_unit: u64,
    /// `labels:` in file order: name, expression.
    pub labels: Vec<(Spanned<String>, Spanned<String>)>,
    /// `max_series:`, default 1024.
    pub max_series: u32,
    /// `ttl:` nanoseconds, default 15 min; 0 = never.
    pub ttl_ns: u64,
    /// `allow_high_cardinality:`.
    pub allow_high_cardinality: bool,
}

/// Kinds of metric.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricKind {
    /// `counter`
    Counter,
    /// `gauge`
    Gauge,
    /// `histogram`
    Histogram(Buckets),
    /// `stacks`
    Stacks {
        /// `stacks:` has `kernel`.
        kernel: bool,
        /// `stacks:` has `user`.
        user: bool,
        /// `depth:`, default 127.
        depth: u32,
        /// `taken: start`: at the start of the span rather than at its end.
        at_start: bool,
    },
}

/// `buckets:`, with defaults filled in: schema 3; 1us .. 16s and classic 1, 2.5, 5 x 10^k s from 1us to 10s for
/// seconds; 1 .. 2^30 and powers of 4 for anything else.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    /// `schema:` 0..=5.
    pub schema: u8,
    /// `min:` raw units.
    pub min: u64,
    /// `max:` raw units.
    pub max: u64,
    /// `classic:` upper bounds in the exported unit as decimal text, ascending.
    pub classic: Vec<String>,
}

/// `kstrobe.yaml`: the agent's own configuration. Every key is optional.
#[derive(Clone, Debug)]
pub struct Agent {
    /// `listen:` addresses, default `127.0.0.1:9779`.
    pub listen: Vec<String>,
    /// `probes.enable:` names or packs to run besides those enabled by default.
    pub enable: Vec<Spanned<String>>,
    /// `probes.disable:` names or packs not to run.
    pub disable: Vec<Spanned<String>>,
    /// `probes.directory:` of YAML files, besides the embedded ones.
    pub probes_directory: Option<Spanned<String>>,
    /// `probes.override:` in file order.
    pub overrides: Vec<Override>,
    /// `kubernetes:`.
    pub kubernetes: Kubernetes,
    /// `workloads:`.
    pub workloads: Workloads,
    /// `limits.budget_cpu_percent:` of each probe, in millionths of one CPU's time, default 2 %; 0 for none.
    pub budget_ppm: u64,
    /// `limits.native_bucket_limit:` populated buckets of a native histogram, default 160; 0 for no limit.
    pub native_bucket_limit: usize,
    /// `limits.kept_events:` single events of each probe that the agent keeps, default 1024.
    pub kept_events: usize,
    /// `events:` where lines of single events are written: `stderr`, `none` (the default) or the path of a file.
    pub events: String,
    /// `captures:`; without it there are none.
    pub captures: Option<Captures>,
    /// `rules:` in file order.
    pub rules: Vec<Rule>,
    /// `exporters:` in file order, those of OTLP first.
    pub exporters: Vec<Exporter>,
    /// `log.level:` default `info`.
    pub log_level: String,
    /// `log.format:` `logfmt` or `json`.
    pub log_json: bool,
}
