//! Sending to the receivers of `exporters:`: a task for each, and one each for its logs and spans if it wants them.

use super::exports::BatchQueues;
use super::{App, lock};
use kstrobe_export::otlp::{Temporality, logs, spans};
use kstrobe_export::push::{BatchQueue, DeltaBaseline, Exporter, ExporterTask, Kind, Reading};
use kstrobe_export::{
    Format,
    own::{self, Beginnings},
};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Time for the last reports of all exporters together.
const LAST_REPORTS: Duration = Duration::from_secs(5);
/// Time for a request under way before a successor takes over the queue; shorter than `LAST_REPORTS`, which bounds the wait
/// for it.
const HANDING_OVER: Duration = Duration::from_secs(3);

/// What runs.
pub(super) struct Exporters {
    app: Arc<App>,
    runtime: Handle,
    /// When each of the agent's own counts began.
    beginnings: Arc<Mutex<Beginnings>>,
    running: Mutex<Vec<Sending>>,
    /// Tasks that send the last reports of removed exporters.
    ending: Mutex<Vec<JoinHandle<()>>>,
}

/// What is sent to one receiver.
struct Sending {
    receiver: Exporter,
    reports: ExporterTask,
    logs: Option<(ExporterTask, BatchQueue<logs::Record>)>,
    traces: Option<(ExporterTask, BatchQueue<spans::Span>)>,
}

/// What became of the exporters of one configuration in another.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub kept: usize,
    pub started: usize,
    pub ended: usize,
}

impl Exporters {
    pub fn new(app: Arc<App>, runtime: Handle) -> Exporters {
        let (running, ending) = Default::default();
        let beginnings = Arc::new(Mutex::new(Beginnings::new(SystemTime::now())));
        Exporters { app, runtime, beginnings, running, ending }
    }

    /// Starts the exporters of the first configuration.
    pub fn begin(&self, receivers: Vec<Exporter>) {
        let start = |receiver| self.start(receiver, DeltaBaseline::default());
        *lock(&self.running) = receivers.into_iter().map(start).collect();
        self.publish();
    }

    /// Replaces the exporters. Unchanged ones keep their tasks and queues; removed ones send a last report. Delta exporters
    /// continue from the baseline of their predecessor, or else begin now.
    pub fn renew(&self, receivers: Vec<Exporter>) -> Changes {
        let mut changes = Changes::default();
        let mut running = lock(&self.running);
        let mut before = std::mem::take(&mut *running);
        let mut same = |new: &Exporter| {
            let at = before.iter().position(|old| old.receiver == *new)?;
            Some(before.swap_remove(at))
        };
        let kept: Vec<Option<Sending>> = receivers.iter().map(&mut same).collect();
        // Ask all predecessors first: they finish their requests in parallel.
        let ask = |(new, kept): (&Exporter, &Option<Sending>)| {
            let old = predecessor(new, &before, &receivers).filter(|_| kept.is_none())?;
            Some(old.reports.hand_over(HANDING_OVER))
        };
        let left: Vec<_> = receivers.iter().zip(&kept).map(ask).collect();
        let at_latest = Instant::now() + LAST_REPORTS;
        for ((receiver, kept), left) in receivers.into_iter().zip(kept).zip(left) {
            running.push(match kept {
                Some(sending) => {
                    changes.kept += 1;
                    sending
                }
                None => {
                    changes.started += 1;
                    let patience = at_latest.saturating_duration_since(Instant::now());
                    let left = left.and_then(|left| left.recv_timeout(patience).ok());
                    let baseline = left.unwrap_or_else(|| self.baseline(&receiver));
                    self.start(receiver, baseline)
                }
            });
        }
        drop(running);
        self.publish();
        changes.ended = before.len();
        let mut ending = lock(&self.ending);
        ending.retain(|last| !last.is_finished());
        for sending in before {
            tracing::info!(exporter = sending.receiver.name, "removed by a reload");
            let end = |pusher| self.runtime.spawn(end(self.app.clone(), pusher));
            ending.extend(sending.into_pushers().map(end));
        }
        changes
    }

    /// The baseline of a delta exporter without a predecessor.
    fn baseline(&self, receiver: &Exporter) -> DeltaBaseline {
        let now = || reading(&self.app, &self.beginnings).snapshot;
        DeltaBaseline { base: differs(receiver).then(now), unsent: None }
    }

