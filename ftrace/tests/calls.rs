//! Trees of calls from the records against the lines of the kernel's own text of the same buffer.

mod support;

use kstrobe_ftrace::calls::build::{Options, build};
use kstrobe_ftrace::calls::functions::nest;
use kstrobe_ftrace::calls::{Call, CallId, Calls, Damage, Ends, Mark};
use std::collections::BTreeMap;
use support::{GRAPHS, KERNELS, text, trace};

/// A task as text and trees have it; those with number 0 are told apart by their CPU.
type Who = (i32, u32);

/// A call as the lines of its task say it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    function: String,
    depth: usize,
    /// Which call of the task it is in by the depth.
    parent: Option<usize>,
    /// When its entry was recorded, in whole microseconds, and on which CPU.
    entry: Option<(u64, u32)>,
    /// The duration, and how many nanoseconds the last printed digit is.
    duration_ns: Option<(u64, u64)>,
}

/// `2314.908 us`, `10003.45 us`, `1234567 us`: never more than seven digits behind the first three.
fn duration(text: &str) -> Option<(u64, u64)> {
    let number = text.trim_matches(|c: char| !c.is_ascii_digit() && c != '.').trim_end_matches(" us");
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let unit = 10u64.pow(3 - part.len() as u32);
    Some((whole.parse::<u64>().ok()? * 1000 + part.parse::<u64>().unwrap_or(0) * unit, unit))
}

/// Calls in the order of their entries; those without one stand at their exit.
fn told(text: &str) -> BTreeMap<Who, Vec<Told>> {
    let mut tasks: BTreeMap<Who, (Vec<Told>, Vec<usize>)> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.splitn(4, '|').collect();
        let [time, who, span, what] = columns[..] else { continue };
        let (cpu, task) = who.split_once(')').unwrap();
        let cpu = cpu.trim().parse().unwrap();
        let pid = task.trim_end().rsplit_once('-').unwrap().1.parse().unwrap();
        let depth = (what.len() - what.trim_start().len() - 2) / 2;
        let what = what.trim_start();
        if what.starts_with("/*") {
            continue;
        }
        let (calls, open) = tasks.entry((pid, if pid == 0 { cpu } else { 0 })).or_default();
        let is_exit = what.starts_with('}');
        while open.last().is_some_and(|call| calls[*call].depth >= depth + usize::from(is_exit)) {
            open.pop();
        }
        let (seconds, micros) = time.trim().split_once('.').unwrap();
        let time_us = seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap();
        let function =
            what.trim_start_matches("} /* ").trim_end_matches([' ', '*', '/', '(', ')', '{', ';']).to_owned();
        if is_exit && open.last().is_some_and(|call| calls[*call].depth == depth && calls[*call].function == function) {
            calls[open.pop().unwrap()].duration_ns = duration(span);
            continue;
        }
        let mut from = calls.len();
        if is_exit && open.last().is_some_and(|call| calls[*call].depth == depth) {
            // Another call than the one that is open: its are those since the first whose entry is missing as well.
            let other = open.pop();
            from = calls.iter().position(|call| call.parent == other && call.entry.is_none()).unwrap_or(from);
            calls[from..]
                .iter_mut()
                .filter(|call| call.parent == other)
                .for_each(|call| call.parent = open.last().copied());
        } else if is_exit {
            from -= calls.iter().rev().take_while(|call| call.depth > depth).count();
        }
        let parent = open.last().copied();
        let entry = (!is_exit).then_some((time_us, cpu));
        if is_exit {
            let at = calls.len();
            calls[from..].iter_mut().filter(|call| call.parent == parent).for_each(|call| call.parent = Some(at));
        } else if what.ends_with("() {") {
            open.push(calls.len());
        }
        calls.push(Told { function, depth, parent, entry, duration_ns: duration(span) });
    }
    tasks.into_iter().map(|(task, (calls, _))| (task, calls)).filter(|(_, calls)| !calls.is_empty()).collect()
}

fn who(call: &Call) -> Who {
    let pid = call.task.unwrap().pid;
    (pid, if pid == 0 { call.cpu.unwrap() } else { 0 })
}

fn end_ns(call: &Call) -> u64 {
    call.start_ns.unwrap() + call.duration_ns.unwrap()
}

fn name(calls: &Calls, call: &Call) -> String {
    call.function.map(|name| calls.names[name].to_string()).unwrap()
}

