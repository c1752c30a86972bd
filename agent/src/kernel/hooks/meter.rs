//! What programs cost, from the times that every [`PERIOD`](dispatch::PERIOD)th event of a CPU is measured for, or fewer where many come.
//! No privilege is needed.

use crate::kernel::mmap::Values;
use kstrobe_ebpf::dispatch;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Measured events a second are this many at least, where so many are counted: the shortest window of a budget has some forty.
const MIN_MEASURED: f64 = 256.0;
/// What came in less time may be a burst.
const MIN_TIME: Duration = Duration::from_millis(150);
/// Of so many counted events one is measured at least: what that takes is little by then, and a window of what runs seldom ends.
const MAX_TIMED_OF: u64 = 4;

/// What a program has cost so far. Sums that are estimated from samples: what a window costs is the difference of two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    pub run_ns: f64,
    pub runs: f64,
    /// Ways into the hook: events, of which those that came by a tail call are a part of one.
    pub events: f64,
    /// Programs that run there now, which share the cost of reaching them.
    pub sharers: usize,
    /// Runs for which one stands that is measured now.
    pub runs_a_sample: u64,
}

/// Sums of samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub ns: u64,
    pub samples: u64,
}

impl Sum {
    pub(super) fn plus(self, other: Sum) -> Sum {
        Sum { ns: self.ns + other.ns, samples: self.samples + other.samples }
    }

    /// Without the readings of the clock that are in it, in all events.
    pub(super) fn used(self, clock: Sum, events: f64, sharers: usize, timed_of: u64) -> Use {
        let reading = if clock.samples == 0 { 0.0 } else { clock.ns as f64 / clock.samples as f64 };
        let period = dispatch::PERIOD as f64;
        let own = (self.ns as f64 - reading * self.samples as f64).max(0.0);
        let runs_a_sample = dispatch::PERIOD * timed_of;
        Use { run_ns: own * period, runs: self.samples as f64 * period, events, sharers, runs_a_sample }
    }
}

/// The costs of a function on all CPUs; of readings of the clock for `None`.
pub(super) fn cost(costs: &Values, cpus: u32, bodies: usize, body: Option<usize>) -> Sum {
    let words = costs.words();
    let word = |at: u32| words.get(at as usize / 8).map_or(0, |word| word.load(Ordering::Relaxed));
    let of = |cpu| {
        let at = dispatch::cost_at(cpu, bodies, body);
        Sum { ns: word(at), samples: word(at + 8) }
    };
    (0..cpus).map(of).fold(Sum::default(), Sum::plus)
}

/// Events at a hook on all CPUs.
pub(super) fn events(words: &Values, cpus: u32) -> f64 {
    let at = |cpu| (dispatch::cpu_words(cpu) + dispatch::ROUNDS) as usize / 8;
    let rounds = |cpu| words.words().get(at(cpu)).map_or(0, |word| word.load(Ordering::Relaxed));
    ((0..cpus).map(rounds).sum::<u64>() * dispatch::PERIOD) as f64
}

/// Of how many counted events one is measured, by the rate at which they came last.
#[derive(Debug)]
pub(super) struct Rate {
    looked: Instant,
    events: f64,
    /// A power of two.
    pub timed_of: u64,
}

impl Rate {
    /// All counted events are measured at first.
    pub(super) fn new(now: Instant) -> Rate {
        Rate { looked: now, events: 0.0, timed_of: 1 }
    }

    /// Goes by so many events until now.
    pub(super) fn look(&mut self, now: Instant, events: f64) {
        let time = now.saturating_duration_since(self.looked).max(MIN_TIME);
        let counted = (events - self.events) / dispatch::PERIOD as f64;
        let times = (counted / MIN_MEASURED / time.as_secs_f64()) as u64;
        self.timed_of = times.checked_ilog2().map_or(1, |log| 1 << log).min(MAX_TIMED_OF);
        (self.looked, self.events) = (now, events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_events_are_measured_where_many_come() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let mut events = 0.0;
        let mut look = |seconds: f64, a_second: f64| {
            events += (seconds * a_second).round();
            let now = rate.looked + Duration::from_secs_f64(seconds);
            rate.look(now, events);
            rate.timed_of
        };
        assert_eq!([1_000.0, 31_000.0, 32_000.0, 62_000.0, 63_000.0].map(|rate| look(1.0, rate)), [1, 1, 2, 2, 4]);
        assert_eq!([look(0.15, 1e7), look(240.0, 30_000.0), look(0.01, 100_000.0)], [4, 1, 1]);
    }

    #[test]
    fn readings_of_the_clock_are_taken_off() {
        let (clock, sum) = (Sum { ns: 2_000, samples: 100 }, Sum { ns: 12_000, samples: 100 });
        let expected = Use { run_ns: 10_000.0 * 61.0, runs: 6_100.0, events: 7.0, sharers: 2, runs_a_sample: 244 };
        assert_eq!(sum.used(clock, 7.0, 2, 4), expected);
        assert_eq!(Sum::default().used(clock, 0.0, 0, 1), Use { runs_a_sample: 61, ..Use::default() });
        let noise = Sum { ns: 100, samples: 100 };
        assert_eq!(noise.used(clock, 0.0, 1, 1).run_ns, 0.0, "no program costs less than nothing");
    }
}
