//! When to read a snapshot, when to send and when to wait: a state machine that is told the time.
//!
//! One report is under way at a time. A receiver that is away holds sending up, with growing pauses. Meanwhile a cumulative
//! report has no successor, since the one taken after the pause says all that those before it would; differences are
//! still taken at each interval, to be merged, as a series that is evicted meanwhile would take its counts along.

use crate::push::settings::Retry;
use std::time::Duration;

/// Longest pause that a receiver may ask for.
const MOST_ASKED: Duration = Duration::from_secs(600);

/// What to do now. Times are since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take a snapshot, then [`Course::read`].
    Read,
    /// Send the first part of what is there, then [`Course::sent`].
    Send,
    /// Nothing until then, unless told to stop.
    Wait(Duration),
    /// All is over.
    Finished,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done with: taken, or refused for good.
    Done,
    /// To be tried again, after this time when the receiver says so.
    Later(Option<Duration>),
}

/// The state.
#[derive(Clone, Debug)]
pub struct Course {
    interval: Duration,
    retry: Retry,
    /// Whether a later report says all that an earlier one would.
    replaces: bool,
    next_read: Duration,
    /// Requests of the report under way that are not done.
    unsent: usize,
    /// Failures in a row.
    failures: u32,
    hold: Option<Duration>,
    stop: Option<Stop>,
}

/// The end: one last report, until a moment.
#[derive(Clone, Copy, Debug)]
struct Stop {
    read: bool,
    at_latest: Duration,
}

impl Course {
    /// `first` is when the first snapshot is taken.
    pub fn new(interval: Duration, retry: Retry, replaces: bool, first: Duration) -> Course {
        // An interval of nothing would read without end.
        let interval = interval.max(Duration::from_millis(100));
        Course { interval, retry, replaces, next_read: first, unsent: 0, failures: 0, hold: None, stop: None }
    }

    /// What to do at this time.
    pub fn next(&self, now: Duration) -> Next {
        let held = self.hold.filter(|hold| *hold > now);
        if let Some(stop) = self.stop {
            return match held {
                _ if now >= stop.at_latest => Next::Finished,
                _ if !stop.read => Next::Read,
                _ if self.unsent == 0 => Next::Finished,
                Some(hold) => Next::Wait(hold.min(stop.at_latest)),
                None => Next::Send,
            };
        }
        let due = now >= self.next_read;
        match (self.unsent, held) {
            (0, _) if due => Next::Read,
            (0, _) => Next::Wait(self.next_read),
            (_, Some(hold)) if self.replaces => Next::Wait(hold),
            (_, Some(_)) if due => Next::Read,
            (_, Some(hold)) => Next::Wait(hold.min(self.next_read)),
            // What waited is old by now. A report that is only long is sent to its end, else none ever would be.
            (_, None) if due && self.failures > 0 && self.replaces => Next::Read,
            (_, None) => Next::Send,
        }
    }

    /// A snapshot was taken; all that is to be sent now makes so many requests.
    pub fn read(&mut self, now: Duration, requests: usize) {
        self.unsent = requests;
        if let Some(stop) = &mut self.stop {
            stop.read = true;
        }
        // Reports keep to their times; those that were missed are not made up for.
        let late = now.saturating_sub(self.next_read).as_nanos() / self.interval.as_nanos();
        let intervals = u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
        self.next_read = self.next_read.saturating_add(self.interval.saturating_mul(intervals));
    }

    /// The first request of those unsent came to this. `random` is in `0..1`.
    pub fn sent(&mut self, now: Duration, verdict: Verdict, random: f64) {
        match verdict {
            Verdict::Done => {
                self.unsent = self.unsent.saturating_sub(1);
                self.failures = 0;
                self.hold = None;
            }
            Verdict::Later(asked) => {
                self.failures = self.failures.saturating_add(1);
                let pause = self.retry.pause(self.failures, random).max(asked.unwrap_or_default().min(MOST_ASKED));
                self.hold = Some(now.saturating_add(pause));
            }
        }
    }

    /// One last report, and no more than `patience` for it. It does not wait for a pause.
    pub fn stop(&mut self, now: Duration, patience: Duration) {
        if self.stop.is_none() {
            self.stop = Some(Stop { read: false, at_latest: now.saturating_add(patience) });
            self.hold = None;
        }
    }
}

#[cfg(test)]
mod tests;
