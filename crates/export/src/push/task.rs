//! The task of one exporter: reads, sends and sleeps as its [`Schedule`] says.

use crate::otlp::{logs, spans};
use crate::push::batch_queue::{BatchQueue, Record};
use crate::push::error::Error;
use crate::push::exporter::Exporter;
use crate::push::files::Files;
use crate::push::outcome::Outcome;
use crate::push::payload::Payload;
use crate::push::schedule::{Delivery, Next, Schedule};
pub use crate::push::send_queue::{DeltaBaseline, Reading};
use crate::push::transport::{Service, Transport};
use crate::push::usage::{Shared, Usage};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Records are batched for this time, the default of OpenTelemetry's batch processors for logs.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Reads a snapshot; called on a blocking thread.
pub type Read = Arc<dyn Fn() -> Reading + Send + Sync>;

/// The order to end a task.
#[derive(Clone)]
struct Stop {
    timeout: Duration,
    /// Takes the delta baseline; without one a last report is sent.
    successor: Option<Sender<DeltaBaseline>>,
}

/// A running exporter.
pub struct ExporterTask {
    shared: Shared,
    stop: watch::Sender<Option<Stop>>,
    task: JoinHandle<()>,
}

/// Starts an exporter of metrics. Its first report comes after a random part of the interval, so that the agents of a fleet
/// spread their requests. Deltas continue from `baseline`.
pub fn start(receiver: Exporter, read: Read, baseline: DeltaBaseline, runtime: &Handle) -> ExporterTask {
    let first = receiver.interval.mul_f64(random());
    begin(receiver, read, baseline, runtime, first)
}

/// Starts an exporter of metrics whose first report comes after `first`.
pub fn start_at(receiver: Exporter, read: Read, runtime: &Handle, first: Duration) -> ExporterTask {
    begin(receiver, read, DeltaBaseline::default(), runtime, first)
}

fn begin(receiver: Exporter, read: Read, baseline: DeltaBaseline, runtime: &Handle, first: Duration) -> ExporterTask {
    let payload = Payload::reports(&receiver, read, baseline);
    let schedule = Schedule::new(receiver.interval, receiver.retry, payload.is_cumulative(), first);
    let shared = Shared::new(&receiver.name);
    payload.count(&shared);
    spawn(Task::new(receiver, shared, schedule), payload, runtime)
}

/// Starts an exporter of log records, named `NAME/logs`.
pub fn start_logs(receiver: &Exporter, runtime: &Handle) -> (ExporterTask, BatchQueue<logs::Record>) {
    start_records(receiver, "logs", Service::Logs, runtime)
}

/// Starts an exporter of spans, named `NAME/traces`.
pub fn start_traces(receiver: &Exporter, runtime: &Handle) -> (ExporterTask, BatchQueue<spans::Span>) {
    start_records(receiver, "traces", Service::Traces, runtime)
}

fn start_records<T: Record>(
    receiver: &Exporter,
    signal: &str,
    service: Service,
    runtime: &Handle,
) -> (ExporterTask, BatchQueue<T>) {
    let receiver = Exporter { name: format!("{}/{signal}", receiver.name), ..receiver.clone() };
    let shared = Shared::new(&receiver.name);
    let batches = BatchQueue::new(receiver.queue_bytes, shared.clone());
    let payload = Payload::records(&receiver, service, Arc::new(batches.clone()));
    let schedule = Schedule::new(BATCH_INTERVAL, receiver.retry, payload.is_cumulative(), BATCH_INTERVAL);
    (spawn(Task::new(receiver, shared, schedule), payload, runtime), batches)
}

fn spawn(task: Task, payload: Payload, runtime: &Handle) -> ExporterTask {
    let shared = task.shared.clone();
    let (stop, stopped) = watch::channel(None);
    ExporterTask { shared, stop, task: runtime.spawn(task.run(payload, stopped)) }
}

/// The totals of a task, also after its end.
#[derive(Clone, Debug)]
pub struct Watch(Shared);

impl Watch {
    /// Whether both are of one task.
    pub fn is(&self, other: &Watch) -> bool {
        self.0.is(&other.0)
    }

