//! State machine of a connection: request phase, stalls and deadlines.

use crate::counts::Ended;
use crate::limits::Limits;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Minimum age of a connection before eviction: bytes just sent may be unread.
const GRACE: Duration = Duration::from_millis(200);
/// The same for an idle connection.
const IDLE_GRACE: Duration = Duration::from_millis(100);

/// State of a connection; times are arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionState {
    phase: Phase,
    since: Instant,
    /// Since when writes to the client are pending.
    stalled_since: Option<Instant>,
    /// Response bodies that yielded a frame and were not polled since: an HTTP/2 stream can stall while others, or pings,
    /// progress.
    pending_bodies: BTreeMap<u64, Instant>,
    /// Number of requests so far.
    requests: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for a complete request header.
    Header,
    /// Number of requests in progress.
    Serving(u32),
    /// No request in progress.
    Idle,
}

impl ConnectionState {
    pub fn new(now: Instant) -> ConnectionState {
        ConnectionState {
            phase: Phase::Header,
            since: now,
            stalled_since: None,
            pending_bodies: BTreeMap::new(),
            requests: 0,
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.since) = (phase, now);
    }

    /// Bytes arrived. `one_by_one` if they can only belong to the next request (HTTP/1).
    pub fn received(&mut self, one_by_one: bool, now: Instant) {
        if self.phase == Phase::Idle && one_by_one {
            self.enter(Phase::Header, now);
        }
    }

    /// A request header is complete. Returns the number of the request on the connection.
    pub fn began(&mut self, now: Instant) -> u64 {
        self.requests += 1;
        match &mut self.phase {
            Phase::Serving(requests) => *requests += 1,
            _ => self.enter(Phase::Serving(1), now),
        }
        self.requests
    }

    /// The last byte of a response was queued.
    pub fn ended(&mut self, request: u64, now: Instant) {
        self.pending_bodies.remove(&request);
        match &mut self.phase {
            Phase::Serving(requests) if *requests > 1 => *requests -= 1,
            _ => self.enter(Phase::Idle, now),
        }
    }

    /// The response body was polled.
    pub fn body_polled(&mut self, request: u64) {
        self.pending_bodies.remove(&request);
    }

    /// The response body yielded a frame other than its last.
    pub fn body_yielded(&mut self, request: u64, now: Instant) {
        self.pending_bodies.insert(request, now);
    }

    /// A write to the socket is pending.
    pub fn stalled(&mut self, now: Instant) {
        self.stalled_since.get_or_insert(now);
    }

    /// A write to the socket completed.
    pub fn progressed(&mut self, now: Instant) {
        self.stalled_since = None;
        if self.phase == Phase::Idle {
            self.since = now;
        }
    }

    /// Next deadline and the reason to close the connection then. `None` while the client owes nothing.
    pub fn deadline(&self, limits: &Limits) -> Option<(Instant, Ended)> {
        let phase = match self.phase {
            Phase::Header => Some((self.since + limits.header_time, Ended::HeaderTime)),
            Phase::Idle => Some((self.since + limits.idle, Ended::Idle)),
            Phase::Serving(_) => None,
        };
        let stall = self
            .stalled_since
            .iter()
            .chain(self.pending_bodies.values())
            .map(|since| (*since + limits.stall, Ended::Stall));
        phase.into_iter().chain(stall).min_by_key(|(at, _)| *at)
    }

    /// Since when the connection can be evicted; `None` while it cannot.
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
        let mut state = ConnectionState::new(start);
        assert_eq!(state.deadline(&limits), Some((at(10), Ended::HeaderTime)));
        // Further bytes do not extend the header deadline.
        state.received(true, at(9));
        assert_eq!(state.deadline(&limits), Some((at(10), Ended::HeaderTime)));
        assert_eq!(state.spare_since(start), None);
        assert_eq!(state.spare_since(at(1)), Some(start));
        assert_eq!((state.began(at(9)), state.began(at(9))), (1, 2));
        assert_eq!((state.deadline(&limits), state.spare_since(at(1000))), (None, None));
        state.ended(1, at(10));
        assert_eq!(state.deadline(&limits), None);
        state.ended(2, at(11));
        assert_eq!(state.deadline(&limits), Some((at(86), Ended::Idle)));
        assert_eq!(state.spare_since(at(12)), Some(at(11)));
        // HTTP/2 frames need not belong to a request.
        state.received(false, at(20));
        assert_eq!(state.deadline(&limits), Some((at(86), Ended::Idle)));
        state.received(true, at(20));
        assert_eq!(state.deadline(&limits), Some((at(30), Ended::HeaderTime)));
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up_and_one_that_takes_slowly_is_not() {
        let limits = Limits::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = ConnectionState::new(start);
        state.began(at(0));
        state.stalled(at(1));
        state.stalled(at(5));
        assert_eq!(state.deadline(&limits), Some((at(61), Ended::Stall)));
        state.progressed(at(60));
        assert_eq!(state.deadline(&limits), None);
        state.stalled(at(61));
        state.ended(1, at(61));
        // The body has ended, but bytes are still queued.
        assert_eq!(state.spare_since(at(62)), None);
        assert_eq!(state.deadline(&limits), Some((at(121), Ended::Stall)));
        state.progressed(at(100));
        assert_eq!(state.deadline(&limits), Some((at(175), Ended::Idle)));
    }

    #[test]
    fn an_answer_that_stands_still_beside_others_is_noticed() {
        let limits = Limits::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = ConnectionState::new(start);
        let (slow, quick) = (state.began(at(0)), state.began(at(0)));
        state.body_yielded(slow, at(1));
        state.body_yielded(quick, at(2));
        state.progressed(at(3));
        state.body_polled(quick);
        state.ended(quick, at(4));
        assert_eq!(state.deadline(&limits), Some((at(61), Ended::Stall)));
        state.body_polled(slow);
        assert_eq!(state.deadline(&limits), None);
        state.body_yielded(slow, at(50));
        state.ended(slow, at(51));
        assert_eq!(state.deadline(&limits), Some((at(126), Ended::Idle)));
    }
}
