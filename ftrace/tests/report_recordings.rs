//! Reports of real recordings: expected files (`BLESS=1` rewrites them), and figures worked out again from the kernel's own text.

mod support;

use kstrobe_ftrace::calls::{Calls, build, text};
use kstrobe_ftrace::report::*;
use kstrobe_ftrace::trace::Trace;
use std::path::PathBuf;
use support::{KERNELS, trace};

fn asked(root: &str) -> Asked {
    Asked { root: Some(root.to_owned()), ..Asked::default() }
}

fn graph(trace: &Trace) -> Calls {
    build::build(trace, build::Options::default())
}

fn text_calls(kernel: &str, scenario: &str, file: &str) -> Calls {
    text::parse(&support::text(kernel, scenario, file))
}

/// Compares with the expected file of a name.
fn expect(name: &str, got: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/report").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, got).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == got, "{} differs; BLESS=1 rewrites it. Got:\n{got}", path.display());
}

/// System calls of x86-64 that the recordings have.
fn call_name(number: u64) -> Option<&'static str> {
    match number {
        0 => Some("read"),
        1 => Some("write"),
        9 => Some("mmap"),
        35 => Some("nanosleep"),
        44 => Some("sendto"),
        45 => Some("recvfrom"),
        59 => Some("execve"),
        230 => Some("clock_nanosleep"),
        257 => Some("openat"),
        _ => None,
    }
}

#[test]
fn waits_of_a_receive() {
    for kernel in KERNELS {
        for scenario in ["recvfrom", "sched"] {
            let trace = trace(kernel, scenario);
            let calls = graph(&trace);
            let activity = activity(of_trace(&trace));
            let report = waits(&calls, &activity, &asked("recvfrom"));
            let mut out = String::new();
            report.render(&mut out);
            expect(&format!("{kernel}-{scenario}-waits.txt"), &out);
            for call in &report.calls {
                assert_eq!(call.total_ns, call.waited_ns + call.interrupted_ns + call.worked_ns);
                let layers: u64 = call.layers.iter().map(|row| row.self_ns).sum();
                assert!(layers <= call.worked_ns, "{kernel}");
            }
            // Every answer comes 6 ms after the question; the first was asked before the recording had begun.
            let mut calls: Vec<&CallWait> = report.calls.iter().collect();
            calls.sort_by_key(|call| call.start_ns);
            assert!(calls[1..].iter().all(|call| call.waited_ns >= 6_000_000), "{out}");
        }
    }
}

#[test]
fn events_of_a_client() {
    for kernel in KERNELS {
        let trace = trace(kernel, "events");
        let activity = activity(of_trace(&trace));
        let all = Asked::default();
        let mut out = String::new();
        summary(Some(&trace), None).render(&mut out);
        wakeups(&activity, &all).render(&mut out);
        switches(&activity, &all).render(&mut out, 5);
        interrupts(of_trace(&trace), &all).render(&mut out);
        syscalls(of_trace(&trace), &activity, &all, call_name).render(&mut out);
        packets(of_trace(&trace), &activity, &all).render(&mut out);
        blocks(of_trace(&trace), &all).render(&mut out);
        expect(&format!("{kernel}-events.txt"), &out);
    }
}

#[test]
fn stacks_of_switches() {
    for kernel in KERNELS {
        let trace = trace(kernel, "stacks");
        let mut out = String::new();
        switches(&activity(of_trace(&trace)), &Asked::default()).render(&mut out, 3);
        expect(&format!("{kernel}-stacks.txt"), &out);
    }
}

#[test]
fn functions_and_trees_of_several_roots() {
    for kernel in KERNELS {
        let trace = trace(kernel, "roots");
        let calls = graph(&trace);
        let activity = activity(of_trace(&trace));
        let mut out = String::new();
        summary(Some(&trace), Some(&calls)).render(&mut out);
        functions(&calls, &activity, &Asked::default()).render(&mut out, 15);
        slowest(&calls, &activity, &Asked { slowest: 1, depth: 3, ..asked("net_rx_action") }).render(&mut out);
        expect(&format!("{kernel}-roots.txt"), &out);
    }
}

