//! Log records and spans: collected in bounded memory, encoded as requests once a second, and sent by the same task as
//! reports.

use crate::Part;
use crate::otlp::{Resource, logs, spans};
use crate::push::usage::Shared;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A log record or a span.
pub trait Record: Send + 'static {
    /// About its size in bytes.
    fn bytes(&self) -> usize;
    /// Encodes records as requests of bounded size.
    fn requests(records: &[Self], resource: &Resource) -> Vec<Part>
    where
        Self: Sized;
}

impl Record for logs::Record {
    fn bytes(&self) -> usize {
        self.bytes()
    }
    fn requests(records: &[Self], from: &Resource) -> Vec<Part> {
        logs::requests(records, from)
    }
}

impl Record for spans::Span {
    fn bytes(&self) -> usize {
        self.bytes()
    }
    fn requests(records: &[Self], from: &Resource) -> Vec<Part> {
        spans::requests(records, from)
    }
}

/// Records that wait to be encoded. Clones share one queue.
#[derive(Debug)]
pub struct BatchQueue<T>(Arc<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    pending: Mutex<Pending<T>>,
    max_bytes: usize,
    shared: Shared,
}

#[derive(Debug)]
struct Pending<T> {
    records: Vec<T>,
    bytes: usize,
    /// Bytes of encoded requests that are not sent yet.
    encoded: usize,
}

impl<T> Clone for BatchQueue<T> {
    fn clone(&self) -> Self {
        BatchQueue(self.0.clone())
    }
}

impl<T: Record> BatchQueue<T> {
    pub(crate) fn new(max_bytes: usize, shared: Shared) -> BatchQueue<T> {
        let pending = Mutex::new(Pending { records: Vec::new(), bytes: 0, encoded: 0 });
        BatchQueue(Arc::new(Inner { pending, max_bytes, shared }))
    }

    /// Adds a record, or counts it as dropped when `max_bytes` are queued. Never blocks on the receiver.
    pub fn push(&self, record: T) {
        let bytes = record.bytes();
        let mut pending = self.pending();
        let full = pending.bytes + pending.encoded + bytes > self.0.max_bytes;
        if !full {
            pending.bytes += bytes;
            pending.records.push(record);
        }
        let mut usage = self.0.shared.lock();
        match full {
            true => *usage.dropped.entry("full").or_default() += 1,
            false => {
                usage.queue_points += 1;
                usage.queue_bytes += bytes as u64;
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending<T>> {
        // No change leaves it inconsistent when it panics.
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The consuming side of a [`BatchQueue`] of any record.
pub(crate) trait Source: Send + Sync {
    /// Takes all pending records, encoded as requests.
    fn take(&self, resource: &Resource) -> Vec<Part>;
    /// Updates the metrics of the queue: `records` in encoded requests of `bytes`, and the pending ones.
    fn count(&self, records: u64, bytes: usize);
}

impl<T: Record> Source for BatchQueue<T> {
    fn take(&self, resource: &Resource) -> Vec<Part> {
        let records = {
            let mut pending = self.pending();
            // They count as long as they are neither pending nor encoded.
            pending.encoded += std::mem::take(&mut pending.bytes);
            std::mem::take(&mut pending.records)
        };
        T::requests(&records, resource)
    }

    fn count(&self, records: u64, bytes: usize) {
        // Both locks, in the order of `push`: no record is counted twice or not at all.
        let mut pending = self.pending();
        let mut usage = self.0.shared.lock();
        pending.encoded = bytes;
        usage.queue_points = records + pending.records.len() as u64;
        usage.queue_bytes = (bytes + pending.bytes) as u64;
    }
}

/// Encoded requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) parts: VecDeque<Part>,
}

impl Queue {
    /// Adds requests, and drops the newest ones beyond `max_bytes`. Returns the number of dropped records.
    pub(crate) fn add(&mut self, parts: Vec<Part>, max_bytes: usize) -> u64 {
        self.parts.extend(parts);
        let mut dropped = 0;
        while self.bytes() > max_bytes
            && let Some(part) = self.parts.pop_back()
        {
            dropped += part.points;
        }
        dropped
    }

    pub(crate) fn points(&self) -> u64 {
        self.parts.iter().map(|part| part.points).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.body.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::Value;
    use std::time::UNIX_EPOCH;

    fn record(bytes: usize) -> logs::Record {
        let attributes = vec![("probe".to_owned(), Value::Text("p".into()))];
        logs::Record { at: UNIX_EPOCH, read: UNIX_EPOCH, attributes, line: "x".repeat(bytes) }
    }

    #[test]
    fn memory_is_bounded_and_each_record_is_sent_waits_or_is_counted() {
        const MAX_BYTES: usize = 1 << 20;
        let shared = Shared::new("test");
        let batches = BatchQueue::new(MAX_BYTES, shared.clone());
        let mut queue = Queue::default();
        let (mut put, mut sent) = (0, 0);
        // A receiver that takes one request in five rounds, while more comes than it takes.
        for round in 0..60 {
            for _ in 0..40 {
                batches.push(record(3000));
                put += 1;
            }
            let dropped = queue.add(batches.take(&Resource::default()), MAX_BYTES);
            *shared.lock().dropped.entry("full").or_default() += dropped;
            batches.count(queue.points(), queue.bytes());
            assert!(queue.bytes() <= MAX_BYTES, "{} bytes", queue.bytes());
            if round % 5 == 0 {
                sent += queue.parts.pop_front().map_or(0, |part| part.points);
                batches.count(queue.points(), queue.bytes());
            }
        }
        let dropped = shared.lock().dropped["full"];
        assert!(dropped > 0 && sent > 0);
        assert_eq!(sent + dropped + queue.points(), put);
    }

    #[test]
    fn one_that_is_larger_than_all_memory_is_dropped() {
        let shared = Shared::new("test");
        let batches = BatchQueue::new(1000, shared.clone());
        batches.push(record(2000));
        batches.push(record(10));
        let usage = shared.lock().clone();
        assert_eq!((usage.dropped["full"], usage.queue_points), (1, 1));
        let parts = batches.take(&Resource::default());
        assert_eq!(parts.iter().map(|part| part.points).sum::<u64>(), 1);
        assert!(batches.take(&Resource::default()).is_empty());
    }
}
