//! Single events: read from the kernel's buffers, symbolised, written to the sink of `events:`, and kept in the tail for
//! `/api/v1/events`. One thread reads the buffers of all probes.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::pace::AT_REST;
use super::task::{self, Task};
use super::{App, lock};
use crate::kernel::events::wait;
use crate::kernel::sys::monotonic_ns;
use crate::metrics::events::exemplars;
use crate::metrics::events::id::Ids;
use crate::metrics::events::line::{Event, wall_time};
use crate::metrics::events::record::{Field, Record};
use crate::metrics::events::span;
use crate::metrics::events::tail::Tail;
use crate::metrics::labels::Names;
use crate::metrics::profiles::processes::Processes;
use crate::metrics::profiles::symbols::{Symbols, resolve_by};
use crate::metrics::profiles::{Addresses, Profile, Sample};
use crate::probe::event_buffer::EventBuffer;
use kstrobe_fleet::private;
use kstrobe_history::MarkKind;

/// How long events are gathered, so that a flood wakes us ten times a second at most.
const GATHER: Duration = Duration::from_millis(100);
/// Until the look after one that found events: some may have been lost since, which wakes no reader.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The same after one that found none; [`AT_REST`] while the agent rests.
const LOOK_SELDOM: Duration = Duration::from_secs(30);
/// Life of cached symbols.
const SYMBOLS_LIFE: Duration = Duration::from_secs(10);
/// Time to write the last events when the agent stops.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A file that events cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("events cannot be written to `{path}`: {error}")]
pub(super) struct SinkError {
    path: String,
    error: io::Error,
}

/// Where lines are written.
#[derive(Debug)]
pub(super) enum Sink {
    /// Nowhere.
    None,
    /// Beside the log.
    Stderr,
    /// At the end of a file.
    File(File),
    /// To another thread of this process. The reader waits while the channel is full; the kernel counts what it has no room for
    /// meanwhile.
    Channel(SyncSender<Event>),
}

impl Sink {
    /// `stderr`, `none`, or the path of a file, which is made when it is not there.
    pub fn open(to: &str) -> Result<Sink, SinkError> {
        match to {
            "none" => Ok(Sink::None),
            "stderr" => Ok(Sink::Stderr),
            path => {
                // Fields hold arguments of other users' calls. An existing file keeps its mode.
                let file = OpenOptions::new().append(true).create(true).mode(private::MODE).open(path);
                file.map(Sink::File).map_err(|error| SinkError { path: path.to_owned(), error })
            }
        }
    }

    /// One write a line: lines of others never stand inside it.
    fn write(&mut self, event: Event, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        match self {
            Sink::Channel(to) => to.send(event).map_err(|_| io::ErrorKind::BrokenPipe.into()),
            Sink::None => Ok(()),
            Sink::Stderr => io::stderr().lock().write_all(line.as_bytes()),
            Sink::File(file) => file.write_all(line.as_bytes()),
        }
    }
}

/// The task that reads.
pub(super) struct Reader {
    /// Closed to end it.
    stop: PipeWriter,
    running: task::Running,
}

impl Reader {
    /// Ends it after one more pass, without waiting for it.
    pub fn close(self) {
        drop(self.stop);
    }

    /// Ends it, once the last events are written. A file or terminal that takes none is not waited for for long.
    pub fn stop(self) {
        drop(self.stop);
        self.running.join(LAST_WORDS);
    }
}

/// A reload's changes for the thread that writes events.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub sink: Option<Sink>,
    /// The last events of probes that ended.
    pub unread: Vec<(Arc<str>, EventBuffer)>,
}

/// Starts to read.
pub(super) fn start(app: Arc<App>, tail: Arc<Tail>, sink: Sink) -> io::Result<Reader> {
    let (stopped, stop) = io::pipe()?;
    let (woken, wake) = io::pipe()?;
    *lock(&app.events_wake) = Some(wake);
    let running = task::spawn(move || {
        let names = Names::new().with_workload_names(app.workload_names.clone());
        let out = Out { app, tail, sink, failed: false, symbols: None, ids: Ids::new() };
        Events { out, names, ready: Vec::new(), stopped, woken, found: false, ending: false }
    })?;
    Ok(Reader { stop, running })
}