#[test]
fn a_report_is_the_same_of_text_and_records() {
    for kernel in KERNELS {
        let trace = trace(kernel, "recvfrom");
        let (of_records, of_text) = (graph(&trace), text_calls(kernel, "recvfrom", "full.txt"));
        let none = Activity::default();
        // Text has seven digits of a duration: of 10 ms and more, ten nanoseconds and more are cut off.
        let near = |one: u64, two: u64, count: u64| {
            one.abs_diff(two) <= 1000 * count && one.abs_diff(two) * 1000 <= one.max(1000)
        };
        let (records, text) =
            (waits(&of_records, &none, &asked("recvfrom")), waits(&of_text, &none, &asked("recvfrom")));
        let shape = |report: &Waits| {
            let causes: Vec<(String, u64)> = report.causes.iter().map(|row| (row.cause.clone(), row.count)).collect();
            (report.count, report.open, causes)
        };
        assert_eq!(shape(&records), shape(&text), "{kernel}");
        // Text shows an interrupt that came before the entry of the call it interrupted was written as nobody's.
        let sums = |report: &Waits| [report.total_ns, report.waited_ns];
        for (one, two) in sums(&records).into_iter().zip(sums(&text)) {
            assert!(near(one, two, records.count), "{kernel}: {one} {two}");
        }
        let (mut records, mut text) =
            (functions(&of_records, &none, &Asked::default()), functions(&of_text, &none, &Asked::default()));
        records.functions.sort_by(|one, two| one.function.cmp(&two.function));
        text.functions.sort_by(|one, two| one.function.cmp(&two.function));
        assert_eq!(records.functions.len(), text.functions.len(), "{kernel}");
        for (one, two) in records.functions.iter().zip(&text.functions) {
            assert_eq!((&one.function, one.count, one.open), (&two.function, two.count, two.open), "{kernel}");
            assert!(near(one.total_ns, two.total_ns, one.count), "{kernel}: {one:?} {two:?}");
        }
    }
}

/// The durations of a function in graph text, in the order of the lines.
fn durations(text: &str, function: &str) -> Vec<u64> {
    let (end, leaf) = (format!("}} /* {function} */"), format!("{function}();"));
    let lines = text.lines().filter(|line| line.trim_end().ends_with(&end) || line.trim_end().ends_with(&leaf));
    lines
        .map(|line| {
            let before = line.split(" us ").next().unwrap();
            support::tree::ns(before.split_whitespace().next_back().unwrap())
        })
        .collect()
}

#[test]
fn waits_are_the_sums_of_the_kernels_own_lines() {
    for kernel in KERNELS {
        for scenario in ["recvfrom", "sched"] {
            let lines = support::text(kernel, scenario, "full.txt");
            let report = waits(&text_calls(kernel, scenario, "full.txt"), &Activity::default(), &asked("recvfrom"));
            let total: Vec<u64> = durations(&lines, "__x64_sys_recvfrom");
            let waited: Vec<u64> = durations(&lines, "schedule");
            assert!(!total.is_empty() && !waited.is_empty());
            assert_eq!(report.total_ns, total.iter().sum::<u64>(), "{kernel} {scenario}");
            assert_eq!(report.waited_ns, waited.iter().sum::<u64>(), "{kernel} {scenario}");
        }
    }
}

/// One line of the kernel's text of an event: task, microseconds, name, the rest.
fn event_line(line: &str) -> Option<(i32, u64, &str, &str)> {
    if line.starts_with('#') {
        return None;
    }
    let at = line.find(": ")?;
    let pid = line.find(" [").and_then(|end| line[..end].trim_end().rsplit('-').next()?.parse().ok())?;
    let time = line[..at].split_whitespace().next_back()?;
    let (seconds, micros) = time.split_once('.')?;
    let (name, rest) = line[at + 2..].split_once(':').unwrap_or((&line[at + 2..], ""));
    Some((pid, seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?, name, rest.trim()))
}

