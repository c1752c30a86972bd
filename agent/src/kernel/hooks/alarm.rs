//! Wakes the agent when many events come at all hooks together, so that it need not look while there are few.

use crate::kernel::events::{BufferError, Buffers, page_bytes};
use crate::kernel::mmap::Words;
use crate::kernel::sys::map::{MapSpec, kind};
use crate::kernel::sys::{KernelMap, monotonic_ns};
use kstrobe_ebpf::dispatch::{self, AlarmWords};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the entries of all hooks count down, see [`dispatch::Alarm`].
#[derive(Debug)]
pub struct Alarm {
    words: Words,
    ring: KernelMap,
}

impl Alarm {
    pub(super) fn create() -> io::Result<Alarm> {
        let entries = page_bytes() as u32;
        let spec = MapSpec { kind: kind::RINGBUF, entries, name: "ks_alarm_ring", ..MapSpec::default() };
        Ok(Alarm { ring: KernelMap::create(&spec)?, words: Words::create("ks_alarm", AlarmWords::BYTES)? })
    }

    pub(super) fn maps(&self) -> dispatch::Alarm {
        dispatch::Alarm { words: self.words.descriptor(), ring: self.ring.as_fd().as_raw_fd() as u32 }
    }

    /// Readable when the alarm was given.
    pub fn reader(&self) -> Result<Buffers, BufferError> {
        Buffers::open(&self.ring, 0)
    }

    /// Gives the alarm when so many events come in less than this time, counted from one multiple of them to the next: a flood that begins
    /// between two is noticed after some twice as many.
    pub fn set(&self, events: u64, within: Duration) {
        let every = events.div_ceil(dispatch::PERIOD);
        // While programs count nothing.
        self.clear();
        self.write(AlarmWords::Every, every);
        self.write(AlarmWords::Within, u64::try_from(within.as_nanos()).unwrap_or(u64::MAX));
        self.write(AlarmWords::Since, monotonic_ns());
        self.write(AlarmWords::Left, every);
    }

    /// Gives it no more, but for a program that is about to begin again.
    pub fn clear(&self) {
        self.write(AlarmWords::Every, 0);
        self.write(AlarmWords::Left, 0);
    }

    fn write(&self, word: AlarmWords, value: u64) {
        if let Some(at) = self.words.values.words().get(word as usize) {
            at.store(value, Ordering::SeqCst);
        }
    }
}
