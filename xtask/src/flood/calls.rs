//! The load of the flood, and what its calls cost more than without programs.

use nix::unistd::getppid;
use std::hint::black_box;
use std::iter::Sum;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is measured at once. A slice of time, in which the agent's programs see all events, is as long at least.
pub const PIECE: Duration = Duration::from_millis(10);
/// Most calls between two looks at the clock.
const BURST: u32 = 500;
/// Readings of the clock after each burst. They stay out of the kernel, so that they say how fast the CPU is: where two CPUs share a core,
/// all takes longer while the other one works.
const READINGS: u32 = 64;
/// Fewer say little about a call.
const MIN_BURST: u64 = 16;
/// The same of bursts, about a piece.
const MIN_BURSTS: usize = 4;

/// What a run of the load gave.
pub struct Load {
    pub calls: u64,
    /// One after the other, without a gap.
    pub pieces: Vec<Piece>,
}

/// Calls within [`PIECE`].
#[derive(Default)]
pub struct Piece {
    calls: u64,
    /// Of each burst that was long enough.
    bursts: Vec<Took>,
}

/// Nanoseconds of a call and of a reading of the clock.
pub struct Took {
    call_ns: f64,
    reading_ns: f64,
}

/// What some calls cost more than with nothing attached, in nanoseconds.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    pub calls: f64,
    pub added_ns: f64,
    /// What an empty pair would have added.
    pub pair_ns: f64,
}

impl Piece {
    /// The lower quartiles: a burst that was interrupted says nothing about a call. `None` where there were few bursts.
    pub fn took(&self) -> Option<Took> {
        if self.bursts.len() < MIN_BURSTS {
            return None;
        }
        let quartile = |ns: fn(&Took) -> f64| {
            let mut bursts: Vec<f64> = self.bursts.iter().map(ns).collect();
            bursts.sort_by(f64::total_cmp);
            bursts.get(bursts.len() / 4).copied()
        };
        Some(Took { call_ns: quartile(|took| took.call_ns)?, reading_ns: quartile(|took| took.reading_ns)? })
    }

    /// Beside calls with nothing attached and with an empty pair, on a CPU that is as fast.
    pub fn cost(&self, bare: &Line, with_pair: &Line) -> Cost {
        let Some(Took { call_ns, reading_ns }) = self.took() else { return Cost::default() };
        let (calls, bare_ns) = (self.calls as f64, bare.call_ns(reading_ns));
        let pair_ns = with_pair.call_ns(reading_ns) - bare_ns;
        Cost { calls, added_ns: calls * (call_ns - bare_ns), pair_ns: calls * pair_ns }
    }
}

impl<'a> Sum<&'a Cost> for Cost {
    fn sum<I: Iterator<Item = &'a Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |sum, cost| Cost {
            calls: sum.calls + cost.calls,
            added_ns: sum.added_ns + cost.added_ns,
            pair_ns: sum.pair_ns + cost.pair_ns,
        })
    }
}

/// Calls `getppid` at this rate.
pub fn load(rate: u32, time: Duration, stop: &AtomicBool) -> Load {
    let begin = Instant::now();
    let mut load = Load { calls: 0, pieces: vec![Piece::default()] };
    loop {
        let now = begin.elapsed();
        if now >= time || stop.load(Ordering::Relaxed) {
            break;
        }
        while now >= PIECE * load.pieces.len() as u32 {
            load.pieces.push(Piece::default());
        }
        let due = (now.as_secs_f64() * f64::from(rate)) as u64 - load.calls;
        let burst = due.min(BURST.into());
        let start = Instant::now();
        for _ in 0..burst {
            getppid();
        }
        let took = start.elapsed();
        for _ in 0..READINGS {
            black_box(Instant::now());
        }
        let readings = start.elapsed() - took;
        load.calls += burst;
        let Some(piece) = load.pieces.last_mut() else { break };
        piece.calls += burst;
        if burst >= MIN_BURST {
            piece.bursts.push(Took {
                call_ns: took.as_nanos() as f64 / burst as f64,
                reading_ns: readings.as_nanos() as f64 / f64::from(READINGS),
            });
        }
        if due <= burst {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    load
}

/// The time of a call by that of a reading of the clock, as a line: the slower the CPU, the longer both take, if not by the same factor.
pub struct Line {
    reading_ns: f64,
    call_ns: f64,
    /// Nanoseconds that a call takes longer for each that a reading does.
    slope: f64,
}

impl Line {
    /// The least squares.
    pub fn through(took: &[Took]) -> Line {
        let mean = |value: fn(&Took) -> f64| took.iter().map(value).sum::<f64>() / took.len().max(1) as f64;
        let (reading_ns, call_ns) = (mean(|took| took.reading_ns), mean(|took| took.call_ns));
        let (of_both, of_readings) = took.iter().fold((0.0, 0.0), |(of_both, of_readings), took| {
            let (reading, call) = (took.reading_ns - reading_ns, took.call_ns - call_ns);
            (of_both + reading * call, of_readings + reading * reading)
        });
        Line { reading_ns, call_ns, slope: if of_readings > 0.0 { of_both / of_readings } else { 0.0 } }
    }

    pub fn call_ns(&self, reading_ns: f64) -> f64 {
        self.call_ns + self.slope * (reading_ns - self.reading_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(call_ns: f64, reading_ns: f64) -> Took {
        Took { call_ns, reading_ns }
    }

    #[test]
    fn calls_are_compared_on_a_cpu_as_fast() {
        // A call takes 20 ns and three readings; with a pair, four.
        let line = |readings: f64| Line::through(&[30.0, 36.0, 42.0].map(|ns| took(20.0 + readings * ns, ns)));
        let piece =
            |call_ns, reading_ns| Piece { calls: 100, bursts: [0; 4].map(|_| took(call_ns, reading_ns)).into() };
        // 10 ns more on a fast CPU, 15 on one so slow as none was before.
        let costs =
            [(120.0, 30.0), (185.0, 50.0)].map(|(call, reading)| piece(call, reading).cost(&line(3.0), &line(4.0)));
        let costs = costs.map(|cost| (cost.calls, cost.added_ns.round(), cost.pair_ns.round()));
        assert_eq!(costs, [(100.0, 1_000.0, 3_000.0), (100.0, 1_500.0, 5_000.0)]);
    }

    #[test]
    fn interrupted_bursts_say_nothing_about_a_call() {
        let bursts = [(900.0, 30.0), (110.0, 31.0), (112.0, 400.0), (111.0, 30.0)];
        let mut piece = Piece { calls: 4, bursts: bursts.map(|(call, reading)| took(call, reading)).into() };
        let quartiles = piece.took().map(|took| (took.call_ns, took.reading_ns));
        assert_eq!(quartiles, Some((111.0, 30.0)));
        piece.bursts.pop();
        assert!(piece.took().is_none(), "too few");
    }
}
