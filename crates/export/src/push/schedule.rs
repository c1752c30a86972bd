//! When to read a snapshot, send a request and wait: a state machine without a clock.
//!
//! One report is in flight at a time. While a receiver is away, requests are retried with exponential backoff. Cumulative
//! snapshots are not read meanwhile, since the next one contains all of them; delta snapshots are still read at each interval
//! and merged, as a series that is evicted meanwhile would lose its counts.

use crate::push::exporter::Retry;
use std::time::Duration;

/// Longest Retry-After that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// The next action. Times are since the start of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take a snapshot, then [`Schedule::read`].
    Read,
    /// Send the oldest request, then [`Schedule::sent`].
    Send,
    /// Sleep until then, or until [`Schedule::stop`].
    Wait(Duration),
    /// End the task.
    Finished,
}

/// Whether a request leaves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Accepted, or refused for good.
    Done,
    /// Retry, after this time if the receiver names one.
    Retry(Option<Duration>),
}

/// The state of one exporter task.
#[derive(Clone, Debug)]
pub struct Schedule {
    interval: Duration,
    retry: Retry,
    /// Whether a later report contains all that an earlier one would.
    is_cumulative: bool,
    next_read: Duration,
    /// Queued requests of the report in flight.
    unsent: usize,
    /// Failures in a row.
    failures: u32,
    hold: Option<Duration>,
    stop: Option<Stop>,
}

/// Shutdown: one last report, with a deadline.
#[derive(Clone, Copy, Debug)]
struct Stop {
    read: bool,
    deadline: Duration,
}

impl Schedule {
    /// `first` is the time of the first snapshot.
    pub fn new(interval: Duration, retry: Retry, is_cumulative: bool, first: Duration) -> Schedule {
        // An interval of zero would read in a busy loop.
        let interval = interval.max(Duration::from_millis(100));
        Schedule { interval, retry, is_cumulative, next_read: first, unsent: 0, failures: 0, hold: None, stop: None }
    }

    /// The action at this time.
    pub fn next(&self, now: Duration) -> Next {
        let held = self.hold.filter(|hold| *hold > now);
        if let Some(stop) = self.stop {
            return match held {
                _ if now >= stop.deadline => Next::Finished,
                _ if !stop.read => Next::Read,
                _ if self.unsent == 0 => Next::Finished,
                Some(hold) => Next::Wait(hold.min(stop.deadline)),
                None => Next::Send,
            };
        }
        let due = now >= self.next_read;
        match (self.unsent, held) {
            (0, _) if due => Next::Read,
            (0, _) => Next::Wait(self.next_read),
            (_, Some(hold)) if self.is_cumulative => Next::Wait(hold),
            (_, Some(_)) if due => Next::Read,
            (_, Some(hold)) => Next::Wait(hold.min(self.next_read)),
            // After failures, replace the stale report. Finish a merely long one, or none would ever complete.
            (_, None) if due && self.failures > 0 && self.is_cumulative => Next::Read,
            (_, None) => Next::Send,
        }
    }

    /// Records that a snapshot was read and that the queue has this many requests.
    pub fn read(&mut self, now: Duration, requests: usize) {
        self.unsent = requests;
        if let Some(stop) = &mut self.stop {
            stop.read = true;
        }
        // Reports keep to multiples of the interval; missed ones are skipped.
        let late = now.saturating_sub(self.next_read).as_nanos() / self.interval.as_nanos();
        let intervals = u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
        self.next_read = self.next_read.saturating_add(self.interval.saturating_mul(intervals));
    }

    /// Records the delivery of the oldest request. `random` in `0..1` is the jitter.
    pub fn sent(&mut self, now: Duration, verdict: Delivery, random: f64) {
        match verdict {
            Delivery::Done => {
                self.unsent = self.unsent.saturating_sub(1);
                self.failures = 0;
                self.hold = None;
            }
            Delivery::Retry(asked) => {
                self.failures = self.failures.saturating_add(1);
                let pause = self.retry.pause(self.failures, random).max(asked.unwrap_or_default().min(MAX_RETRY_AFTER));
                self.hold = Some(now.saturating_add(pause));
            }
        }
    }

    /// One last report, and no more than `timeout` for it. It does not wait for a pause.
    pub fn stop(&mut self, now: Duration, timeout: Duration) {
        if self.stop.is_none() {
            self.stop = Some(Stop { read: false, deadline: now.saturating_add(timeout) });
            self.hold = None;
        }
    }
}

#[cfg(test)]
mod tests;
