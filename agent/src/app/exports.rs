//! What leaves by exporters besides reports: where single events and captures are handed over, and what became of all of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use kstrobe_export::otlp::{logs, spans};
use kstrobe_export::push::{BatchQueue, Usage, Watch};
use kstrobe_ftrace::calls::build;
use kstrobe_ftrace::dat;

use super::lock;
use crate::capture::format::Format;
use crate::capture::spans::{About, spans};
use crate::capture::store::Capture;
use crate::metrics::events::line::Event;
use crate::metrics::events::log;
use crate::metrics::telemetry::ExportUse;

/// The ways out, as exporters are now.
#[derive(Default)]
pub(super) struct Exports {
    sending: Mutex<Sending>,
    queues: RwLock<BatchQueues>,
}

/// Tasks that send, and totals of ended ones.
#[derive(Default)]
struct Sending {
    running: Vec<Watch>,
    /// Their last reports are under way.
    ending: Vec<Watch>,
    /// Totals by name.
    ended: BTreeMap<String, Usage>,
}

/// Queues of the exporters that take log records or spans.
#[derive(Clone, Default)]
pub(super) struct BatchQueues {
    pub logs: Vec<BatchQueue<logs::Record>>,
    pub traces: Vec<BatchQueue<spans::Span>>,
}

impl Exports {
    /// Replaces tasks and queues. Removed tasks are sending their last reports.
    pub fn set(&self, watches: Vec<Watch>, queues: BatchQueues) {
        let mut sending = lock(&self.sending);
        let before = std::mem::replace(&mut sending.running, watches);
        let over = before.into_iter().filter(|old| !sending.running.iter().any(|new| new.is(old)));
        let over: Vec<Watch> = over.collect();
        sending.ending.extend(over);
        drop(sending);
        *self.queues.write().unwrap_or_else(PoisonError::into_inner) = queues;
    }

    /// Removes a task after its last report, and adds to the totals of its name.
    pub fn ended(&self, watch: &Watch) {
        let mut sending = lock(&self.sending);
        sending.running.retain(|running| !running.is(watch));
        sending.ending.retain(|ending| !ending.is(watch));
        add(&mut sending.ended, &watch.usage());
    }

    /// Totals of what was sent. An exporter with the name of a former one continues its totals.
    pub fn usage(&self) -> ExportUse {
        let sending = lock(&self.sending);
        let mut past = sending.ended.clone();
        sending.ending.iter().for_each(|ending| add(&mut past, &ending.usage()));
        let now = sending.running.iter().map(|running| {
            let mut usage = running.usage();
            past.remove(&usage.receiver).iter().for_each(|before| usage.add(before));
            usage
        });
        ExportUse { now: now.collect(), past: past.into_values().collect() }
    }

    fn queues(&self) -> BatchQueues {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a single event (`line` is its JSON). Returns whether an exporter takes log records.
    pub fn event(&self, event: &Event, line: &str, read: SystemTime) -> bool {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        for queue in &queues.logs {
            queue.push(log::record(event, line, read));
        }
        !queues.logs.is_empty()
    }

    /// Queues a span. Returns whether an exporter takes spans.
    pub fn span(&self, make: impl Fn() -> spans::Span) -> bool {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.traces.iter().for_each(|queue| queue.push(make()));
        !queues.traces.is_empty()
    }

    /// Queues the spans of a capture that has ended, whose files are in `folder`.
    pub fn captured(&self, capture: &Capture, folder: &Path, times: (SystemTime, SystemTime)) {
        let queues = self.queues().traces;
        if queues.is_empty() {
            return;
        }
        match made(capture, folder, times) {
            Ok(spans) => {
                for queue in queues {
                    spans.iter().for_each(|span| queue.push(span.clone()));
                }
            }
            Err(reason) => tracing::error!(capture = capture.id, %reason, "capture not sent as spans"),
        }
    }
}

fn add(totals: &mut BTreeMap<String, Usage>, usage: &Usage) {
    let fresh = || Usage { receiver: usage.receiver.clone(), ..Usage::default() };
    totals.entry(usage.receiver.clone()).or_insert_with(fresh).add(usage);
}

/// Why a capture has no spans.
#[derive(Debug, thiserror::Error)]
enum SpansError {
    #[error("it cannot be read: {0}")]
    File(#[from] std::io::Error),
    /// What the file holds.
    #[error("it cannot be read: {0}")]
    Trace(#[from] dat::DatError),
}

fn made(capture: &Capture, folder: &Path, times: (SystemTime, SystemTime)) -> Result<Vec<spans::Span>, SpansError> {
    let host = crate::config::exporters::host();
    let about = |epoch_offset_ns| About { capture, host: &host, times, epoch_offset_ns };
    if !capture.files.iter().any(|file| file.format == Format::Dat.name()) {
        return Ok(spans(about(None), &Default::default()));
    }
    let bytes = std::fs::read(folder.join(Format::Dat.file()))?;
    let trace = dat::read(&bytes)?.trace;
    drop(bytes);
    let calls = build::build(&trace, build::Options { marks: false });
    Ok(spans(about(trace.about.epoch_offset_ns), &calls))
}