/// The CPU's column.
fn cpu_of(line: &str) -> &str {
    line.split('[').nth(1).unwrap().split(']').next().unwrap()
}

fn field<'a>(rest: &'a str, name: &str) -> &'a str {
    rest.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

/// Text has microseconds only, cut off: a difference is one too small or too large at most.
fn near(ns: u64, us: u64) -> bool {
    (us * 1000).abs_diff(ns) < 1000
}

#[test]
fn delays_are_the_differences_of_the_kernels_own_times() {
    for kernel in KERNELS {
        let lines = support::text(kernel, "events", "trace.txt");
        let trace = trace(kernel, "events");
        let activity = activity(of_trace(&trace));
        let (mut woken, mut left) = (std::collections::BTreeMap::new(), std::collections::BTreeMap::new());
        let (mut delays, mut off) = (Vec::new(), Vec::new());
        for (_, us, name, rest) in lines.lines().filter_map(event_line) {
            match name {
                "sched_waking" | "sched_wakeup" => _ = woken.entry(field(rest, "pid").to_owned()).or_insert(us),
                "sched_switch" => {
                    let (prev, next) = (field(rest, "prev_pid").to_owned(), field(rest, "next_pid").to_owned());
                    woken.remove(&prev);
                    if let Some(then) = woken.remove(&next) {
                        delays.push(us - then);
                    }
                    if let Some(then) = left.remove(&next).filter(|_| next != "0") {
                        off.push(us - then);
                    }
                    left.insert(prev, us);
                }
                _ => {}
            }
        }
        let report = wakeups(&activity, &Asked { slowest: 1000, ..Asked::default() });
        assert!(!delays.is_empty() && !off.is_empty());
        assert_eq!(report.all.count, delays.len() as u64, "{kernel}");
        let mut got: Vec<u64> = report.worst.iter().map(|delay| delay.delay_ns).collect();
        got.sort_unstable();
        delays.sort_unstable();
        assert!(got.iter().zip(&delays).all(|(ns, us)| near(*ns, *us)), "{kernel}: {got:?} {delays:?}");
        let mut got: Vec<u64> = activity.spells.iter().filter_map(Spell::off_ns).collect();
        got.sort_unstable();
        off.sort_unstable();
        assert_eq!(got.len(), off.len(), "{kernel}");
        assert!(got.iter().zip(&off).all(|(ns, us)| near(*ns, *us)), "{kernel}: {got:?} {off:?}");
    }
}

#[test]
fn system_calls_are_those_of_the_kernels_own_text() {
    for kernel in KERNELS {
        let lines = support::text(kernel, "events", "trace.txt");
        let trace = trace(kernel, "events");
        let report = syscalls(of_trace(&trace), &Activity::default(), &Asked::default(), |_| None);
        let mut entered = std::collections::BTreeMap::new();
        let mut sums: std::collections::BTreeMap<String, (u64, u64, u64)> = std::collections::BTreeMap::new();
        for (pid, us, name, rest) in lines.lines().filter_map(event_line) {
            let mut words = rest.split_whitespace();
            match name {
                "sys_enter" => _ = entered.insert(pid, (words.nth(1).unwrap().to_owned(), us)),
                "sys_exit" => {
                    let Some((number, then)) = entered.remove(&pid) else { continue };
                    let sum = sums.entry(number).or_default();
                    let returned: i64 = words.nth(3).unwrap().parse().unwrap();
                    *sum = (sum.0 + 1, sum.1 + us - then, sum.2 + u64::from((-4095..0).contains(&returned)));
                }
                _ => {}
            }
        }
        assert_eq!(report.rows.len(), sums.len(), "{kernel}");
        for row in &report.rows {
            let (count, us, errors) = sums[&row.name];
            assert_eq!((row.count, row.errors), (count, errors), "{kernel} {}", row.name);
            assert!(row.total_ns.abs_diff(us * 1000) < 1000 * count, "{kernel} {}", row.name);
        }
    }
}

