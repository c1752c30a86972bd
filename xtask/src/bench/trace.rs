//! Reading a long trace.dat, against trace-cmd: whole programs, from the start to the last byte of what they write.

use super::table;
use crate::programs;
use anyhow::{Context, Result, bail};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Megabytes of records in a file.
const MEGABYTES: &str = "64";

/// What a file is made of, and how it is shown.
const FILES: [(&str, &str); 2] =
    [("events", "sched, irq, net, skb, tcp and system call events"), ("graph", "function graph and sched events")];

/// A way to read a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `trace-cmd report`, with one more argument.
    TraceCmd(Option<&'static str>),
    /// `ftrace/examples/throughput.rs`, for a purpose.
    Ours(&'static str),
}

/// The first is what the others are compared with.
const WAYS: [(Way, &str); 6] = [
    (Way::TraceCmd(None), "`trace-cmd report`"),
    (Way::TraceCmd(Some("-R")), "`trace-cmd report -R` (raw fields)"),
    (Way::Ours("events"), "kstrobe: every field of every event"),
    (Way::Ours("text"), "kstrobe: the whole text"),
    (Way::Ours("calls"), "kstrobe: trees of calls"),
    (Way::Ours("perfetto"), "kstrobe: Perfetto"),
];

/// A file that was made.
struct File {
    path: PathBuf,
    /// Bytes of its records, unpacked.
    bytes: u64,
    events: u64,
}

/// Measures and returns the report.
pub fn run(root: &Path, build: &Path, rounds: usize) -> Result<String> {
    let ours = build_ours(root)?;
    let trace_cmd = programs::find("trace-cmd");
    let mut text =
        "### Reading a trace\n\ntrace.dat version 7 with zstd, recordings of Linux 6.12 one after the other; \
                    text goes to /dev/null. User and system time of the whole program, on one CPU, the best of "
            .to_owned();
    text += &format!("{rounds} interleaved rounds; MB of records in memory.\n");
    if trace_cmd.is_none() {
        text += "\nNot run: trace-cmd (not installed): nothing to compare with\n";
    }
    for (kind, shown) in FILES {
        let file = make(&ours, kind, build)?;
        if let Some(trace_cmd) = &trace_cmd {
            compare(trace_cmd, &ours, kind, &file)?;
        }
        let ways: Vec<(Way, &str)> = WAYS
            .into_iter()
            .filter(|(way, _)| match way {
                Way::TraceCmd(_) => trace_cmd.is_some(),
                Way::Ours(purpose) => *purpose != "calls" || kind == "graph",
            })
            .collect();
        let mut best = vec![f64::INFINITY; ways.len()];
        for round in 0..rounds {
            eprintln!("{kind}: round {} of {rounds}", round + 1);
            for step in 0..ways.len() {
                // Each round begins with another way, so that none always follows the same neighbour.
                let at = (step + round) % ways.len();
                let mut command = command(ways[at].0, trace_cmd.as_deref(), &ours, &file.path);
                best[at] = best[at].min(cpu_seconds(&mut command)?);
            }
        }
        text += &format!(
            "\n{shown}: {} events, {:.0} MB of records in a file of {:.1} MB\n\n",
            file.events,
            file.bytes as f64 / 1e6,
            std::fs::metadata(&file.path)?.len() as f64 / 1e6,
        );
        text += &rows(&ways, &best, &file);
        std::fs::remove_file(&file.path)?;
    }
    Ok(text)
}

fn rows(ways: &[(Way, &str)], best: &[f64], file: &File) -> String {
    let reference = (ways[0].0 == WAYS[0].0).then(|| best[0]);
    let rows = ways.iter().zip(best).map(|((_, name), seconds)| {
        let times = reference.map_or("-".to_owned(), |reference| format!("{:.1}x", reference / seconds));
        let (megabytes, millions) = (file.bytes as f64 / 1e6 / seconds, file.events as f64 / 1e6 / seconds);
        vec![(*name).to_owned(), times, format!("{millions:.2}"), format!("{megabytes:.0}"), format!("{seconds:.2}")]
    });
    table::markdown(&["what reads it", "speed / first", "million events/s", "MB/s", "CPU time, s"], rows)
}

fn build_ours(root: &Path) -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--release", "-p", "kstrobe-ftrace", "--example", "throughput"];
    if !Command::new("cargo").args(arguments).current_dir(root).status()?.success() {
        bail!("the release build of ftrace/examples/throughput.rs failed");
    }
    Ok(root.join("target/release/examples/throughput"))
}

