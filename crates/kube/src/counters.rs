//! Event and failure counters for the metrics of the agent.

use crate::error::Error;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Snapshot of all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Failures by operation and reason.
    pub failures: BTreeMap<(&'static str, &'static str), u64>,
    /// Events by name.
    pub events: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Number of events with this name.
    pub fn event(&self, name: &str) -> u64 {
        self.events.get(name).copied().unwrap_or(0)
    }

    /// Failures of the operation `of` for this reason.
    pub fn failure(&self, of: &str, reason: &str) -> u64 {
        let found = self.failures.iter().find(|((name, why), _)| *name == of && *why == reason);
        found.map_or(0, |(_, count)| *count)
    }
}

/// Counters shared between tasks.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Counts>);

impl Counters {
    /// Returns a snapshot.
    pub fn counts(&self) -> Counts {
        self.lock().clone()
    }

    /// Counts one event.
    pub fn event(&self, name: &'static str) {
        self.events(name, 1);
    }

    pub(crate) fn events(&self, name: &'static str, times: u64) {
        if times > 0 {
            *self.lock().events.entry(name).or_default() += times;
        }
    }

    /// Counts one failure under [`Error::reason`].
    pub fn failure(&self, of: &'static str, error: &Error) {
        self.failed(of, error.reason());
    }

    pub(crate) fn failed(&self, of: &'static str, reason: &'static str) {
        *self.lock().failures.entry((of, reason)).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Every update leaves the counts consistent, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
