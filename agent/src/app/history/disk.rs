//! The history on disk: one thread appends what the recorder has encoded, so that a slow, full or broken disk holds up nothing
//! else.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use kstrobe_history::disk::{Appender, Archive, DiskError, DiskUsage, Retention};
use kstrobe_history::segment::{Encoder, Frame};
use kstrobe_history::{Mark, ProbeChanges, Second};

use crate::app::lock;
use crate::app::task::{self, Task};

/// Seconds that wait for the disk. With more it is too slow.
const MAX_WAITING: usize = 30;
/// Seconds between two attempts to go on after a failure.
const RETRY_SECONDS: u64 = 10;
/// Marks between two seconds; more are not written.
const MAX_MARKS: usize = 1024;

/// Encodes seconds for the thread that writes them.
#[derive(Debug)]
pub(super) struct Disk {
    directory: PathBuf,
    encoder: Encoder,
    frames: SyncSender<Frame>,
    state: Arc<Mutex<State>>,
    /// Those since the last second.
    marks: Vec<Mark>,
    /// Second of the next attempt after a failure.
    next_attempt: u64,
}

/// What both sides know.
#[derive(Debug)]
struct State {
    retention: Retention,
    usage: DiskUsage,
    /// Why nothing is written.
    stopped: Option<String>,
    /// A frame is missing, so that the next one that is written begins a segment.
    has_gap: bool,
}

impl Disk {
    pub fn start(directory: PathBuf, retention: Retention) -> std::io::Result<Disk> {
        let usage = DiskUsage::default();
        let state = Arc::new(Mutex::new(State { retention, usage, stopped: None, has_gap: false }));
        let (frames, received) = sync_channel(MAX_WAITING);
        let (for_writer, path) = (state.clone(), directory.clone());
        task::spawn(move || Writer { directory: path, appender: None, state: for_writer, received, next: None })?;
        let encoder = Encoder::new(retention.segment_bytes());
        Ok(Disk { directory, encoder, frames, state, marks: Vec::new(), next_attempt: 0 })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn set_retention(&mut self, retention: Retention) {
        lock(&self.state).retention = retention;
        self.encoder.set_max_bytes(retention.segment_bytes());
    }

    /// What can be read of it.
    pub fn archive(&self) -> Option<Archive> {
        Archive::open(&self.directory).ok()
    }

    pub fn usage(&self) -> DiskUsage {
        let state = lock(&self.state);
        DiskUsage { is_stopped: state.stopped.is_some(), ..state.usage }
    }

    pub fn max_bytes(&self) -> u64 {
        lock(&self.state).retention.bytes
    }

    /// Why nothing is written, if that is so.
    pub fn stopped(&self) -> Option<String> {
        lock(&self.state).stopped.clone()
    }

    pub fn mark(&mut self, mark: Mark) {
        if self.marks.len() < MAX_MARKS {
            self.marks.push(mark);
        } else {
            lock(&self.state).usage.lost_marks += 1;
        }
    }

    /// Hands a second to the thread that writes. It never waits for the disk.
    pub fn append(&mut self, second: Second, changes: &[ProbeChanges]) {
        let waits = {
            let mut state = lock(&self.state);
            let waits = state.stopped.is_some() && (self.next_attempt > second.start);
            if state.has_gap && !waits {
                state.has_gap = false;
                self.encoder.end_segment();
                self.next_attempt = second.start + RETRY_SECONDS;
            }
            waits
        };
        // Also while nothing is written: the next segment begins with the gauges as they are then.
        let frame = self.encoder.encode(second, changes, &std::mem::take(&mut self.marks));
        if waits {
            lock(&self.state).usage.lost.failed += second.seconds;
        } else if self.frames.try_send(frame).is_err() {
            let mut state = lock(&self.state);
            state.usage.lost.slow += second.seconds;
            state.has_gap = true;
        }
    }
}

struct Writer {
    directory: PathBuf,
    appender: Option<Appender>,
    state: Arc<Mutex<State>>,
    received: Receiver<Frame>,
    next: Option<Frame>,
}

impl Task for Writer {
    const NAME: &'static str = "history-disk";

    fn run(&mut self) {
        let frame = self.next.take();
        let written = self.write(frame.as_ref());
        let seconds = frame.map_or(0, |frame| frame.second.seconds);
        let mut state = lock(&self.state);
        state.usage.bytes = self.appender.as_ref().map_or(state.usage.bytes, Appender::bytes);
        match written {
            Ok(true) => {
                if state.stopped.take().is_some() {
                    tracing::info!(dir = %self.directory.display(), "the history is written again");
                }
            }
            Ok(false) => state.usage.lost.failed += seconds,
            Err(error) => {
                self.appender = None;
                state.usage.lost.failed += seconds;
                state.has_gap = true;
                let reason = error.to_string();
                if state.stopped.is_none() {
                    tracing::warn!(reason, "the history is not written until that is over; nothing else is affected");
                }
                state.stopped = Some(reason);
            }
        }
    }

    fn wait(&mut self) -> ControlFlow<()> {
        match self.received.recv() {
            Ok(frame) => {
                self.next = Some(frame);
                ControlFlow::Continue(())
            }
            Err(_) => ControlFlow::Break(()),
        }
    }
}

impl Writer {
    /// Writes a frame, or without any only takes the directory. `false` for one that needs those before it, which are missing.
    fn write(&mut self, frame: Option<&Frame>) -> Result<bool, DiskError> {
        let retention = lock(&self.state).retention;
        let is_first = frame.is_none_or(|frame| frame.is_first);
        let appender = match &mut self.appender {
            Some(appender) => appender,
            None if !is_first => return Ok(false),
            None => {
                let (appender, cut) = Appender::open(&self.directory, retention)?;
                if cut > 0 {
                    tracing::warn!(dir = %self.directory.display(), bytes = cut, "cut a second that was not whole");
                    lock(&self.state).usage.lost.torn += 1;
                }
                self.appender.insert(appender)
            }
        };
        appender.set_retention(retention);
        frame.map_or(Ok(true), |frame| appender.append(frame))
    }
}