fn make(ours: &Path, kind: &str, build: &Path) -> Result<File> {
    let path = build.join(format!("{kind}.dat"));
    let made = Command::new(ours).args(["make", kind, MEGABYTES]).arg(&path).output()?;
    if !made.status.success() {
        bail!("making {}: {}", path.display(), String::from_utf8_lossy(&made.stderr));
    }
    let bytes = String::from_utf8_lossy(&made.stdout).trim().parse().context("what was made")?;
    let read = Command::new(ours).arg("events").arg(&path).output()?;
    let events = String::from_utf8_lossy(&read.stderr).trim().parse().context("events in what was made")?;
    Ok(File { path, bytes, events })
}

fn command(way: Way, trace_cmd: Option<&Path>, ours: &Path, file: &Path) -> Command {
    match way {
        Way::TraceCmd(argument) => {
            let mut command = Command::new(trace_cmd.unwrap_or(Path::new("trace-cmd")));
            command.arg("report").args(argument).arg("-i").arg(file);
            command
        }
        Way::Ours(purpose) => {
            let mut command = Command::new(ours);
            command.arg(purpose).arg(file);
            command
        }
    }
}

/// Both must see every event; a program that leaves some out would win.
fn compare(trace_cmd: &Path, ours: &Path, kind: &str, file: &File) -> Result<()> {
    let lines = |way| event_lines(&mut command(way, Some(trace_cmd), ours, &file.path));
    let raw = lines(Way::TraceCmd(Some("-R")))?;
    if raw != file.events {
        bail!("{kind}: trace-cmd report -R has {raw} events, kstrobe {}", file.events);
    }
    // A function graph is another text here: that of the kernel, where a call without calls is one line.
    if kind == "events" {
        let (theirs, own) = (lines(Way::TraceCmd(None))?, lines(Way::Ours("text"))?);
        if (theirs, own) != (raw, raw) {
            bail!("{kind}: of {raw} events, {theirs} are in the text of trace-cmd report and {own} in that of kstrobe");
        }
    }
    Ok(())
}

/// Lines of a text that begin an event.
fn event_lines(command: &mut Command) -> Result<u64> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut text = BufReader::new(child.stdout.take().context("no standard output")?);
    let (mut line, mut count) = (Vec::new(), 0);
    while text.read_until(b'\n', &mut line)? > 0 {
        count += u64::from(begins_event(&line));
        line.clear();
    }
    if !child.wait()?.success() {
        bail!("{command:?} failed");
    }
    Ok(count)
}

/// Whether a CPU stands in brackets behind the task: values may go on for lines.
fn begins_event(line: &[u8]) -> bool {
    let cpu = |five: &[u8]| five[0] == b'[' && five[1..4].iter().all(u8::is_ascii_digit) && five[4] == b']';
    !line.starts_with(b"#") && line.windows(5).take(48).any(cpu)
}

/// What a program and its children take of a CPU: on a machine that others use too it says more than a clock.
fn cpu_seconds(command: &mut Command) -> Result<f64> {
    let spent = |usage: Usage| usage.user_time() + usage.system_time();
    let before = spent(getrusage(UsageWho::RUSAGE_CHILDREN)?);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !status.success() {
        bail!("{command:?} failed");
    }
    let taken = spent(getrusage(UsageWho::RUSAGE_CHILDREN)?) - before;
    Ok(taken.num_microseconds() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_that_only_go_on_are_no_events() {
        let begins = |line: &str| super::begins_event(line.as_bytes());
        assert!(begins("            ping-326   [001]     0.001000: tcp_probe: saddr=\n"));
        assert!(begins("            ping-326     [000] d.h..     0.001000: softirq_raise: vec=1\n"));
        assert!(!begins(" saddr_v6= daddr_v6= sock_cookie=1\n"));
        assert!(!begins("CPU:0 [41 EVENTS DROPPED]\n"));
        assert!(!begins("# [000]\n"));
    }
}
