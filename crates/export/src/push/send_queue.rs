//! The send queue of an exporter: the requests of the newest report, merged, for delta temporality, with reports that did
//! not arrive.

use crate::otlp::{self, Resource, Temporality};
use crate::push::exporter::{Exporter, Kind};
use crate::remote_write::{self, Seen};
use crate::snapshot::{Exemplar, Snapshot};
use crate::{Part, Run, delta};
use std::collections::{HashSet, VecDeque};

/// A snapshot and the exemplars of one report.
#[derive(Clone, Debug)]
pub struct Reading {
    /// All series.
    pub snapshot: Snapshot,
    /// Exemplars: captures and events by the series that they were counted in.
    pub exemplars: Vec<Exemplar>,
    /// Most populated buckets of a native histogram: above it the resolution is halved. 0 for no limit.
    pub native_bucket_limit: usize,
}

/// Data points that a new report removed from the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enqueued {
    /// Cumulative points that the new report replaces: only their time is lost.
    pub superseded: u64,
    /// Points dropped by the bound of `queue_bytes`.
    pub dropped: u64,
}

/// Up to where one task has sent deltas, for its successor, so that each count is sent once.
#[derive(Clone, Debug, Default)]
pub struct DeltaBaseline {
    /// The snapshot that the next delta is taken against; without one all counts are new.
    pub base: Option<Snapshot>,
    /// Deltas up to `base` that did not arrive.
    pub unsent: Option<Snapshot>,
}

/// Requests of the newest report.
#[derive(Debug)]
pub struct SendQueue {
    kind: Kind,
    temporality: Temporality,
    resource: Resource,
    max_bytes: usize,
    /// Delta temporality: the snapshot that the next delta is taken against.
    base: Option<Snapshot>,
    /// Delta temporality: the deltas that the queued requests encode.
    unsent: Option<Snapshot>,
    parts: VecDeque<Part>,
    /// Remote write: series that the receiver has, which need a stale marker when they end.
    seen: Seen,
    /// Remote write: series of the queued report, until a part of it arrives.
    next_seen: Option<Seen>,
    /// Whether `next_seen` is merged into `seen`.
    known_in_part: bool,
    /// Links of exemplars that the receiver has: sent again they would be out of order or duplicates.
    linked: HashSet<String>,
    /// Links of exemplars of the queued report, until it has arrived.
    next_linked: HashSet<String>,
}

impl SendQueue {
    /// An empty queue.
    pub fn new(exporter: &Exporter) -> SendQueue {
        SendQueue {
            kind: exporter.kind,
            temporality: exporter.temporality,
            resource: exporter.resource.clone(),
            max_bytes: exporter.queue_bytes,
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

    /// Continues from the baseline of another queue; cumulative queues ignore it.
    pub fn resume_from(mut self, baseline: DeltaBaseline) -> SendQueue {
        if !self.is_cumulative() {
            let requests = |unsent| otlp::requests(unsent, &[], &self.resource, Temporality::Delta);
            self.parts = baseline.unsent.as_ref().map(requests).unwrap_or_default().into();
            (self.base, self.unsent) = (baseline.base, baseline.unsent);
        }
        self
    }

    /// Takes the delta baseline out of this queue for a successor. `None` for cumulative reports.
    pub fn take_baseline(&mut self) -> Option<DeltaBaseline> {
        if self.is_cumulative() {
            return None;
        }
        let unsent = self.take_unsent();
        self.parts.clear();
        Some(DeltaBaseline { base: self.base.take(), unsent })
    }

    /// Takes the deltas that the queued requests encode.
    fn take_unsent(&mut self) -> Option<Snapshot> {
        let unsent = self.unsent.take().filter(|_| !self.parts.is_empty())?;
        let waiting: Vec<Run> = self.parts.iter().flat_map(|part| part.runs.iter().cloned()).collect();
        Some(delta::slice(&unsent, &waiting))
    }

    /// Whether a later report contains all that an earlier one would.
    pub fn is_cumulative(&self) -> bool {
        self.kind == Kind::RemoteWrite || self.temporality == Temporality::Cumulative
    }

    /// Adds a report: it replaces cumulative ones that are queued, and is merged with queued deltas.
    pub fn enqueue(&mut self, reading: Reading) -> Enqueued {
        let mut taken = Enqueued::default();
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
        } else if self.is_cumulative() {
            taken.superseded = self.points();
            self.parts = otlp::requests(&snapshot, &exemplars, &self.resource, Temporality::Cumulative).into();
        } else {
            let mut new = delta::difference(self.base.as_ref(), &snapshot);
            if let Some(unsent) = self.take_unsent() {
                let (all, lost) = delta::merge(&unsent, &new, self.max_bytes);
                taken.dropped = lost;
                new = all;
            }
            self.base = Some(snapshot);
            self.parts = otlp::requests(&new, &exemplars, &self.resource, Temporality::Delta).into();
            self.unsent = Some(new);
        }
        while self.bytes() > self.max_bytes
            && let Some(part) = self.parts.pop_back()
        {
            taken.dropped += part.points;
        }
        taken
    }

    /// The oldest request.
    pub fn first(&self) -> Option<&Part> {
        self.parts.front()
    }

    /// Removes the oldest request: it was accepted or refused for good.
    pub fn pop(&mut self) {
        self.parts.pop_front();
        // The receiver may have series of a report of which only parts arrived.
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

    /// Number of queued requests.
    pub fn requests(&self) -> usize {
        self.parts.len()
    }

    /// Data points in the queue.
    pub fn points(&self) -> u64 {
        self.parts.iter().map(|part| part.points).sum()
    }

    /// Bytes of the queued requests, before compression.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.body.len()).sum()
    }
}

#[cfg(test)]
mod tests;
