//! What a capture says, from `trace.dat` or text of the function_graph tracer: reports as text and as data.

use clap::ValueEnum;
use kstrobe_ftrace::calls::{Calls, build, text};
use kstrobe_ftrace::dat;
use kstrobe_ftrace::report::{self, Activity, Asked, Happening, Syscalls};
use kstrobe_ftrace::trace::Trace;

/// Why bytes are no capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error(transparent)]
    Dat(#[from] dat::DatError),
    #[error("neither a trace.dat file nor text of the function_graph tracer")]
    Neither,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Report {
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

/// A capture that was read.
pub struct Capture {
    pub trace: Option<Trace>,
    pub calls: Calls,
    pub activity: Activity,
    /// What of the file was not understood.
    pub skipped: Vec<String>,
}

impl Capture {
    /// What is missing of its calls, printed before the report; `file` where there are several.
    pub fn missing(&self, file: &str, out: &mut String) {
        let mut text = String::new();
        report::missing(&self.calls).render(&mut text);
        if !text.is_empty() {
            out.push_str(file);
            out.push_str(&text);
            out.push('\n');
        }
    }
}

/// What a file of these bytes holds.
pub fn capture(bytes: &[u8]) -> Result<Capture, CaptureError> {
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

    pub fn syscalls(&self, asked: &Asked) -> Syscalls {
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

pub type Data = serde_json::Map<String, serde_json::Value>;

/// The reports asked for, or all that the capture has something for, as text and as data.
pub fn all(capture: &Capture, asked: &Asked, reports: &[Report]) -> (String, Data) {
    let mut reports = reports.to_vec();
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

pub fn keep(data: &mut Data, name: &str, report: &impl serde::Serialize) {
    // Reports are structs of numbers, texts and lists: all of these can be written.
    data.insert(name.to_owned(), serde_json::to_value(report).unwrap_or_default());
}
