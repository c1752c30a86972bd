//! When a hook is attached that is so for a share of the time: slices of it, with rests of random length between.
//!
//! The share is exact over time, however late the kernel or a busy machine lets a switch be: a slice is as long as makes it so.
//! A pure state machine, whose input is when the hook was attached and detached.

use std::time::{Duration, Instant};

/// What is seen in slices stands for so many times of it: they are one of so many parts of the time.
pub const TIMES: u64 = 8;
/// Mean length of a rest. The longest is half as long again: no hook is away for a second.
const REST: Duration = Duration::from_millis(280);
/// Shortest and longest slice: to attach and to detach takes the kernel up to a millisecond.
const SLICE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// Until what failed is tried again.
pub const AGAIN: Duration = Duration::from_millis(500);

/// Over how long the pace of a load is compared, and how many events that takes.
const PACE_EVERY: Duration = Duration::from_secs(3);
const PACE_EVENTS: f64 = 10_000.0;
/// Most and least of [`Slices::pace`].
const PACE: (f64, f64) = (2.0 / 3.0, 1.5);

#[derive(Debug)]
pub struct Slices {
    attached: bool,
    since: Instant,
    /// Seconds for which the hook should have been attached and was not.
    owed: f64,
    due: Instant,
    /// How much faster the load is than in slices, in which each event takes longer.
    pace: Option<f64>,
    compared: Compared,
}

/// Events of a sliced hook, and of another that sees each of them in and outside of slices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events {
    pub seen: f64,
    pub all: f64,
}

/// What the pace is taken from.
#[derive(Debug)]
struct Compared {
    begin: Instant,
    before: Option<Events>,
    /// Time in slices.
    seen: Duration,
}

impl Compared {
    fn new(begin: Instant, before: Option<Events>) -> Compared {
        Compared { begin, before, seen: Duration::ZERO }
    }

    /// The pace, when enough has come for it.
    fn pace(&self, now: Instant, events: Events) -> Option<f64> {
        let passed = now.saturating_duration_since(self.begin);
        let before = self.before?;
        let (seen, all) = (events.seen - before.seen, events.all - before.all);
        let is_enough = passed >= PACE_EVERY && seen * TIMES as f64 >= PACE_EVENTS;
        is_enough.then(|| (all / passed.as_secs_f64()) / (seen / self.seen.as_secs_f64()))
    }
}

impl Slices {
    /// The hook is detached. `chance` is of 0 .. 1.
    pub fn new(now: Instant, chance: f64) -> Slices {
        let compared = Compared::new(now, None);
        Slices { attached: false, since: now, owed: 0.0, due: now + rest(chance), pace: None, compared }
    }

    pub fn is_attached(&self) -> bool {
        self.attached
    }

    /// When the hook is to be attached or detached.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The hook was attached, or detached where it was attached. `events` are those so far, where they are known.
    pub fn switched(&mut self, now: Instant, chance: f64, events: Option<Events>) {
        let passed = now.saturating_duration_since(self.since);
        if self.attached {
            self.owed -= passed.as_secs_f64();
            self.due = now + rest(chance);
            self.compared.seen += passed;
            self.compare(now, events);
        } else {
            let share = self.pace.unwrap_or(1.0) / TIMES as f64;
            self.owed += passed.as_secs_f64() * share / (1.0 - share);
            self.due = now + Duration::from_secs_f64(self.owed.max(0.0)).clamp(SLICE.0, SLICE.1);
        }
        (self.attached, self.since) = (!self.attached, now);
    }

    /// A load that goes as fast as it can makes fewer events in slices than as much time outside: slices are longer by that.
    fn compare(&mut self, now: Instant, events: Option<Events>) {
        let Some(events) = events else { return };
        if self.compared.before.is_none() {
            self.compared = Compared::new(now, Some(events));
        } else if let Some(pace) = self.compared.pace(now, events) {
            // Loads change: half of what it was remains.
            let pace = pace.clamp(PACE.0, PACE.1);
            self.pace = Some((self.pace.unwrap_or(pace) + pace) / 2.0);
            self.compared = Compared::new(now, Some(events));
        }
    }

    /// The kernel did not attach it.
    pub fn failed(&mut self, now: Instant) {
        self.due = now + AGAIN;
    }
}

fn rest(chance: f64) -> Duration {
    REST.mul_f64(0.5 + chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load whose events come so many times slower in slices.
    struct Load {
        slices: Slices,
        now: Instant,
        state: u32,
        slower: f64,
        time: [f64; 2],
        events: Events,
    }

    impl Load {
        fn new(slower: f64) -> Load {
            let now = Instant::now();
            let (time, events) = Default::default();
            Load { slices: Slices::new(now, 0.3), now, state: 1, slower, time, events }
        }

        fn chance(&mut self) -> f64 {
            // Numerical Recipes' generator.
            self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(self.state >> 8) / f64::from(1 << 24)
        }

        /// So many switches, each of which is late by up to `late_ms`.
        fn switch(&mut self, times: u32, late_ms: u64) {
            for _ in 0..times {
                let late = Duration::from_micros((self.chance() * late_ms as f64 * 1e3) as u64);
                let next = self.slices.due() + late;
                let (passed, attached) = ((next - self.now).as_secs_f64(), self.slices.is_attached());
                assert!(attached || passed < 0.421 + late_ms as f64 / 1e3, "{passed}");
                let events = passed * if attached { 1e6 / self.slower } else { 1e6 };
                self.events.all += events;
                self.events.seen += if attached { events } else { 0.0 };
                self.time[usize::from(attached)] += passed;
                self.now = next;
                let chance = self.chance();
                self.slices.switched(next, chance, Some(self.events));
            }
        }
    }

    #[test]
    fn slices_are_an_eighth_of_the_time_however_late() {
        for late_ms in [0, 1, 20] {
            let mut load = Load::new(1.0);
            load.switch(1000, late_ms);
            let [rested, seen] = load.time;
            let share = seen / (seen + rested);
            assert!((share * 8.0 - 1.0).abs() < 0.005, "{late_ms} ms: {share}");
        }
        let mut load = Load::new(1.0);
        load.switch(4, 0);
        let [rested, seen] = load.time;
        assert!((seen * 7.0 / rested - 1.0).abs() < 1e-3, "from the first slice on: {seen} of {rested}");
    }

    #[test]
    fn slices_are_longer_for_a_load_that_they_slow_down() {
        for slower in [1.2, 1.05] {
            let mut load = Load::new(slower);
            load.switch(300, 1);
            let before = load.events;
            assert!(before.seen * 8.0 / before.all < 1.0, "until the pace is known");
            load.switch(1000, 1);
            let (seen, all) = (load.events.seen - before.seen, load.events.all - before.all);
            assert!((seen * 8.0 / all - 1.0).abs() < 0.01, "{slower}: {}", seen * 8.0 / all);
        }
    }

    #[test]
    fn a_hook_that_could_not_be_attached_is_tried_again() {
        let start = Instant::now();
        let mut slices = Slices::new(start, 0.0);
        assert_eq!(slices.due(), start + Duration::from_millis(140));
        slices.failed(slices.due());
        assert_eq!((slices.is_attached(), slices.due()), (false, start + Duration::from_millis(640)));
        // The slice is longer for it.
        let attached = slices.due();
        slices.switched(attached, 0.5, None);
        let slice = slices.due() - attached;
        assert!(slice.abs_diff(Duration::from_millis(640) / 7) < Duration::from_micros(1), "{slice:?}");
    }
}
