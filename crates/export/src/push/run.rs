//! One task a receiver: reads, sends and waits as [`Course`] says.

use crate::otlp::{logs, spans};
use crate::push::course::{Course, Next, Verdict};
use crate::push::door::{Door, Service};
use crate::push::files::Files;
use crate::push::goods::Goods;
use crate::push::outcome::Outcome;
use crate::push::records::{Outlet, Record};
use crate::push::settings::Receiver;
pub use crate::push::stock::{Legacy, Reading};
use crate::push::usage::{Shared, Usage};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long records are gathered before they are sent: as OpenTelemetry's batch processors.
const GATHER: Duration = Duration::from_secs(1);

/// Takes a snapshot; called on a thread that may block.
pub type Read = Arc<dyn Fn() -> Reading + Send + Sync>;

/// What is said to end a task.
#[derive(Clone)]
struct Stop {
    patience: Duration,
    /// Gets what waits instead of the receiver.
    heir: Option<Sender<Legacy>>,
}

/// A running task.
pub struct Pusher {
    shared: Shared,
    stop: watch::Sender<Option<Stop>>,
    task: JoinHandle<()>,
}

/// Starts sending. The first report comes after a random part of the interval, so that the agents of a fleet do not
/// all send at once. Differences go on from `legacy`.
pub fn start(receiver: Receiver, read: Read, legacy: Legacy, runtime: &Handle) -> Pusher {
    let first = receiver.interval.mul_f64(random());
    begin(receiver, read, legacy, runtime, first)
}

/// The same with the first report after this time.
pub fn start_at(receiver: Receiver, read: Read, runtime: &Handle, first: Duration) -> Pusher {
    begin(receiver, read, Legacy::default(), runtime, first)
}

fn begin(receiver: Receiver, read: Read, legacy: Legacy, runtime: &Handle, first: Duration) -> Pusher {
    let goods = Goods::reports(&receiver, read, legacy);
    let course = Course::new(receiver.interval, receiver.retry, goods.replaces(), first);
    let shared = Shared::new(&receiver.name);
    goods.count(&shared);
    spawn(Task::new(receiver, shared, course), goods, runtime)
}

/// Starts sending the log records that are put into the outlet. Its name is the receiver's and `/logs`.
pub fn start_logs(receiver: &Receiver, runtime: &Handle) -> (Pusher, Outlet<logs::Record>) {
    start_records(receiver, "logs", Service::Logs, runtime)
}

/// The same with spans; its name ends in `/traces`.
pub fn start_traces(receiver: &Receiver, runtime: &Handle) -> (Pusher, Outlet<spans::Span>) {
    start_records(receiver, "traces", Service::Traces, runtime)
}

fn start_records<T: Record>(
    receiver: &Receiver,
    signal: &str,
    service: Service,
    runtime: &Handle,
) -> (Pusher, Outlet<T>) {
    let receiver = Receiver { name: format!("{}/{signal}", receiver.name), ..receiver.clone() };
    let shared = Shared::new(&receiver.name);
    let outlet = Outlet::new(receiver.queue_bytes, shared.clone());
    let goods = Goods::records(&receiver, service, Arc::new(outlet.clone()));
    let course = Course::new(GATHER, receiver.retry, goods.replaces(), GATHER);
    (spawn(Task::new(receiver, shared, course), goods, runtime), outlet)
}

fn spawn(task: Task, goods: Goods, runtime: &Handle) -> Pusher {
    let shared = task.shared.clone();
    let (stop, stopped) = watch::channel(None);
    Pusher { shared, stop, task: runtime.spawn(task.run(goods, stopped)) }
}

/// The totals of a task.
#[derive(Clone, Debug)]
pub struct Watch(Shared);

impl Watch {
    /// Whether both are of one task.
    pub fn is(&self, other: &Watch) -> bool {
        self.0.is(&other.0)
    }

    /// What became of the points until now.
    pub fn usage(&self) -> Usage {
        self.0.lock().clone()
    }
}

impl Pusher {
    /// What became of the points until now.
    pub fn usage(&self) -> Usage {
        self.shared.lock().clone()
    }

    /// Its totals for whoever asks, also after its end.
    pub fn watch(&self) -> Watch {
        Watch(self.shared.clone())
    }

    /// Begins the end, which [`Pusher::stop`] waits for. Differences are sent no more, those that wait neither: who goes on from there
    /// does. A request under way may take `patience`, then it counts as not arrived.
    pub fn bequeath(&self, patience: Duration) -> std::sync::mpsc::Receiver<Legacy> {
        let (heir, heard) = channel();
        self.begin_end(Stop { patience, heir: Some(heir) });
        heard
    }

