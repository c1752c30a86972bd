//! The cost of a probe's programs, from short windows of the kernel's run-time statistics.
//!
//! Counting costs every program two readings of the clock per event, so that it is on for a tenth of the time. Totals are
//! estimates: each window stands for the time since the one before. The kernel's counts contain one reading of its clock per
//! run, which is taken off.

use super::budget::Cost;
use kstrobe_ebpf::typed::Attach;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Least cost of a uprobe's breakpoint in nanoseconds. The hooked process pays it, and run-time statistics do not contain
/// it. `cargo xtask bench --only hooks` measures it: 6400 on a virtual machine.
const BREAKPOINT: u64 = 1000;

/// Least cost of reaching a program, in nanoseconds a run.
pub fn reaching_ns(attach: &Attach) -> u64 {
    match attach {
        Attach::Uprobe { .. } | Attach::Usdt { .. } => BREAKPOINT,
        _ => 0,
    }
}

/// Counters of one program, as the kernel has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Nanoseconds spent in it.
    pub run_ns: u64,
    pub runs: u64,
    /// [`reaching_ns`] of its hook.
    pub reaching_ns: u64,
}

/// Estimated totals of one program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// Nanoseconds.
    pub run_ns: f64,
    pub runs: f64,
}

/// The windows of one probe.
#[derive(Debug)]
pub struct Meter {
    /// The open window: since when, and the counters then.
    open: Option<(Instant, BTreeMap<String, Reading>)>,
    /// End of the last window, or the start of all.
    last: Instant,
    totals: BTreeMap<String, Total>,
}

impl Meter {
    pub fn new(now: Instant) -> Meter {
        Meter { open: None, last: now, totals: BTreeMap::new() }
    }

    /// Opens a window with these counters, by program.
    pub fn open(&mut self, now: Instant, readings: BTreeMap<String, Reading>) {
        self.open = Some((now, readings));
    }

    /// Closes the window with these counters. `clock_ns` is the cost of an empty run, in nanoseconds. `None` without an open
    /// window, or when no time passed.
    pub fn close(&mut self, now: Instant, readings: &BTreeMap<String, Reading>, clock_ns: u64) -> Option<Cost> {
        let (since, before) = self.open.take()?;
        let window = now.saturating_duration_since(since);
        if window.is_zero() {
            return None;
        }
        let stands_for = now.saturating_duration_since(self.last).max(window);
        self.last = now;
        let scale = stands_for.as_secs_f64() / window.as_secs_f64();
        let mut cost = Cost { window, ..Cost::default() };
        for (program, reading) in readings {
            // A program that was not there at the start of the window has run for less than it.
            let Some(before) = before.get(program) else { continue };
            let runs = reading.runs.saturating_sub(before.runs);
            let counted_ns = reading.run_ns.saturating_sub(before.run_ns);
            let run_ns = counted_ns.saturating_sub(runs.saturating_mul(clock_ns));
            cost.run += Duration::from_nanos(run_ns);
            cost.runs += runs;
            let reached = Duration::from_nanos(reading.reaching_ns.saturating_mul(runs));
            cost.reaching = cost.reaching.saturating_add(reached);
            let total = self.totals.entry(program.clone()).or_default();
            total.run_ns += run_ns as f64 * scale;
            total.runs += runs as f64 * scale;
        }
        Some(cost)
    }

    /// Estimated total of a program; `None` before its first window.
    pub fn total(&self, program: &str) -> Option<Total> {
        self.totals.get(program).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(all: &[(&str, u64, u64)]) -> BTreeMap<String, Reading> {
        all.iter()
            .map(|(name, run_ns, runs)| {
                ((*name).to_owned(), Reading { run_ns: *run_ns, runs: *runs, ..Reading::default() })
            })
            .collect()
    }

    #[test]
    fn a_window_stands_for_the_time_since_the_last_one() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut meter = Meter::new(start);
        assert_eq!((meter.close(at(0), &readings(&[]), 0), meter.total("a")), (None, None));
        meter.open(at(900), readings(&[("a", 1000, 10), ("b", 0, 0)]));
        let cost = meter.close(at(1000), &readings(&[("a", 3400, 30), ("b", 500, 5)]), 20).unwrap();
        assert_eq!((cost.window.as_millis(), cost.run.as_nanos(), cost.runs), (100, 2400, 25));
        let total = meter.total("a").unwrap();
        assert!((total.run_ns - 20_000.0).abs() < 1e-6 && (total.runs - 200.0).abs() < 1e-9, "{total:?}");
        // What others' statistics counted between windows is not counted twice.
        meter.open(at(1900), readings(&[("a", 9000, 90)]));
        meter.close(at(2000), &readings(&[("a", 9000, 90), ("b", 700, 7)]), 20).unwrap();
        assert_eq!(meter.total("a").unwrap(), total);
        assert!((meter.total("b").unwrap().runs - 50.0).abs() < 1e-9, "b was not there when the window began");
    }
}
