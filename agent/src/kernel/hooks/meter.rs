//! What programs cost, from the times that every [`PERIOD`](dispatch::PERIOD)th event of a CPU is measured for. No privilege is needed.

use crate::kernel::mmap::Values;
use kstrobe_ebpf::dispatch;
use std::sync::atomic::Ordering;

/// What a program has cost so far. Sums that are estimated from samples: what a window costs is the difference of two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    pub run_ns: f64,
    pub runs: f64,
    /// Ways into the hook: events, of which those that came by a tail call are a part of one.
    pub events: f64,
    /// Programs that run there now, which share the cost of reaching them.
    pub sharers: usize,
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
    pub(super) fn used(self, clock: Sum, events: f64, sharers: usize) -> Use {
        let reading = if clock.samples == 0 { 0.0 } else { clock.ns as f64 / clock.samples as f64 };
        let period = dispatch::PERIOD as f64;
        let own = (self.ns as f64 - reading * self.samples as f64).max(0.0);
        Use { run_ns: own * period, runs: self.samples as f64 * period, events, sharers }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_of_the_clock_are_taken_off() {
        let (clock, sum) = (Sum { ns: 2_000, samples: 100 }, Sum { ns: 12_000, samples: 100 });
        let expected = Use { run_ns: 10_000.0 * 61.0, runs: 6_100.0, events: 7.0, sharers: 2 };
        assert_eq!(sum.used(clock, 7.0, 2), expected);
        assert_eq!(Sum::default().used(clock, 0.0, 0), Use::default());
        let noise = Sum { ns: 100, samples: 100 };
        assert_eq!(noise.used(clock, 0.0, 1).run_ns, 0.0, "no program costs less than nothing");
    }
}