/// Kernels with recordings of packets and blocks.
const MORE: [&str; 2] = ["../report/5.10", "../report/6.12"];

fn number(kernel: &str) -> &str {
    kernel.rsplit('/').next().unwrap()
}

#[test]
fn ways_of_packets() {
    for kernel in MORE {
        let trace = trace(kernel, "packets");
        let report = packets(of_trace(&trace), &activity(of_trace(&trace)), &Asked::default());
        let mut out = String::new();
        report.render(&mut out);
        interrupts(of_trace(&trace), &Asked::default()).render(&mut out);
        expect(&format!("{}-packets.txt", number(kernel)), &out);
        assert_eq!((report.count, report.given_up), (6, 0));
        assert!(report.receives.iter().filter(|receive| receive.interrupt_ns.is_some()).count() >= 5);
        // Each receive again, from the kernel's own text: the last of each stage before the copy.
        let lines = support::text(kernel, "packets", "trace.txt");
        let events: Vec<(i32, u64, &str, &str)> = lines.lines().filter_map(event_line).collect();
        let cpus: Vec<&str> = lines.lines().filter(|line| event_line(line).is_some()).map(cpu_of).collect();
        for receive in &report.receives {
            let copied = events.iter().position(|(_, us, name, _)| {
                *name == "skb_copy_datagram_iovec" && near(receive.copied_ns.unwrap(), *us)
            });
            let (pid, _, _, rest) = events[copied.unwrap()];
            let packet = field(rest, "skbaddr");
            let last = |is: &dyn Fn(&str, &str) -> bool| {
                let found = events[..copied.unwrap()].iter().rposition(|(_, _, name, rest)| is(name, rest));
                found.map(|at| (at, events[at].1)).unwrap()
            };
            let (_, running) = last(&|name, rest| name == "sched_switch" && field(rest, "next_pid") == pid.to_string());
            let (_, woken) = last(&|name, rest| name == "sched_waking" && field(rest, "pid") == pid.to_string());
            let (at, received) =
                last(&|name, rest| name == "napi_gro_receive_entry" && field(rest, "skbaddr") == packet);
            let before = |is: &dyn Fn(&str, &str) -> bool| {
                let found = (0..at).rev().find(|one| cpus[*one] == cpus[at] && is(events[*one].2, events[*one].3));
                events[found.unwrap()].1
            };
            let softirq = before(&|name, rest| name == "softirq_entry" && rest.starts_with("vec=3"));
            let interrupt = before(&|name, rest| name == "irq_handler_entry" && rest.contains("input"));
            for (ns, us) in [
                // Polling that goes on has no interrupt of its own.
                (receive.interrupt_ns.or(Some(interrupt * 1000)), interrupt),
                (receive.softirq_ns, softirq),
                (receive.received_ns, received),
                (receive.woken_ns, woken),
                (receive.running_ns, running),
            ] {
                assert!(near(ns.unwrap(), us), "{kernel}: {us} of {receive:?}");
            }
        }
    }
}

#[test]
fn block_requests() {
    for kernel in MORE {
        let trace = trace(kernel, "blocks");
        let report = blocks(of_trace(&trace), &Asked { slowest: 3, ..Asked::default() });
        let mut out = String::new();
        report.render(&mut out);
        expect(&format!("{}-blocks.txt", number(kernel)), &out);
        let reads = report.groups.iter().find(|group| group.operation == "read").unwrap();
        assert_eq!((reads.served.count, reads.bytes), (8, 8 * 4096), "{kernel}");
        // dd wrote 6 x 64 KiB and 4 MiB.
        let writes = report.groups.iter().find(|group| group.operation == "write").unwrap();
        assert_eq!(writes.bytes, (6 * 64 + 4096) * 1024, "{kernel}");
        // Reads again, from the kernel's own text.
        let lines = support::text(kernel, "blocks", "trace.txt");
        let mut issued = std::collections::BTreeMap::new();
        let mut served = 0;
        for (_, us, name, rest) in lines.lines().filter_map(event_line) {
            let words: Vec<&str> = rest.split_whitespace().collect();
            if words.get(1).is_none_or(|letters| !letters.starts_with('R')) {
                continue;
            }
            let sector = words[words.iter().position(|word| *word == "+").unwrap() - 1];
            match name {
                "block_rq_issue" => _ = issued.insert(sector, us),
                "block_rq_complete" => served += us - issued.remove(sector).unwrap(),
                _ => {}
            }
        }
        assert!((served * 1000).abs_diff(reads.served.total_ns) < 8000, "{kernel}");
    }
}

