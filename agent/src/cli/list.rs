//! `kstrobe list`

use std::process::ExitCode;

use clap::ValueEnum;
use kstrobe_config::model::{MetricKind, Shape};

use super::{Output, SourceArgs, complain, table};
use crate::{prepare, sources};

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
        What::Probes => (vec!["probe", "pack", "default", "shape", "summary"], probes(args)),
        What::Metrics => (vec!["metric", "type", "labels", "probe"], metrics(args)),
        What::Tracepoints => {
            let target = prepare::look(&[], args.source.btf.as_deref());
            let Some(btf) = &target.btf else {
                eprintln!("error: this kernel has no BTF; `kstrobe doctor` says more");
                return ExitCode::from(1);
            };
            let mut names: Vec<_> =
                btf.tracepoints().into_iter().map(|n| vec![n.to_string(), arguments(btf, n)]).collect();
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

fn probes(args: &Args) -> Vec<Vec<String>> {
    let (probes, diagnostics) = sources::probes(args.source.probes.as_deref());
    complain(&diagnostics);
    let shape = |s: &Shape| match s {
        Shape::At(_) => "at",
        Shape::Span(_) => "span",
        Shape::Poll { .. } => "poll",
    };
    probes
        .iter()
        .map(|p| {
            let on = if p.enabled { "on" } else { "off" };
            [&p.name.value, &p.pack, on, shape(&p.shape), &p.summary].map(|s: &str| s.to_string()).to_vec()
        })
        .collect()
}

fn metrics(args: &Args) -> Vec<Vec<String>> {
    let (probes, diagnostics) = sources::probes(args.source.probes.as_deref());
    complain(&diagnostics);
    let kind = |k: &MetricKind| match k {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram(_) => "histogram",
    };
    probes
        .iter()
        .flat_map(|p| p.metrics.iter().map(move |m| (p, m)))
        .map(|(p, m)| {
            let labels: Vec<_> = m.labels.iter().map(|(n, _)| n.value.as_str()).collect();
            vec![format!("kstrobe_{}", m.name.value), kind(&m.kind).into(), labels.join(","), p.name.value.clone()]
        })
        .collect()
}

fn arguments(btf: &kstrobe_ebpf::target::Btf, event: &str) -> String {
    let args = btf.tracepoint_args(event).unwrap_or_default();
    let args: Vec<_> = args.iter().map(|(name, ty)| format!("{} {name}", btf.describe(*ty))).collect();
    args.join(", ")
}

fn polls() -> Vec<Vec<String>> {
    crate::polls::sources()
        .iter()
        .map(|s| {
            let fields: Vec<_> = s.fields().into_iter().map(|f| f.name).collect();
            vec![s.name.to_string(), fields.join(","), s.summary.to_string()]
        })
        .collect()
}
