//! Hooks that run a program again and again: `profile:hz:99`, `software:page-faults:1`, `hardware:cycles:1000000`, and
//! `iter:task`.

use crate::model::{Every, HookKind, PerfEvent, Sampling};
use crate::names::{one_of, suggestion};
use crate::quantity;
use crate::report::Problem;
use kstrobe_ebpf::diag::did_you_mean;

/// A perf event: bpftrace's name, its short name (or none), and the events between two runs when none are said.
type Event = (&'static str, &'static str, u64);

/// Names, short names and periods are bpftrace's. Clocks count nanoseconds.
pub(crate) const SOFTWARE: [Event; 11] = [
    ("alignment-faults", "", 1),
    ("bpf-output", "", 1),
    ("context-switches", "cs", 1000),
    ("cpu-clock", "cpu", 1_000_000),
    ("cpu-migrations", "", 1),
    ("dummy", "", 1),
    ("emulation-faults", "", 1),
    ("major-faults", "", 1),
    ("minor-faults", "", 100),
    ("page-faults", "faults", 100),
    ("task-clock", "", 1_000_000),
];
pub(crate) const HARDWARE: [Event; 10] = [
    ("backend-stalls", "", 1_000_000),
    ("branch-instructions", "branches", 100_000),
    ("branch-misses", "", 100_000),
    ("bus-cycles", "", 100_000),
    ("cache-misses", "", 1_000_000),
    ("cache-references", "", 1_000_000),
    ("cpu-cycles", "cycles", 1_000_000),
    ("frontend-stalls", "", 1_000_000),
    ("instructions", "", 1_000_000),
    ("ref-cycles", "", 1_000_000),
];
/// Objects that kernels let programs walk over.
pub(crate) const OBJECTS: [&str; 4] = ["task", "tcp", "udp", "unix"];
/// More samples than this take more time than they leave to what is sampled.
pub(crate) const MAX_HZ: u64 = 10_000;
/// The same as a period; the kernel itself makes shorter periods of a clock 10 microseconds long.
pub(crate) const MIN_SAMPLE_NS: u64 = 1_000_000_000 / MAX_HZ;
const MAX_SAMPLE_NS: u64 = super::hook::MAX_PERIOD_NS;

/// What follows `profile:`.
pub(super) fn profile(rest: &str) -> Result<HookKind, Problem> {
    let Some((unit, count)) = rest.split_once(':') else {
        return Err(Problem::new("a profile has a unit and a number").hint("write `profile:hz:99` or `profile:ms:10`"));
    };
    let here = unit.len() + 1..rest.len();
    let number = || quantity::integer(count).map_err(|p| p.at(here.clone()));
    let every = match unit {
        "hz" => match number()? {
            hz @ 1..=MAX_HZ => Every::Hertz(hz),
            _ => return Err(Problem::new("the rate is out of range").at(here).hint(format!("use 1 to {MAX_HZ}"))),
        },
        "s" => nanoseconds(number()?, 1_000_000_000).map_err(|p| p.at(here))?,
        "ms" => nanoseconds(number()?, 1_000_000).map_err(|p| p.at(here))?,
        "us" => nanoseconds(number()?, 1_000).map_err(|p| p.at(here))?,
        _ => {
            let hint = suggestion(unit, &["hz", "s", "ms", "us"]);
            return Err(Problem::new(format!("a profile has no unit `{unit}`")).at(0..unit.len()).hint(hint));
        }
    };
    Ok(HookKind::Sample(Sampling { event: PerfEvent::CpuClock, every }))
}

fn nanoseconds(count: u64, scale: u64) -> Result<Every, Problem> {
    match count.checked_mul(scale) {
        Some(ns @ MIN_SAMPLE_NS..=MAX_SAMPLE_NS) => Ok(Every::Nanoseconds(ns)),
        _ => Err(Problem::new("the period is out of range").hint("use 100us to 1 day")),
    }
}

/// What follows `software:`.
pub(super) fn software(rest: &str) -> Result<HookKind, Problem> {
    let (name, events) = counted(rest, &SOFTWARE, "software")?;
    let clock = matches!(name, "cpu-clock" | "task-clock");
    let every = match clock {
        true if events < MIN_SAMPLE_NS => {
            let here = rest.find(':').map_or(0, |colon| colon + 1)..rest.len();
            let problem = Problem::new(format!("`{name}` counts nanoseconds, and {events} are too few")).at(here);
            return Err(problem.hint(format!("use at least {MIN_SAMPLE_NS}, or `profile:hz:99`")));
        }
        true => Every::Nanoseconds(events),
        false => Every::Events(events),
    };
    Ok(HookKind::Sample(Sampling { event: PerfEvent::Software(name.to_owned()), every }))
}

