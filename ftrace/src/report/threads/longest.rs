//! The longest of many.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

/// Keeps so many of the longest that belong to threads, and counts those that it does not, by thread.
pub(super) struct Longest<T> {
    limit: usize,
    kept: BinaryHeap<Reverse<Entry<T>>>,
    added: u64,
    left_out: HashMap<i32, Left>,
}

/// What of a thread is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub count: u64,
    pub longest: u64,
}

struct Entry<T> {
    length: u64,
    /// Of equal ones the first stay.
    number: Reverse<u64>,
    pid: i32,
    value: T,
}

impl<T> Longest<T> {
    pub fn new(limit: usize) -> Longest<T> {
        Longest { limit, kept: BinaryHeap::new(), added: 0, left_out: HashMap::new() }
    }

    pub fn add(&mut self, length: u64, pid: i32, value: T) {
        self.added += 1;
        self.kept.push(Reverse(Entry { length, number: Reverse(self.added), pid, value }));
        if self.kept.len() > self.limit
            && let Some(Reverse(shortest)) = self.kept.pop()
        {
            let left = self.left_out.entry(shortest.pid).or_default();
            left.count += 1;
            left.longest = left.longest.max(shortest.length);
        }
    }

    /// Gives `each` what is kept, with its length and thread, and returns what is not, of threads that pass.
    pub fn end(self, passes: impl Fn(i32) -> bool, mut each: impl FnMut(u64, i32, T)) -> Left {
        for Reverse(Entry { length, pid, value, .. }) in self.kept {
            each(length, pid, value);
        }
        let of_those = self.left_out.into_iter().filter(|(pid, _)| passes(*pid));
        of_those.fold(Left::default(), |sum, (_, left)| Left {
            count: sum.count + left.count,
            longest: sum.longest.max(left.longest),
        })
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.length, self.number).cmp(&(other.length, other.number))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stay_and_the_rest_is_counted() {
        let mut longest = Longest::new(2);
        for (pid, length) in [(1, 5), (2, 1), (1, 9), (2, 5), (1, 7)] {
            longest.add(length, pid, ());
        }
        let mut kept = Vec::new();
        let left = longest.end(|pid| pid == 2, |length, pid, ()| kept.push((length, pid)));
        kept.sort_unstable();
        assert_eq!((left, kept), (Left { count: 2, longest: 5 }, vec![(7, 1), (9, 1)]));
    }
}
