//! What the agent sets of a running probe's programs: which of its events stand for how many others.

use crate::kernel::sys::KernelMap;
use kstrobe_ebpf::layout::ControlMap;
use std::io;
use std::sync::{Mutex, PoisonError};

/// The words of [`ControlMap`], one set for each CPU.
#[derive(Debug)]
pub struct Control {
    map: KernelMap,
    cpus: u32,
    set: Mutex<Set>,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    halvings: u32,
    since: u64,
    times: u64,
    ends_rest: bool,
}

impl Control {
    pub(super) fn new(map: KernelMap, cpus: u32) -> Control {
        let set = Set { halvings: 0, since: 1, times: 1, ends_rest: false };
        Control { map, cpus, set: Mutex::new(set) }
    }

    /// Lets the programs measure one of 2^`halvings` events, and no span that began at or before `since` (`CLOCK_MONOTONIC`
    /// nanoseconds, at least 1).
    pub fn sample(&self, halvings: u32, since: u64) -> io::Result<()> {
        self.change(|set| (set.halvings, set.since) = (halvings.min(32), since.max(1)))
    }

    /// Lets each event that is taken stand for so many times the events, as its hook is attached for a share of the time.
    pub fn weigh(&self, times: u64) -> io::Result<()> {
        self.change(|set| set.times = times.max(1))
    }

    /// See [`Control::weigh`].
    pub fn times(&self) -> u64 {
        self.set.lock().unwrap_or_else(PoisonError::into_inner).times
    }

    /// Measures no span that began at or before `since`; see [`Control::sample`].
    pub fn renew(&self, since: u64) -> io::Result<()> {
        self.change(|set| set.since = since.max(1))
    }

    /// Whether the hooks at which measurements end are attached for a share of the time too: ends without a begin are no loss then.
    pub fn ends_rest(&self) -> bool {
        self.set.lock().unwrap_or_else(PoisonError::into_inner).ends_rest
    }

    /// See [`Control::ends_rest`].
    pub fn set_ends_rest(&self, rest: bool) -> io::Result<()> {
        match self.ends_rest() == rest {
            true => Ok(()),
            false => self.change(|set| set.ends_rest = rest),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Set)) -> io::Result<()> {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut set);
        let Set { halvings, since, times, ends_rest } = *set;
        let mask = (1u64 << halvings) - 1;
        (0..self.cpus).try_for_each(|cpu| {
            let mut element = [0; ControlMap::BYTES as usize];
            let words = [
                (ControlMap::MASK, mask),
                (ControlMap::SINCE, since),
                // The first gap is a part of one that began before.
                (ControlMap::LEFT, random_below(mask + 1)),
                (ControlMap::OTHERS, (mask + 1).saturating_mul(times) - 1),
                (ControlMap::SLICED, (times > 1 || ends_rest).into()),
            ];
            words.iter().for_each(|(at, word)| element[*at..at + 8].copy_from_slice(&word.to_ne_bytes()));
            self.map.update(&cpu.to_ne_bytes(), &element, 0)
        })
    }
}

/// A number below `values`, as chance wills.
pub fn random_below(values: u64) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Each state is keyed anew by the standard library.
    RandomState::new().hash_one(values) % values.max(1)
}
