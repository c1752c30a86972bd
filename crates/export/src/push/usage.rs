//! What became of the points, for the agent's own metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Totals and state of one receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The receiver's name.
    pub receiver: String,
    /// Points that it took.
    pub sent: u64,
    /// Requests that failed, by reason, those tried again included.
    pub failed: BTreeMap<&'static str, u64>,
    /// Requests that were sent another time.
    pub retried: u64,
    /// Points lost, by reason: `refused`, `full`, `stopped`.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Cumulative points that a later report stood for.
    pub superseded: u64,
    /// Points that wait.
    pub queue_points: u64,
    /// Bytes of requests that wait.
    pub queue_bytes: u64,
    /// When a request was last taken.
    pub last_success: Option<SystemTime>,
}

impl Usage {
    /// Adds the totals of another; what is of the moment stays.
    pub fn add(&mut self, other: &Usage) {
        let add = |to: &mut BTreeMap<&'static str, u64>, from: &BTreeMap<&'static str, u64>| {
            from.iter().for_each(|(reason, count)| *to.entry(reason).or_default() += count);
        };
        self.sent += other.sent;
        self.retried += other.retried;
        self.superseded += other.superseded;
        add(&mut self.failed, &other.failed);
        add(&mut self.dropped, &other.dropped);
    }
}

/// The same, shared between who sends and who asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Usage>>);

impl Shared {
    pub(crate) fn new(receiver: &str) -> Shared {
        Shared(Arc::new(Mutex::new(Usage { receiver: receiver.to_owned(), ..Usage::default() })))
    }

    pub(crate) fn is(&self, other: &Shared) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Usage> {
        // Each change leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
