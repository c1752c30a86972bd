//! Locks that one thread holds together. A development build, and with it each test, panics when a thread takes them in another order
//! than that of their ranks, which could end in a deadlock.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Probe;
use crate::metrics::labels::Names;

/// Serialises full scrapes.
pub type ScrapeLock = Ranked<(), 0>;
/// Texts of labels. Holding it also serialises reads of probes.
pub type NamesLock = Ranked<Names, 1>;
/// One probe. A thread holds one at a time.
pub type ProbeLock = Ranked<Probe, 2>;

/// A mutex that a thread takes only while it holds none of its rank or of a higher one.
#[derive(Default)]
pub struct Ranked<T, const RANK: u8>(Mutex<T>);

impl<T, const RANK: u8> Ranked<T, RANK> {
    pub fn new(value: T) -> Self {
        Ranked(Mutex::new(value))
    }

    /// Ignores poisoning, as [`lock`] does.
    pub fn lock(&self) -> RankedGuard<'_, T, RANK> {
        #[cfg(debug_assertions)]
        held::add(RANK);
        RankedGuard(lock(&self.0))
    }
}

pub struct RankedGuard<'a, T, const RANK: u8>(MutexGuard<'a, T>);

impl<T, const RANK: u8> Deref for RankedGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T, const RANK: u8> DerefMut for RankedGuard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(debug_assertions)]
impl<T, const RANK: u8> Drop for RankedGuard<'_, T, RANK> {
    fn drop(&mut self) {
        held::remove(RANK);
    }
}

/// The ranks that this thread holds, a bit each.
#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    thread_local!(static HELD: Cell<u8> = const { Cell::new(0) });

    pub fn add(rank: u8) {
        let held = HELD.get();
        assert!(held >> rank == 0, "lock order: rank {rank} is taken while a thread holds ranks {held:#b}");
        HELD.set(held | 1 << rank);
    }

    pub fn remove(rank: u8) {
        HELD.set(HELD.get() & !(1 << rank));
    }
}

/// Ignores poisoning: after a panic, the next read replaces the data.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (first, second) = (Ranked::<(), 1>::new(()), Ranked::<(), 2>::new(()));
        for _ in 0..2 {
            let _first = first.lock();
            let _second = second.lock();
        }
        drop(second.lock());
        drop(first.lock());
    }

    #[test]
    #[should_panic(expected = "lock order: rank 1")]
    fn the_other_order_panics() {
        let (first, second) = (Ranked::<(), 1>::new(()), Ranked::<(), 2>::new(()));
        let _second = second.lock();
        let _first = first.lock();
    }
}
