//! `kstrobe capture`: records a trace of the kernel. Options are those of `trace-cmd record`, where it has them.

mod events;
pub(super) mod output;

use std::io::{IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use crate::capture::error::RequestError;
use crate::capture::request::{Flight, Request, Scope};
use crate::capture::{self, Ended, Error, Paths, Progress, Recorded, Stop};
use crate::config::files::Kubernetes;
use crate::kernel::{instance, tracefs::Tracefs};
use crate::kubernetes::pods;
use output::{Format, Target};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tracer, such as function_graph or function; without it, events only.
    #[arg(short = 'p', long, value_name = "TRACER")]
    tracer: Option<String>,
    #[command(flatten)]
    events: events::Args,
    /// Stack of the kernel with each event.
    #[arg(short = 'T', long)]
    stacks: bool,
    /// Functions that the tracer records; patterns with * are allowed.
    #[arg(short = 'l', long = "function", value_name = "FUNCTION")]
    functions: Vec<String>,
    /// Functions whose calls function_graph records, with all that they call.
    #[arg(short = 'g', long = "graph-root", value_name = "FUNCTION")]
    graph_roots: Vec<String>,
    /// Functions that the tracer leaves out.
    #[arg(short = 'n', long = "not-function", value_name = "FUNCTION")]
    not_functions: Vec<String>,
    /// How deep function_graph follows calls.
    #[arg(long, value_name = "LEVELS")]
    max_graph_depth: Option<u32>,
    /// Stack of the kernel with each function; needs -l.
    #[arg(long)]
    func_stack: bool,
    /// Only these processes, or threads.
    #[arg(short = 'P', long = "pid", value_name = "PID", value_delimiter = ',')]
    pids: Vec<i32>,
    /// Only the command that follows the options.
    #[arg(short = 'F', long)]
    only_command: bool,
    /// Children of these processes as well.
    #[arg(short = 'c', long)]
    children: bool,
    /// Only threads of this name; patterns with * are allowed.
    #[arg(long = "comm", value_name = "NAME")]
    comms: Vec<String>,
    /// Only threads in this control group and those below it.
    #[arg(long = "cgroup", value_name = "PATH")]
    cgroups: Vec<PathBuf>,
    /// Only threads in this pod of this node, as KUBECONFIG's cluster knows it.
    #[arg(long = "pod", value_name = "NAMESPACE/NAME")]
    pods: Vec<String>,
    /// CPUs to record, as a hexadecimal mask.
    #[arg(short = 'M', long, value_name = "MASK", value_parser = cpus_of)]
    cpumask: Option<Cpus>,
    /// Ring buffer of each CPU, in KiB.
    #[arg(short = 'b', long, value_name = "KIB")]
    buffer_size: Option<u64>,
    /// Clock of the trace, such as boot or local [default: mono].
    #[arg(short = 'C', long, value_name = "CLOCK")]
    clock: Option<String>,
    /// Option of tracing to set, such as funcgraph-retaddr or sleep-time=off; may be given several times.
    #[arg(short = 'O', long = "option", value_name = "OPTION[=on|off]", value_parser = option)]
    options: Vec<(String, bool)>,
    /// How long, e.g. 10s or 500ms; without it, until the command ends or Ctrl-C.
    #[arg(short, long, value_name = "TIME", value_parser = super::stacks::duration)]
    duration: Option<Duration>,
    /// Most bytes to record, e.g. 64M; recording ends when they are there.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1G")]
    max_bytes: u64,
    /// Flight recorder: keeps the last of what happens in the ring buffer, until it ends.
    #[arg(long)]
    flight: bool,
    /// Event that ends a flight recorder, with a filter: `sched:sched_switch if prev_comm == "x"`.
    #[arg(long, value_name = "EVENT", requires = "flight")]
    stop_on: Vec<String>,
    /// How long a flight recorder goes on after such an event.
    #[arg(long, value_name = "TIME", value_parser = super::stacks::duration, requires = "stop_on")]
    stop_after: Option<Duration>,
    /// Where to write it.
    #[arg(short, long, value_name = "FILE", default_value = "trace.dat")]
    output: PathBuf,
    /// How to write it; without it, as the name of the file says, else trace.dat.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// A command to run while it is recorded.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub fn run(args: &Args) -> ExitCode {
    let stop = stop_by_signals();
    match record(args, &stop) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(if matches!(error, Error::Request(_)) { 2 } else { 1 })
        }
    }
}

