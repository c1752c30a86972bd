//! What went wrong and what was done, by name, for the agent's own metrics.

use crate::error::Error;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Totals of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Failures by what was done and why it failed.
    pub failures: BTreeMap<(&'static str, &'static str), u64>,
    /// What was done or seen, by name.
    pub events: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// How often this happened.
    pub fn event(&self, name: &str) -> u64 {
        self.events.get(name).copied().unwrap_or(0)
    }

    /// How often this failed for this reason.
    pub fn failure(&self, of: &str, reason: &str) -> u64 {
        let found = self.failures.iter().find(|((name, why), _)| *name == of && *why == reason);
        found.map_or(0, |(_, count)| *count)
    }
}

/// The same, shared between who counts and who asks.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Counts>);

impl Counters {
    /// All totals now.
    pub fn counts(&self) -> Counts {
        self.lock().clone()
    }

    /// Something happened.
    pub fn event(&self, name: &'static str) {
        self.events(name, 1);
    }

    pub(crate) fn events(&self, name: &'static str, times: u64) {
        if times > 0 {
            *self.lock().events.entry(name).or_default() += times;
        }
    }

    /// Something failed.
    pub fn failure(&self, of: &'static str, error: &Error) {
        self.failed(of, error.reason());
    }

    pub(crate) fn failed(&self, of: &'static str, reason: &'static str) {
        *self.lock().failures.entry((of, reason)).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Each change leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
