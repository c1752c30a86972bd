//! The decoder of pages against the kernel's own text of the same buffer.

mod support;

use kstrobe_ftrace::trace::{Event, Trace};
use support::{CPUS, EVENTS, GRAPHS, KERNELS, text, trace};

/// One line of the kernel's text, as far as both sides say it.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    time_us: u64,
    cpu: u32,
    pid: i32,
    event: String,
}

/// The kernel prints `SECONDS.MICROSECONDS`, rounded.
fn micros(text: &str) -> u64 {
    let (seconds, micros) = text.split_once('.').unwrap();
    seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap()
}

fn rounded_us(time_ns: u64) -> u64 {
    (time_ns + 500) / 1000
}

/// `            ping-392     [000] d.h..    70.955127: softirq_raise: vec=9 [action=RCU]`
fn event_lines(text: &str) -> Vec<Line> {
    let known = |line: &&str| !line.starts_with('#') && !line.starts_with(" => ") && !line.is_empty();
    let line = |line: &str| {
        let (task, rest) = line.split_once(" [").unwrap();
        let (cpu, rest) = rest.split_once(']').unwrap();
        let (time, rest) = rest.trim_start().split_once(' ').unwrap().1.trim_start().split_once(": ").unwrap();
        // Functions and stacks have no event name.
        let event = match rest {
            _ if rest.starts_with("<stack trace>") => "kernel_stack",
            _ if rest.contains(" <-") => "function",
            // `EVENT: FIELDS`; system calls are `CALL(ARGUMENTS)` and `CALL -> VALUE`.
            event => event.split([':', '(', ' ']).next().unwrap(),
        };
        Line {
            time_us: micros(time),
            cpu: cpu.parse().unwrap(),
            pid: task.trim_end().rsplit_once('-').unwrap().1.parse().unwrap(),
            event: event.to_owned(),
        }
    };
    text.lines().filter(known).map(line).collect()
}

/// A line of function_graph's text with `funcgraph-abstime`, `-proc` and `-tail`.
#[derive(Debug)]
struct GraphLine<'a> {
    time_us: u64,
    cpu: u32,
    pid: i32,
    /// The line's last column, without its indent.
    what: &'a str,
}

/// `   10.312619 |   1)    ping-219    |   1.092 us    |                rcu_all_qs();`
fn graph_lines(text: &str) -> Vec<GraphLine<'_>> {
    fn parsed(line: &str) -> Option<GraphLine<'_>> {
        let mut columns = line.splitn(4, '|');
        let (time, who, _duration, what) = (columns.next()?, columns.next()?, columns.next()?, columns.next()?);
        let (cpu, task) = who.split_once(')')?;
        let pid = task.trim_end().rsplit_once('-')?.1;
        let (cpu, pid) = (cpu.trim().parse().ok()?, pid.parse().ok()?);
        Some(GraphLine { time_us: micros(time.trim()), cpu, pid, what: what.trim_start() })
    }
    text.lines().filter(|line| !line.starts_with('#')).filter_map(parsed).collect()
}

#[test]
fn graph_records_are_those_of_the_kernels_text() {
    for kernel in KERNELS {
        for scenario in GRAPHS {
            let trace = trace(kernel, scenario);
            let text = text(kernel, scenario, "full.txt");
            let lines = graph_lines(&text);
            let name = |event: &Event<'_>| {
                let function = event.number("func").and_then(|address| trace.symbols.find(address));
                function.map(|symbol| symbol.name.to_string()).unwrap_or_default()
            };
            let mut events = trace.events().peekable();
            // A leaf's exit is on its entry's line: on its CPU it comes next, but other CPUs may come between.
            let mut leaves: Vec<Option<String>> = vec![None; CPUS.len()];
            let mut at = lines.iter();
            for event in events.by_ref() {
                let leaf = leaves[event.cpu as usize].take();
                if let Some(function) = leaf {
                    assert!(
                        event.is("ftrace", "funcgraph_exit") && name(&event) == function,
                        "{kernel} {scenario} {event:?}"
                    );
                    continue;
                }
                let line = at.next().unwrap_or_else(|| panic!("{kernel} {scenario}: no line for {event:?}"));
                // This tracer cuts the time off where others round it.
                let seen = (event.time / 1000, event.cpu, event.pid());
                assert_eq!(seen, (line.time_us, line.cpu, line.pid), "{kernel} {scenario} {line:?}");
                if event.is("ftrace", "funcgraph_entry") {
                    match line.what.strip_suffix("();") {
                        Some(function) => leaves[event.cpu as usize] = Some(function.to_owned()),
                        None => assert_eq!(line.what, format!("{}() {{", name(&event)), "{kernel} {scenario}"),
                    }
                } else if event.is("ftrace", "funcgraph_exit") {
                    assert_eq!(line.what, format!("}} /* {} */", name(&event)), "{kernel} {scenario}");
                } else {
                    let event_name = &event.format.unwrap().name;
                    assert!(line.what.starts_with(&format!("/* {event_name}: ")), "{kernel} {scenario} {line:?}");
                }
            }
            assert!(at.next().is_none(), "{kernel} {scenario}");
            assert!(lines.len() > 100, "{kernel} {scenario}");
        }
    }
}

fn line_of(event: &Event<'_>) -> Line {
    let name = event.format.expect("a known event").name.clone();
    // The kernel prints entry and exit of a system call under one name.
    let call = name.strip_prefix("sys_enter_").or_else(|| name.strip_prefix("sys_exit_"));
    let event_name = call.map_or(name.clone(), |call| format!("sys_{call}"));
    Line { time_us: rounded_us(event.time), cpu: event.cpu, pid: event.pid(), event: event_name }
}

#[test]
fn events_are_those_of_the_kernels_text() {
    for kernel in KERNELS {
        for scenario in EVENTS {
            let trace = trace(kernel, scenario);
            let expected = event_lines(&text(kernel, scenario, "trace.txt"));
            let mut events = trace.events();
            let found: Vec<Line> = events.by_ref().map(|event| line_of(&event)).collect();
            assert_eq!(events.unreadable(), [], "{kernel} {scenario}");
            assert!(expected.len() > 10, "{kernel} {scenario}: {}", expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "{kernel} {scenario}");
            }
            assert_eq!(found.len(), expected.len(), "{kernel} {scenario}");
        }
    }
}

fn per_cpu(trace: &Trace, cpu: u32) -> u64 {
    trace.events().filter(|event| event.cpu == cpu).count() as u64
}

#[test]
fn counts_are_those_of_the_kernels_stats() {
    for kernel in KERNELS {
        for scenario in GRAPHS.into_iter().chain(EVENTS) {
            let trace = trace(kernel, scenario);
            for cpu in CPUS {
                let stats = trace.buffers[0].cpus[cpu as usize].stats.unwrap();
                assert_eq!(per_cpu(&trace, cpu), stats.entries, "{kernel} {scenario} {cpu}");
            }
        }
    }
}
