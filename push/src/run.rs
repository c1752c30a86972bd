//! One task a receiver: reads, sends and waits as [`Course`] says.

use crate::course::{Course, Next, Verdict};
use crate::door::{Door, Service};
use crate::files::Files;
use crate::outcome::Outcome;
use crate::settings::Receiver;
pub use crate::stock::Reading;
use crate::stock::Stock;
use crate::usage::{Shared, Usage};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Takes a snapshot; called on a thread that may block.
pub type Read = Arc<dyn Fn() -> Reading + Send + Sync>;

/// A running task.
pub struct Pusher {
    shared: Shared,
    stop: watch::Sender<Option<Duration>>,
    task: JoinHandle<()>,
}

/// Starts sending. The first report comes after a random part of the interval, so that the agents of a fleet do not
/// all send at once.
pub fn start(receiver: Receiver, read: Read, runtime: &Handle) -> Pusher {
    let first = receiver.interval.mul_f64(random());
    start_at(receiver, read, runtime, first)
}

/// The same with the first report after this time.
pub fn start_at(receiver: Receiver, read: Read, runtime: &Handle, first: Duration) -> Pusher {
    let shared = Shared::new(&receiver.name);
    let (stop, stopped) = watch::channel(None);
    let task = runtime.spawn(Task::new(receiver, read, shared.clone(), first).run(stopped));
    Pusher { shared, stop, task }
}

/// The totals of a task.
#[derive(Clone, Debug)]
pub struct Watch(Shared);

impl Watch {
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

    /// Sends one last report, but no longer than `patience`, and ends. What could not be sent is counted as dropped.
    pub async fn stop(self, patience: Duration) -> Usage {
        // The task may have ended by a panic; then nobody listens.
        let _ = self.stop.send(Some(patience));
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
}

struct Task {
    receiver: Receiver,
    read: Read,
    shared: Shared,
    began: Instant,
    course: Course,
    /// Away while a report is being made of a snapshot.
    stock: Stock,
    open: Option<(Door, Files)>,
    /// What the log said last: the same again would be noise.
    said: Option<&'static str>,
    retrying: bool,
}

impl Task {
    fn new(receiver: Receiver, read: Read, shared: Shared, first: Duration) -> Task {
        let stock = Stock::new(&receiver);
        let course = Course::new(receiver.interval, receiver.retry, stock.replaces(), first);
        let began = Instant::now();
        Task { receiver, read, shared, began, course, stock, open: None, said: None, retrying: false }
    }

    async fn run(mut self, mut stopped: watch::Receiver<Option<Duration>>) {
        let mut listening = true;
        loop {
            let now = self.began.elapsed();
            match self.course.next(now) {
                Next::Read => self.report().await,
                Next::Send => self.send().await,
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
            let patience = *stopped.borrow();
            if let Some(patience) = patience.or((!listening).then_some(Duration::ZERO)) {
                self.course.stop(self.began.elapsed(), patience);
            }
        }
    }

    async fn report(&mut self) {
        // Reading and encoding are work: both are done away from the threads that serve.
        let read = self.read.clone();
        match tokio::task::spawn_blocking(move || read()).await {
            Ok(reading) => self.take_in(reading).await,
            Err(error) => tracing::error!(receiver = self.receiver.name, %error, "no report: reading failed"),
        }
        self.retrying = false;
        self.count_queue();
        self.course.read(self.began.elapsed(), self.stock.requests());
    }

    async fn take_in(&mut self, reading: Reading) {
        let mut stock = std::mem::replace(&mut self.stock, Stock::new(&self.receiver));
        let made = tokio::task::spawn_blocking(move || {
            let taken = stock.take_in(reading);
            (stock, taken)
        });
        match made.await {
            Ok((stock, taken)) => {
                self.stock = stock;
                let mut usage = self.shared.lock();
                usage.superseded += taken.superseded;
                if taken.dropped > 0 {
                    *usage.dropped.entry("full").or_default() += taken.dropped;
                }
            }
            Err(error) => tracing::error!(receiver = self.receiver.name, %error, "a report could not be made"),
        }
    }

    async fn send(&mut self) {
        let outcome = match self.open() {
            Ok(()) => match (&self.open, self.stock.first()) {
                (Some((door, files)), Some(part)) => door.send(Service::Metrics, part, files).await,
                _ => Outcome::Taken { refused: 0, message: String::new() },
            },
            Err(message) => Outcome::Later { reason: "settings", after: None, message },
        };
        let points = self.stock.first().map_or(0, |part| part.points);
        let verdict = self.account(&outcome, points);
        if verdict == Verdict::Done {
            self.stock.done();
        }
        self.count_queue();
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
        let (verdict, reason, message) = match outcome {
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
                (Verdict::Later(*after), *reason, message)
            }
            Outcome::Never { reason, message } => {
                *usage.dropped.entry("refused").or_default() += points;
                (Verdict::Done, *reason, message)
            }
        };
        *usage.failed.entry(reason).or_default() += 1;
        if self.said != Some(reason) {
            let then = if verdict == Verdict::Done { "dropped" } else { "tried again" };
            tracing::warn!(receiver, reason, message, then, "a report was not taken");
            self.said = Some(reason);
        }
        verdict
    }

    fn count_queue(&self) {
        let mut usage = self.shared.lock();
        usage.queue_points = self.stock.points();
        usage.queue_bytes = self.stock.bytes() as u64;
    }
}

/// From 0 to 1; good enough to spread agents, and no more.
fn random() -> f64 {
    // Its keys are random.
    RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64
}
