//! Sending to the receivers of `exporters:`.

use super::App;
use kstrobe_export::{Format, own};
use kstrobe_push::{Pusher, Reading, Receiver};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;

/// How long the last reports may take when the agent stops, all at once.
const LAST_REPORTS: Duration = Duration::from_secs(5);

/// What runs.
pub(super) struct Pushers(Vec<Pusher>);

/// Starts one a receiver.
pub(super) fn start(app: &Arc<App>, receivers: Vec<Receiver>, runtime: &Handle) -> Pushers {
    let since = SystemTime::now();
    let start = |receiver: Receiver| {
        tracing::info!(exporter = receiver.name, url = %receiver.url, "sending");
        let app = app.clone();
        kstrobe_push::start(receiver, Arc::new(move || reading(&app, since)), runtime)
    };
    let pushers: Vec<Pusher> = receivers.into_iter().map(start).collect();
    *super::lock(&app.exports) = pushers.iter().map(Pusher::watch).collect();
    Pushers(pushers)
}

impl Pushers {
    /// One last report each, within a bound.
    pub(super) async fn stop(self) {
        let mut last: Vec<_> = self.0.into_iter().map(|pusher| tokio::spawn(pusher.stop(LAST_REPORTS))).collect();
        for stopped in &mut last {
            if let Ok(usage) = stopped.await
                && let Some(points) = usage.dropped.get("stopped")
            {
                tracing::warn!(exporter = usage.receiver, points, "the last report did not arrive");
            }
        }
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
