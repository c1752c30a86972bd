//! The seconds that are kept.

use crate::cursor::MetricChanges;
use crate::mark::Mark;
use crate::registry::Registry;
use std::collections::VecDeque;
use std::sync::Arc;

/// Marks that are kept at most: a node has a few in a minute.
const MAX_MARKS: usize = 4096;
/// Records that go between two looks for series that are not named any more.
const SWEEP_EVERY: u64 = 64;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub seconds: u64,
    /// Of records and series.
    pub bytes: usize,
}

/// The time that a reading covers: it begins where the last one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    /// Start of the last second that it covers, in Unix time.
    pub start: u64,
    /// Whole seconds: 1, or more when a reading came late or the agent rested.
    pub seconds: u64,
}

#[derive(Clone, Debug)]
pub struct ProbeChanges {
    pub probe: Arc<str>,
    /// Not all events were measured: counts are estimates.
    pub sampled: bool,
    /// Of all its metrics, also those that have not changed.
    pub metrics: Vec<MetricChanges>,
}

/// Seconds that the history does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// No reading was taken at their end: their counts are in the second of the next reading.
    pub late: u64,
    /// They went before their time, for want of memory.
    pub memory: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Seconds that are kept.
    pub seconds: u64,
    pub bytes: usize,
    /// Since the start.
    pub lost: Lost,
    /// Marks that went before their time, since the start.
    pub lost_marks: u64,
}

/// The metrics of the last minutes, second by second.
#[derive(Clone, Debug)]
pub struct History {
    limits: Limits,
    pub(crate) registry: Registry,
    pub(crate) records: VecDeque<Record>,
    /// Number of the first record that is kept, counted from the start.
    first: u64,
    usage: Usage,
    /// Of records alone.
    record_bytes: usize,
    /// In the order of time.
    marks: VecDeque<Mark>,
}

#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub second: Second,
    /// Probes of which not all events were measured.
    pub sampled: Box<[Arc<str>]>,
    pub bytes: Arc<[u8]>,
}

impl Record {
    fn memory(&self) -> usize {
        size_of::<Record>() + self.bytes.len() + size_of_val(&*self.sampled)
    }
}

impl History {
    pub fn new(limits: Limits) -> History {
        History {
            limits,
            registry: Registry::default(),
            records: VecDeque::new(),
            first: 0,
            usage: Usage::default(),
            record_bytes: 0,
            marks: VecDeque::new(),
        }
    }

    /// Seconds that were kept elsewhere, in the order of time.
    pub(crate) fn of(registry: Registry, records: Vec<Record>, marks: Vec<Mark>) -> History {
        let limits = Limits { seconds: u64::MAX, bytes: usize::MAX };
        let usage = Usage { seconds: records.iter().map(|record| record.second.seconds).sum(), ..Usage::default() };
        let record_bytes = records.iter().map(Record::memory).sum();
        let mut history = History { registry, records: records.into(), usage, record_bytes, ..History::new(limits) };
        marks.into_iter().for_each(|mark| history.mark(mark));
        history
    }

    /// Other limits from now on. What is beyond them goes.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.trim();
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Adds a second.
    pub fn push(&mut self, second: Second, probes: &[ProbeChanges]) {
        self.push_planned(1, second, probes);
    }

    /// Adds a reading that was to cover so many seconds; what it covers beyond them should have had readings of its own.
    pub fn push_planned(&mut self, planned: u64, second: Second, probes: &[ProbeChanges]) {
        let number = self.end();
        let bytes = self.registry.pack(number, probes);
        let sampled = probes.iter().filter(|probe| probe.sampled).map(|probe| probe.probe.clone()).collect();
        let record = Record { second, sampled, bytes: bytes.into() };
        self.record_bytes += record.memory();
        self.usage.seconds += second.seconds;
        self.usage.lost.late += second.seconds.saturating_sub(planned);
        self.records.push_back(record);
        self.trim();
    }

    /// Adds a mark; the oldest goes when there are too many.
    pub fn mark(&mut self, mark: Mark) {
        let at = self.marks.partition_point(|other| other.time <= mark.time);
        self.marks.insert(at, mark);
        if self.marks.len() > MAX_MARKS {
            self.marks.pop_front();
            self.usage.lost_marks += 1;
        }
    }

    /// Marks from one time to before another.
    pub fn marks(&self, from: f64, to: f64) -> impl Iterator<Item = &Mark> {
        self.marks.iter().filter(move |mark| (from..to).contains(&mark.time))
    }

    pub fn usage(&self) -> Usage {
        Usage { bytes: self.record_bytes + self.registry.bytes(), ..self.usage }
    }

    /// One more than the number of the newest record.
    pub fn end(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    /// A record by its number; `None` when it is not kept.
    pub(crate) fn record(&self, number: u64) -> Option<&Record> {
        self.records.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The second that a record covers.
    pub fn second(&self, number: u64) -> Option<Second> {
        self.record(number).map(|record| record.second)
    }

    fn trim(&mut self) {
        while let Some(oldest) = self.records.front()
            && self.usage.seconds - oldest.second.seconds >= self.limits.seconds
        {
            self.forget_oldest();
        }
        // The newest stays: its readers are yet to come.
        while self.usage().bytes > self.limits.bytes && self.records.len() > 1 {
            self.usage.lost.memory += self.forget_oldest();
            if self.records.len() == 1 {
                self.sweep();
            }
        }
        let oldest = self.records.front().map(|record| (record.second.start + 1 - record.second.seconds) as f64);
        while let (Some(oldest), Some(mark)) = (oldest, self.marks.front())
            && mark.time < oldest
        {
            self.marks.pop_front();
        }
    }

    /// Returns the seconds that went.
    fn forget_oldest(&mut self) -> u64 {
        let Some(record) = self.records.pop_front() else { return 0 };
        self.first += 1;
        self.record_bytes -= record.memory();
        self.usage.seconds -= record.second.seconds;
        self.registry.settle(&record.bytes);
        if self.first.is_multiple_of(SWEEP_EVERY) {
            self.sweep();
        }
        record.second.seconds
    }

    fn sweep(&mut self) {
        self.registry.sweep(self.first, self.end().saturating_sub(1));
    }
}
