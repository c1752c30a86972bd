//! `kstrobe list`

use std::process::ExitCode;

use clap::ValueEnum;

use super::{Output, fail, table};
use crate::config::SourceArgs;
use crate::config::compile;
use crate::config::compile::{Abilities, Function};
use crate::config::diagnostics::print_diagnostics;
use crate::config::files;
use crate::config::plan;
use crate::config::plan::{ProbeMeta, ProbePlan, explain};
use crate::kernel::binaries::{self, File, FileError, FindError};
use crate::kernel::tracefs::Tracefs;
use crate::kernel::{detect, functions};
use kstrobe_export::snapshot::Kind;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to list.
    #[arg(value_enum, default_value_t)]
    what: What,
    /// Of `probes`: a probe, a pack, or a tool such as `runqlat`, for the probes that replace it. Of `functions`: a pattern for
    /// those of the kernel, or a program or library; of `usdt`: a program or library. Both mean a path (with a `/`) or a name
    /// such as `libc.so.6`.
    of: Option<String>,
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
    /// Functions of this kernel, or of a program or library.
    Functions,
    /// Static probe points of a program or library.
    Usdt,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("`{0}` says nothing here: only `probes`, `functions` and `usdt` are of something")]
    OfNothing(String),
    #[error("there is no probe, and no tool that a probe replaces, by the name `{0}`: `kstrobe list` shows all")]
    NoProbe(String),
    #[error("name the program or library: `kstrobe list usdt FILE`")]
    NoFile,
    /// With the reason why the kernel has no BTF.
    #[error("tracepoints are listed from the kernel's BTF, and there is none: {0}")]
    NoBtf(String),
    /// No program or library has this name, or it cannot be read.
    #[error(transparent)]
    Find(#[from] FindError),
    #[error("{file}: {error}")]
    Read {
        file: String,
        #[source]
        error: Box<FileError>,
    },
}

