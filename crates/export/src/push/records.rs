//! What is sent once, as it comes: log records and spans. They are gathered in memory of a bound, put into requests once a
//! second, and sent by the same machine as reports.

use crate::Part;
use crate::otlp::{Resource, logs, spans};
use crate::push::usage::Shared;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that is sent once.
pub trait Record: Send + 'static {
    /// About as many bytes as it takes.
    fn bytes(&self) -> usize;
    /// Requests of bounded size.
    fn requests(records: &[Self], from: &Resource) -> Vec<Part>
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

/// Where records are put to be sent. Clones are of one.
#[derive(Debug)]
pub struct Outlet<T>(Arc<Shelf<T>>);

#[derive(Debug)]
struct Shelf<T> {
    gathered: Mutex<Gathered<T>>,
    most_bytes: usize,
    shared: Shared,
}

#[derive(Debug)]
struct Gathered<T> {
    records: Vec<T>,
    bytes: usize,
    /// Bytes of requests that wait already.
    waiting: usize,
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Self {
        Outlet(self.0.clone())
    }
}

impl<T: Record> Outlet<T> {
    pub(crate) fn new(most_bytes: usize, shared: Shared) -> Outlet<T> {
        let gathered = Mutex::new(Gathered { records: Vec::new(), bytes: 0, waiting: 0 });
        Outlet(Arc::new(Shelf { gathered, most_bytes, shared }))
    }

    /// Takes a record, or counts it as dropped when memory is full. Never waits for a receiver.
    pub fn put(&self, record: T) {
        let bytes = record.bytes();
        let mut gathered = self.gathered();
        let full = gathered.bytes + gathered.waiting + bytes > self.0.most_bytes;
        if !full {
            gathered.bytes += bytes;
            gathered.records.push(record);
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

    fn gathered(&self) -> MutexGuard<'_, Gathered<T>> {
        // Each change leaves it whole.
        self.0.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The other end of an [`Outlet`], whatever it takes.
pub(crate) trait Source: Send + Sync {
    /// All that was put there since, as requests.
    fn take(&self, from: &Resource) -> Vec<Part>;
    /// Notes what waits: so many records in requests of so many bytes, and what was put there since.
    fn count(&self, records: u64, bytes: usize);
}

impl<T: Record> Source for Outlet<T> {
    fn take(&self, from: &Resource) -> Vec<Part> {
        let records = {
            let mut gathered = self.gathered();
            // They take as much room as before until they are requests.
            gathered.waiting += std::mem::take(&mut gathered.bytes);
            std::mem::take(&mut gathered.records)
        };
        T::requests(&records, from)
    }

    fn count(&self, records: u64, bytes: usize) {
        // Both at once, and in the order of `put`: a record is never counted twice or not at all.
        let mut gathered = self.gathered();
        let mut usage = self.0.shared.lock();
        gathered.waiting = bytes;
        usage.queue_points = records + gathered.records.len() as u64;
        usage.queue_bytes = (bytes + gathered.bytes) as u64;
    }
}

/// Requests that wait.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) parts: VecDeque<Part>,
}

impl Queue {
    /// Adds requests; those that do not fit are dropped, the newest first. Gives the records in them.
    pub(crate) fn add(&mut self, parts: Vec<Part>, most_bytes: usize) -> u64 {
        self.parts.extend(parts);
        let mut dropped = 0;
        while self.bytes() > most_bytes
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
        const MOST: usize = 1 << 20;
        let shared = Shared::new("test");
        let outlet = Outlet::new(MOST, shared.clone());
        let mut queue = Queue::default();
        let (mut put, mut sent) = (0, 0);
        // A receiver that takes one request in five rounds, while more comes than it takes.
        for round in 0..60 {
            for _ in 0..40 {
                outlet.put(record(3000));
                put += 1;
            }
            let dropped = queue.add(outlet.take(&Resource::default()), MOST);
            *shared.lock().dropped.entry("full").or_default() += dropped;
            outlet.count(queue.points(), queue.bytes());
            assert!(queue.bytes() <= MOST, "{} bytes", queue.bytes());
            if round % 5 == 0 {
                sent += queue.parts.pop_front().map_or(0, |part| part.points);
                outlet.count(queue.points(), queue.bytes());
            }
        }
        let dropped = shared.lock().dropped["full"];
        assert!(dropped > 0 && sent > 0);
        assert_eq!(sent + dropped + queue.points(), put);
    }

    #[test]
    fn one_that_is_larger_than_all_memory_is_dropped() {
        let shared = Shared::new("test");
        let outlet = Outlet::new(1000, shared.clone());
        outlet.put(record(2000));
        outlet.put(record(10));
        let usage = shared.lock().clone();
        assert_eq!((usage.dropped["full"], usage.queue_points), (1, 1));
        let parts = outlet.take(&Resource::default());
        assert_eq!(parts.iter().map(|part| part.points).sum::<u64>(), 1);
        assert!(outlet.take(&Resource::default()).is_empty());
    }
}
