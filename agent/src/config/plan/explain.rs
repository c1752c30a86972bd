//! What a probe becomes on a kernel, as plain data for people and programs.

use kstrobe_ebpf::layout::{CellKind, Index, Layout, MapKind, StackSpec, Table, Unwind};
use kstrobe_ebpf::{Artifact, Target, ir};
use serde::Serialize;

use super::{BudgetLimit, ProbeMeta, ProbePlan};

/// A compiled probe, explained.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Its name.
    pub probe: String,
    /// One sentence.
    pub summary: String,
    /// Tools whose question it answers.
    pub replaces: Vec<String>,
    /// Class of its cost, and the event that it is paid for.
    pub cost: Option<String>,
    /// What was chosen among several ways.
    pub choices: Vec<Choice>,
    /// Whether it compiled to nothing, as its conditions are never true on this kernel.
    pub idle: bool,
    /// Programs in the kernel; none for a poll.
    pub programs: Vec<Program>,
    pub maps: Vec<Map>,
    pub map_bytes: u64,
    /// CPUs they were sized for.
    pub cpus: u32,
    /// Bytes of all maps on a big machine ([`BIG_MACHINE_CPUS`]), or why it cannot run there.
    pub map_bytes_big: Result<u64, String>,
    /// Most time its programs may take, and what happens beyond; empty without programs.
    pub budget: String,
    pub metrics: Vec<Metric>,
    /// The compiler's intermediate form.
    #[serde(skip)]
    pub ir: String,
}

