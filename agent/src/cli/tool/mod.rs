//! `kstrobe tool NAME`, or `kstrobe NAME`: one probe for a while, drawn in the terminal, without a file and without a server.

mod frame;
mod json;
mod names;
mod output;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args as _, FromArgMatches};
use kstrobe_config::diag::Diagnostic;
use kstrobe_config::model::Probe;
use kstrobe_config::oneliner::OneLiner;

use super::stacks::duration;
use super::{Output, new};
use crate::app::{Next, Session, SessionError};
use crate::config::SourceArgs;
use crate::config::adhoc::{self, Cgroup, FILTERS, Filters, Unfit, Wanted};
use crate::config::compile::{self, Compiled, Target};
use crate::config::diagnostics::print_diagnostics;
use crate::config::files;
use crate::config::plan::{self, CompileError, ProbePlan};
use crate::kubernetes;
use output::{Printer, When};

/// Where control groups are mounted when `--cgroup` has no path of its own.
const CGROUPS: &str = "/sys/fs/cgroup";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A classic tool such as `runqlat`, or a probe: `kstrobe list` shows both.
    #[arg(value_name = "NAME", required_unless_present = "expression")]
    name: Option<String>,
    /// A probe in one line in place of a name: count() | sum(x) | hist(x) | stacks() | print(x, y) [by a, b] on HOOK [where CONDITION].
    #[arg(short, long, value_name = "LINE", conflicts_with = "name")]
    expression: Option<String>,
    /// Write the line as a file of the probe NAME, NAME.yaml in this folder, and do not run it.
    #[arg(long, value_name = "NAME", requires = "expression")]
    save: Option<String>,
    #[command(flatten)]
    filters: FilterArgs,
    /// Tell events apart by these labels of the probe.
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    by: Vec<String>,
    /// Rows of a table; the others are one row.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// How long, e.g. 10s or 500ms; without it, until Ctrl-C.
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Draw what came in each TIME. Without it a terminal shows what came so far, anew each second; elsewhere all comes at the end.
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// Draw this metric of the probe alone; may be given several times.
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    metric: Vec<String>,
    /// Measure each event, whatever that costs. Without it a probe is sampled above 2 % of the time of all CPUs.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    source: SourceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
struct FilterArgs {
    /// Only events of this process.
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Only events of threads of this name.
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Only events of the pod of this name.
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Only events of this control group, not of those within it: a folder, or its path below /sys/fs/cgroup.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Only events of sockets with this port at either end.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Unknown(#[from] names::Unknown),
    #[error("{}", lines(.0))]
    Unfit(Vec<Unfit>),
    #[error("cannot read the control group {path}: {error}")]
    Cgroup { path: String, error: io::Error },
    #[error("`--pod` needs the pods of a Kubernetes node, and there are none here: {0}. `--cgroup` takes a path")]
    Pods(kstrobe_kube::Error),
    #[error(transparent)]
    Choice(#[from] output::Choice),
    /// The diagnostics are printed below.
    #[error("the line is no probe")]
    Line(Vec<Diagnostic>),
    #[error(
        "sums by call stack are not drawn here: write the line to a file by `--save NAME`, then `kstrobe stacks NAME --probes NAME.yaml`"
    )]
    LineOfStacks,
    #[error("cannot write {file}: {error}")]
    Save { file: String, error: io::Error },
    /// Because of the kernel, or of mistakes in the text. The diagnostics are printed below.
    #[error("`{probe}` cannot run on this kernel ({release})")]
    Refused { probe: String, release: String, of_kernel: bool, diagnostics: Vec<Diagnostic> },
    #[error("a condition does not fit the probe `{probe}`, whose events do not have what it asks for: leave it out")]
    Conditions { probe: String, diagnostics: Vec<Diagnostic> },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

fn lines(unfit: &[Unfit]) -> String {
    unfit.iter().map(Unfit::to_string).collect::<Vec<_>>().join("\n  or ")
}

impl Error {
    /// 2 for a command line that asks for what there is not, 1 for a kernel that cannot.
    fn code(&self) -> u8 {
        match self {
            Error::Session(_) | Error::Write(_) | Error::Refused { .. } | Error::Save { .. } => 1,
            _ => 2,
        }
    }
}

/// `kstrobe NAME ARGS`, where NAME is no command.
pub fn external(words: Vec<OsString>) -> ExitCode {
    let command = Args::augment_args(clap::Command::new("kstrobe"));
    // The name is an argument, the first one.
    let matches = match command.try_get_matches_from([OsString::from("kstrobe")].into_iter().chain(words)) {
        Ok(matches) => matches,
        Err(error) => error.exit(),
    };
    match Args::from_arg_matches(&matches) {
        Ok(args) => run(&args),
        Err(error) => error.exit(),
    }
}

pub fn run(args: &Args) -> ExitCode {
    let error = match measure(args) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => error,
    };
    eprintln!("error: {error}");
    if let Error::Line(diagnostics) | Error::Refused { diagnostics, .. } | Error::Conditions { diagnostics, .. } =
        &error
    {
        print_diagnostics(diagnostics);
    }
    ExitCode::from(error.code())
}

