//! `kstrobe report FILE`: what a capture says, from trace.dat or the text of the function_graph tracer.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use kstrobe_ftrace::calls::{Calls, build, text};
use kstrobe_ftrace::report::{self, Activity, Asked, Happening};
use kstrobe_ftrace::trace::Trace;
use kstrobe_ftrace::{dat, report::Syscalls, timeline};

use super::fail;
use crate::metrics::profiles::{Format, calls};

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot read {}: {error}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("{}: {error}", file.display())]
    Capture {
        file: PathBuf,
        #[source]
        error: CaptureError,
    },
    #[error("--before is for text and json")]
    Before,
    #[error("{} is not for a terminal: send it to a file", .0.name())]
    Terminal(Format),
    #[error("it has no calls of functions: stacks are of calls that the function_graph tracer recorded")]
    NoStacks,
    #[error("it has no calls of functions: a timeline shows those that the function_graph tracer recorded")]
    NoTimeline,
    #[error("no call in it fits --root, --pid, --comm and --cpu")]
    NoneSelected,
    #[error("{} cannot be written: {error}", format.name())]
    Format {
        format: Format,
        #[source]
        error: std::io::Error,
    },
    #[error("no timeline: {0}")]
    Timeline(#[source] std::io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("cannot write to standard output: {0}")]
    Write(#[source] std::io::Error),
}

/// Why bytes are no capture.
#[derive(Debug, thiserror::Error)]
enum CaptureError {
    #[error(transparent)]
    Dat(#[from] dat::DatError),
    #[error("neither a trace.dat file nor text of the function_graph tracer")]
    Neither,
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A capture: trace.dat of trace-cmd or kstrobe, or text of the function_graph tracer; `-` reads text from standard input.
    file: PathBuf,
    /// Which reports; without it, the summary and all that the capture has something for.
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    report: Vec<Report>,
    /// Only calls of this function, e.g. tcp_recvmsg, or of a system call, e.g. recvfrom.
    #[arg(long, value_name = "FUNCTION")]
    root: Option<String>,
    /// Only these threads.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<i32>,
    /// Only threads of these names.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    comm: Vec<String>,
    /// Only what happened on these CPUs.
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    cpu: Vec<u32>,
    /// How many of the worst are listed one by one, and how many rows tables have.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    slowest: usize,
    /// How deep trees are shown.
    #[arg(long, value_name = "LEVELS", default_value_t = 12)]
    depth: usize,
    /// Another capture: says what changed from it to FILE.
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// How to write it; folded, svg and pprof are stacks of calls with the time in them.
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Report {
    /// What the capture holds and what it lost.
    Summary,
    /// Wait against work of calls.
    Waits,
    /// The slowest calls with their trees.
    Calls,
    /// Time by function and module.
    Functions,
    /// Delays from wakeup to running.
    Wakeups,
    /// Why threads left the CPU.
    Switches,
    /// Time in interrupts and softirqs.
    Interrupts,
    /// System calls.
    Syscalls,
    /// Ways of packets to their receivers.
    Packets,
    /// Block requests.
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
    Folded,
    Svg,
    Pprof,
    /// A timeline of calls by thread: one page that opens in any browser, without a network.
    Html,
}

/// A capture that was read.
struct Capture {
    trace: Option<Trace>,
    calls: Calls,
    activity: Activity,
    /// What of the file was not understood.
    skipped: Vec<String>,
}

impl Capture {
    /// What is missing of its calls, printed before the report; `file` where there are several.
    fn missing(&self, file: &str, out: &mut String) {
        let mut text = String::new();
        report::missing(&self.calls).render(&mut text);
        if !text.is_empty() {
            out.push_str(file);
            out.push_str(&text);
            out.push('\n');
        }
    }
}

pub fn run(args: &Args) -> ExitCode {
    let (capture, before) = match (read(&args.file), args.before.as_deref().map(read).transpose()) {
        (Ok(capture), Ok(before)) => (capture, before),
        (Err(error), _) | (_, Err(error)) => return fail(error),
    };
    for skipped in &capture.skipped {
        eprintln!("{}: {skipped}", args.file.display());
    }
    if !matches!(args.output, Form::Text | Form::Json) {
        let mut text = String::new();
        capture.missing("", &mut text);
        eprint!("{text}");
    }
    let asked = Asked {
        root: args.root.clone(),
        pids: args.pid.clone(),
        comms: args.comm.clone(),
        cpus: args.cpu.clone(),
        slowest: args.slowest,
        depth: args.depth,
    };
    let bytes = match (args.output, before) {
        (Form::Text, Some(before)) => Ok(changes(&before, &capture, &asked).0.into_bytes()),
        (Form::Json, Some(before)) => json(&changes(&before, &capture, &asked).1),
        (Form::Folded | Form::Svg | Form::Pprof | Form::Html, Some(_)) => Err(Error::Before),
        (Form::Text, None) => Ok(all(&capture, &asked, args).0.into_bytes()),
        (Form::Json, None) => json(&all(&capture, &asked, args).1),
        (Form::Folded, None) => stacks(&capture, &asked, Format::Folded),
        (Form::Svg, None) => stacks(&capture, &asked, Format::Svg),
        (Form::Html, None) => timeline(&capture, &args.file),
        (Form::Pprof, None) => stacks(&capture, &asked, Format::Pprof),
    };
    let written = bytes.and_then(|bytes| std::io::stdout().write_all(&bytes).map_err(Error::Write));
    written.map_or_else(fail, |()| ExitCode::SUCCESS)
}

/// Reads a file of either kind.
fn read(file: &Path) -> Result<Capture, Error> {
    let bytes = match file.as_os_str() == "-" {
        true => {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes).map(|_| bytes)
        }
        false => std::fs::read(file),
    };
    let bytes = bytes.map_err(|error| Error::Read { file: file.to_owned(), error })?;
    capture(&bytes).map_err(|error| Error::Capture { file: file.to_owned(), error })
}

/// What a file of these bytes holds.
fn capture(bytes: &[u8]) -> Result<Capture, CaptureError> {
    // The first three bytes of trace.dat are no text of any tracer.
    if bytes.starts_with(b"\x17\x08\x44") {
        let dat = dat::read(bytes)?;
        let skipped =
            dat.skipped.iter().map(|skipped| format!("byte {}: not used: {}", skipped.at, skipped.what)).collect();
        // Other events are read from the records themselves.
        let calls = build::build(&dat.trace, build::Options { marks: false });
        let activity = report::activity(report::of_trace(&dat.trace));
        return Ok(Capture { trace: Some(dat.trace), calls, activity, skipped });
    }
    let calls = text::parse(&String::from_utf8_lossy(bytes));
    if calls.calls.is_empty() && calls.marks.is_empty() {
        return Err(CaptureError::Neither);
    }
    let activity = report::activity(report::of_marks(&calls));
    Ok(Capture { trace: None, calls, activity, skipped: Vec::new() })
}

impl Capture {
    fn happenings(&self) -> Box<dyn Iterator<Item = Happening<'_>> + '_> {
        match &self.trace {
            Some(trace) => Box::new(report::of_trace(trace)),
            None => Box::new(report::of_marks(&self.calls)),
        }
    }

    fn syscalls(&self, asked: &Asked) -> Syscalls {
        let uname = self.trace.as_ref().map_or("", |trace| &trace.about.uname);
        report::syscalls(self.happenings(), &self.activity, asked, report::system_call_names(uname))
    }

    /// Reports that this capture has something for.
    fn fitting(&self) -> Vec<Report> {
        let recorded = |start: &str| {
            self.trace.as_ref().is_some_and(|trace| {
                let summary = report::summary(Some(trace), None);
                summary.events.iter().any(|one| one.event.starts_with(start))
            })
        };
        let mut fitting = vec![Report::Summary];
        let calls = !self.calls.calls.is_empty();
        fitting.extend([Report::Waits, Report::Calls, Report::Functions].into_iter().filter(|_| calls));
        fitting.extend([Report::Wakeups].into_iter().filter(|_| self.activity.wakeups));
        fitting.extend([Report::Switches].into_iter().filter(|_| self.activity.switches));
        let events = [
            (Report::Interrupts, "irq"),
            (Report::Syscalls, "raw_syscalls:"),
            (Report::Packets, "skb:skb_copy_datagram_iovec"),
            (Report::Blocks, "block:block_rq_"),
        ];
        fitting.extend(events.into_iter().filter(|(_, start)| recorded(start)).map(|(report, _)| report));
        if recorded("syscalls:") && !fitting.contains(&Report::Syscalls) {
            fitting.push(Report::Syscalls);
        }
        fitting
    }
}

type Data = serde_json::Map<String, serde_json::Value>;

/// The reports asked for, as text and as data.
fn all(capture: &Capture, asked: &Asked, args: &Args) -> (String, Data) {
    let mut reports = args.report.clone();
    if reports.is_empty() {
        reports = capture.fitting();
    }
    let (calls, activity, limit) = (&capture.calls, &capture.activity, asked.slowest);
    let (mut out, mut data) = (String::new(), Data::new());
    let missing = report::missing(calls);
    if !missing.is_empty() {
        keep(&mut data, "missing", &missing);
    }
    capture.missing("", &mut out);
    for (at, report) in reports.into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        match report {
            Report::Summary => {
                let report = report::summary(capture.trace.as_ref(), Some(calls));
                report.render(&mut out);
                keep(&mut data, "summary", &report);
            }
            Report::Waits => {
                let report = report::waits(calls, activity, asked);
                report.render(&mut out);
                keep(&mut data, "waits", &report);
            }
            Report::Calls => {
                let report = report::slowest(calls, activity, asked);
                report.render(&mut out);
                keep(&mut data, "calls", &report);
            }
            Report::Functions => {
                let report = report::functions(calls, activity, asked);
                report.render(&mut out, limit);
                keep(&mut data, "functions", &report);
            }
            Report::Wakeups => {
                let report = report::wakeups(activity, asked);
                report.render(&mut out);
                keep(&mut data, "wakeups", &report);
            }
            Report::Switches => {
                let report = report::switches(activity, asked);
                report.render(&mut out, limit);
                keep(&mut data, "switches", &report);
            }
            Report::Interrupts => {
                let report = report::interrupts(capture.happenings(), asked);
                report.render(&mut out);
                keep(&mut data, "interrupts", &report);
            }
            Report::Syscalls => {
                let report = capture.syscalls(asked);
                report.render(&mut out);
                keep(&mut data, "syscalls", &report);
            }
            Report::Packets => {
                let report = report::packets(capture.happenings(), activity, asked);
                report.render(&mut out);
                keep(&mut data, "packets", &report);
            }
            Report::Blocks => {
                let report = report::blocks(capture.happenings(), asked);
                report.render(&mut out);
                keep(&mut data, "blocks", &report);
            }
        }
    }
    (out, data)
}

/// What changed from one capture to another, as text and as data.
fn changes(before: &Capture, after: &Capture, asked: &Asked) -> (String, Data) {
    let side = |capture: &Capture| {
        let (calls, activity) = (&capture.calls, &capture.activity);
        (report::functions(calls, activity, asked), report::waits(calls, activity, asked), capture.syscalls(asked))
    };
    let (mut out, mut data) = (String::new(), Data::new());
    for (capture, name, file) in [(before, "missing_before", "Before:\n"), (after, "missing_after", "After:\n")] {
        capture.missing(file, &mut out);
        let missing = report::missing(&capture.calls);
        if !missing.is_empty() {
            keep(&mut data, name, &missing);
        }
    }
    let (before, after) = (side(before), side(after));
    let diff = report::diff((&before.0, &before.1, &before.2), (&after.0, &after.1, &after.2));
    diff.render(&mut out, asked.slowest);
    keep(&mut data, "diff", &diff);
    (out, data)
}

fn keep(data: &mut Data, name: &str, report: &impl serde::Serialize) {
    // Reports are structs of numbers, texts and lists: all of these can be written.
    data.insert(name.to_owned(), serde_json::to_value(report).unwrap_or_default());
}

fn json(data: &Data) -> Result<Vec<u8>, Error> {
    let mut text = serde_json::to_vec_pretty(data)?;
    text.push(b'\n');
    Ok(text)
}

/// Calls as stacks with the time in them.
fn stacks(capture: &Capture, asked: &Asked, format: Format) -> Result<Vec<u8>, Error> {
    if format != Format::Folded && std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        return Err(Error::Terminal(format));
    }
    if capture.calls.calls.is_empty() {
        return Err(Error::NoStacks);
    }
    let stacks = report::folded(&capture.calls, &capture.activity, asked);
    if stacks.is_empty() {
        return Err(Error::NoneSelected);
    }
    let node = capture.trace.as_ref().map_or("", |trace| &trace.about.hostname);
    let duration_ns = report::summary(capture.trace.as_ref(), Some(&capture.calls)).duration_ns;
    let profile = calls::profile(&stacks, node, duration_ns);
    format.write(&profile).map_err(|error| Error::Format { format, error })
}