#[test]
fn trees_are_the_lines_of_the_kernels_text() {
    for kernel in KERNELS {
        for scenario in GRAPHS {
            let what = format!("{kernel} {scenario}");
            let calls = build(&trace(kernel, scenario), Options::default());
            let expected = told(&text(kernel, scenario, "full.txt"));
            let mut found: BTreeMap<Who, Vec<CallId>> = BTreeMap::new();
            for (at, call) in calls.calls.iter().enumerate() {
                found.entry(who(call)).or_default().push(CallId(at as u32));
            }
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
            let (mut all, mut late, mut elsewhere) = (0, 0, 0);
            for (task, ids) in &found {
                let told = &expected[task];
                assert_eq!(ids.len(), told.len(), "{what} {task:?}");
                for (id, told) in ids.iter().zip(told) {
                    let call = &calls[*id];
                    let place = format!("{what} {told:?} {call:?}");
                    assert_eq!(name(&calls, call), told.function, "{place}");
                    assert_eq!(
                        (call.ends != Ends::Exit, call.ends != Ends::Entry),
                        (told.entry.is_some(), told.duration_ns.is_some()),
                        "{place}"
                    );
                    if let Some((printed, unit)) = told.duration_ns {
                        assert_eq!(call.duration_ns.unwrap() / unit * unit, printed, "{place}");
                    }
                    if let Some((time_us, cpu)) = told.entry {
                        assert_eq!(call.cpu, Some(cpu), "{place}");
                        // The entry is recorded after it was timed, at once unless there is an interrupt or a page fault between.
                        let early_us = time_us.checked_sub(call.start_ns.unwrap() / 1000).unwrap();
                        assert!(call.ends == Ends::Both || early_us == 0, "{place}");
                        late += u64::from(early_us > 20);
                    }
                    let parent = told.parent.map(|parent| ids[parent]);
                    // By depth and order of the lines an interrupt between the kernel's timing and its recording is in the wrong call.
                    assert!(call.parent == parent || call.interrupt, "{place}");
                    elsewhere += u64::from(call.parent != parent);
                    all += 1;
                }
            }
            assert!(late * 50 < all && elsewhere * 50 < all, "{what}: {late}, {elsewhere} of {all}");
            for (at, call) in calls.calls.iter().enumerate() {
                assert!(call.children.is_sorted(), "{what} {call:?}");
                for child in call.children.iter().map(|child| &calls[*child]) {
                    assert_eq!(child.parent, Some(CallId(at as u32)), "{what}");
                    if (call.ends, child.ends) == (Ends::Both, Ends::Both) {
                        assert!(
                            call.start_ns <= child.start_ns && end_ns(child) <= end_ns(call),
                            "{what} {child:?} {call:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_missing_is_told() {
    for kernel in KERNELS {
        for scenario in ["recvfrom", "sched", "roots"] {
            let calls = build(&trace(kernel, scenario), Options::default());
            let whole = Damage { open: calls.damage.open, ..Damage::default() };
            assert_eq!(calls.damage, whole, "{kernel} {scenario}");
        }
        let calls = build(&trace(kernel, "wrapped"), Options::default());
        let damage = calls.damage;
        assert!(damage.lost > 1000 && damage.no_entry > 0 && damage.not_understood == 0, "{kernel} {damage:?}");
        let count = |ends| calls.calls.iter().filter(|call| call.ends == ends).count() as u64;
        assert_eq!(
            (count(Ends::Exit), count(Ends::Entry)),
            (damage.no_entry, damage.open + damage.no_exit),
            "{kernel}"
        );
    }
}

#[test]
fn marks_stand_in_their_calls() {
    for kernel in KERNELS {
        let trace = trace(kernel, "sched");
        let calls = build(&trace, Options::default());
        let others = trace.events().filter(|event| event.format.unwrap().system == "sched").count();
        assert_eq!(calls.marks.len(), others, "{kernel}");
        // The client waits for its answer inside the scheduler.
        let inside = |mark: &&Mark| {
            let mut callers = std::iter::successors(mark.call, |call| calls[*call].parent);
            callers.any(|call| name(&calls, &calls[call]) == "schedule")
        };
        let waits = calls.marks.iter().filter(|mark| &*mark.event == "sched_switch").filter(inside);
        let waits: Vec<_> = waits.filter(|mark| mark.text.contains("prev_comm=ping")).collect();
        assert!(waits.len() >= 3, "{kernel}: {}", waits.len());
        assert!(waits[0].text.contains(" prev_prio=120 prev_state="), "{kernel}: {}", waits[0].text);
        assert_eq!(build(&trace, Options { marks: false }).marks, []);
    }
}

#[test]
fn functions_nest_by_their_callers() {
    for kernel in KERNELS {
        for scenario in ["function", "funcstack"] {
            let calls = nest(&trace(kernel, scenario));
            let text = text(kernel, scenario, "trace.txt");
            // `ping-436     [001] .....    73.096464: tcp_init_sock <-tcp_v4_init_sock`
            let told = text.lines().filter(|line| line.contains(" <-")).map(|line| {
                let (function, caller) = line.rsplit_once(": ").unwrap().1.split_once(" <-").unwrap();
                (function.to_owned(), caller.to_owned())
            });
            let told: Vec<_> = told.collect();
            assert_eq!(calls.damage, Damage::default(), "{kernel} {scenario}");
            assert_eq!(calls.calls.len(), told.len(), "{kernel} {scenario}");
            let mut nested = 0;
            for (call, (function, caller)) in calls.calls.iter().zip(told) {
                assert_eq!((name(&calls, call), call.ends), (function, Ends::Entry), "{kernel} {scenario}");
                if let Some(parent) = call.parent {
                    assert_eq!(name(&calls, &calls[parent]), caller, "{kernel} {scenario}");
                    assert_eq!(calls[parent].task, call.task, "{kernel} {scenario}");
                    nested += 1;
                }
            }
            assert!(
                scenario == "funcstack" || nested * 3 > calls.calls.len(),
                "{kernel}: {nested} of {}",
                calls.calls.len()
            );
        }
    }
}
