//! `kstrobe explain PROBE`: what a probe becomes on this kernel.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use super::{KernelArgs, Output, table};
use crate::config::compile;
use crate::config::diagnostics::print_diagnostics;
use crate::config::files;
use crate::config::files::Choice;
use crate::config::plan;
use crate::config::plan::explain::{BIG_MACHINE_CPUS, Explanation, explain};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Probe or pack.
    probe: String,
    /// File of probes, or directory of such files, besides the shipped ones; a file replaces the shipped one of its name, a probe the shipped one of its name.
    #[arg(long, value_name = "FILE|DIR")]
    probes: Option<PathBuf>,
    #[command(flatten)]
    kernel: KernelArgs,
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
    let (probes, diagnostics) = files::probes(args.probes.as_deref());
    print_diagnostics(&diagnostics);
    let choice = Choice { only: vec![args.probe.clone()], ..Choice::default() };
    let (chosen, unknown) = files::choose(probes, &Default::default(), &choice);
    if !unknown.is_empty() {
        print_diagnostics(&unknown);
        return ExitCode::from(1);
    }
    let plans: Vec<_> = chosen.into_iter().map(plan::plan).collect();
    let target = match args.kernel.target(&plans) {
        Ok(target) => target,
        Err(unread) => {
            print_diagnostics(&[unread]);
            return ExitCode::from(1);
        }
    };
    let prepared = compile::compile(plans, target);
    let release = &prepared.target.release;
    let which = if args.kernel.target.is_some() { "that" } else { "this" };
    let mut code = ExitCode::SUCCESS;
    for (plan, refusal) in &prepared.refused {
        eprintln!("{}: cannot run on {which} kernel ({release})", plan.meta().name);
        print_diagnostics(&refusal.diagnostics);
        code = ExitCode::from(1);
    }
    print_diagnostics(&prepared.warnings());
    for (plan, refusal) in &prepared.waiting {
        eprintln!("{}: waits for the program that it hooks", plan.meta().name);
        print_diagnostics(&refusal.diagnostics);
    }
    let explanations: Vec<_> = prepared.planned.iter().map(|(plan, a)| explain(plan, a, &prepared.target)).collect();
    match args.output {
        Output::Text => explanations.iter().for_each(|e| text(e, args.stage)),
        Output::Json => println!("{}", serde_json::json!(explanations)),
    }
    code
}

fn text(e: &Explanation, stage: Option<Stage>) {
    println!("{}: {}", e.probe, e.summary);
    if !e.replaces.is_empty() {
        println!("replaces: {}", e.replaces.join(", "));
    }
    if let Some(cost) = &e.cost {
        println!("cost: {cost}");
    }
    if e.idle {
        println!("  compiles to nothing: its conditions are never true on this kernel\n");
        return;
    }
    if e.programs.is_empty() {
        println!("  runs in the agent: rows of a poll source go through the IR interpreter");
    } else {
        let rows = e.programs.iter().map(|p| {
            let numbers = [p.instructions, p.stack_bytes].map(|n| n.to_string());
            [vec![p.name.clone(), p.hook.clone()], numbers.to_vec(), vec![p.why.to_string()]].concat()
        });
        table(&["program", "hook", "instructions", "stack", "why"], &rows.collect::<Vec<_>>());
        println!();
        let rows = e.maps.iter().map(|m| {
            let numbers = [m.key_bytes, m.value_bytes, m.entries].map(|n| n.to_string());
            [vec![m.name.clone(), m.kind.to_string()], numbers.to_vec(), vec![m.bytes.to_string()]].concat()
        });
        table(&["map", "kind", "key", "value", "entries", "bytes"], &rows.collect::<Vec<_>>());
        let big = e.map_bytes_big.as_ref().map_or_else(|why| format!("refused ({why})"), |bytes| bytes.to_string());
        println!("{} bytes of maps at {} CPUs; at {BIG_MACHINE_CPUS}: {big}", e.map_bytes, e.cpus);
        println!("budget: {}", e.budget);
    }
    choices(e);
    println!();
    let rows = e
        .metrics
        .iter()
        .map(|m| vec![m.name.clone(), m.kind.clone(), m.labels.join(","), m.series.clone(), m.bytes.to_string()]);
    table(&["metric", "type", "labels", "series", "bytes/series/shard"], &rows.collect::<Vec<_>>());
    match stage {
        Some(Stage::Ir) => println!("\n{}", e.ir),
        Some(Stage::Asm) => e.programs.iter().for_each(|p| println!("\n{}:\n{}", p.name, p.listing)),
        None => {}
    }
    println!();
}

fn choices(e: &Explanation) {
    if e.choices.is_empty() {
        return;
    }
    println!();
    let rows = e.choices.iter().map(|c| vec![c.wanted.clone(), c.got.clone(), c.because.join("; ")]);
    table(&["wanted", "got", "because"], &rows.collect::<Vec<_>>());
}
