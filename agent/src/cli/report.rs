//! `kstrobe report FILE`: what a capture says, from trace.dat or the text of the function_graph tracer.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use kstrobe_ftrace::report::{self, Asked};
use kstrobe_ftrace::timeline;

use super::fail;
use crate::capture::report::{Capture, CaptureError, Data, Report, all, capture, keep};
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
enum Form {
    Text,
    Json,
    Folded,
    Svg,
    Pprof,
    /// A timeline of calls by thread: one page that opens in any browser, without a network.
    Html,
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
        (Form::Text, None) => Ok(all(&capture, &asked, &args.report).0.into_bytes()),
        (Form::Json, None) => json(&all(&capture, &asked, &args.report).1),
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

    #[test]
    fn text_of_the_tracer_says_wait_and_work() {
        let capture = capture(TEXT.as_bytes()).unwrap();
        let asked = Asked { root: Some("recvfrom".into()), ..Asked::default() };
        let (out, data) = all(&capture, &asked, &[Report::Waits, Report::Functions]);
        assert!(out.contains("waited       6000.000 us   98.4 %"), "{out}");
        assert_eq!(data["waits"]["worked_ns"], 100_000);
        assert_eq!(data.keys().collect::<Vec<_>>(), ["functions", "waits"]);
        let (out, _) = all(&capture, &asked, &[]);
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
        let said = |text: &str| all(&capture(text.as_bytes()).unwrap(), &asked, &[Report::Waits]).0;
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
