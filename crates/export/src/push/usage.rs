//! Totals of data points, for the agent's own metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Totals and queue of one exporter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The exporter's name.
    pub receiver: String,
    /// Points that the receiver accepted.
    pub sent: u64,
    /// Failed requests by reason, retried ones included.
    pub failed: BTreeMap<&'static str, u64>,
    /// Requests that were sent again.
    pub retried: u64,
    /// Points lost, by reason: `refused`, `full`, `stopped`.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Cumulative points that a later report replaced.
    pub superseded: u64,
    pub queue_points: u64,
    pub queue_bytes: u64,
    /// Time of the last accepted request.
    pub last_success: Option<SystemTime>,
}

impl Usage {
    /// Adds the totals of another; queue and `last_success` stay.
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

/// [`Usage`], shared between a task and the readers of its totals.
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
        // No change leaves it inconsistent when it panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
