//! The text of function_graph against the kernel's own.

mod support;

use kstrobe_ftrace::text::graph::{Options, write};
use kstrobe_ftrace::trace::{Event, Trace};
use proptest::prelude::*;
use support::graph::{Made, record};
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

/// Lines of a hand-made trace behind the header.
fn lines(made: &Made, options: Options) -> Vec<String> {
    let mut out = Vec::new();
    let mut comment = |event: &Event<'_>, out: &mut String| out.push_str(&event.format.unwrap().name);
    write(&made.trace(), options, &mut comment, &mut out).unwrap();
    String::from_utf8(out).unwrap().lines().skip(4).map(str::to_owned).collect()
}

#[test]
fn lost_records_are_told_but_not_those_before_the_first() {
    let mut made = Made::new();
    made.lose(0, Some(3)).enter(0, 100, 7, 0, 'a').lose(0, Some(17)).enter(0, 200, 7, 0, 'b').lose(0, None);
    made.exit(0, 300, 7, 0, 'b', (200, 300));
    let expected = [
        " 0)               |  a() {",
        "CPU:0 [LOST 17 EVENTS]",
        " 0)               |  b() {",
        "CPU:0 [LOST EVENTS]",
        " 0)   0.100 us    |  }",
    ];
    assert_eq!(lines(&made, Options::default()), expected);
}

#[test]
fn interrupts_have_arrows() {
    let mut made = Made::new();
    made.enter(0, 1000, 7, 0, 'a').enter(0, 2000, 7, 1, 'd').enter(0, 3000, 7, 2, 'b');
    made.exit(0, 4000, 7, 2, 'b', (3000, 4000)).exit(0, 5000, 7, 1, 'd', (2000, 5000));
    made.exit(0, 6000, 7, 0, 'a', (1000, 6000));
    let expected = [
        "    0.000001 |   0)    seven-7     |               |  a() {",
        "    0.000002 |   0)    seven-7     |   ==========> |",
        "    0.000002 |   0)    seven-7     |               |    do_interrupt() {",
        "    0.000003 |   0)    seven-7     |   1.000 us    |      b();",
        "    0.000005 |   0)    seven-7     |   3.000 us    |    } /* do_interrupt */",
        "    0.000005 |   0)    seven-7     |   <========== |",
        "    0.000006 |   0)    seven-7     |   5.000 us    |  } /* a */",
    ];
    assert_eq!(lines(&made, Options::full()), expected);
    let without = Options { duration: false, ..Options::default() };
    assert_eq!(lines(&made, without)[..2], [" 0) a() {", " 0) ==========>"]);
}

#[test]
fn long_durations_have_marks_and_fewer_decimals() {
    for (ns, column) in [
        (999, "  0.999 us    |"),
        (10_000, "  10.000 us   |"),
        (10_001, "+ 10.001 us   |"),
        (123_456, "! 123.456 us  |"),
        (1_234_567, "# 1234.567 us |"),
        (12_345_678, "* 12345.67 us |"),
        (123_456_789, "@ 123456.7 us |"),
        (1_234_567_890, "$ 1234567 us  |"),
        (12_345_678_901, "$ 12345678 us |"),
    ] {
        let mut made = Made::new();
        made.enter(0, 100, 7, 0, 'a').exit(0, 100 + ns, 7, 0, 'a', (100, 100 + ns));
        assert_eq!(lines(&made, Options::default()), [format!(" 0) {column}  a();")]);
    }
}

#[test]
fn names_are_told_where_the_opening_brace_is_missing() {
    let mut made = Made::new();
    made.enter(0, 100, 7, 1, 'v').enter(0, 200, 7, 2, 'a');
    // Nobody entered `b`; the entry of `a` is forgotten with it.
    made.exit(0, 300, 7, 2, 'b', (150, 300)).exit(0, 400, 7, 2, 'a', (150, 300)).exit(0, 500, 7, 1, 'v', (100, 500));
    // Too deep for the kernel's memory, and a depth that no kernel has.
    made.exit(0, 600, 7, 60, 'a', (100, 600)).exit(0, 700, 7, i32::MAX as u32, 'a', (100, 600));
    let found = lines(&made, Options { cpu: false, duration: false, ..Options::default() });
    let expected = ["  veth_xmit [veth]() {", "    a() {", "    } /* b */", "    } /* a */", "  }"];
    assert_eq!(found[..5], expected);
    assert_eq!(found[5], format!("{:120}}}", ""));
    assert!(found[6].len() < 2000);
}

#[test]
fn kernels_without_times_in_exits_have_those_of_the_records() {
    let mut made = Made::new_kernel();
    made.enter(0, 1000, 7, 0, 'a').enter(0, 2000, 7, 1, 'b').new_exit(0, 3500, 7, 1, 'b', 0);
    // On another CPU, after another task.
    made.enter(1, 4000, 8, 0, 'c').new_exit(1, 6000, 7, 0, 'a', 0).new_exit(1, 7000, 9, 3, 'b', 0);
    let expected = [
        " 0)               |  a() {",
        " 0)   1.500 us    |    b();",
        " 1)               |  c() {",
        " ------------------------------------------",
        " 1)    <...>-8     =>    seven-7    ",
        " ------------------------------------------",
        "",
        " 1)   5.000 us    |  } /* a */",
        " ------------------------------------------",
        " 1)    seven-7     =>    <...>-9    ",
        " ------------------------------------------",
        "",
        " 1)               |        } /* b */",
    ];
    assert_eq!(lines(&made, Options::default()), expected);
}

proptest! {
    #[test]
    fn any_records_are_written(records in proptest::collection::vec((0..25u16, 0..3i32, 0..7u64, proptest::collection::vec(any::<u8>(), 0..48)), 0..40)) {
        let mut made = Made::new();
        for (at, (id, pid, function, more)) in records.iter().enumerate() {
            made.put(at % 2, at as u64, &record(*id, 0, *pid, function << 12, more));
        }
        let mut out = Vec::new();
        let mut comment = |_: &Event<'_>, out: &mut String| out.push_str("comment\n\n");
        write(&made.trace(), Options::full(), &mut comment, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        // Every record has a line, two of a leaf one.
        let lines = text.lines().filter(|line| line.contains("/* ") || line.ends_with('{') || line.ends_with(");")).count();
        prop_assert!(lines <= records.len() && 2 * lines >= records.len(), "{text}");
    }
}
