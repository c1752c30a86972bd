//! `kstrobe list`

use std::process::ExitCode;

use clap::ValueEnum;

use super::{Output, SourceArgs, complain, table};
use crate::kernel::detect;
use crate::metrics::snapshot::Kind;
use crate::plan::{Draft, Outline, explain};
use crate::{plan, prepare, sources};
use kstrobe_ebpf::Target;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to list.
    #[arg(value_enum, default_value_t)]
    what: What,
    #[command(flatten)]
    source: SourceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum What {
    /// Probes known, and whether they run by default.
    #[default]
    Probes,
    /// Metrics of all probes.
    Metrics,
    /// Tracepoints of this kernel that `rawtracepoint:` takes.
    Tracepoints,
    /// System calls of this architecture.
    Syscalls,
    /// Sources of `poll:` and their fields.
    Polls,
}

pub fn run(args: &Args) -> ExitCode {
    let (header, rows): (Vec<&str>, Vec<Vec<String>>) = match args.what {
        What::Probes => (vec!["probe", "pack", "default", "hooks", "here", "summary"], probes(args)),
        What::Metrics => (vec!["metric", "type", "labels", "probe"], metrics(args)),
        What::Tracepoints => {
            let target = prepare::look(&[], args.source.btf.as_deref());
            let Some(btf) = &target.btf else {
                let why = detect::without_btf(&target).unwrap_or_default();
                eprintln!("error: tracepoints are listed from the kernel's BTF, and there is none: {why}");
                return ExitCode::from(1);
            };
            let arguments = |event: &str| {
                let args = btf.tracepoint_args(event).unwrap_or_default();
                let args: Vec<_> = args.iter().map(|(name, ty)| format!("{} {name}", btf.describe(*ty))).collect();
                args.join(", ")
            };
            let mut names: Vec<_> = btf.tracepoints().into_iter().map(|n| vec![n.to_string(), arguments(n)]).collect();
            names.sort();
            (vec!["tracepoint", "arguments"], names)
        }
        What::Syscalls => {
            let target = prepare::look(&[], args.source.btf.as_deref());
            (
                vec!["syscall", "number"],
                target.syscalls.iter().map(|(n, s)| vec![n.clone(), s.number.to_string()]).collect(),
            )
        }
        What::Polls => (vec!["source", "fields", "summary"], polls()),
    };
    match args.output {
        Output::Text => table(&header, &rows),
        Output::Json => {
            let list: Vec<_> = rows
                .iter()
                .map(|r| header.iter().zip(r).map(|(h, c)| (h.to_string(), c.clone().into())).collect())
                .map(serde_json::Value::Object)
                .collect();
            println!("{}", serde_json::Value::from(list));
        }
    }
    ExitCode::SUCCESS
}

fn outlines(args: &Args) -> Vec<Outline> {
    let (probes, diagnostics) = sources::probes(args.source.probes.as_deref());
    complain(&diagnostics);
    probes.into_iter().map(|p| plan::draft(p).outline().clone()).collect()
}

fn probes(args: &Args) -> Vec<Vec<String>> {
    let (probes, diagnostics) = sources::probes(args.source.probes.as_deref());
    complain(&diagnostics);
    let drafts: Vec<Draft> = probes.into_iter().map(plan::draft).collect();
    let target = prepare::look(&drafts, args.source.btf.as_deref());
    let row = |draft: &Draft| {
        let o = draft.outline().clone();
        let on = if o.enabled { "on" } else { "off" };
        vec![o.name, o.pack, on.into(), o.hooks.join(" "), here(draft, &target), o.summary]
    };
    drafts.iter().map(row).collect()
}

/// How this kernel runs a probe: the kinds of hook, and each choice that was not the best; or why it cannot.
fn here(draft: &Draft, target: &Target) -> String {
    let artifact = match draft.compile(target) {
        Ok(artifact) => artifact,
        Err(refusal) => {
            let first = refusal.diagnostics.first();
            return format!("cannot run: {}", first.map_or("it is wrong", |d| d.message.as_str()));
        }
    };
    let mut kinds: Vec<&str> = artifact.programs.iter().map(|p| p.attach.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kinds = if kinds.is_empty() { "poll".into() } else { kinds.join(",") };
    let choices = explain::choices(&artifact);
    let lesser = choices.iter().filter(|c| !c.because.is_empty());
    let lesser: Vec<String> = lesser.map(|c| format!("{} for {}", c.got, c.wanted)).collect();
    if lesser.is_empty() { kinds } else { format!("{kinds} ({})", lesser.join(", ")) }
}

fn metrics(args: &Args) -> Vec<Vec<String>> {
    let kind = |k: Kind| match k {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let outlines = outlines(args);
    let all = outlines.iter().flat_map(|o| o.metrics.iter().map(move |m| (o, &m.about)));
    all.map(|(o, m)| vec![m.name.clone(), kind(m.kind).into(), m.label_names.join(","), o.name.clone()]).collect()
}

fn polls() -> Vec<Vec<String>> {
    let row = |s: &crate::polls::Source| {
        let fields: Vec<_> = s.fields().into_iter().map(|f| f.name).collect();
        vec![s.name.to_string(), fields.join(","), s.summary.to_string()]
    };
    crate::polls::sources().iter().map(row).collect()
}
