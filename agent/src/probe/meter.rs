//! The cost of a probe's programs, window by window, from what their hooks have measured so far.

use super::budget::Cost;
use crate::kernel::hooks::Use;
use kstrobe_ebpf::dispatch;
use kstrobe_ebpf::typed::Attach;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Shortest window: somewhat less than the second between two looks.
pub const WINDOW: Duration = Duration::from_millis(900);
/// The same of a probe that seems to be above its budget.
pub const SHORT_WINDOW: Duration = Duration::from_millis(150);
/// A window goes on until so many runs of its programs have been measured: a cost of fewer samples is chance. Of each run 32 us at most are
/// counted ([`dispatch`]), so that what runs more seldom costs little. Or until so many events have been counted of which reaching the
/// programs, which is not sampled, took more.
const MIN_SAMPLES: u64 = 8;
/// It does not go on for longer.
const MAX_WINDOW: Duration = Duration::from_secs(10);

/// Least cost of a uprobe's breakpoint in nanoseconds. The hooked process pays it, and no program sees it.
/// `cargo xtask bench --only hooks` measures it: 6400 on a virtual machine.
const BREAKPOINT: u64 = 1000;

/// Least cost of the breakpoint at a hook, in nanoseconds a run; 0 where there is none.
pub fn breakpoint_ns(attach: &Attach) -> u64 {
    match attach {
        Attach::Uprobe { .. } | Attach::Usdt { .. } => BREAKPOINT,
        _ => 0,
    }
}

/// One program, as it has been measured so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub used: Use,
    /// Cost of reaching the program of the hook, which the hook's programs share.
    pub entry_ns: f64,
    /// [`breakpoint_ns`] of its hook.
    pub breakpoint_ns: u64,
}

/// The windows of one probe.
#[derive(Debug, Default)]
pub struct Meter {
    /// The last readings, by program, and when they were taken.
    last: Option<(Instant, BTreeMap<String, Reading>)>,
    /// [`Cost::times`] and [`Cost::ends_rest`] of the window.
    slicing: (u64, bool),
}

impl Meter {
    /// Forgets a window of another slicing ([`Cost::times`], [`Cost::ends_rest`]): a part of it was of each.
    pub fn set_slicing(&mut self, slicing: (u64, bool)) {
        if self.slicing != slicing {
            self.forget();
            self.slicing = slicing;
        }
    }

    /// Whether a window may end that has to be so long, or none has begun.
    pub fn is_due(&self, now: Instant, least: Duration) -> bool {
        self.last.as_ref().is_none_or(|(since, _)| now.saturating_duration_since(*since) >= least)
    }

    /// What was used in the window that these readings end.
    /// `None` where none has begun, and of one that goes on.
    pub fn window(&mut self, now: Instant, readings: BTreeMap<String, Reading>) -> Option<Cost> {
        let last = self.last.as_ref();
        let cost = last.and_then(|(since, before)| difference(now, *since, &readings, before));
        let runs_a_sample = readings.values().map(|reading| reading.used.runs_a_sample).max().unwrap_or(0);
        let is_known = |cost: &Cost, events: f64| {
            cost.runs >= MIN_SAMPLES * runs_a_sample
                || events >= (MIN_SAMPLES * dispatch::PERIOD) as f64 && cost.entering >= cost.run
        };
        if cost.is_some_and(|(cost, events)| !is_known(&cost, events) && cost.window < MAX_WINDOW) {
            return None;
        }
        self.last = Some((now, readings));
        cost.map(|(cost, _)| cost)
    }

