//! Forms in which kernels and trace-cmd print.

use kstrobe_ftrace::calls::{Calls, text};

use crate::{fixture, same, whole};

/// The trees without durations.
fn shape(calls: &Calls) -> String {
    let without =
        |line: &str| line.trim_end_matches(" !").rsplit_once(' ').map_or(line, |(name, _)| name).to_string() + "\n";
    calls.outline().lines().map(without).collect()
}

#[test]
fn every_option_of_the_tracer() {
    let args = whole(&fixture("sid-modules-args"));
    for option in ["tail", "overrun", "abstime", "latency_full", "latency_proc"] {
        same(&whole(&fixture(&format!("sid-modules-{option}"))).outline(), &args.outline(), option);
    }
    for option in ["noduration", "noduration_proc", "noduration_proc_nocpu", "nothing"] {
        let calls = whole(&fixture(&format!("sid-modules-{option}")));
        same(&shape(&calls), &shape(&args), option);
        assert!(calls.calls.iter().all(|call| call.duration_ns.is_none()), "{option}");
    }
    for kernel in ["6.1", "6.12"] {
        let plain = whole(&fixture(&format!("{kernel}-modules-plain")));
        same(&whole(&fixture(&format!("{kernel}-modules-latency_full"))).outline(), &plain.outline(), kernel);
        let module = plain.names.find("veth").expect("functions of a module");
        assert!(plain.calls.iter().any(|call| call.module == Some(module)), "{kernel}");
    }
}

#[test]
fn arguments() {
    let calls = whole(&fixture("sid-modules-args"));
    let root = &calls[calls.roots[0]];
    assert_eq!(calls.name_of(root), "veth_xmit");
    assert_eq!(root.arguments.as_deref(), Some("skb=0xff3a1c7241863000, dev=0xff3a1c7244174000"));
}

#[test]
fn the_report_of_trace_cmd() {
    let plain = whole(&fixture("sid-report-plain"));
    assert_eq!((plain.calls.len(), plain.marks.len()), (94, 94));
    for form in ["tail", "depth", "lat", "ns"] {
        same(&whole(&fixture(&format!("sid-report-{form}"))).outline(), &plain.outline(), form);
    }
    let ns = whole(&fixture("sid-report-ns"));
    assert_eq!(ns.marks[0].time_ns, Some(94_901_812_637));
    assert_eq!(
        (&*ns.marks[0].event, &*ns.marks[0].text),
        ("sched_switch", "trace-cmd:182 [120] S ==> swapper/1:0 [120]")
    );
}

#[test]
fn waits_of_seconds_and_marks() {
    let calls = whole(&fixture("sid-wait"));
    let longest = calls.roots.iter().map(|root| calls[*root].duration_ns.unwrap()).max();
    assert_eq!(longest, Some(1_300_494_000));
    same(&whole(&fixture("sid-wait_full")).outline(), &calls.outline(), "full");
    let hello = calls.marks.iter().find(|mark| &*mark.text == "hello from user").unwrap();
    assert_eq!(&*hello.event, "");
    let switch = calls.marks.iter().find(|mark| mark.call.is_some()).unwrap();
    assert_eq!(&*switch.event, "sched_switch");
    assert_eq!(calls.name_of(&calls[switch.call.unwrap()]), "do_nanosleep");
}

#[test]
fn lost_events_of_a_slow_reader() {
    let calls = text::parse(&fixture("sid-lost_pipe"));
    assert_eq!(calls.damage.lost, 8357 + 6550 + 10387 + 11297 + 2147 + 4968 + 2711 + 8134 + 5417);
    let none = text::parse("CPU:1 [LOST EVENTS]\nCPU:0 [7 EVENTS DROPPED]\n 1)   1.0 us    |  a();\n");
    assert_eq!((none.damage.lost, none.damage.not_understood, none.calls.len()), (8, 0, 1));
}