    /// Publishes the new tasks and queues to [`super::exports`].
    fn publish(&self) {
        let running = lock(&self.running);
        let queues = BatchQueues {
            logs: running.iter().flat_map(|s| s.logs.iter().map(|(_, queue)| queue.clone())).collect(),
            traces: running.iter().flat_map(|s| s.traces.iter().map(|(_, queue)| queue.clone())).collect(),
        };
        let watches = running.iter().flat_map(Sending::pushers).map(ExporterTask::watch).collect();
        self.app.exports.set(watches, queues);
    }

    fn start(&self, receiver: Exporter, baseline: DeltaBaseline) -> Sending {
        let Exporter { name, logs, traces, .. } = &receiver;
        tracing::info!(exporter = name, url = receiver.shown(), logs, traces, "sending");
        let (app, beginnings) = (self.app.clone(), self.beginnings.clone());
        let read = Arc::new(move || reading(&app, &beginnings));
        Sending {
            logs: receiver.logs.then(|| kstrobe_export::push::start_logs(&receiver, &self.runtime)),
            traces: receiver.traces.then(|| kstrobe_export::push::start_traces(&receiver, &self.runtime)),
            reports: kstrobe_export::push::start(receiver.clone(), read, baseline, &self.runtime),
            receiver,
        }
    }

    /// One last report each, within a bound.
    pub async fn stop(&self) {
        let running = std::mem::take(&mut *lock(&self.running));
        let end = |pusher| tokio::spawn(end(self.app.clone(), pusher));
        let last = running.into_iter().flat_map(Sending::into_pushers).map(end);
        let mut last: Vec<_> = last.collect();
        last.append(&mut lock(&self.ending));
        for ended in last {
            // A task that has failed said so.
            let _ = ended.await;
        }
    }
}

impl Sending {
    fn pushers(&self) -> impl Iterator<Item = &ExporterTask> {
        let records = self.logs.iter().map(|(pusher, _)| pusher).chain(self.traces.iter().map(|(pusher, _)| pusher));
        std::iter::once(&self.reports).chain(records)
    }

    fn into_pushers(self) -> impl Iterator<Item = ExporterTask> {
        let records = self.logs.map(|(pusher, _)| pusher).into_iter().chain(self.traces.map(|(pusher, _)| pusher));
        std::iter::once(self.reports).chain(records)
    }
}

/// The exporter that has sent deltas to this receiver: the one with the same URL, or else the one with the same name whose
/// URL is gone.
fn predecessor<'a>(new: &Exporter, before: &'a [Sending], all: &[Exporter]) -> Option<&'a Sending> {
    let find = |is: &dyn Fn(&Exporter) -> bool| {
        before.iter().find(|old| differs(new) && differs(&old.receiver) && is(&old.receiver))
    };
    let goes_on = |old: &Exporter| all.iter().any(|other| other.url == old.url);
    find(&|old| old.url == new.url).or_else(|| find(&|old| old.name == new.name && !goes_on(old)))
}

/// Whether the receiver gets deltas.
fn differs(receiver: &Exporter) -> bool {
    receiver.kind != Kind::RemoteWrite && receiver.temporality == Temporality::Delta
}

async fn end(app: Arc<App>, pusher: ExporterTask) {
    let watch = pusher.watch();
    let usage = pusher.stop(LAST_REPORTS).await;
    app.exports.ended(&watch);
    if let Some(points) = usage.dropped.get("stopped") {
        tracing::warn!(exporter = usage.receiver, points, "the last report did not arrive");
    }
}

fn reading(app: &App, beginnings: &Mutex<Beginnings>) -> Reading {
    let (mut snapshot, exemplars) = app.snapshot();
    // Locked before the read, so that counts are sent in the order of their reads.
    let mut beginnings = lock(beginnings);
    match own::families(&app.telemetry.encode(Format::Protobuf)) {
        Ok(own) => snapshot.families.append(&mut beginnings.families(&own, snapshot.at)),
        Err(error) => tracing::error!(%error, "the agent's own metrics are not sent"),
    }
    drop(beginnings);
    Reading { snapshot, exemplars, native_bucket_limit: app.native_bucket_limit.load(Relaxed) }
}