pub fn run(args: &Args) -> ExitCode {
    let rows = match (args.what, args.of.as_deref()) {
        (What::Probes | What::Functions | What::Usdt, _) | (_, None) => rows(args),
        (_, Some(of)) => Err(Error::OfNothing(of.to_owned())),
    };
    let (header, rows) = match rows {
        Ok(table) => table,
        Err(error) => return fail(error),
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

type Table = (Vec<&'static str>, Vec<Vec<String>>);

fn rows(args: &Args) -> Result<Table, Error> {
    Ok(match args.what {
        What::Probes => {
            (vec!["probe", "pack", "default", "cost", "replaces", "hooks", "here", "summary"], probes(args)?)
        }
        What::Metrics => (vec!["metric", "type", "labels", "probe"], metrics(args)),
        What::Tracepoints => (vec!["tracepoint", "arguments"], tracepoints(args)?),
        What::Syscalls => {
            let target = compile::look(&[], args.source.btf.as_deref());
            let rows = target.syscalls.iter().map(|(name, call)| vec![name.clone(), call.number.to_string()]);
            (vec!["syscall", "number"], rows.collect())
        }
        What::Polls => (vec!["source", "fields", "summary"], polls()),
        What::Functions => match args.of.as_deref() {
            Some(words) if words.contains('/') || words.contains(".so") => {
                (vec!["function", "bytes", "file"], functions_of(words)?)
            }
            pattern => {
                let abilities = compile::look(&[], args.source.btf.as_deref()).abilities;
                (vec!["function", "module", "hooks"], kernel_functions(pattern.unwrap_or("*"), &abilities))
            }
        },
        What::Usdt => {
            let words = args.of.as_deref().ok_or(Error::NoFile)?;
            (vec!["probe point", "arguments", "file"], probe_points(words)?)
        }
    })
}

fn tracepoints(args: &Args) -> Result<Vec<Vec<String>>, Error> {
    let target = compile::look(&[], args.source.btf.as_deref());
    let Some(btf) = &target.btf else {
        let why = detect::without_btf(&target).unwrap_or_default();
        return Err(Error::NoBtf(why));
    };
    let arguments = |event: &str| {
        let args = btf.tracepoint_args(event).unwrap_or_default();
        let args: Vec<_> = args.iter().map(|(name, ty)| format!("{} {name}", btf.describe(*ty))).collect();
        args.join(", ")
    };
    let mut names: Vec<_> = btf.tracepoints().into_iter().map(|n| vec![n.to_string(), arguments(n)]).collect();
    names.sort();
    Ok(names)
}

/// Hooks that this kernel has for a function. kprobe_multi is no kind of its own: `function:` takes it.
fn hooks_at(traceable: bool, abilities: &Abilities) -> String {
    let kinds = [
        (traceable && abilities.fentry.yes(), "fentry, fexit"),
        (traceable && abilities.kprobe_multi.yes() && !abilities.kprobe.yes(), "function (kprobe_multi)"),
        (abilities.kprobe.yes(), "kprobe, kretprobe"),
    ];
    let had: Vec<&str> = kinds.into_iter().filter(|(has, _)| *has).map(|(_, kind)| kind).collect();
    if had.is_empty() { "none: see `kstrobe doctor`".into() } else { had.join(", ") }
}

fn kernel_functions(pattern: &str, abilities: &Abilities) -> Vec<Vec<String>> {
    let all = functions::list(pattern, Tracefs::open().ok().as_ref());
    let row = |f: Function| vec![f.symbol, f.module.unwrap_or_default(), hooks_at(f.traceable, abilities)];
    let rows = all.into_iter().map(row);
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows
}

fn unread(file: &File, error: FileError) -> Error {
    Error::Read { file: file.shown.clone(), error: Box::new(error) }
}

fn functions_of(words: &str) -> Result<Vec<Vec<String>>, Error> {
    let mut rows = Vec::new();
    for file in binaries::named(words)? {
        let all = binaries::all_functions(&file).map_err(|error| unread(&file, error))?;
        rows.extend(all.into_iter().map(|f| vec![f.readable(), f.size.to_string(), file.shown.clone()]));
    }
    rows.sort();
    Ok(rows)
}

fn probe_points(words: &str) -> Result<Vec<Vec<String>>, Error> {
    let mut rows = Vec::new();
    for file in binaries::named(words)? {
        let all = binaries::all_probes(&file).map_err(|error| unread(&file, error))?;
        rows.extend(all.into_iter().map(|p| vec![format!("{}:{}", p.provider, p.name), p.args, file.shown.clone()]));
    }
    rows.sort();
    rows.dedup();
    Ok(rows)
}

fn metas(args: &Args) -> Vec<ProbeMeta> {
    let (probes, diagnostics) = files::probes(args.source.probes.as_deref());
    print_diagnostics(&diagnostics);
    probes.into_iter().map(|p| plan::plan(p).meta().clone()).collect()
}

fn probes(args: &Args) -> Result<Vec<Vec<String>>, Error> {
    let (mut probes, diagnostics) = files::probes(args.source.probes.as_deref());
    print_diagnostics(&diagnostics);
    if let Some(name) = &args.of {
        probes = files::named(name, &probes).into_iter().cloned().collect();
        if probes.is_empty() {
            return Err(Error::NoProbe(name.clone()));
        }
    }
    let plans: Vec<ProbePlan> = probes.into_iter().map(plan::plan).collect();
    let target = compile::look(&plans, args.source.btf.as_deref());
    let row = |plan: &ProbePlan| {
        let o = plan.meta().clone();
        let on = if o.enabled { "on" } else { "off" };
        let cost = o.cost.map_or("", |cost| cost.class.name());
        let first = [o.name, o.pack, on.into(), cost.into(), o.replaces.join(","), o.hooks.join(" ")];
        [first.to_vec(), vec![explain::here(plan, &target), o.summary]].concat()
    };
    Ok(plans.iter().map(row).collect())
}

fn metrics(args: &Args) -> Vec<Vec<String>> {
    let kind = |k: Kind| match k {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let metas = metas(args);
    let all = metas.iter().flat_map(|o| o.metrics.iter().map(move |m| (o, &m.about)));
    all.map(|(o, m)| vec![m.name.clone(), kind(m.kind).into(), m.label_names.join(","), o.name.clone()]).collect()
}

fn polls() -> Vec<Vec<String>> {
    let row = |s: &crate::kernel::pollers::Source| {
        let fields: Vec<_> = s.fields().into_iter().map(|f| f.name).collect();
        vec![s.name.to_string(), fields.join(","), s.summary.to_string()]
    };
    crate::kernel::pollers::sources().iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::hooks_at;
    use crate::config::compile::{Abilities, Ability};

    #[test]
    fn functions_have_the_hooks_that_doctor_finds() {
        let has = |fentry: bool, multi: bool, kprobe: bool| {
            let ability = |has: bool| if has { Ability::Yes } else { Ability::No("not here".into()) };
            let [fentry, kprobe_multi, kprobe] = [fentry, multi, kprobe].map(ability);
            Abilities { fentry, kprobe_multi, kprobe, ..Abilities::default() }
        };
        assert_eq!(hooks_at(true, &has(true, true, true)), "fentry, fexit, kprobe, kretprobe");
        assert_eq!(hooks_at(false, &has(true, true, true)), "kprobe, kretprobe");
        assert_eq!(hooks_at(true, &has(true, false, false)), "fentry, fexit");
        assert_eq!(hooks_at(true, &has(false, true, false)), "function (kprobe_multi)");
        assert_eq!(hooks_at(false, &has(true, true, false)), "none: see `kstrobe doctor`");
    }
}