/// What follows `hardware:`.
pub(super) fn hardware(rest: &str) -> Result<HookKind, Problem> {
    let (name, events) = counted(rest, &HARDWARE, "hardware")?;
    Ok(HookKind::Sample(Sampling { event: PerfEvent::Hardware(name.to_owned()), every: Every::Events(events) }))
}

/// `EVENT` or `EVENT:PERIOD`: the event's full name and its period.
fn counted(rest: &str, events: &[Event], kind: &str) -> Result<(&'static str, u64), Problem> {
    let (name, period) = rest.split_once(':').map_or((rest, None), |(name, period)| (name, Some(period)));
    let found = events.iter().find(|(full, short, _)| name == *full || (!short.is_empty() && name == *short));
    let Some((full, _, default)) = found else {
        let names: Vec<&str> = events.iter().map(|(full, ..)| *full).collect();
        if name.is_empty() {
            return Err(Problem::new(format!("a {kind} hook has an event")).hint(format!("it is {}", one_of(&names))));
        }
        let near = did_you_mean(name, events.iter().flat_map(|(full, short, _)| [*full, *short]));
        let hint = near.map_or_else(|| format!("it is {}", one_of(&names)), |near| format!("did you mean `{near}`?"));
        return Err(Problem::new(format!("there is no {kind} event `{name}`")).at(0..name.len()).hint(hint));
    };
    let Some(period) = period else { return Ok((full, *default)) };
    let here = name.len() + 1..rest.len();
    match quantity::integer(period).map_err(|p| p.at(here.clone()))? {
        0 => Err(Problem::new("a program runs after at least 1 event").at(here)),
        // The kernel takes the period as a signed number.
        events if events > i64::MAX as u64 => Err(Problem::new("the period is too large").at(here)),
        events => Ok((full, events)),
    }
}

/// What follows `iter:`.
pub(super) fn iterator(rest: &str) -> Result<HookKind, Problem> {
    if OBJECTS.contains(&rest) {
        return Ok(HookKind::Iter { object: rest.to_owned() });
    }
    let problem = match rest {
        "" => Problem::new("an iterator has a kind of object"),
        _ => Problem::new(format!("there is no iterator over `{rest}`")).at(0..rest.len()),
    };
    Err(problem.hint(suggestion(rest, &OBJECTS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(hook: Result<HookKind, Problem>) -> (PerfEvent, Every) {
        match hook.unwrap() {
            HookKind::Sample(Sampling { event, every }) => (event, every),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn periods_are_said_or_bpftraces() {
        assert_eq!(sample(profile("hz:99")), (PerfEvent::CpuClock, Every::Hertz(99)));
        assert_eq!(sample(profile("ms:10")), (PerfEvent::CpuClock, Every::Nanoseconds(10_000_000)));
        assert_eq!(sample(profile("us:100")), (PerfEvent::CpuClock, Every::Nanoseconds(100_000)));
        let software = |text| sample(software(text));
        assert_eq!(software("faults"), (PerfEvent::Software("page-faults".into()), Every::Events(100)));
        assert_eq!(software("page-faults:1"), (PerfEvent::Software("page-faults".into()), Every::Events(1)));
        assert_eq!(software("cs").1, Every::Events(1000));
        assert_eq!(software("cpu"), (PerfEvent::Software("cpu-clock".into()), Every::Nanoseconds(1_000_000)));
        let hardware = |text| sample(hardware(text));
        assert_eq!(hardware("cycles"), (PerfEvent::Hardware("cpu-cycles".into()), Every::Events(1_000_000)));
        assert_eq!(hardware("branches:7"), (PerfEvent::Hardware("branch-instructions".into()), Every::Events(7)));
    }

    #[test]
    fn problems_point_at_the_part_that_is_wrong() {
        let wrong = |problem: Result<HookKind, Problem>, text: &'static str| {
            let problem = problem.unwrap_err();
            (&text[problem.range.unwrap_or(0..text.len())], problem.hint.unwrap_or_default())
        };
        for text in ["hz:0", "hz:10001", "us:99", "s:86401", "ms:x"] {
            let number = &text[text.find(':').unwrap() + 1..];
            assert_eq!(wrong(profile(text), text).0, number);
        }
        assert_eq!(wrong(profile("h:1"), "h:1").0, "h");
        assert_eq!(wrong(software("fautls"), "fautls"), ("fautls", "did you mean `faults`?".into()));
        assert_eq!(wrong(software("faults:0"), "faults:0").0, "0");
        assert_eq!(wrong(software("cpu-clock:100"), "cpu-clock:100").0, "100");
        assert_eq!(
            wrong(hardware("cycles:18446744073709551615"), "cycles:18446744073709551615").0,
            "18446744073709551615"
        );
        assert!(wrong(hardware(""), "").1.contains("cpu-cycles"));
        assert_eq!(wrong(iterator("tasks"), "tasks"), ("tasks", "did you mean `task`?".into()));
        assert_eq!(iterator("unix"), Ok(HookKind::Iter { object: "unix".into() }));
    }
}