/// Forms that the recorded kernels do not print: written after what the kernel's source prints.
#[test]
fn forms_of_other_kernels() {
    let table = [
        // Returned values: 6.5 and later, and their later form, with the caller's address.
        (" 0)   1.5 us    |  a(); /* = 0x0 */\n", "a 1500 = 0x0\n"),
        (" 0)   1.5 us    |  a [m](); /* = -11 */\n", "a [m] 1500 = -11\n"),
        (
            " 0)               |  a() {\n 0)   1.0 us    |    b(); /* = 0x1 */\n 0)   2.0 us    |  } /* a = 0x2 */\n",
            "a 2000 = 0x2\n  b 1000 = 0x1\n",
        ),
        (
            " 0)               |  a() { /* <-c+0x1/0x9 */\n 0)   1.0 us    |    b(x=1); /* <-a+0x2/0x9 ret=0x1 */\n 0)   2.0 us    |  } /* a [m] ret=-2 */\n",
            "a [m] 2000 = -2\n  b 1000 = 0x1\n",
        ),
        (" 0)               |  a() {\n 0)   2.0 us    |  } /* = 0 */\n", "a 2000 = 0\n"),
        // Interrupts, where their entry is a traced function.
        (
            " 0)               |  a() {\n 0)   ==========> |\n 0)               |    smp_apic_timer_interrupt() {\n 0)   1.0 us    |      irq_enter();\n 0)   3.0 us    |    }\n 0)   <========== |\n 0)   1.0 us    |    b();\n 0) + 12.0 us   |  }\n",
            "a 12000\n  smp_apic_timer_interrupt 3000 !\n    irq_enter 1000\n  b 1000\n",
        ),
        // Durations of seconds, days, nanoseconds.
        (" 0) $ 1000123.456 us |  a();\n", "a 1000123456\n"),
        (" 0) $ 1000123 us |  a();\n", "a 1000123000\n"),
        (" 0) @ 123456.7 us |  a();\n", "a 123456700\n"),
        (" 0) $ 172800000000 us |  a();\n", "a 172800000000000\n"),
        (" 0)   71 ns     |  a();\n", "a 71\n"),
        // Time since the trace began, of the latency tracers.
        ("        5 us |   0)   1.0 us    |  a();\n", "a 1000\n"),
        // Durations from times.
        ("   1.000001 |   0)  a() {\n   1.000003 |   0)  }\n", "a 2000\n"),
    ];
    for (text, expected) in table {
        let calls = whole(text);
        let mut lines = String::new();
        for (line, id) in calls.outline().lines().zip(calls.roots.iter().flat_map(|root| calls.tree(*root))) {
            let returned = calls[id.0].returned.as_ref().map(|value| format!(" = {value}")).unwrap_or_default();
            lines += &format!("{line}{returned}\n");
        }
        assert_eq!(lines, expected, "{text}");
    }
}

#[test]
fn a_switch_between_tasks() {
    let text = "\
 0)               |  a() {
 0)               |    schedule() {
 ------------------------------------------
 0)  bash-123  =>  sleep-200
 ------------------------------------------

 0)               |  b() {
 0)   1.0 us    |    c();
 ------------------------------------------
 0)  sleep-200  =>  bash-123
 ------------------------------------------

 0)   9.0 us    |    }
 0) + 10.0 us   |  }
 ------------------------------------------
 0)  bash-123  =>  sleep-200
 ------------------------------------------

 0)   2.0 us    |  }
";
    for text in [text.to_string(), text.replace(" 0)   ", "   ").replace(" 0) +", " ")] {
        let calls = whole(&text);
        assert_eq!(calls.outline(), "a 10000\n  schedule 9000\nb 2000\n  c 1000\n");
        assert_eq!(calls[calls.roots[0]].task.unwrap().pid, 123);
        assert_eq!(calls[calls.roots[1]].task.unwrap().pid, 200);
    }
}