    /// Totals until now.
    pub fn usage(&self) -> Usage {
        self.0.lock().clone()
    }
}

impl ExporterTask {
    /// Totals until now.
    pub fn usage(&self) -> Usage {
        self.shared.lock().clone()
    }

    /// A handle to the totals that outlives the task.
    pub fn watch(&self) -> Watch {
        Watch(self.shared.clone())
    }

    /// Ends the task without sending: its queued and future deltas belong to the successor that gets the baseline. A request in
    /// flight may take `timeout`, then it counts as not arrived. [`ExporterTask::stop`] waits for the end.
    pub fn hand_over(&self, timeout: Duration) -> std::sync::mpsc::Receiver<DeltaBaseline> {
        let (successor, baseline) = channel();
        self.begin_end(Stop { timeout, successor: Some(successor) });
        baseline
    }

    /// Sends one last report within `timeout` and ends. Points that were not sent count as dropped with the reason `stopped`.
    pub async fn stop(self, timeout: Duration) -> Usage {
        self.begin_end(Stop { timeout, successor: None });
        let mut task = self.task;
        if tokio::time::timeout(timeout, &mut task).await.is_err() {
            task.abort();
        }
        let mut usage = self.shared.lock();
        let left = std::mem::take(&mut usage.queue_points);
        usage.queue_bytes = 0;
        if left > 0 {
            *usage.dropped.entry("stopped").or_default() += left;
        }
        usage.clone()
    }

    /// The first order counts. The task may have ended by a panic; then the order is lost.
    fn begin_end(&self, stop: Stop) {
        self.stop.send_if_modified(|said| said.is_none() && said.replace(stop).is_none());
    }
}

struct Task {
    receiver: Exporter,
    shared: Shared,
    began: Instant,
    schedule: Schedule,
    open: Option<(Transport, Files)>,
    /// The reason logged last: repeated failures are logged once.
    logged: Option<&'static str>,
    retrying: bool,
}

impl Task {
    fn new(receiver: Exporter, shared: Shared, schedule: Schedule) -> Task {
        Task { receiver, shared, began: Instant::now(), schedule, open: None, logged: None, retrying: false }
    }

    async fn run(mut self, mut payload: Payload, mut stopped: watch::Receiver<Option<Stop>>) {
        let mut listening = true;
        loop {
            let now = self.began.elapsed();
            match self.schedule.next(now) {
                Next::Read => match self.report(payload).await {
                    Some(back) => payload = back,
                    None => return,
                },
                Next::Send => tokio::select! {
                    () = self.send(&mut payload) => {}
                    () = successor_timeout(stopped.clone()) => {}
                },
                Next::Wait(until) => {
                    tokio::select! {
                        () = tokio::time::sleep(until.saturating_sub(now)) => {}
                        changed = stopped.changed(), if listening => {
                            // The sender was dropped: no order can come.
                            listening = changed.is_ok();
                        }
                    }
                }
                Next::Finished => return,
            }
            let successor = stopped.borrow().as_ref().and_then(|stop| stop.successor.clone());
            if let Some(successor) = successor
                && let Some(baseline) = payload.take_baseline()
            {
                // The successor may have stopped waiting: then the queued points are lost, and stay counted as queued.
                if successor.send(baseline).is_ok() {
                    payload.count(&self.shared);
                }
                return;
            }
            let timeout = stopped.borrow().as_ref().map(|stop| stop.timeout);
            if let Some(timeout) = timeout.or((!listening).then_some(Duration::ZERO)) {
                self.schedule.stop(self.began.elapsed(), timeout);
            }
        }
    }