fn record(args: &Args, stop: &Stop) -> Result<ExitCode, Error> {
    let request = pods::located(&request(args), &Kubernetes::default()).map_err(|error| Error::Pods(error.into()))?;
    let target = Target::open(&args.output, args.format)?;
    // Before the sweep: it would throw away what the kernel still has of a killed recording to the same file.
    let unfinished = Folder::create(&args.output)?;
    for swept in instance::sweep(&Arc::new(Tracefs::open()?))? {
        match swept.result {
            Ok(()) => eprintln!("removed what a killed recorder left: {}", swept.what),
            Err(error) => eprintln!("a killed recorder left {}, which cannot be put right: {error}", swept.what),
        }
    }
    if args.duration.is_none() && args.command.is_empty() {
        eprintln!("recording until Ctrl-C");
    }
    let terminal = std::io::stderr().is_terminal();
    let mut tell = |progress: Progress| {
        if terminal {
            let Progress { elapsed, records, bytes, lost } = progress;
            let mib = bytes as f64 / f64::from(1 << 20);
            eprint!("\r{:>5}s  {records} records, {mib:.1} MiB, {lost} lost \u{1b}[K", elapsed.as_secs());
            let _ = std::io::stderr().flush();
        }
    };
    let paths = Paths { spool: unfinished.0.clone() };
    let recorded = capture::run(&request, &paths, stop, &mut tell);
    if terminal {
        eprint!("\r\u{1b}[K");
    }
    let recorded = recorded?;
    target.write(&recorded.trace).map_err(|error| Error::Write { file: args.output.clone(), error })?;
    say(&recorded, &args.output);
    Ok(if matches!(recorded.ended, Ended::Fault(_)) { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Where pages are until a recording is written. It is removed with the recording's end, and stays when this process is killed.
struct Folder(PathBuf);

impl Folder {
    fn create(output: &Path) -> Result<Folder, Error> {
        let folder = unfinished(output);
        match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => Ok(Folder(folder)),
            Err(_) if capture::unfinished::is_in(&folder) => {
                Err(RequestError::Unfinished { file: output.to_owned(), folder }.into())
            }
            Err(error) => Err(Error::Open { file: folder, error }),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("note: {} is not needed any more and cannot be removed: {error}", self.0.display());
        }
    }
}

/// Folder of the pages of a recording that is to be written to `output`.
pub(super) fn unfinished(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

pub(super) fn say(recorded: &Recorded, file: &Path) {
    recorded.notes.iter().for_each(|note| eprintln!("note: {note}"));
    let clock = recorded.trace.buffers.first().map_or("", |buffer| buffer.clock.as_str());
    let seconds = recorded.elapsed.as_secs_f64();
    eprintln!("{}: {} records in {seconds:.3} s, clock {clock}", file.display(), recorded.records);
    match &recorded.ended {
        Ended::Time | Ended::Cancelled => {}
        Ended::Command(status) if status.success() => {}
        Ended::Command(status) => eprintln!("the command ended with {status}"),
        Ended::Full => eprintln!("recording ended as the most bytes were there (--max-bytes)"),
        Ended::Trigger => eprintln!("recording was ended by a trigger"),
        Ended::Fault(what) => eprintln!("error: {what}"),
        // The notes say so.
        Ended::Killed => {}
    }
    match (recorded.lost, &recorded.ended) {
        (0, _) => {}
        (lost, Ended::Killed) => {
            eprintln!(
                "{lost} records were lost: the ring buffer was full, or the recorder had taken them and not written them yet"
            );
        }
        (lost, _) => eprintln!("{lost} records were lost as the ring buffer was full: raise -b, or record less"),
    }
    if recorded.left > 0 {
        eprintln!("{} records were left in the ring buffer when recording ended", recorded.left);
    }
}

fn request(args: &Args) -> Request {
    let command_only = args.only_command;
    Request {
        tracer: args.tracer.clone(),
        events: args.events.requests.clone(),
        functions: args.functions.clone(),
        not_functions: args.not_functions.clone(),
        graph_roots: args.graph_roots.clone(),
        max_graph_depth: args.max_graph_depth,
        stacks: args.stacks,
        function_stacks: args.func_stack,
        scope: Scope {
            pids: args.pids.clone(),
            comms: args.comms.clone(),
            cgroups: args.cgroups.iter().map(|path| group(path)).collect(),
            pods: args.pods.clone(),
            command: args.command.clone(),
            only_command: command_only,
            children: args.children,
        },
        cpus: args.cpumask.clone().map(|cpus| cpus.0).unwrap_or_default(),
        clock: args.clock.clone(),
        buffer_kib: args.buffer_size,
        options: args.options.clone(),
        start_at: None,
        duration: args.duration,
        max_bytes: Some(args.max_bytes),
        flight: args.flight.then(|| Flight {
            stop_on: args.stop_on.iter().map(|text| events::condition(text)).collect(),
            after: args.stop_after.unwrap_or_default(),
        }),
    }
}

/// A control group by its path, or by its name as `/proc/PID/cgroup` has it.
fn group(path: &Path) -> PathBuf {
    let name = path.strip_prefix("/").unwrap_or(path);
    let paths = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(|root| Path::new(root).join(name));
    let candidates = std::iter::once(path.to_owned()).chain(paths);
    candidates.into_iter().find(|path| path.join("cgroup.procs").exists()).unwrap_or_else(|| path.to_owned())
}

/// Stops the recording at the first SIGINT, SIGTERM or SIGHUP. Called before there are other threads: they block these signals too.
fn stop_by_signals() -> Stop {
    let stop = Stop::default();
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    let stopping = stop.clone();
    let wait = move || {
        while signals.wait().is_ok() {
            stopping.stop();
        }
    };
    // Threads inherit it. A signal that is not blocked everywhere does what it always does.
    let blocked = signals.thread_block().is_ok();
    if blocked && std::thread::Builder::new().name("signals".into()).spawn(wait).is_err() {
        // It ends the process then, and the next start puts things right.
        let _ = signals.thread_unblock();
    }
    stop
}

/// Numbers of CPUs. A type of its own: clap takes a `Vec` for an option that is given several times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cpus(Vec<u32>);

/// What is wrong with the value of an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ValueError {
    #[error("write a hexadecimal mask such as 3, for CPUs 0 and 1")]
    NotAMask,
    #[error("a mask of no CPU")]
    NoCpu,
    #[error("write a size such as 64M, 1G or 500k")]
    NotASize,
    #[error("write the name of an option, with =on or =off behind it or neither")]
    NotAnOption,
}

/// `NAME`, `NAME=on` or `NAME=off`; `noNAME`, as trace-cmd writes it, is not taken: there are options whose names begin so.
fn option(text: &str) -> Result<(String, bool), ValueError> {
    let (name, on) = match text.split_once('=') {
        None => (text, true),
        Some((name, "on" | "1" | "true")) => (name, true),
        Some((name, "off" | "0" | "false")) => (name, false),
        Some(_) => return Err(ValueError::NotAnOption),
    };
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        return Err(ValueError::NotAnOption);
    }
    Ok((name.to_owned(), on))
}

fn cpus_of(mask: &str) -> Result<Cpus, ValueError> {
    let digits: String = mask.trim_start_matches("0x").replace(',', "");
    let digit = |(place, digit): (usize, char)| digit.to_digit(16).map(|digit| (place as u32 * 4, digit));
    let digits: Option<Vec<(u32, u32)>> = digits.chars().rev().enumerate().map(digit).collect();
    let digits = digits.ok_or(ValueError::NotAMask)?;
    let cpus: Vec<u32> = digits
        .into_iter()
        .flat_map(|(first, digit)| (0..4).filter(move |bit| digit >> bit & 1 == 1).map(move |bit| first + bit))
        .collect();
    if cpus.is_empty() { Err(ValueError::NoCpu) } else { Ok(Cpus(cpus)) }
}

fn bytes(text: &str) -> Result<u64, ValueError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => Some(0),
        "k" | "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes > 0).ok_or(ValueError::NotASize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_sizes() {
        assert_eq!(cpus_of("3"), Ok(Cpus(vec![0, 1])));
        assert_eq!(cpus_of("0x1,00000010"), Ok(Cpus(vec![4, 32])));
        assert!(cpus_of("0").is_err() && cpus_of("g").is_err() && cpus_of("").is_err());
        assert_eq!(["64M", "1G", "500k", "7", "2MiB"].map(bytes), [64 << 20, 1 << 30, 500 << 10, 7, 2 << 20].map(Ok));
        for wrong in ["", "M", "0", "1T", "-1", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
