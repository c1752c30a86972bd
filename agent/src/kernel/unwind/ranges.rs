//! Which elements of an array are free. What is given back rests, as programs may still read it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Longer than a program runs.
const REST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Ranges {
    /// First elements and numbers of free ranges, none of which touch.
    free: BTreeMap<u32, u32>,
    resting: VecDeque<(Instant, Range<u32>)>,
    all: u32,
}

impl Ranges {
    pub fn new(all: u32) -> Ranges {
        Ranges { free: BTreeMap::from([(0, all)]), resting: VecDeque::new(), all }
    }

    /// Takes so many elements that lie side by side.
    pub fn take(&mut self, number: u32, now: Instant) -> Option<Range<u32>> {
        while self.resting.front().is_some_and(|(since, _)| now.saturating_duration_since(*since) >= REST) {
            if let Some((_, range)) = self.resting.pop_front() {
                self.free(range);
            }
        }
        if number == 0 {
            return Some(0..0);
        }
        let (first, length) = self.free.iter().find(|(_, length)| **length >= number).map(|(f, l)| (*f, *l))?;
        self.free.remove(&first);
        if length > number {
            self.free.insert(first + number, length - number);
        }
        Some(first..first + number)
    }

    pub fn give_back(&mut self, range: Range<u32>, now: Instant) {
        if !range.is_empty() {
            self.resting.push_back((now, range));
        }
    }

    fn free(&mut self, mut range: Range<u32>) {
        if let Some((first, length)) = self.free.range(..range.start).next_back().map(|(f, l)| (*f, *l))
            && first + length == range.start
        {
            range.start = first;
        }
        if let Some(length) = self.free.remove(&range.end) {
            range.end += length;
        }
        self.free.insert(range.start, range.end - range.start);
    }

    /// Elements that are neither free nor resting.
    pub fn used(&self) -> u32 {
        let resting: u32 = self.resting.iter().map(|(_, range)| range.end - range.start).sum();
        self.all - self.free.values().sum::<u32>() - resting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_again_after_a_rest() {
        let start = Instant::now();
        let mut ranges = Ranges::new(10);
        let taken: Vec<_> = [4, 4, 2, 1].map(|n| ranges.take(n, start)).into_iter().collect();
        assert_eq!(taken, [Some(0..4), Some(4..8), Some(8..10), None]);
        ranges.give_back(0..4, start);
        ranges.give_back(8..10, start);
        assert_eq!(ranges.used(), 4);
        assert_eq!(ranges.take(1, start), None);
        let later = start + REST;
        assert_eq!(ranges.take(3, later), Some(0..3));
        ranges.give_back(4..8, later);
        assert_eq!(ranges.take(7, later + REST), Some(3..10), "neighbours are one");
        assert_eq!((ranges.take(0, later), ranges.used()), (Some(0..0), 10));
    }
}
