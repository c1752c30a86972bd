//! Parts of recordings have exactly the chosen events of the whole.

mod support;

use kstrobe_ftrace::page::Lost;
use kstrobe_ftrace::select::{Events, Filter, Selection, UnknownEvent, part};
use kstrobe_ftrace::trace::{Event, Trace};
use std::collections::BTreeMap;
use support::graph::Made;
use support::{EVENTS, GRAPHS, KERNELS};

/// Of each CPU: when, what was lost before, bytes.
type OfCpus<'a> = BTreeMap<u32, Vec<(u64, Lost, &'a [u8])>>;

fn of_cpus<'a>(trace: &'a Trace, takes: impl Fn(&Event<'a>) -> bool) -> OfCpus<'a> {
    let mut all = OfCpus::new();
    for event in trace.events().filter(takes) {
        all.entry(event.cpu).or_default().push((event.time, event.lost, event.data));
    }
    all
}

fn is_stack(event: &Event<'_>) -> bool {
    event.is("ftrace", "kernel_stack") || event.is("ftrace", "user_stack")
}

fn each(mut see: impl FnMut(&Trace, &str)) {
    for kernel in KERNELS {
        for scenario in GRAPHS.iter().chain(&EVENTS) {
            see(&support::trace(kernel, scenario), &format!("{kernel} {scenario}"));
        }
    }
}

#[test]
fn a_part_of_everything_is_the_whole() {
    each(|trace, name| {
        let all = part(trace, &Selection::default());
        assert_eq!((all.taken, all.unreadable), (all.of, 0), "{name}");
        assert!(of_cpus(&all.trace, |_| true) == of_cpus(trace, |_| true), "{name}");
    });
}

#[test]
fn a_part_by_time_and_cpu_has_those_events() {
    each(|trace, name| {
        let times: Vec<u64> = trace.events().map(|event| event.time).collect();
        let (from, to) = (times[times.len() / 3], times[times.len() / 3 * 2]);
        let cpu = trace.events().next().unwrap().cpu;
        let chosen = Selection { times: from..=to, cpus: vec![cpu], ..Selection::default() };
        let part = part(trace, &chosen);
        let expected =
            of_cpus(trace, |event| (from..=to).contains(&event.time) && event.cpu == cpu && !is_stack(event));
        assert!(of_cpus(&part.trace, |event| !is_stack(event)) == expected, "{name}");
    });
}

#[test]
fn a_part_by_fields_is_what_a_loop_over_them_finds() {
    let mut found = 0;
    each(|trace, name| {
        let Ok(events) = Events::named(&["sched:sched_switch"], &trace.formats) else { return };
        let fields = Filter::parse("prev_state != 0 && next_comm ~ '?*' && next_pid > 1").unwrap();
        let chosen = Selection { events: Some(events), fields: Some(fields), ..Selection::default() };
        let part = part(trace, &chosen);
        let expected = of_cpus(trace, |event| {
            let number = |field| event.number(field);
            event.is("sched", "sched_switch") && number("prev_state") != Some(0) && number("next_pid") > Some(1)
        });
        let data = |of: OfCpus<'_>| -> Vec<(u64, Vec<u8>)> {
            of.into_values().flatten().map(|(time, _, data)| (time, data.to_vec())).collect()
        };
        assert!(data(of_cpus(&part.trace, |event| !is_stack(event))) == data(expected), "{name}");
        found += part.taken;
    });
    assert!(found > 10, "{found}");
}

#[test]
fn stacks_go_with_the_events_that_they_follow() {
    let mut stacks = 0;
    each(|trace, name| {
        let Ok(events) = Events::named(&["sched_switch"], &trace.formats) else { return };
        let part = part(trace, &Selection { events: Some(events), ..Selection::default() });
        for of_cpu in of_cpus(&part.trace, |_| true).into_values() {
            let ids: Vec<u16> = of_cpu.iter().map(|(_, _, data)| u16::from_le_bytes([data[0], data[1]])).collect();
            let is_stack = |id: &u16| trace.formats.by_id(*id).is_some_and(|one| one.name == "kernel_stack");
            assert!(ids.windows(2).all(|two| !is_stack(&two[0]) || !is_stack(&two[1])), "{name}");
            stacks += ids.iter().filter(|id| is_stack(id)).count();
        }
    });
    assert!(stacks > 0);
}

#[test]
fn lost_records_stay_before_the_event_that_follows() {
    let mut made = Made::new();
    made.enter(0, 1000, 7, 0, 'a').exit(0, 2000, 7, 0, 'a', (1000, 2000));
    made.lose(0, Some(5)).enter(0, 3000, 7, 0, 'b');
    made.lose(0, Some(2)).exit(0, 4000, 7, 0, 'b', (3000, 4000));
    let trace = made.trace();
    let lost = |chosen: Selection| -> Vec<(u64, Lost)> {
        let part = part(&trace, &chosen);
        part.trace.events().map(|event| (event.time, event.lost)).collect()
    };
    let exits = Events::named(&["funcgraph_exit"], &trace.formats).unwrap();
    let chosen = Selection { events: Some(exits), ..Selection::default() };
    assert_eq!(lost(chosen), [(2000, Lost::Nothing), (4000, Lost::Count(7))]);
    let late = Selection { times: 3500..=5000, ..Selection::default() };
    assert_eq!(lost(late), [(4000, Lost::Count(2))]);
}

#[test]
fn names_of_events_are_those_of_systems_too() {
    let trace = support::trace(KERNELS[0], EVENTS[0]);
    let of = |names: &[&str]| Events::named(names, &trace.formats);
    let (system, all) = (of(&["sched"]).unwrap(), of(&["sched:*"]).unwrap());
    assert_eq!(system, all);
    assert_eq!(of(&["sched", "sched_switch"]).unwrap(), all);
    assert_eq!(of(&["sched_swich"]), Err(UnknownEvent("sched_swich".into())));
}
