//! Threads over time: cases as texts of a tracer, and recordings held against the reports of the same events.

mod support;

use kstrobe_ftrace::calls::text;
use kstrobe_ftrace::report::*;
use std::fmt::Write;
use support::{KERNELS, trace};

/// Lines of `TIME_US CPU EVENT`, where `a>b S` is a switch from one thread to another and the state that it leaves in, `+a` a wakeup,
/// and `!a` the end of a system call. Threads are numbers, 0 is idle.
fn recorded(lines: &str) -> kstrobe_ftrace::calls::Calls {
    let mut out = String::from("# tracer: function_graph\n");
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [time, cpu, what] = [words[0], words[1], words[2]];
        let event = match what.split_once('>') {
            Some((prev, next)) => format!(
                "sched_switch: prev_comm=t{prev} prev_pid={prev} prev_prio=120 prev_state={} ==> next_comm=t{next} next_pid={next} next_prio=120",
                words[3]
            ),
            None => match what.split_at(1) {
                ("!", pid) => format!("sys_exit: pid={pid}"),
                (_, pid) => format!("sched_waking: comm=t{pid} pid={pid} prio=120 target_cpu=000"),
            },
        };
        let us: u32 = time.parse().unwrap();
        writeln!(out, "    1.{us:06} |   {cpu})     sh-124     |               |  /* {event} */").unwrap();
    }
    text::parse(&out)
}

fn shown(lines: &str, shown: &Shown, limits: Limits) -> Threads {
    let calls = recorded(lines);
    threads(|| of_marks(&calls).map(with_caller), shown, limits, |_| None)
}

