//! What leaves by exporters besides reports: where single events and captures are handed over, and what became of all of it.

use std::path::Path;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use kstrobe_export::otlp::{logs, spans};
use kstrobe_ftrace::calls::build;
use kstrobe_ftrace::dat;
use kstrobe_push::{Outlet, Usage, Watch};

use super::lock;
use crate::capture::form::Form;
use crate::capture::spans::{About, spans};
use crate::capture::store::Capture;
use crate::events::line::Event;
use crate::events::log;

/// The ways out, as exporters are now.
#[derive(Default)]
pub(super) struct Exports {
    /// Of every task that sends.
    watches: Mutex<Vec<Watch>>,
    outlets: RwLock<Outlets>,
}

/// Those that were asked for.
#[derive(Clone, Default)]
pub(super) struct Outlets {
    pub logs: Vec<Outlet<logs::Record>>,
    pub traces: Vec<Outlet<spans::Span>>,
}

impl Exports {
    /// From now on these.
    pub fn set(&self, watches: Vec<Watch>, outlets: Outlets) {
        *lock(&self.watches) = watches;
        *self.outlets.write().unwrap_or_else(PoisonError::into_inner) = outlets;
    }

    /// What became of what was sent.
    pub fn usage(&self) -> Vec<Usage> {
        lock(&self.watches).iter().map(Watch::usage).collect()
    }

    fn outlets(&self) -> Outlets {
        self.outlets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Hands a single event over, which `line` tells too.
    pub fn event(&self, event: &Event, line: &str, read: SystemTime) {
        let outlets = self.outlets.read().unwrap_or_else(PoisonError::into_inner);
        for outlet in &outlets.logs {
            outlet.put(log::record(event, line, read));
        }
    }

    /// Hands a capture over that has ended; its files are in this folder.
    pub fn captured(&self, capture: &Capture, folder: &Path, times: (SystemTime, SystemTime)) {
        let outlets = self.outlets().traces;
        if outlets.is_empty() {
            return;
        }
        match made(capture, folder, times) {
            Ok(spans) => {
                for outlet in outlets {
                    spans.iter().for_each(|span| outlet.put(span.clone()));
                }
            }
            Err(reason) => tracing::error!(capture = capture.id, reason, "it is not sent as spans"),
        }
    }
}

fn made(capture: &Capture, folder: &Path, times: (SystemTime, SystemTime)) -> Result<Vec<spans::Span>, String> {
    let host = crate::receivers::host();
    let about = |epoch_offset_ns| About { capture, host: &host, times, epoch_offset_ns };
    if !capture.files.iter().any(|file| file.format == Form::Dat.name()) {
        return Ok(spans(about(None), &Default::default()));
    }
    let bytes = std::fs::read(folder.join(Form::Dat.file())).map_err(|e| format!("it cannot be read: {e}"))?;
    let trace = dat::read(&bytes).map_err(|e| format!("it cannot be read: {e}"))?.trace;
    drop(bytes);
    let calls = build::build(&trace, build::Options { marks: false });
    Ok(spans(about(trace.about.epoch_offset_ns), &calls))
}