/// A reader that silently ends would let all events to come be refused.
struct Events {
    out: Out,
    names: Names,
    /// Readable when there are events.
    ready: Vec<Arc<OwnedFd>>,
    stopped: PipeReader,
    /// Readable when there are other probes to read.
    woken: PipeReader,
    /// The last pass found events.
    found: bool,
    /// The agent stops: this was the last pass.
    ending: bool,
}

impl Task for Events {
    const NAME: &'static str = "events";

    fn run(&mut self) {
        (self.ready, self.found) = self.out.turn(&mut self.names);
    }

    fn panicked(&mut self) {
        (self.ready, self.found) = (Vec::new(), true);
    }

    fn wait(&mut self) -> ControlFlow<()> {
        if self.ending {
            return ControlFlow::Break(());
        }
        let files: Vec<_> =
            [self.woken.as_fd()].into_iter().chain(self.ready.iter().map(|file| file.as_fd())).collect();
        // At the end there is one more pass.
        let time = match (self.found, self.out.app.pace.rests()) {
            (true, _) => LOOK_AGAIN,
            (false, false) => LOOK_SELDOM,
            (false, true) => AT_REST,
        };
        self.ending = match pause(&self.stopped, &files, time) {
            Woken::Stop => true,
            Woken::Change => {
                // All of it: what changed is looked up.
                let _ = self.woken.read(&mut [0; 64]);
                false
            }
            // Not again at once: a buffer is ready when it has one record.
            Woken::Events => pause(&self.stopped, &[], GATHER) == Woken::Stop,
            Woken::Time => false,
        };
        ControlFlow::Continue(())
    }
}

/// Why a pause is over.
#[derive(PartialEq, Eq)]
enum Woken {
    Stop,
    Change,
    Events,
    Time,
}

/// Waits until one of the files is ready, of which the first tells of changes, the agent stops or time is up.
fn pause(stopped: &PipeReader, files: &[BorrowedFd<'_>], time: Duration) -> Woken {
    let files = [&[stopped.as_fd()], files].concat();
    let ready = wait(&files, time).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot wait for events");
        std::thread::sleep(LOOK_AGAIN);
        Vec::new()
    });
    match ready.split_first() {
        Some((true, _)) => Woken::Stop,
        Some((_, [true, ..])) => Woken::Change,
        Some((_, files)) if files.contains(&true) => Woken::Events,
        _ => Woken::Time,
    }
}

/// Where events go.
struct Out {
    app: Arc<App>,
    tail: Arc<Tail>,
    sink: Sink,
    /// The last line could not be written.
    failed: bool,
    symbols: Option<(Symbols, Instant)>,
    ids: Ids,
}

impl App {
    /// Lets the thread look which probes there are to read, and at [`Change`].
    pub(super) fn wake_events(&self) {
        if let Some(wake) = &mut *lock(&self.events_wake) {
            // Without a reader the agent ends.
            let _ = wake.write(&[1]);
        }
    }
}

impl Out {
    /// Publishes new events of all probes. Returns the file descriptors to poll, and whether there were events.
    fn turn(&mut self, names: &mut Names) -> (Vec<Arc<OwnedFd>>, bool) {
        self.symbols = self.symbols.take().filter(|(_, since)| since.elapsed() < SYMBOLS_LIFE);
        let (mut ready, mut found) = (Vec::new(), false);
        for (probe, unread) in self.change() {
            self.publish(&probe, unread);
        }
        for probe in self.app.probes().iter() {
            let (probe, files, unread) = {
                let mut running = probe.lock();
                let (files, unread) = running.events(names);
                (Arc::from(running.meta.name.as_str()), files, unread)
            };
            ready.extend(files);
            found |= !unread.records.is_empty();
            self.publish(&probe, unread);
        }
        (ready, found)
    }