/// A text has the thread of an event in a column of its own, which is not read.
fn with_caller(mut event: Happening<'_>) -> Happening<'_> {
    event.pid = (event.name() == "sys_exit").then(|| event.pid_in("pid")).flatten();
    event
}

/// The states of each thread, in microseconds: `7: run0 0+10, sleep 10+5`.
fn states(threads: &Threads) -> Vec<String> {
    let one = |row: &ThreadRow| {
        let states = row.states.iter().map(|(start, length, state, cpu)| {
            let cpu = cpu.map_or(String::new(), |cpu| cpu.to_string());
            format!("{:?}{cpu} {}+{}", State::ALL[usize::from(*state)], start / 1000, length / 1000)
        });
        format!("{}: {}", row.pid, states.collect::<Vec<_>>().join(", "))
    };
    threads.threads.iter().map(one).collect()
}

/// Two threads of two CPUs: 7 sleeps and is woken by 8, which a disk then blocks until an interrupt comes upon idle CPU 0.
const TWO: &str = "
    100 1 0>8 R
    110 0 7>0 S
    130 1 +7
    135 0 0>7 R
    140 1 8>0 D
    160 0 7>0 S
    180 0 +8
    190 1 0>8 R
    200 1 8>0 S
";

#[test]
fn states_follow_one_another_without_a_hole() {
    let all = shown(TWO, &Shown::default(), Limits::default());
    assert_eq!(
        states(&all),
        [
            "8: Running1 0+40, Blocked 40+40, Runnable 80+10, Running1 90+10",
            "7: Sleeping 10+20, Runnable 30+5, Running0 35+25, Sleeping 60+40",
        ]
    );
    assert_eq!((all.duration_ns, all.from_ns, all.to_ns), (100_000, 0, 100_000));
    assert_eq!(all.threads[0].times_ns, [50_000, 10_000, 0, 40_000]);
    assert_eq!(all.threads[1].wakeups, [(30_000, Some(8), 1, Some(5_000))]);
    assert_eq!(all.threads[0].wakeups, [(80_000, Some(0), 0, Some(10_000))]);
    assert_eq!(all.left_out, LeftOut::default());
    assert_eq!(all.not_recorded, ["raw_syscalls:* or syscalls:*"]);
    assert_eq!(all.threads[0].comm, "t8");
}

#[test]
fn a_range_has_what_reaches_into_it() {
    let part = Shown { from_ns: 50_000, to_ns: Some(70_000), find: "T8".into() };
    let part = shown(TWO, &part, Limits::default());
    assert_eq!(states(&part), ["8: Blocked 40+40"]);
    assert_eq!(part.threads[0].times_ns, [0, 0, 0, 20_000]);
    let late = Shown { from_ns: u64::MAX, to_ns: Some(3), ..Shown::default() };
    let late = shown(TWO, &late, Limits::default());
    assert_eq!((late.from_ns, late.to_ns), (3, 3));
    let by_id = Shown { find: "7".into(), ..Shown::default() };
    assert_eq!(shown(TWO, &by_id, Limits::default()).threads.len(), 1);
}

#[test]
fn what_is_left_out_is_counted_the_shortest_first() {
    let few = Limits { threads: 1, states: 6, calls: 0, wakeups: 1 };
    let few = shown(TWO, &Shown::default(), few);
    assert_eq!(states(&few), ["8: Running1 0+40, Blocked 40+40, Runnable 80+10"]);
    // Sums are of all.
    assert_eq!(few.threads[0].times_ns, [50_000, 10_000, 0, 40_000]);
    let left = few.left_out;
    assert_eq!((left.threads, left.wakeups), (1, 0));
    // Of eight states two are too short, one of them of the thread that is shown.
    assert_eq!((left.states, left.longest_state_ns), (1, 10_000));
}

#[test]
fn a_thread_that_moved_unseen_is_not_said_to_run() {
    // Only switches from and to 7 were recorded: 8 and 9 come and go unseen.
    let seen = shown(
        "
        100 0 9>7 S
        110 0 7>8 R
        150 0 9>7 R
        160 0 7>8 S
        ",
        &Shown::default(),
        Limits::default(),
    );
    assert_eq!(states(&seen), ["7: Running0 0+10, Runnable 10+40, Running0 50+10"]);
    // 6 is there again when 7 comes back: nothing says that it ran all the time.
    let again = shown(
        "100 1 9>7 S\n110 1 7>8 S\n120 1 9>7 S\n200 0 7>6 R\n300 0 6>7 R\n400 0 7>6 S\n",
        &Shown::default(),
        Limits::default(),
    );
    assert_eq!(again.threads.iter().map(|row| row.pid).collect::<Vec<_>>(), [7]);
    // What came before the first switch of 7 and after its last contradicts nothing.
    let edges = shown("100 0 6>7 S\n110 0 7>0 S\n120 0 0>7 R\n130 0 7>9 S\n", &Shown::default(), Limits::default());
    assert_eq!(edges.threads.iter().map(|row| row.pid).collect::<Vec<_>>(), [7]);
}

#[test]
fn one_switch_that_was_dropped_hides_no_thread() {
    let mut lines: String =
        (0..20).map(|n| format!("{} 0 9>7 S\n{} 0 7>{} S\n", 100 + 20 * n, 110 + 20 * n, 10 + n % 2)).collect();
    // 7 leaves unseen for 8, which comes and leaves with it alone.
    lines += "500 0 9>7 S\n510 0 8>7 S\n520 0 7>8 S\n530 0 8>7 S\n540 0 7>9 S\n";
    let all = shown(&lines, &Shown::default(), Limits::default());
    assert_eq!(all.threads.iter().map(|row| row.pid).collect::<Vec<_>>(), [7]);
}

#[test]
fn a_call_says_that_its_thread_was_recorded_and_runs() {
    // 7 comes to CPU 1 from the idle thread, and no such switch is recorded.
    let all = shown(
        "
        100 1 9>7 S
        110 1 7>0 S
        130 1 +7
        132 1 !7
        140 1 7>0 S
        170 1 +7
        173 1 !7
        180 1 7>0 S
        ",
        &Shown::default(),
        Limits::default(),
    );
    assert_eq!(
        states(&all),
        [
            "7: Running1 0+10, Sleeping 10+20, Runnable 30+2, Running1 32+8, Sleeping 40+30, Runnable 70+3, Running1 73+7"
        ]
    );
    // How long it waited for the CPU is not known.
    assert_eq!(all.threads[0].wakeups.iter().map(|wakeup| wakeup.3).collect::<Vec<_>>(), [None, None]);
}

#[test]
fn a_disordered_or_empty_text_is_no_panic() {
    let back = shown("300 1 7>0 S\n150 1 0>7 R\n400 1 7>0 S\n", &Shown::default(), Limits::default());
    assert!(back.threads.iter().all(|row| row.states.iter().all(|state| state.0 + state.1 <= back.duration_ns)));
    let none = shown("", &Shown::default(), Limits::default());
    assert_eq!((none.duration_ns, none.threads.len(), none.not_recorded.len()), (0, 0, 3));
}

#[test]
fn recordings_say_what_their_reports_say() {
    let names = |number: u64| (number == 45).then_some("recvfrom");
    for kernel in KERNELS {
        let trace = trace(kernel, "events");
        let all = threads(|| of_trace(&trace), &Shown::default(), Limits::default(), names);
        assert!(all.not_recorded.is_empty() && !all.threads.is_empty(), "{kernel}: {:?}", all.not_recorded);
        let activity = activity(of_trace(&trace));
        let reported = syscalls(of_trace(&trace), &activity, &Asked::default(), names);
        for row in &reported.rows {
            let name = all.calls.iter().position(|name| *name == row.name).unwrap() as u32;
            let calls = all.threads.iter().flat_map(|thread| &thread.calls).filter(|call| call.2 == name);
            let ended: Vec<u64> = calls.filter(|call| call.3.is_some()).map(|call| call.1).collect();
            assert_eq!((ended.len() as u64, ended.iter().sum::<u64>()), (row.count, row.total_ns), "{}", row.name);
        }
        for thread in &all.threads {
            assert!(thread.times_ns.iter().sum::<u64>() <= all.duration_ns, "{kernel} {thread:?}");
            for two in thread.states.windows(2) {
                assert!(two[0].0 + two[0].1 <= two[1].0, "{kernel} {}: {two:?}", thread.pid);
            }
        }
        // Threads that were not recorded at every switch have calls alone.
        for thread in all.threads.iter().filter(|thread| !thread.states.is_empty()) {
            let asked = Asked { pids: vec![thread.pid], ..Asked::default() };
            let longest = thread.wakeups.iter().filter_map(|wakeup| wakeup.3).max();
            assert_eq!(longest.unwrap_or_default(), wakeups(&activity, &asked).all.max_ns, "{kernel} {}", thread.pid);
        }
        assert!(all.threads.iter().any(|thread| thread.wakeups.len() > 5), "{kernel}");
    }
}