fn measure(args: &Args) -> Result<(), Error> {
    let interval = When::of(args).every().into_iter().chain(args.duration).min();
    let wanted = Wanted { filters: filters(&args.filters)?, interval, exact: args.exact };
    match &args.expression {
        Some(line) => measure_line(args, line, &wanted),
        None => {
            let (probes, diagnostics) = files::probes(args.source.probes.as_deref());
            print_diagnostics(&diagnostics);
            let found = names::resolve(args.name.as_deref().unwrap_or_default(), &probes)?;
            measure_found(args, &found, &wanted)
        }
    }
}

/// Name of a probe that no file has.
const LINE: &str = "oneliner";

fn measure_line(args: &Args, line: &str, wanted: &Wanted) -> Result<(), Error> {
    let one = OneLiner::parse(line, args.save.as_deref().unwrap_or(LINE)).map_err(|wrong| Error::Line(vec![wrong]))?;
    let (probes, wrong) = files::check_probes(std::slice::from_ref(one.yaml()));
    let Some(probe) = probes.first().filter(|_| wrong.is_empty()) else { return Err(Error::Line(one.place(wrong))) };
    if args.save.is_some() {
        return save(&one, probe);
    }
    measure_found(args, &[probe], wanted).map_err(|error| match error {
        Error::Refused { of_kernel: false, diagnostics, .. } => Error::Line(one.place(diagnostics)),
        Error::Refused { probe, release, of_kernel, diagnostics } => {
            Error::Refused { probe, release, of_kernel, diagnostics: one.place(diagnostics) }
        }
        Error::Choice(output::Choice::Stacks(_)) => Error::LineOfStacks,
        error => error,
    })
}

/// Writes the line as a file, if this kernel finds no mistake in it.
fn save(one: &OneLiner, probe: &Probe) -> Result<(), Error> {
    let plan = plan::plan(probe.clone());
    let target = compile::look(std::slice::from_ref(&plan), None);
    let mistakes = one.place(plan.mistakes(&target));
    if mistakes.iter().any(Diagnostic::is_error) {
        return Err(Error::Line(mistakes));
    }
    let file = one.yaml();
    new::save(file).map_err(|error| Error::Save { file: file.name.clone(), error })?;
    println!(
        "{0}: `kstrobe tool {1} --probes {0}` draws it, `kstrobe run --probes {0}` exports it",
        file.name,
        probe.name()
    );
    Ok(())
}

fn measure_found(args: &Args, found: &[&Probe], wanted: &Wanted) -> Result<(), Error> {
    let plans = fitting(found, wanted)?;
    let btf = args.source.btf.as_deref();
    let target = compile::look(&plans, btf);
    let plan = runnable(plans, &target)?;
    let others: Vec<&str> = found.iter().map(|probe| probe.name()).filter(|name| *name != plan.meta().name).collect();
    if !others.is_empty() {
        let name = args.name.as_deref().unwrap_or_default();
        eprintln!("`{name}` is also answered by: kstrobe {}", others.join(", kstrobe "));
    }
    let printer = Printer::new(args, &plan)?;
    let session = Session::start(&target, &plan, btf)?;
    announce(args, &session, &target);
    draw(args, session, printer)
}

/// The probes that take all conditions, with these.
fn fitting(found: &[&Probe], wanted: &Wanted) -> Result<Vec<ProbePlan>, Error> {
    let (mut plans, mut unfit) = (Vec::new(), Vec::new());
    for probe in found {
        let mut probe = Probe::clone(probe);
        match adhoc::apply(&mut probe, wanted) {
            Ok(()) => plans.push(plan::plan(probe)),
            Err(why) => unfit.push(why),
        }
    }
    if plans.is_empty() { Err(Error::Unfit(unfit)) } else { Ok(plans) }
}

