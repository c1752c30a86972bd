//! Sending to the receivers of `exporters:`: a task for each, and one each for its logs and spans if it wants them.

use super::exports::Outlets;
use super::{App, lock};
use kstrobe_export::otlp::{Temporality, logs, spans};
use kstrobe_export::snapshot::Snapshot;
use kstrobe_export::{Format, own};
use kstrobe_push::{Kind, Outlet, Pusher, Reading, Receiver};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// How long last reports may take, all at once.
const LAST_REPORTS: Duration = Duration::from_secs(5);

/// What runs.
pub(super) struct Pushers {
    app: Arc<App>,
    runtime: Handle,
    /// When the agent's own counts began.
    since: SystemTime,
    running: Mutex<Vec<Sending>>,
    /// Last reports of those that are not asked for any more.
    ending: Mutex<Vec<JoinHandle<()>>>,
}

/// What is sent to one receiver.
struct Sending {
    receiver: Receiver,
    reports: Pusher,
    logs: Option<(Pusher, Outlet<logs::Record>)>,
    traces: Option<(Pusher, Outlet<spans::Span>)>,
}

/// What became of the exporters of one configuration in another.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub kept: usize,
    pub started: usize,
    pub ended: usize,
}

impl Pushers {
    /// None yet.
    pub fn new(app: Arc<App>, runtime: Handle) -> Pushers {
        let (running, ending) = Default::default();
        Pushers { app, runtime, since: SystemTime::now(), running, ending }
    }

    /// From now on these are sent to, as if there had been nobody before.
    pub fn begin(&self, receivers: Vec<Receiver>) {
        *lock(&self.running) = receivers.into_iter().map(|receiver| self.start(receiver, None)).collect();
        self.publish();
    }

    /// From now on these are sent to. Those that were before go on untouched with what they keep, the others send a last report.
    /// Differences begin where those of the same name ended, else with this moment.
    pub fn renew(&self, receivers: Vec<Receiver>) -> Changes {
        let mut changes = Changes::default();
        let mut running = lock(&self.running);
        let mut before = std::mem::take(&mut *running);
        let mut same = |new: &Receiver| {
            let at = before.iter().position(|old| old.receiver == *new)?;
            Some(before.swap_remove(at))
        };
        let kept: Vec<Option<Sending>> = receivers.iter().map(&mut same).collect();
        for (receiver, kept) in receivers.into_iter().zip(kept) {
            running.push(match kept {
                Some(sending) => {
                    changes.kept += 1;
                    sending
                }
                None => {
                    changes.started += 1;
                    let base = differs(&receiver).then(|| self.base(&receiver, &before));
                    self.start(receiver, base.as_ref())
                }
            });
        }
        drop(running);
        self.publish();
        changes.ended = before.len();
        let mut ending = lock(&self.ending);
        ending.retain(|last| !last.is_finished());
        for sending in before {
            tracing::info!(exporter = sending.receiver.name, "sent to no more: the configuration has changed");
            ending.extend(sending.into_pushers().map(|pusher| self.runtime.spawn(end(pusher))));
        }
        changes
    }

    /// Where differences begin.
    fn base(&self, receiver: &Receiver, before: &[Sending]) -> Snapshot {
        let old = before.iter().find(|old| old.receiver.name == receiver.name && differs(&old.receiver));
        let told = old.and_then(|old| old.reports.bequeath(LAST_REPORTS).recv_timeout(LAST_REPORTS).ok());
        told.unwrap_or_else(|| reading(&self.app, self.since).snapshot)
    }

    /// Lets the rest of the agent know what runs.
    fn publish(&self) {
        let running = lock(&self.running);
        let outlets = Outlets {
            logs: running.iter().flat_map(|s| s.logs.iter().map(|(_, outlet)| outlet.clone())).collect(),
            traces: running.iter().flat_map(|s| s.traces.iter().map(|(_, outlet)| outlet.clone())).collect(),
        };
        let watches = running.iter().flat_map(Sending::pushers).map(Pusher::watch).collect();
        self.app.exports.set(watches, outlets);
    }

    fn start(&self, receiver: Receiver, base: Option<&Snapshot>) -> Sending {
        let Receiver { name, logs, traces, .. } = &receiver;
        tracing::info!(exporter = name, url = receiver.shown(), logs, traces, "sending");
        let (app, since) = (self.app.clone(), self.since);
        let read = Arc::new(move || reading(&app, since));
        Sending {
            logs: receiver.logs.then(|| kstrobe_push::start_logs(&receiver, &self.runtime)),
            traces: receiver.traces.then(|| kstrobe_push::start_traces(&receiver, &self.runtime)),
            reports: kstrobe_push::start(receiver.clone(), read, base, &self.runtime),
            receiver,
        }
    }

    /// One last report each, within a bound.
    pub async fn stop(&self) {
        let running = std::mem::take(&mut *lock(&self.running));
        let last = running.into_iter().flat_map(Sending::into_pushers).map(|pusher| tokio::spawn(end(pusher)));
        let mut last: Vec<_> = last.collect();
        last.append(&mut lock(&self.ending));
        for ended in last {
            // A task that has failed said so.
            let _ = ended.await;
        }
    }
}

impl Sending {
    fn pushers(&self) -> impl Iterator<Item = &Pusher> {
        let records = self.logs.iter().map(|(pusher, _)| pusher).chain(self.traces.iter().map(|(pusher, _)| pusher));
        std::iter::once(&self.reports).chain(records)
    }

    fn into_pushers(self) -> impl Iterator<Item = Pusher> {
        let records = self.logs.map(|(pusher, _)| pusher).into_iter().chain(self.traces.map(|(pusher, _)| pusher));
        std::iter::once(self.reports).chain(records)
    }
}

/// Whether it is sent differences.
fn differs(receiver: &Receiver) -> bool {
    receiver.kind != Kind::RemoteWrite && receiver.temporality == Temporality::Delta
}

async fn end(pusher: Pusher) {
    let usage = pusher.stop(LAST_REPORTS).await;
    if let Some(points) = usage.dropped.get("stopped") {
        tracing::warn!(exporter = usage.receiver, points, "the last report did not arrive");
    }
}

fn reading(app: &App, since: SystemTime) -> Reading {
    let (mut snapshot, exemplars) = app.snapshot();
    match own::families(&app.telemetry.encode(Format::Protobuf)) {
        Ok(own) => snapshot.families.append(&mut own::as_families(&own, since)),
        Err(error) => tracing::error!(%error, "the agent's own metrics are not sent"),
    }
    Reading { snapshot, exemplars, native_bucket_limit: app.native_bucket_limit.load(Relaxed) }
}
