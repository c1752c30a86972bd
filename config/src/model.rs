//! Checked definitions. Fields are public and there are no setters: a value of these types is already valid.

mod capture;
mod exporter;
mod web;
mod workloads;

pub use capture::*;
pub use exporter::*;
pub use web::*;
pub use workloads::*;

// A probe is read as the compiler takes it, each text with its place.
pub use kstrobe_ebpf::buckets::BucketSpec;
pub use kstrobe_ebpf::program::{
    Aggregate, Binary, Edge, Every, Hook, HookKind, Keep, Label, Limits, Metric, MetricKind, Owner, PerfEvent, Program,
    Sampling, Shape, Slow, Span, SpanField, StackSpec, Step, Steps, Unwind, Via,
};
pub use kstrobe_ebpf::source::{Location, SourceFile, Spanned, SpannedStr};

/// One probe (one YAML document): the compiler's input, and what the agent alone needs of it.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Where it runs and what it measures.
    pub program: Program,
    /// Stem of the file it stands in: `--enable` takes it too.
    pub pack: String,
    /// One sentence.
    pub summary: String,
    /// `replaces:` names of the tools whose question it answers, in lower case and without a package's suffix.
    pub replaces: Vec<String>,
    pub cost: Option<Cost>,
    /// Whether it runs without being named (`enabled:`, default true).
    pub enabled: bool,
    /// What exporters need of each metric, in the order of the program's.
    pub metrics: Vec<MetricMeta>,
    /// `budget_cpu_percent:` in millionths of one CPU's time, 0 for none; absent means a share of the agent's.
    pub budget_ppm: Option<u64>,
    /// `engine:`, default [`Engine::Bpf`].
    pub engine: Engine,
}

impl Probe {
    /// C identifier, unique among all probes loaded.
    pub fn name(&self) -> &str {
        &self.program.name.value
    }

    /// Its metrics in file order.
    pub fn metrics(&self) -> impl Iterator<Item = (&Metric, &MetricMeta)> + Clone {
        self.program.metrics.iter().zip(&self.metrics)
    }
}

/// `cost:` what running a probe takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    pub class: CostClass,
    /// The event that it is paid for, and what one takes.
    pub per: String,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, per {}", self.class.name(), self.per)
    }
}

/// What running a probe takes on a busy node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CostClass {
    /// Its events are rare, or read at a scrape.
    Low,
    /// Thousands of events a second, of which each takes less than a microsecond.
    Medium,
    /// It may use up its budget.
    High,
}

impl CostClass {
    pub fn name(self) -> &'static str {
        match self {
            CostClass::Low => "low",
            CostClass::Medium => "medium",
            CostClass::High => "high",
        }
    }
}

/// `engine:` what runs a probe.
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

/// What exporters need of a metric besides its series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricMeta {
    /// `help:`; the probe's summary when absent.
    pub help: String,
    /// `unit:` or the name's suffix: `seconds`, `bytes`, ... ; empty when there is none.
    pub unit: String,
    /// Raw units per exported unit: 1e9 when the unit is `seconds`, else 1.
    pub raw_per_unit: u64,
    /// `ttl:` nanoseconds, default 15 min; 0 = never.
    pub ttl_ns: u64,
}

/// `history:` what the agent keeps of its metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// `enabled:` default true.
    pub enabled: bool,
    /// `keep:` nanoseconds, default 15 min, with `dir` 24 h.
    pub keep_ns: u64,
    /// `dir:` of the files, if seconds are written to any.
    pub dir: Option<String>,
    /// `max_bytes:` of all files, default 512 MiB.
    pub max_bytes: u64,
    /// `max_memory:` bytes, default 32 MiB.
    pub max_memory: u64,
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
    pub kubernetes: Kubernetes,
    pub workloads: Workloads,
    /// `limits.budget_percent:` of all probes without a budget of their own together, in millionths of the time of all CPUs, default
    /// 2 %; 0 for none.
    pub budget_ppm: u64,
    /// `limits.native_bucket_limit:` populated buckets of a native histogram, default 160; 0 for no limit.
    pub native_bucket_limit: usize,
    /// `limits.kept_events:` single events of each probe that the agent keeps, default 1024.
    pub kept_events: usize,
    pub history: History,
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