    /// Reads and queues a report. `None` when the runtime ends.
    async fn report(&mut self, mut payload: Payload) -> Option<Payload> {
        // Reading and encoding block and take CPU time.
        let work = tokio::task::spawn_blocking(move || {
            // A panic in `read` leaves the queue unchanged.
            let taken = catch_unwind(AssertUnwindSafe(|| payload.enqueue()));
            (payload, taken)
        });
        let (payload, taken) = work.await.ok()?;
        match taken {
            Ok(taken) => {
                let mut usage = self.shared.lock();
                usage.superseded += taken.superseded;
                if taken.dropped > 0 {
                    *usage.dropped.entry("full").or_default() += taken.dropped;
                }
            }
            Err(_) => tracing::error!(
                receiver = self.receiver.name,
                "no report: this is an error in kstrobe, please report it with the lines above"
            ),
        }
        // A new report replaces the one to be retried; records are queued behind it.
        self.retrying &= payload.service() != Service::Metrics;
        payload.count(&self.shared);
        self.schedule.read(self.began.elapsed(), payload.requests());
        Some(payload)
    }

    async fn send(&mut self, payload: &mut Payload) {
        let outcome = match self.open() {
            Ok(()) => match (&self.open, payload.first()) {
                (Some((transport, files)), Some(part)) => transport.send(payload.service(), part, files).await,
                _ => Outcome::Accepted { refused: 0, message: String::new() },
            },
            Err(error) => Outcome::Retryable { reason: "settings", after: None, message: error.to_string() },
        };
        let points = payload.first().map_or(0, |part| part.points);
        let delivery = self.account(&outcome, points);
        if delivery == Delivery::Done {
            payload.pop();
        }
        payload.count(&self.shared);
        self.schedule.sent(self.began.elapsed(), delivery, random());
    }

    /// Reads the files again, and reconnects when certificates have changed.
    fn open(&mut self) -> Result<(), Error> {
        let files = Files::read(&self.receiver)?;
        match &mut self.open {
            Some((_, old)) if old.same_tls(&files) => *old = files,
            open => *open = Some((Transport::new(&self.receiver, &files)?, files)),
        }
        Ok(())
    }

    fn account(&mut self, outcome: &Outcome, points: u64) -> Delivery {
        let mut usage = self.shared.lock();
        if std::mem::take(&mut self.retrying) {
            usage.retried += 1;
        }
        let receiver = self.receiver.name.as_str();
        let (delivery, reason, message, then) = match outcome {
            Outcome::Accepted { refused, message } => {
                usage.sent += points.saturating_sub(*refused);
                usage.last_success = Some(SystemTime::now());
                if *refused > 0 {
                    *usage.dropped.entry("refused").or_default() += refused;
                }
                let partly = (*refused > 0 || !message.is_empty()).then_some("partly refused");
                match partly {
                    Some(reason) if self.logged != Some(reason) => {
                        tracing::warn!(receiver, refused, message, "report partly refused");
                    }
                    None if self.logged.is_some() => tracing::info!(receiver, "reports are accepted again"),
                    _ => {}
                }
                self.logged = partly;
                return Delivery::Done;
            }
            Outcome::Retryable { reason, after, message } => {
                self.retrying = true;
                (Delivery::Retry(*after), *reason, message, "tried again")
            }
            Outcome::Permanent { taken, reason, message } => {
                let refused = points.saturating_sub(*taken);
                if *taken > 0 {
                    usage.sent += points - refused;
                    usage.last_success = Some(SystemTime::now());
                }
                if refused > 0 {
                    *usage.dropped.entry("refused").or_default() += refused;
                }
                (Delivery::Done, *reason, message, if *taken > 0 { "partly dropped" } else { "dropped" })
            }
        };
        *usage.failed.entry(reason).or_default() += 1;
        if self.logged != Some(reason) {
            tracing::warn!(receiver, reason, message, then, "sending failed");
            self.logged = Some(reason);
        }
        delivery
    }
}

/// Ends when a successor has waited for `timeout`.
async fn successor_timeout(mut stopped: watch::Receiver<Option<Stop>>) {
    let timeout = match stopped.wait_for(|stop| stop.as_ref().is_some_and(|stop| stop.successor.is_some())).await {
        Ok(stop) => stop.as_ref().map(|stop| stop.timeout),
        Err(_) => None,
    };
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        // The task handle was dropped.
        None => std::future::pending().await,
    }
}

/// A number from 0 to 1, random enough for jitter.
fn random() -> f64 {
    // The keys of a `RandomState` are random.
    RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64
}
