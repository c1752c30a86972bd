//! How far a connection has come with its request, and until when it must go on.

use crate::counts::Ended;
use crate::limits::Limits;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a connection without a request may not be pushed out: what a client just sent may not have been looked at.
const GRACE: Duration = Duration::from_millis(200);
/// The same for one that has had its answer.
const IDLE_GRACE: Duration = Duration::from_millis(100);

/// The state of a connection. Times are given to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    phase: Phase,
    since: Instant,
    /// Since when the client takes nothing, although there is something for it.
    stalled_since: Option<Instant>,
    /// Answers of which a part was handed on and no more was asked for, and since when: an answer over HTTP/2 can stand still
    /// while others, or mere pings, go on.
    owed: BTreeMap<u64, Instant>,
    /// Requests so far.
    requests: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The header of a request is awaited or has begun to come.
    Header,
    /// So many requests are being answered.
    Serving(u32),
    /// All was answered.
    Idle,
}

impl Pace {
    /// A connection that is ready for its first request.
    pub fn new(now: Instant) -> Pace {
        Pace { phase: Phase::Header, since: now, stalled_since: None, owed: BTreeMap::new(), requests: 0 }
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.since) = (phase, now);
    }

    /// Bytes came. `one_by_one` where they can only be the next request's (HTTP/1).
    pub fn received(&mut self, one_by_one: bool, now: Instant) {
        if self.phase == Phase::Idle && one_by_one {
            self.enter(Phase::Header, now);
        }
    }

    /// A request's header is complete. Gives its number on the connection.
    pub fn began(&mut self, now: Instant) -> u64 {
        self.requests += 1;
        match &mut self.phase {
            Phase::Serving(requests) => *requests += 1,
            _ => self.enter(Phase::Serving(1), now),
        }
        self.requests
    }

    /// The last byte of an answer is on its way.
    pub fn ended(&mut self, request: u64, now: Instant) {
        self.owed.remove(&request);
        match &mut self.phase {
            Phase::Serving(requests) if *requests > 1 => *requests -= 1,
            _ => self.enter(Phase::Idle, now),
        }
    }

    /// More of an answer is asked for.
    pub fn asked(&mut self, request: u64) {
        self.owed.remove(&request);
    }

    /// A part of an answer was given that is not its last.
    pub fn gave(&mut self, request: u64, now: Instant) {
        self.owed.insert(request, now);
    }

    /// The client's side takes nothing (more) for now.
    pub fn stalled(&mut self, now: Instant) {
        self.stalled_since.get_or_insert(now);
    }

    /// The client's side took something.
    pub fn moved(&mut self, now: Instant) {
        self.stalled_since = None;
        if self.phase == Phase::Idle {
            self.since = now;
        }
    }

    /// Until when something must happen, and what it means if nothing does. `None` while only we are to act.
    pub fn deadline(&self, limits: &Limits) -> Option<(Instant, Ended)> {
        let phase = match self.phase {
            Phase::Header => Some((self.since + limits.header_time, Ended::HeaderTime)),
            Phase::Idle => Some((self.since + limits.idle, Ended::Idle)),
            Phase::Serving(_) => None,
        };
        let stall =
            self.stalled_since.iter().chain(self.owed.values()).map(|since| (*since + limits.stall, Ended::Stall));
        phase.into_iter().chain(stall).min_by_key(|(at, _)| *at)
    }

    /// Since when it could be given up for a newer connection; `None` while it may not.
    pub fn spare_since(&self, now: Instant) -> Option<Instant> {
        let grace = match self.phase {
            Phase::Header => GRACE,
            Phase::Idle => IDLE_GRACE,
            Phase::Serving(_) => return None,
        };
        (self.stalled_since.is_none() && now.saturating_duration_since(self.since) >= grace).then_some(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_header_to_answer_and_back() {
        let limits = Limits::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(start);
        assert_eq!(pace.deadline(&limits), Some((at(10), Ended::HeaderTime)));
        // Slow bytes win no time.
        pace.received(true, at(9));
        assert_eq!(pace.deadline(&limits), Some((at(10), Ended::HeaderTime)));
        assert_eq!(pace.spare_since(start), None);
        assert_eq!(pace.spare_since(at(1)), Some(start));
        assert_eq!((pace.began(at(9)), pace.began(at(9))), (1, 2));
        assert_eq!((pace.deadline(&limits), pace.spare_since(at(1000))), (None, None));
        pace.ended(1, at(10));
        assert_eq!(pace.deadline(&limits), None);
        pace.ended(2, at(11));
        assert_eq!(pace.deadline(&limits), Some((at(86), Ended::Idle)));
        assert_eq!(pace.spare_since(at(12)), Some(at(11)));
        // Frames of HTTP/2 need not be a request.
        pace.received(false, at(20));
        assert_eq!(pace.deadline(&limits), Some((at(86), Ended::Idle)));
        pace.received(true, at(20));
        assert_eq!(pace.deadline(&limits), Some((at(30), Ended::HeaderTime)));
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up_and_one_that_takes_slowly_is_not() {
        let limits = Limits::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(start);
        pace.began(at(0));
        pace.stalled(at(1));
        pace.stalled(at(5));
        assert_eq!(pace.deadline(&limits), Some((at(61), Ended::Stall)));
        pace.moved(at(60));
        assert_eq!(pace.deadline(&limits), None);
        pace.stalled(at(61));
        pace.ended(1, at(61));
        // The answer is complete for us, and still goes out.
        assert_eq!(pace.spare_since(at(62)), None);
        assert_eq!(pace.deadline(&limits), Some((at(121), Ended::Stall)));
        pace.moved(at(100));
        assert_eq!(pace.deadline(&limits), Some((at(175), Ended::Idle)));
    }

    #[test]
    fn an_answer_that_stands_still_beside_others_is_noticed() {
        let limits = Limits::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(start);
        let (slow, quick) = (pace.began(at(0)), pace.began(at(0)));
        pace.gave(slow, at(1));
        pace.gave(quick, at(2));
        pace.moved(at(3));
        pace.asked(quick);
        pace.ended(quick, at(4));
        assert_eq!(pace.deadline(&limits), Some((at(61), Ended::Stall)));
        pace.asked(slow);
        assert_eq!(pace.deadline(&limits), None);
        pace.gave(slow, at(50));
        pace.ended(slow, at(51));
        assert_eq!(pace.deadline(&limits), Some((at(126), Ended::Idle)));
    }
}
