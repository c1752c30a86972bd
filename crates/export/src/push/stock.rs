//! What there is to send: the requests of the newest report, and for differences what it takes to make up for those that
//! did not arrive.

use crate::otlp::{self, Resource, Temporality};
use crate::push::settings::{Kind, Receiver};
use crate::remote_write::{self, Seen};
use crate::snapshot::{Exemplar, Snapshot};
use crate::{Part, Run, delta};
use std::collections::{HashSet, VecDeque};

/// What the agent reads for one report.
#[derive(Clone, Debug)]
pub struct Reading {
    /// All series.
    pub snapshot: Snapshot,
    /// Captures that belong to observations.
    pub exemplars: Vec<Exemplar>,
    /// Most populated buckets of a native histogram: above it the resolution is halved. 0 for no limit.
    pub native_bucket_limit: usize,
}

/// What happened to points that were not sent when a report was taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenIn {
    /// Cumulative points that a later report stands for: nothing is lost but their moment.
    pub superseded: u64,
    /// Points lost because memory is bounded.
    pub dropped: u64,
}

/// How far differences were told by one task, for the one that goes on from there: each count is told once.
#[derive(Clone, Debug, Default)]
pub struct Legacy {
    /// The snapshot that the next is compared to; without one all counts are new.
    pub base: Option<Snapshot>,
    /// Differences up to there that did not arrive.
    pub unsent: Option<Snapshot>,
}

/// Requests that wait.
#[derive(Debug)]
pub struct Stock {
    kind: Kind,
    temporality: Temporality,
    resource: Resource,
    most_bytes: usize,
    /// For differences: the snapshot that the next is compared to.
    base: Option<Snapshot>,
    /// For differences: what the requests that wait are made of.
    unsent: Option<Snapshot>,
    parts: VecDeque<Part>,
    /// For remote write: series that the receiver knows.
    seen: Seen,
    /// For remote write: series of the report that waits, until a part of it arrives.
    next_seen: Option<Seen>,
    /// Whether they are among `seen` already.
    known_in_part: bool,
    /// What exemplars lead to that the receiver has: the same again would be out of order there, or a copy.
    linked: HashSet<String>,
    /// The same with those of the report that waits, until it has arrived.
    next_linked: HashSet<String>,
}

impl Stock {
    /// Nothing, for this receiver.
    pub fn new(receiver: &Receiver) -> Stock {
        Stock {
            kind: receiver.kind,
            temporality: receiver.temporality,
            resource: receiver.resource.clone(),
            most_bytes: receiver.queue_bytes,
            base: None,
            unsent: None,
            parts: VecDeque::new(),
            seen: Seen::default(),
            next_seen: None,
            known_in_part: false,
            linked: HashSet::new(),
            next_linked: HashSet::new(),
        }
    }

    /// The same that goes on from there, if it is sent differences.
    pub fn since(mut self, legacy: Legacy) -> Stock {
        if !self.replaces() {
            let requests = |unsent| otlp::requests(unsent, &[], &self.resource, Temporality::Delta);
            self.parts = legacy.unsent.as_ref().map(requests).unwrap_or_default().into();
            (self.base, self.unsent) = (legacy.base, legacy.unsent);
        }
        self
    }

    /// Gives what there is to go on from, and has nothing any more. `None` where each report says all.
    pub fn leave(&mut self) -> Option<Legacy> {
        if self.replaces() {
            return None;
        }
        let unsent = self.waiting();
        self.parts.clear();
        Some(Legacy { base: self.base.take(), unsent })
    }

    /// Takes out the differences that the requests that wait are made of.
    fn waiting(&mut self) -> Option<Snapshot> {
        let unsent = self.unsent.take().filter(|_| !self.parts.is_empty())?;
        let waiting: Vec<Run> = self.parts.iter().flat_map(|part| part.runs.iter().cloned()).collect();
        Some(delta::slice(&unsent, &waiting))
    }

    /// Whether a later report says all that an earlier one would.
    pub fn replaces(&self) -> bool {
        self.kind == Kind::RemoteWrite || self.temporality == Temporality::Cumulative
    }

    /// Takes a report in; what waited is replaced by it or becomes a part of it.
    pub fn take_in(&mut self, reading: Reading) -> TakenIn {
        let mut taken = TakenIn::default();
        let Reading { snapshot, mut exemplars, native_bucket_limit } = reading;
        self.next_linked = exemplars.iter().map(|exemplar| exemplar.link.label().1.to_owned()).collect();
        exemplars.retain(|exemplar| !self.linked.contains(exemplar.link.label().1));
        if self.kind == Kind::RemoteWrite {
            taken.superseded = self.points();
            let from = remote_write::Sender { resource: &self.resource, native_bucket_limit };
            let gone = self.seen.gone(&snapshot);
            self.parts = remote_write::requests(&snapshot, &exemplars, &gone, from).into();
            self.next_seen = Some(Seen::of(&snapshot));
            self.known_in_part = false;
        } else if self.replaces() {
            taken.superseded = self.points();
            self.parts = otlp::requests(&snapshot, &exemplars, &self.resource, Temporality::Cumulative).into();
        } else {
            let mut new = delta::difference(self.base.as_ref(), &snapshot);
            if let Some(unsent) = self.waiting() {
                let (all, lost) = delta::merge(&unsent, &new, self.most_bytes);
                taken.dropped = lost;
                new = all;
            }
            self.base = Some(snapshot);
            self.parts = otlp::requests(&new, &exemplars, &self.resource, Temporality::Delta).into();
            self.unsent = Some(new);
        }
        while self.bytes() > self.most_bytes
            && let Some(part) = self.parts.pop_back()
        {
            taken.dropped += part.points;
        }
        taken
    }

    /// The request to send first.
    pub fn first(&self) -> Option<&Part> {
        self.parts.front()
    }

    /// The first request is done with.
    pub fn done(&mut self) {
        self.parts.pop_front();
        // A receiver may know series of a report that it did not get whole.
        match self.next_seen.take() {
            Some(next) if self.parts.is_empty() => self.seen = next,
            Some(next) => {
                if !std::mem::replace(&mut self.known_in_part, true) {
                    self.seen.and(next.clone());
                }
                self.next_seen = Some(next);
            }
            None => {}
        }
        if self.parts.is_empty() {
            self.unsent = None;
            self.linked = std::mem::take(&mut self.next_linked);
        }
    }

    /// Requests that wait.
    pub fn requests(&self) -> usize {
        self.parts.len()
    }

    /// Points that wait.
    pub fn points(&self) -> u64 {
        self.parts.iter().map(|part| part.points).sum()
    }

    /// Bytes of the requests that wait, before compression.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.body.len()).sum()
    }
}

#[cfg(test)]
mod tests;
