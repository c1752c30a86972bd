//! The text of function_graph against the kernel's own.

mod support;

use kstrobe_ftrace::text::graph::{Options, write};
use kstrobe_ftrace::trace::{Event, Trace};
use support::{GRAPHS, KERNELS, text, trace};

/// The text of the scheduler's events that occur.
fn sched(event: &Event<'_>, out: &mut String) {
    let text = |field: &str| event.value(field).unwrap().text().unwrap();
    let number = |field: &str| event.number(field).unwrap() as i64;
    let name = &event.format.unwrap().name;
    let rest = if event.is("sched", "sched_switch") {
        let state = number("prev_state");
        let letters = [(1, 'S'), (2, 'D'), (4, 'T'), (8, 't'), (16, 'X'), (32, 'Z'), (64, 'P'), (128, 'I')];
        let letter = letters.iter().find(|(bit, _)| state & 0xff == *bit).map_or('R', |(_, letter)| *letter);
        let preempted = if state & 0x100 != 0 { "+" } else { "" };
        format!(
            "prev_comm={} prev_pid={} prev_prio={} prev_state={letter}{preempted} ==> next_comm={} next_pid={} next_prio={}",
            text("prev_comm"),
            number("prev_pid"),
            number("prev_prio"),
            text("next_comm"),
            number("next_pid"),
            number("next_prio"),
        )
    } else {
        let (comm, pid, prio, cpu) = (text("comm"), number("pid"), number("prio"), number("target_cpu"));
        format!("comm={comm} pid={pid} prio={prio} target_cpu={cpu:03}")
    };
    out.push_str(&format!("{name}: {rest}\n"));
}

fn written(trace: &Trace, options: Options) -> String {
    let mut out = Vec::new();
    assert_eq!(write(trace, options, &mut sched, &mut out).unwrap(), []);
    String::from_utf8(out).unwrap()
}

#[track_caller]
fn same(found: &str, expected: &str, what: &str) {
    for (at, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{what}, line {}", at + 1);
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

#[test]
fn recordings_read_as_the_kernel_writes_them() {
    for kernel in KERNELS {
        for scenario in GRAPHS {
            let trace = trace(kernel, scenario);
            let without = Options { cpu: false, overhead: false, ..Options::default() };
            for (file, options) in
                [("trace.txt", Options::default()), ("full.txt", Options::full()), ("nocpu.txt", without)]
            {
                same(&written(&trace, options), &text(kernel, scenario, file), &format!("{kernel} {scenario} {file}"));
            }
        }
    }
}
