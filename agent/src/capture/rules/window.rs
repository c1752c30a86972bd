//! Moments of a metric, as far back as a condition looks.

use kstrobe_export::snapshot::Family;
use std::collections::VecDeque;
use std::time::Duration;

/// Steps in which a window moves at most: each is a copy of the series.
const STEPS: u32 = 10;

/// The moments. Times are since some fixed moment.
#[derive(Debug)]
pub struct Window {
    over: Duration,
    taken: VecDeque<(Duration, Family)>,
}

impl Window {
    /// A window that looks back so far.
    pub fn new(over: Duration) -> Window {
        Window { over, taken: VecDeque::new() }
    }

    /// The moment from which to measure to `at`: the newest that is as old as the window is long. `None` before there is one.
    pub fn before(&self, at: Duration) -> Option<(&Family, Duration)> {
        let old = |taken: Duration| at.saturating_sub(taken) >= self.over;
        let (taken, family) = self.taken.iter().rev().find(|(taken, _)| old(*taken))?;
        Some((family, at.saturating_sub(*taken)))
    }

    /// Keeps a moment, unless one is nearly as new, and drops those older than the window.
    pub fn push(&mut self, at: Duration, family: Family) {
        let newest = self.taken.back().map(|(taken, _)| *taken);
        // Looks come some milliseconds early or late.
        if newest.is_some_and(|newest| at.saturating_sub(newest) < self.over / STEPS * 9 / 10) {
            return;
        }
        self.taken.push_back((at, family));
        while self.taken.get(1).is_some_and(|(second, _)| at.saturating_sub(*second) >= self.over) {
            self.taken.pop_front();
        }
    }

    /// How many moments are kept.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }
}