/// A choice made for this kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// What was asked for, or is best.
    pub wanted: String,
    /// What it became.
    pub got: String,
    /// Why not something better; empty when it is the best.
    pub because: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Program {
    /// Name as `bpftool prog` shows it.
    pub name: String,
    /// Where it attaches.
    pub hook: String,
    /// Why there.
    pub why: &'static str,
    /// Instructions: also the bound on what an event costs, as there are no loops.
    pub instructions: u32,
    pub stack_bytes: u32,
    /// Disassembly.
    #[serde(skip)]
    pub listing: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Map {
    /// Name as `bpftool map` shows it.
    pub name: String,
    pub kind: &'static str,
    pub key_bytes: u32,
    pub value_bytes: u32,
    /// Elements.
    pub entries: u32,
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Metric {
    /// Exported name.
    pub name: String,
    /// Type, and for a histogram its in-kernel buckets.
    pub kind: String,
    /// Label names.
    pub labels: Vec<String>,
    /// How label sets are found and how many there can be.
    pub series: String,
    /// Bytes one series takes in each shard.
    pub bytes: u32,
}

/// Numbers of CPUs for which the worst case of memory is shown besides this machine's.
pub const BIG_MACHINE_CPUS: u32 = 256;

/// Explains a probe that was compiled for a kernel.
pub fn explain(plan: &ProbePlan, artifact: &Artifact, target: &Target) -> Explanation {
    let meta = plan.meta();
    let big = Target { cpus: BIG_MACHINE_CPUS, ..target.clone() };
    let map_bytes_big = plan.compile(&big).map(|a| a.module.layout.bytes()).map_err(|refusal| refusal.reason());
    let layout = &artifact.module.layout;
    let program = |p: &kstrobe_ebpf::ProgramInfo| Program {
        name: p.name.clone(),
        hook: p.attach.to_string(),
        why: p.attach.why(),
        instructions: p.instructions,
        stack_bytes: p.stack_bytes,
        listing: p.listing.clone(),
    };
    Explanation {
        probe: meta.name.clone(),
        summary: meta.summary.clone(),
        replaces: meta.replaces.clone(),
        cost: meta.cost.as_ref().map(ToString::to_string),
        choices: choices(artifact),
        idle: artifact.is_idle(),
        programs: artifact.programs.iter().map(program).collect(),
        maps: maps(layout),
        map_bytes: layout.bytes(),
        cpus: layout.cpus,
        map_bytes_big,
        budget: budget(meta, artifact),
        metrics: metrics(meta, layout),
        ir: ir::print::module(&artifact.module),
    }
}

/// What was chosen for a compiled probe.
pub fn choices(artifact: &Artifact) -> Vec<Choice> {
    let choice = |c: &kstrobe_ebpf::typed::Choice| Choice {
        wanted: c.wanted.clone(),
        got: c.got.clone(),
        because: c.because.clone(),
    };
    artifact.choices.iter().map(choice).collect()
}

fn budget(meta: &ProbeMeta, artifact: &Artifact) -> String {
    let limit = match meta.budget {
        BudgetLimit::None => None,
        BudgetLimit::Own(ppm) => Some(format!("{} % of one CPU", ppm as f64 / 1e4)),
        BudgetLimit::Shared => Some("a share of `limits.budget_percent`".to_owned()),
    };
    match (artifact.programs.is_empty(), limit, &artifact.module.layout.control) {
        (true, ..) => String::new(),
        _ if artifact.programs.iter().any(|p| p.attach.is_iterator()) => {
            "none: it runs when the metrics are read, at most once a second".into()
        }
        (_, None, _) => "none".into(),
        (_, Some(limit), Some(_)) => format!("{limit}, beyond which events are sampled"),
        (_, Some(limit), None) => format!("{limit}, beyond which the probe is suspended"),
    }
}

/// How this kernel runs a probe: the kinds of hook, and each choice that was not the best; or why it cannot.
pub fn here(plan: &ProbePlan, target: &kstrobe_ebpf::Target) -> String {
    let artifact = match plan.compile(target) {
        Ok(artifact) => artifact,
        Err(refusal) => {
            let first = refusal.errors().next();
            return format!("cannot run: {}", first.map_or("it is wrong", |d| d.message.as_str()));
        }
    };
    if artifact.is_idle() {
        return "nothing: never true on this kernel".into();
    }
    let mut kinds: Vec<&str> = artifact.programs.iter().map(|p| p.attach.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kinds = if kinds.is_empty() { "poll".into() } else { kinds.join(",") };
    let choices = choices(&artifact);
    let lesser = choices.iter().filter(|c| !c.because.is_empty());
    let lesser: Vec<String> = lesser.map(|c| format!("{} for {}: {}", c.got, c.wanted, c.because.join("; "))).collect();
    if lesser.is_empty() { kinds } else { format!("{kinds} ({})", lesser.join(", ")) }
}

fn maps(layout: &Layout) -> Vec<Map> {
    let map = |m: &kstrobe_ebpf::layout::MapDef| Map {
        name: m.name.clone(),
        kind: match m.kind {
            MapKind::Array { mmap: true } => "array, read by mmap",
            MapKind::Array { mmap: false } => "array",
            MapKind::Hash => "hash",
            MapKind::Stack => "stack",
            MapKind::TaskStorage => "task storage (grows with tasks)",
            MapKind::LruHash => "hash, least recently used go first",
            MapKind::RingBuf => "ring buffer",
            MapKind::PerfEvents => "perf buffers",
            MapKind::StackTrace => "call stacks",
        },
        key_bytes: m.key_bytes,
        value_bytes: m.value_bytes,
        entries: m.entries,
        bytes: m.bytes(),
    };
    layout.maps.iter().map(map).collect()
}

fn metrics(meta: &ProbeMeta, layout: &Layout) -> Vec<Metric> {
    let cells = layout.tables.iter().flat_map(|t| t.cells.iter().map(move |c| (t, c)));
    let metric = |(table, cell): (&Table, &kstrobe_ebpf::layout::Cell)| {
        let about = &meta.metrics[cell.metric as usize].about;
        Metric {
            name: match cell.kind {
                // No metric of Prometheus, so that it has no prefix there.
                CellKind::Stacks(_) => about.name.trim_start_matches(super::PREFIX).to_owned(),
                _ => about.name.clone(),
            },
            kind: match &cell.kind {
                CellKind::Counter => "counter".into(),
                CellKind::Stacks(spec) => stacks(spec),
                CellKind::Gauge { .. } => "gauge".into(),
                CellKind::Sum { .. } => "gauge, added up".into(),
                CellKind::Extreme { end, .. } => format!("gauge, {} of each CPU", end.aggregate().name()),
                CellKind::Histogram(s) => format!("histogram, {} buckets", s.buckets()),
            },
            labels: about.label_names.clone(),
            series: series(table),
            bytes: cell.kind.bytes(),
        }
    };
    cells.map(metric).collect()
}

fn stacks(spec: &StackSpec) -> String {
    let halves = [(spec.kernel, "kernel"), (spec.user, "user")];
    let halves: Vec<_> = halves.into_iter().filter(|(taken, _)| *taken).map(|(_, name)| name).collect();
    let when = if spec.at_start { ", at the start" } else { "" };
    let unwind = match spec.unwind {
        Unwind::FramePointers if spec.user => ", by frame pointers",
        _ => "",
    };
    format!("stacks, {} of {} frames{when}{unwind}", halves.join(" and "), spec.depth)
}

fn series(t: &Table) -> String {
    let shards = if t.shards == 1 { "1 shard".to_string() } else { format!("{} shards", t.shards) };
    match &t.index {
        Index::Single => format!("1, {shards}"),
        Index::Dense(d) => {
            let d: Vec<_> = d.iter().map(u32::to_string).collect();
            format!("array of {}, {shards}", d.join("x"))
        }
        Index::Hash { .. } => format!("hash of {}, {shards}", t.slots - 1),
    }
}