#[test]
fn what_was_not_recorded_is_said() {
    let trace = trace("6.12", "recvfrom");
    let events = activity(of_trace(&trace));
    let all = Asked::default();
    let mut out = String::new();
    wakeups(&events, &all).render(&mut out);
    switches(&events, &all).render(&mut out, 5);
    interrupts(of_trace(&trace), &all).render(&mut out);
    syscalls(of_trace(&trace), &events, &all, call_name).render(&mut out);
    packets(of_trace(&trace), &events, &all).render(&mut out);
    blocks(of_trace(&trace), &all).render(&mut out);
    expect("not-recorded.txt", &out);
}

#[test]
fn what_was_lost_is_said() {
    let trace = trace("6.12", "wrapped");
    let mut out = String::new();
    summary(Some(&trace), None).render(&mut out);
    let stats: u64 = trace.buffers[0].cpus.iter().filter_map(|cpu| cpu.stats).map(|stats| stats.lost()).sum();
    assert!(stats > 0);
    assert!(out.contains(&format!("RECORDS WERE LOST: {stats}")), "{out}");
}

#[test]
fn only_what_is_asked_for_is_told() {
    let trace = trace("6.12", "events");
    let events = activity(of_trace(&trace));
    let all = wakeups(&events, &Asked::default()).tasks;
    let pid = all.iter().find(|task| task.comm.as_deref() == Some("ping")).unwrap().pid;
    for asked in
        [Asked { pids: vec![pid], ..Asked::default() }, Asked { comms: vec!["ping".into()], ..Asked::default() }]
    {
        let tasks = wakeups(&events, &asked).tasks;
        assert!(tasks.iter().all(|task| task.pid == pid) && !tasks.is_empty());
    }
    let asked = Asked { cpus: vec![7], ..Asked::default() };
    assert_eq!(wakeups(&events, &asked).all.count, 0);
    assert!(interrupts(of_trace(&trace), &asked).rows.is_empty());
}

#[test]
fn a_capture_changes_by_nothing_against_itself() {
    let (before, after) = (trace("6.1", "recvfrom"), trace("6.12", "recvfrom"));
    let side = |trace: &Trace| {
        let (calls, events) = (graph(trace), activity(of_trace(trace)));
        let syscalls = syscalls(of_trace(trace), &events, &Asked::default(), call_name);
        (functions(&calls, &events, &Asked::default()), waits(&calls, &events, &asked("recvfrom")), syscalls)
    };
    let (before, after) = (side(&before), side(&after));
    let same = diff((&before.0, &before.1, &before.2), (&before.0, &before.1, &before.2));
    assert!(same.functions.iter().all(|row| row.self_ns.before == row.self_ns.after));
    let changed = diff((&before.0, &before.1, &before.2), (&after.0, &after.1, &after.2));
    let total = changed.waits.unwrap().total_ns;
    assert_eq!((total.before, total.after), (before.1.total_ns, after.1.total_ns));
    let mut out = String::new();
    changed.render(&mut out, 10);
    expect("6.1-to-6.12-diff.txt", &out);
}

#[test]
fn reports_are_data() {
    let trace = trace("6.12", "sched");
    let (calls, events) = (graph(&trace), activity(of_trace(&trace)));
    let report = waits(&calls, &events, &Asked { slowest: 1, ..asked("recvfrom") });
    expect("6.12-sched-waits.json", &(serde_json::to_string_pretty(&report).unwrap() + "\n"));
}