    /// Applies a reload. Returns the last events of probes that it ended.
    fn change(&mut self) -> Vec<(Arc<str>, EventBuffer)> {
        let Change { sink, unread } = std::mem::take(&mut *lock(&self.app.events));
        if let Some(sink) = sink {
            (self.sink, self.failed) = (sink, false);
        }
        unread
    }

    fn publish(&mut self, probe: &Arc<str>, unread: EventBuffer) {
        if unread.records.is_empty() {
            return;
        }
        let EventBuffer { records, stacks, names, linked, .. } = unread;
        let mut stacks = self.named(&records, stacks).into_iter();
        let (now_ns, now) = (monotonic_ns(), SystemTime::now());
        let count = records.len();
        let mut last = None;
        for record in records {
            let (id, at) = (self.ids.give(), wall_time(record.at_ns, now_ns, now));
            let observed = exemplars::observed(&linked, &record.fields);
            let values = record.fields.into_iter().map(|field| match field {
                Field::Value(value) => value,
                Field::Stack { .. } => stacks.next().unwrap_or_default(),
            });
            let fields = names.iter().cloned().zip(values).collect();
            let event = Event { id, at, probe: probe.clone(), pid: record.pid, tid: record.tid, fields };
            let line = event.line();
            let pushed_out = self.tail.add(probe, &line);
            let mut sent = self.app.exports.event(&event, &line, now);
            if !record.otlp_span.is_empty() {
                sent |= self.app.exports.span(|| span::span(&event, self.ids.trace_high(), &record.otlp_span));
            }
            if pushed_out && !sent && matches!(self.sink, Sink::None) {
                tracing::warn!(
                    probe = &**probe,
                    kept = self.tail.limit(),
                    remedy = "raise `limits.kept_events`, write events with `events:`, or send them by an exporter with `logs: true`",
                    "older slow events are no longer kept; each answer of /api/v1/events counts them in `gone`"
                );
            }
            last = Some((event.id.clone(), at));
            {
                let mut seen = lock(&self.app.exemplars);
                observed.into_iter().for_each(|observed| seen.add(observed, &event.id, at));
            }
            self.write(event, &line);
        }
        // One for each pass: a storm of events must not push all other marks out.
        if let Some((id, at)) = last {
            let text =
                if count == 1 { format!("{probe}: slow event") } else { format!("{probe}: {count} slow events") };
            self.app.history.mark(MarkKind::Event, at, text, Some(format!("/api/v1/events?id={id}")));
        }
    }

    /// Stacks as arrays of names, from the leaf to the root.
    fn named(&mut self, records: &[Record], stacks: Vec<Addresses>) -> Vec<Value> {
        if stacks.is_empty() {
            return Vec::new();
        }
        let sides = records.iter().flat_map(|r| r.fields.iter().map(move |field| (r.pid, field)));
        let sides = sides.filter_map(|(pid, field)| match field {
            Field::Stack { user, .. } => Some((pid, *user)),
            Field::Value(_) => None,
        });
        // Now that nothing is locked which a scrape waits for.
        let mut processes = Processes::default();
        processes.learn(sides.clone().filter_map(|(pid, user)| user.then_some(pid)));
        let samples = sides.zip(stacks).map(|((pid, user), addresses)| match user {
            true => Sample { pid, user: addresses, ..Sample::default() },
            false => Sample { kernel: addresses, ..Sample::default() },
        });
        let profile = Profile { samples: samples.collect(), ..Profile::default() };
        let (symbols, _) = self.symbols.get_or_insert_with(|| (Symbols::new(), Instant::now()));
        let resolved = resolve_by(symbols, profile, processes);
        let name = |frame: &u32| Value::from(&*resolved.frames[*frame as usize].name);
        resolved.samples.iter().map(|sample| sample.frames.iter().map(name).collect()).collect()
    }

    fn write(&mut self, event: Event, line: &str) {
        match self.sink.write(event, line) {
            Ok(()) => self.failed = false,
            Err(error) => {
                self.app.telemetry.event_unwritten();
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::error!(%error, "events cannot be written");
                }
            }
        }
    }
}