    /// Forgets the last readings: what was used meanwhile belongs to no window.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

/// The cost, and the events at the hooks of the programs.
fn difference(
    now: Instant,
    since: Instant,
    readings: &BTreeMap<String, Reading>,
    before: &BTreeMap<String, Reading>,
) -> Option<(Cost, f64)> {
    let window = now.saturating_duration_since(since);
    if window.is_zero() {
        return None;
    }
    let mut cost = Cost { window, ..Cost::default() };
    let mut all = 0.0;
    for (program, Reading { used, entry_ns, breakpoint_ns }) in readings {
        // A program that was not measured at the start of the window has run for less than it.
        let Some(Reading { used: before, .. }) = before.get(program) else { continue };
        let runs = (used.runs - before.runs).max(0.0);
        let events = (used.events - before.events).max(0.0);
        cost.run += nanoseconds(used.run_ns - before.run_ns);
        cost.runs += runs as u64;
        all += events;
        cost.entering += nanoseconds(events * entry_ns / used.sharers.max(1) as f64);
        cost.breakpoints += nanoseconds(runs * *breakpoint_ns as f64);
    }
    Some((cost, all))
}

fn nanoseconds(ns: f64) -> Duration {
    Duration::from_nanos(ns.max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(all: &[(&str, f64, f64, f64)]) -> BTreeMap<String, Reading> {
        let reading = |&(name, run_ns, runs, events): &(&str, f64, f64, f64)| {
            let used = Use { run_ns, runs, events, sharers: 2, runs_a_sample: 61 };
            (name.to_owned(), Reading { used, entry_ns: 50.0, breakpoint_ns: 0 })
        };
        all.iter().map(reading).collect()
    }

    #[test]
    fn a_window_is_the_difference_of_two_readings() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut meter = Meter::default();
        assert_eq!(meter.window(at(0), readings(&[("a", 1e3, 10.0, 10.0)])), None);
        let both = readings(&[("a", 5e3, 1030.0, 1110.0), ("b", 500.0, 5.0, 5.0)]);
        let cost = meter.window(at(1000), both).unwrap();
        assert_eq!((cost.window.as_millis(), cost.run.as_nanos(), cost.runs), (1000, 4000, 1020));
        assert_eq!(cost.entering.as_nanos(), 1100 * 50 / 2, "shared with another program of the hook");
        // `b` is known now; sums of `a` that began anew, as with another dispatcher, are no negative cost.
        let cost = meter.window(at(2000), readings(&[("a", 0.0, 0.0, 1110.0), ("b", 900.0, 905.0, 5.0)])).unwrap();
        assert_eq!((cost.run.as_nanos(), cost.runs, cost.entering), (400, 900, Duration::ZERO));
        meter.forget();
        assert_eq!(meter.window(at(3000), readings(&[])), None);
    }

    #[test]
    fn a_window_of_few_runs_goes_on_for_ten_seconds() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut meter = Meter::default();
        assert!(meter.is_due(at(0), WINDOW), "none has begun");
        let mut window = |seconds: u64, runs| meter.window(at(seconds), readings(&[("a", runs * 100.0, runs, runs)]));
        let none = [(0, 0.0), (1, 100.0), (9, 487.0)].map(|(seconds, runs)| window(seconds, runs));
        assert_eq!(none, [None; 3]);
        let cost = window(10, 487.0).unwrap();
        assert_eq!((cost.window, cost.runs), (Duration::from_secs(10), 487));
        assert_eq!(
            [window(11, 487.0 + 487.0), window(12, 487.0 + 488.0)].map(|cost| cost.map(|c| c.runs)),
            [None, Some(488)]
        );
        assert_eq!([12, 13].map(|seconds| meter.is_due(at(seconds), WINDOW)), [false, true]);
        meter.set_slicing((8, false));
        assert!(meter.is_due(at(12), WINDOW) && meter.last.is_none(), "another has to begin");
    }

    #[test]
    fn a_window_ends_when_reaching_programs_costs_most() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        let mut window = |second: u64, run_ns, events| {
            let readings = readings(&[("a", run_ns, 10.0 * second as f64, events)]);
            meter.window(start + Duration::from_secs(second), readings)
        };
        assert_eq!(window(0, 0.0, 0.0), None);
        // Runs of 100 ns, and 25 ns for each of these events; too few events, and runs that take more than reaching them.
        assert_eq!([window(1, 1e3, 487.0), window(2, 1e6, 488.0)], [None, None]);
        let cost = window(3, 3e3, 1e6).unwrap();
        assert_eq!((cost.window.as_secs(), cost.runs, cost.entering.as_millis()), (3, 30, 25));
    }

    #[test]
    fn breakpoints_cost_by_the_run() {
        let uprobe = Attach::Usdt {
            binary: kstrobe_ebpf::typed::Binary { path: "x".into(), pid: None },
            provider: String::new(),
            name: String::new(),
            args: None,
            multi: false,
        };
        let (mut meter, start) = (Meter::default(), Instant::now());
        let reading = |runs| {
            let used = Use { runs, ..Use::default() };
            [("u".to_owned(), Reading { used, entry_ns: 50.0, breakpoint_ns: breakpoint_ns(&uprobe) })].into()
        };
        meter.window(start, reading(0.0));
        let cost = meter.window(start + Duration::from_secs(1), reading(610.0)).unwrap();
        assert_eq!(cost.breakpoints, Duration::from_micros(610));
    }
}
