//! `kstrobe explain PROBE`: what a probe becomes on this kernel.

use std::process::ExitCode;

use clap::ValueEnum;
use kstrobe_ebpf::layout::{CellKind, Index, Layout, MapKind, Table};

use super::{Output, SourceArgs, complain, table};
use crate::plan::attach_point;
use crate::sources::{self, Choice};
use crate::{prepare, sources::choose};
use kstrobe_config::model::Probe;
use kstrobe_ebpf::Artifact;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Probe or pack.
    probe: String,
    #[command(flatten)]
    source: SourceArgs,
    /// Also print this stage of the compiler.
    #[arg(long, value_enum)]
    stage: Option<Stage>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// Intermediate representation.
    Ir,
    /// eBPF instructions.
    Asm,
}

pub fn run(args: &Args) -> ExitCode {
    let (probes, diagnostics) = sources::probes(args.source.probes.as_deref());
    complain(&diagnostics);
    let agent = kstrobe_config::model::Agent::default();
    let choice = Choice { only: vec![args.probe.clone()], ..Choice::default() };
    let (chosen, unknown) = choose(probes, &agent, &choice);
    if !unknown.is_empty() {
        complain(&unknown);
        return ExitCode::from(1);
    }
    let prepared = prepare::prepare(chosen, args.source.btf.as_deref());
    let mut code = ExitCode::SUCCESS;
    for (draft, refusal) in &prepared.refused {
        eprintln!("{}: cannot run on this kernel ({})", draft.probe.name.value, prepared.target.release);
        complain(&refusal.diagnostics);
        code = ExitCode::from(1);
    }
    match args.output {
        Output::Text => prepared.planned.iter().for_each(|(draft, artifact)| text(&draft.probe, artifact, args.stage)),
        Output::Json => {
            println!(
                "{}",
                serde_json::Value::from(
                    prepared.planned.iter().map(|(draft, artifact)| json(&draft.probe, artifact)).collect::<Vec<_>>()
                )
            );
        }
    }
    code
}

fn text(probe: &Probe, artifact: &Artifact, stage: Option<Stage>) {
    println!("{}: {}", probe.name.value, probe.summary);
    let programs = &artifact.programs;
    if programs.is_empty() {
        println!("  runs in the agent: rows of a poll source go through the IR interpreter");
    } else {
        let rows = programs.iter().map(|i| {
            let (hook, why) = attach_point(&i.attach);
            vec![i.name.clone(), hook, i.instructions.to_string(), i.stack_bytes.to_string(), why.to_string()]
        });
        table(&["program", "hook", "instructions", "stack", "why"], &rows.collect::<Vec<_>>());
        println!();
        maps(&artifact.module.layout);
    }
    println!();
    metrics(probe, artifact);
    match stage {
        Some(Stage::Ir) => println!("\n{}", kstrobe_ebpf::ir::print::module(&artifact.module)),
        Some(Stage::Asm) => {
            for i in programs {
                println!("\n{}:\n{}", i.name, i.listing);
            }
        }
        None => {}
    }
    println!();
}

fn maps(layout: &Layout) {
    let rows: Vec<_> = layout
        .maps
        .iter()
        .map(|m| {
            let kind = match m.kind {
                MapKind::Array { mmap: true } => "array, read by mmap",
                MapKind::Array { mmap: false } => "array",
                MapKind::Hash => "hash",
                MapKind::Stack => "stack",
                MapKind::TaskStorage => "task storage (grows with tasks)",
            };
            let numbers = [m.key_bytes, m.value_bytes, m.entries].map(|n| n.to_string());
            let mut row = vec![m.name.clone(), kind.to_string()];
            row.extend(numbers);
            row.push(m.bytes().to_string());
            row
        })
        .collect();
    table(&["map", "kind", "key", "value", "entries", "bytes"], &rows);
    println!("{} bytes of maps at {} CPUs", layout.bytes(), layout.cpus);
}

fn metrics(probe: &Probe, artifact: &Artifact) {
    let layout = &artifact.module.layout;
    let rows: Vec<_> = layout
        .tables
        .iter()
        .flat_map(|t| t.cells.iter().map(move |c| (t, c)))
        .map(|(t, c)| {
            let m = &probe.metrics[c.metric as usize];
            let labels: Vec<_> = m.labels.iter().map(|(n, _)| n.value.as_str()).collect();
            let kind = match &c.kind {
                CellKind::Counter => "counter".to_string(),
                CellKind::Gauge { .. } => "gauge".to_string(),
                CellKind::Histogram(s) => format!("histogram, {} buckets", s.buckets()),
            };
            vec![format!("kstrobe_{}", m.name.value), kind, labels.join(","), series(t), c.kind.bytes().to_string()]
        })
        .collect();
    table(&["metric", "type", "labels", "series", "bytes/series/shard"], &rows);
}

fn series(t: &Table) -> String {
    let adds = if t.shards > 1 { format!("{} shards", t.shards) } else { "1 shard".into() };
    match &t.index {
        Index::Single => format!("1, {adds}"),
        Index::Dense(d) => {
            let d: Vec<_> = d.iter().map(u32::to_string).collect();
            format!("array of {}, {adds}", d.join("x"))
        }
        Index::Hash { .. } => format!("hash of {}, {adds}", t.slots - 1),
    }
}

fn json(probe: &Probe, artifact: &Artifact) -> serde_json::Value {
    let programs: Vec<_> = artifact
        .programs
        .iter()
        .map(|i| {
            let (hook, why) = attach_point(&i.attach);
            serde_json::json!({ "name": i.name, "hook": hook, "why": why, "instructions": i.instructions, "stack_bytes": i.stack_bytes })
        })
        .collect();
    let layout = &artifact.module.layout;
    let maps: Vec<_> = layout
        .maps
        .iter()
        .map(|m| serde_json::json!({ "name": m.name, "key_bytes": m.key_bytes, "value_bytes": m.value_bytes, "entries": m.entries, "bytes": m.bytes() }))
        .collect();
    serde_json::json!({ "probe": probe.name.value, "programs": programs, "maps": maps, "map_bytes": layout.bytes(), "cpus": layout.cpus })
}