fn timeline(capture: &Capture, file: &Path) -> Result<Vec<u8>, Error> {
    let title = file.display().to_string();
    let options = timeline::Options { title: &title, ..timeline::Options::default() };
    let mut page = Vec::new();
    let summary = timeline::write(&capture.calls, &options, &mut page).map_err(Error::Timeline)?;
    if summary.shown == 0 {
        return Err(Error::NoTimeline);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# tracer: function_graph
#
# CPU  DURATION                  FUNCTION CALLS
# |     |   |                     |   |   |   |
 0)               |  __x64_sys_recvfrom() {
 0)               |    sk_wait_data() {
 0) # 6000.000 us |      schedule();
 0) # 6010.500 us |    }
 0) # 6100.000 us |  }
";

    fn args(extra: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        <Line as clap::Parser>::parse_from(["report", "trace.txt"].iter().chain(extra)).args
    }

    #[test]
    fn text_of_the_tracer_says_wait_and_work() {
        let capture = capture(TEXT.as_bytes()).unwrap();
        let asked = Asked { root: Some("recvfrom".into()), ..Asked::default() };
        let (out, data) = all(&capture, &asked, &args(&["--report", "waits,functions"]));
        assert!(out.contains("waited       6000.000 us   98.4 %"), "{out}");
        assert_eq!(data["waits"]["worked_ns"], 100_000);
        assert_eq!(data.keys().collect::<Vec<_>>(), ["functions", "waits"]);
        let (out, _) = all(&capture, &asked, &args(&[]));
        assert!(out.starts_with("Capture\n") && !out.contains("System calls"), "{out}");
        let folded = String::from_utf8(stacks(&capture, &asked, Format::Folded).unwrap()).unwrap();
        assert!(folded.contains("__x64_sys_recvfrom_[k];sk_wait_data_[k];schedule_[k] 6000000\n"), "{folded}");
    }

    /// The verdict stays when the end of the wait is missing or carries a note.
    #[test]
    fn a_missing_or_noted_line_keeps_the_verdict() {
        let asked = Asked { root: Some("recvfrom".into()), ..Asked::default() };
        let lost = TEXT.replace(
            " 0) # 6000.000 us |      schedule();\n",
            " 0)               |      schedule() {\n 0)   3.000 us    |        __schedule();\n",
        );
        let end = " 0) # 6000.000 us |      }\n";
        let whole = lost.replace(" 0) # 6010.500", &format!("{end} 0) # 6010.500"));
        let said = |text: &str| all(&capture(text.as_bytes()).unwrap(), &asked, &args(&["--report", "waits"])).0;
        let lost = said(&lost.replace("__schedule", "pick_next_task"));
        for line in ["waited       <= 6010.500 us  <= 98.5 %", "worked         >= 89.500 us   >= 1.5 %"] {
            assert!(lost.contains(line), "{line} in\n{lost}");
        }
        assert!(lost.starts_with("!!! beginnings without an end: 1;"), "{lost}");
        for note in ["   <== here", " // 6 ms"] {
            let noted = whole.replace("}\n", &format!("}}{note}\n"));
            assert_eq!(said(&noted), said(&whole));
        }
        let words = said(&format!("{TEXT}\nso it waits!\n"));
        assert!(words.starts_with("!!! lines or records not understood: 1\n      line 11: so it waits!\n"), "{words}");
    }

    #[test]
    fn stacks_of_no_call_are_refused() {
        let mut recorded = capture(TEXT.as_bytes()).unwrap();
        let none = Asked { root: Some("read".into()), ..Asked::default() };
        assert!(matches!(stacks(&recorded, &none, Format::Folded), Err(Error::NoneSelected)));
        recorded.calls.calls.clear();
        let error = stacks(&recorded, &Asked::default(), Format::Folded).unwrap_err().to_string();
        assert!(error.contains("no calls of functions") && error.contains("function_graph"), "{error}");
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        assert!(capture(b"just some words").is_err());
        assert!(capture(b"\x17\x08\x44tracing9\0").is_err());
        assert!(capture(b"").is_err());
    }
}
