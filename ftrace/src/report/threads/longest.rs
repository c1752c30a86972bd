//! The longest of many.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Keeps so many of the longest, and counts those that it does not.
pub(super) struct Longest<T> {
    limit: usize,
    kept: BinaryHeap<Reverse<Entry<T>>>,
    pub left_out: u64,
    pub longest_left_out: u64,
}

struct Entry<T> {
    length: u64,
    /// Of equal ones the first stay.
    number: Reverse<u64>,
    value: T,
}

impl<T> Longest<T> {
    pub fn new(limit: usize) -> Longest<T> {
        Longest { limit, kept: BinaryHeap::new(), left_out: 0, longest_left_out: 0 }
    }

    pub fn add(&mut self, length: u64, value: T) {
        let number = Reverse(self.kept.len() as u64 + self.left_out);
        self.kept.push(Reverse(Entry { length, number, value }));
        if self.kept.len() > self.limit
            && let Some(Reverse(shortest)) = self.kept.pop()
        {
            self.left_out += 1;
            self.longest_left_out = self.longest_left_out.max(shortest.length);
        }
    }

    /// Those that are kept, each with its length.
    pub fn into_entries(self) -> impl Iterator<Item = (u64, T)> {
        self.kept.into_iter().map(|Reverse(entry)| (entry.length, entry.value))
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
        for length in [5, 1, 9, 5, 7] {
            longest.add(length, length);
        }
        assert_eq!((longest.left_out, longest.longest_left_out), (3, 5));
        let mut kept: Vec<(u64, u64)> = longest.into_entries().collect();
        kept.sort_unstable();
        assert_eq!(kept, [(7, 7), (9, 9)]);
    }
}