    /// Sends one last report, but no longer than `patience`, and ends. What could not be sent is counted as dropped.
    pub async fn stop(self, patience: Duration) -> Usage {
        self.begin_end(Stop { patience, heir: None });
        let mut task = self.task;
        if tokio::time::timeout(patience, &mut task).await.is_err() {
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

    /// The first word counts. The task may have ended by a panic; then nobody listens.
    fn begin_end(&self, stop: Stop) {
        self.stop.send_if_modified(|said| said.is_none() && said.replace(stop).is_none());
    }
}

struct Task {
    receiver: Receiver,
    shared: Shared,
    began: Instant,
    course: Course,
    open: Option<(Door, Files)>,
    /// What the log said last: the same again would be noise.
    said: Option<&'static str>,
    retrying: bool,
}

impl Task {
    fn new(receiver: Receiver, shared: Shared, course: Course) -> Task {
        Task { receiver, shared, began: Instant::now(), course, open: None, said: None, retrying: false }
    }

    async fn run(mut self, mut goods: Goods, mut stopped: watch::Receiver<Option<Stop>>) {
        let mut listening = true;
        loop {
            let now = self.began.elapsed();
            match self.course.next(now) {
                Next::Read => match self.report(goods).await {
                    Some(back) => goods = back,
                    None => return,
                },
                Next::Send => tokio::select! {
                    () = self.send(&mut goods) => {}
                    () = impatience(stopped.clone()) => {}
                },
                Next::Wait(until) => {
                    tokio::select! {
                        () = tokio::time::sleep(until.saturating_sub(now)) => {}
                        changed = stopped.changed(), if listening => {
                            // Without a sender nobody will say more: it was dropped, which ends the agent too.
                            listening = changed.is_ok();
                        }
                    }
                }
                Next::Finished => return,
            }
            let heir = stopped.borrow().as_ref().and_then(|stop| stop.heir.clone());
            if let Some(heir) = heir
                && let Some(legacy) = goods.leave()
            {
                // Else it waited no longer, and what is noted as waiting is lost.
                if heir.send(legacy).is_ok() {
                    goods.count(&self.shared);
                }
                return;
            }
            let patience = stopped.borrow().as_ref().map(|stop| stop.patience);
            if let Some(patience) = patience.or((!listening).then_some(Duration::ZERO)) {
                self.course.stop(self.began.elapsed(), patience);
            }
        }
    }

    /// Gives the goods back, with a report or without; `None` when the runtime ends.
    async fn report(&mut self, mut goods: Goods) -> Option<Goods> {
        // Reading and encoding are work: both are done away from the threads that serve.
        let work = tokio::task::spawn_blocking(move || {
            // What was kept for differences is as it was when reading fails.
            let taken = catch_unwind(AssertUnwindSafe(|| goods.take_in()));
            (goods, taken)
        });
        let (goods, taken) = work.await.ok()?;
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
        // A report takes the place of the one that was to be tried again; records join those before them.
        self.retrying &= goods.service() != Service::Metrics;
        goods.count(&self.shared);
        self.course.read(self.began.elapsed(), goods.requests());
        Some(goods)
    }

    async fn send(&mut self, goods: &mut Goods) {
        let outcome = match self.open() {
            Ok(()) => match (&self.open, goods.first()) {
                (Some((door, files)), Some(part)) => door.send(goods.service(), part, files).await,
                _ => Outcome::Taken { refused: 0, message: String::new() },
            },
            Err(message) => Outcome::Later { reason: "settings", after: None, message },
        };
        let points = goods.first().map_or(0, |part| part.points);
        let verdict = self.account(&outcome, points);
        if verdict == Verdict::Done {
            goods.done();
        }
        goods.count(&self.shared);
        self.course.sent(self.began.elapsed(), verdict, random());
    }

    /// Reads the files and connects anew when certificates are others than before.
    fn open(&mut self) -> Result<(), String> {
        let files = Files::read(&self.receiver)?;
        match &mut self.open {
            Some((_, old)) if old.same_tls(&files) => *old = files,
            open => *open = Some((Door::new(&self.receiver, &files)?, files)),
        }
        Ok(())
    }

    fn account(&mut self, outcome: &Outcome, points: u64) -> Verdict {
        let mut usage = self.shared.lock();
        if std::mem::take(&mut self.retrying) {
            usage.retried += 1;
        }
        let receiver = self.receiver.name.as_str();
        let (verdict, reason, message, then) = match outcome {
            Outcome::Taken { refused, message } => {
                usage.sent += points.saturating_sub(*refused);
                usage.last_success = Some(SystemTime::now());
                if *refused > 0 {
                    *usage.dropped.entry("refused").or_default() += refused;
                }
                let partly = (*refused > 0 || !message.is_empty()).then_some("partly refused");
                match partly {
                    Some(said) if self.said != Some(said) => {
                        tracing::warn!(receiver, refused, message, "not all of a report was taken");
                    }
                    None if self.said.is_some() => tracing::info!(receiver, "reports are taken again"),
                    _ => {}
                }
                self.said = partly;
                return Verdict::Done;
            }
            Outcome::Later { reason, after, message } => {
                self.retrying = true;
                (Verdict::Later(*after), *reason, message, "tried again")
            }
            Outcome::Never { taken, reason, message } => {
                let refused = points.saturating_sub(*taken);
                if *taken > 0 {
                    usage.sent += points - refused;
                    usage.last_success = Some(SystemTime::now());
                }
                if refused > 0 {
                    *usage.dropped.entry("refused").or_default() += refused;
                }
                (Verdict::Done, *reason, message, if *taken > 0 { "partly dropped" } else { "dropped" })
            }
        };
        *usage.failed.entry(reason).or_default() += 1;
        if self.said != Some(reason) {
            tracing::warn!(receiver, reason, message, then, "a report was not taken");
            self.said = Some(reason);
        }
        verdict
    }
}

/// Ends when somebody waits for what is not sent yet, and has waited long enough.
async fn impatience(mut stopped: watch::Receiver<Option<Stop>>) {
    let patience = match stopped.wait_for(|stop| stop.as_ref().is_some_and(|stop| stop.heir.is_some())).await {
        Ok(stop) => stop.as_ref().map(|stop| stop.patience),
        Err(_) => None,
    };
    match patience {
        Some(patience) => tokio::time::sleep(patience).await,
        // Nobody is left who could ask.
        None => std::future::pending().await,
    }
}

/// From 0 to 1; good enough to spread agents, and no more.
fn random() -> f64 {
    // Its keys are random.
    RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64
}