/// The first probe that this kernel runs.
fn runnable(plans: Vec<ProbePlan>, target: &Target) -> Result<ProbePlan, Error> {
    let mut refused: Option<Error> = None;
    for plan in plans {
        match compile::probe(&plan, target) {
            Compiled::Ready(_) | Compiled::OverSession(..) | Compiled::Waiting(_) => return Ok(plan),
            Compiled::Refused(refusal) => _ = refused.get_or_insert(refusal_of(&plan, refusal, target)),
        }
    }
    // There was at least one plan.
    Err(refused.unwrap_or(Error::Unfit(Vec::new())))
}

fn refusal_of(plan: &ProbePlan, refusal: CompileError, target: &Target) -> Error {
    let (probe, diagnostics) = (plan.meta().name.clone(), refusal.diagnostics);
    let of_conditions = |d: &Diagnostic| d.at.as_ref().is_some_and(|at| at.file.name == FILTERS);
    match diagnostics.iter().any(of_conditions) {
        true => Error::Conditions { probe, diagnostics },
        false => Error::Refused { probe, release: target.release.clone(), of_kernel: refusal.target, diagnostics },
    }
}

fn filters(args: &FilterArgs) -> Result<Filters, Error> {
    let cgroup = args.cgroup.as_deref().map(cgroup).transpose()?;
    if args.pod.is_some() {
        kubernetes::config(&Default::default()).map_err(Error::Pods)?;
    }
    Ok(Filters { pid: args.pid, comm: args.comm.clone(), pod: args.pod.clone(), cgroup, port: args.port })
}

/// The id of a control group is the inode number of its folder.
fn cgroup(path: &Path) -> Result<Cgroup, Error> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let path = if path.starts_with(CGROUPS) { path.to_owned() } else { Path::new(CGROUPS).join(below) };
    let folder = std::fs::metadata(&path).and_then(|found| match found.is_dir() {
        true => Ok(found),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    let found = folder.map_err(|error| Error::Cgroup { path: path.display().to_string(), error })?;
    Ok(Cgroup(found.ino()))
}

/// What runs, for how long and how: beside the figures, not among them.
fn announce(args: &Args, session: &Session, target: &Target) {
    let status = session.status();
    let mut kinds: Vec<&str> =
        status.hooks.iter().map(|hook| hook.kind.as_str()).filter(|kind| !kind.is_empty()).collect();
    kinds.dedup();
    let time = match args.duration {
        Some(time) => format!("for {time:?}"),
        None => "until Ctrl-C".into(),
    };
    let by = if kinds.is_empty() { String::new() } else { format!(", by {}", kinds.join(" and ")) };
    let (name, cpus, release) = (&status.name, target.cpus, &target.release);
    eprintln!("Tracing {name} {time} on {cpus} CPUs (kernel {release}{by})...");
    if !status.reason.is_empty() {
        eprintln!("{}", status.reason);
    }
}

fn draw(args: &Args, session: Session, mut printer: Printer) -> Result<(), Error> {
    let begun = Instant::now();
    let end = args.duration.map(|time| begun + time);
    let mut due = printer.every().map(|every| begun + every);
    if printer.counts_totals() {
        // A poll's counters are the kernel's own, which began long ago.
        printer.baseline(&session);
    }
    loop {
        let until = due.into_iter().chain(end).min();
        match session.next(until.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))) {
            Next::Event(event) => printer.event(&event)?,
            Next::Stopped => break,
            Next::Due if end.is_some_and(|end| end <= Instant::now()) => break,
            Next::Due => {
                if let (Some(at), Some(every)) = (due, printer.every()) {
                    printer.due(&session.read())?;
                    // Readings that come late do not pile up, nor leave events no time.
                    let (next, now) = (at + every, Instant::now());
                    due = Some(if next > now { next } else { now + every });
                }
            }
        }
    }
    let (totals, events) = session.finish();
    events.iter().try_for_each(|event| printer.event(event))?;
    printer.interval(&totals)?;
    Ok(())
}

/// Columns of the terminal.
fn width() -> usize {
    let terminal = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    terminal.map_or(super::draw::USUAL_WIDTH, |(width, _)| usize::from(width.0)).max(super::draw::MIN_WIDTH)
}
