//! The probes of the scheduler and of futexes against the kernel's own accounts of threads that only the test runs, and
//! against loads of known size.

mod support;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;
use std::io::{Read, Write, pipe};
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::agent::{Agent, Setup};
use support::metrics::{Histogram, Metrics};
use support::{emulated, load, wait_for};

/// From a wakeup, or a switch, as the kernel's accounts see it to the tracepoint a little later.
const TRACEPOINT_SECONDS: f64 = 5e-6;

/// An agent without the packs that are on by default.
fn agent(pack: &str) -> Agent {
    Setup { arguments: &["--enable", pack], ..Setup::default() }.start()
}

#[track_caller]
fn within(what: &str, ours: f64, theirs: f64, share: f64, slack: f64) {
    let limit = theirs * share + slack;
    assert!((ours - theirs).abs() <= limit, "{what}: we say {ours}, the witness {theirs} (allowed: {limit} apart)");
}

/// A probe that was over its budget has not seen everything.
#[track_caller]
fn complete(metrics: &Metrics, probe: &str) {
    let of = [("probe", probe)];
    assert_eq!(
        metrics.sum("kstrobe_probe_over_budget", &of),
        0.0,
        "{probe}: more went on than its budget has room for"
    );
    assert_eq!(metrics.sum("kstrobe_lost_total", &of), 0.0, "{probe}");
}

/// Lets the calling thread run on one CPU only, the same for all that ask.
fn pin() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap()).expect("some CPU");
    let mut one = CpuSet::new();
    one.set(first).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

/// Seconds that the calling thread waited for a CPU, and how often it was given one.
fn schedstat() -> [f64; 2] {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("CONFIG_SCHED_INFO");
    let n: Vec<f64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert!(n[2] > 0.0, "the kernel counts nothing: {text}");
    [n[1] / 1e9, n[2]]
}

/// Does some work in a pinned thread of this name; what the kernel's account of the thread says of it.
fn accounted(comm: &str, work: impl FnOnce() + Send) -> [f64; 2] {
    let mut account = [0.0; 2];
    load::named(comm, || {
        pin();
        let before = schedstat();
        work();
        let after = schedstat();
        account = [after[0] - before[0], after[1] - before[1]];
    });
    account
}

#[test]
#[ignore = "needs root"]
fn root_waits_for_a_cpu_agree_with_schedstat() {
    let agent = agent("runqueue");
    let done = AtomicBool::new(false);
    let spin = || {
        while !done.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    // Two that are preempted for each other, and one that is woken beside them.
    let accounts = std::thread::scope(|scope| {
        let busy = ["kst-rq-busy-a", "kst-rq-busy-b"].map(|comm| (comm, scope.spawn(move || accounted(comm, spin))));
        let sleep = || {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let sleeper = ("kst-rq-sleeper", accounted("kst-rq-sleeper", sleep));
        done.store(true, Ordering::Relaxed);
        busy.map(|(comm, thread)| (comm, thread.join().unwrap())).into_iter().chain([sleeper]).collect::<Vec<_>>()
    });
    let metrics = agent.scrape();
    complete(&metrics, "runqueue_latency");
    for (comm, [seconds, times]) in accounts {
        let ours = metrics.histogram("kstrobe_runqueue_latency_seconds", &[("comm", comm)]);
        // A thread has its name a little before the account is read first, and after it was read last.
        within(&format!("{comm}: times"), ours.count, times, 0.01, 5.0);
        let early_and_late = if emulated() { 0.1 } else { 0.03 };
        within(&format!("{comm}: seconds"), ours.sum, seconds, 0.1, times * TRACEPOINT_SECONDS + early_and_late);
        let least = if comm == "kst-rq-sleeper" { 0.0 } else { 0.3 };
        assert!(seconds > least && times >= 20.0, "{comm}: too little waiting to compare: {seconds} s, {times} times");
    }
    agent.stop();
}

/// Lets the calling thread run until it waits for something: who it wakes on this CPU does not take its place, and so finds
/// it waiting.
fn not_preempted_by_equals() {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: it reads the parameters, which outlive the call.
    let returned = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    assert_eq!(returned, 0, "SCHED_FIFO: {}", std::io::Error::last_os_error());
}

/// Two pinned threads that wake each other so often by pipes, each having nothing to do meanwhile. How often each left the
/// CPU by its own will.
fn ping_pong(comms: [&str; 2], rounds: u32) -> [i64; 2] {
    let ((ping_out, mut ping_in), (mut pong_out, pong_in)) = (pipe().unwrap(), pipe().unwrap());
    let blocked = || getrusage(UsageWho::RUSAGE_THREAD).unwrap().voluntary_context_switches();
    let (first, second) = (AtomicI64::new(0), AtomicI64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            load::named(comms[0], || {
                pin();
                not_preempted_by_equals();
                let before = blocked();
                for _ in 0..rounds {
                    ping_in.write_all(&[1]).unwrap();
                    pong_out.read_exact(&mut [0]).unwrap();
                }
                first.store(blocked() - before, Ordering::Relaxed);
                // The end of the pipe ends the other thread.
                drop(ping_in);
            });
        });
        let (mut ping_out, mut pong_in) = (ping_out, pong_in);
        let second = &second;
        scope.spawn(move || {
            load::named(comms[1], || {
                pin();
                not_preempted_by_equals();
                let before = blocked();
                while ping_out.read(&mut [0]).unwrap() == 1 {
                    pong_in.write_all(&[1]).unwrap();
                }
                second.store(blocked() - before, Ordering::Relaxed);
            });
        });
    });
    [first.into_inner(), second.into_inner()]
}

#[test]
#[ignore = "needs root"]
fn root_wakeups_of_a_known_number_are_counted() {
    const ROUNDS: u32 = 5_000;
    let agent = agent("wakeups");
    let comms = ["kst-ping", "kst-pong"];
    let blocked = ping_pong(comms, ROUNDS);
    let metrics = agent.scrape();
    complete(&metrics, "wakeups");
    for (waker, wakee) in [(0, 1), (1, 0)] {
        let labels = [("waker", comms[waker]), ("wakee", comms[wakee])];
        let ours = metrics.sum("kstrobe_wakeups_total", &labels);
        within(&format!("{labels:?}"), ours, f64::from(ROUNDS), 0.01, 2.0);
        // The other witness: whoever leaves the CPU to wait comes back by a wakeup.
        let theirs = blocked[wakee] as f64;
        within(&format!("{labels:?} and its voluntary switches"), ours, theirs, 0.01, 5.0);
    }
    assert!(metrics.sum("kstrobe_idle_wakeups_total", &[]) > 0.0, "no timer woke anybody on an idle CPU");
    agent.stop();
}

/// futex(2) without anything but the word, the value that it should have and the time to wait.
fn futex(word: &AtomicU32, operation: i32, value: u32, limit: *const libc::timespec) -> (i64, i32) {
    // SAFETY: the word and the time outlive the call, which keeps neither.
    let returned = unsafe {
        let (second, bits) = (null::<u32>(), u32::MAX);
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, limit, second, bits)
    };
    (returned, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// What the probe says of a thread's waits: the whole, and the part off the CPU.
fn waits(metrics: &Metrics, comm: &str, result: &str) -> [Histogram; 2] {
    let labels = [("comm", comm), ("result", result)];
    ["kstrobe_futex_wait_duration_seconds", "kstrobe_futex_wait_off_cpu_seconds"].map(|n| metrics.histogram(n, &labels))
}

#[test]
#[ignore = "needs root"]
fn root_futex_waits_end_as_they_were_made_to() {
    const TIMEOUTS: u32 = 60;
    const CHANGED: u32 = 500;
    const EACH: Duration = Duration::from_millis(5);
    let agent = agent("futex");
    let errors = |m: &Metrics, errno: &str| m.sum("kstrobe_futex_wait_errors_total", &[("errno", errno)]);
    let before = agent.scrape();
    let began = Instant::now();
    let mut outside = Duration::ZERO;
    load::named("kst-futex", || {
        let limit = libc::timespec { tv_sec: 0, tv_nsec: EACH.as_nanos() as i64 };
        let word = AtomicU32::new(7);
        let begin = Instant::now();
        for _ in 0..TIMEOUTS {
            assert_eq!(futex(&word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 7, &limit), (-1, libc::ETIMEDOUT));
        }
        outside = begin.elapsed();
        for operation in [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG] {
            for _ in 0..CHANGED {
                assert_eq!(futex(&word, operation, 8, null()), (-1, libc::EAGAIN));
            }
        }
        // None of these is a wait.
        for _ in 0..CHANGED {
            assert_eq!(futex(&word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1, null()).0, 0);
        }
    });
    let after = agent.scrape();
    complete(&after, "futex");
    let [whole, off_cpu] = waits(&after, "kst-futex", "timed_out");
    assert_eq!(whole.count, f64::from(TIMEOUTS), "{whole:?}");
    let least = f64::from(TIMEOUTS) * EACH.as_secs_f64();
    assert!((least..=outside.as_secs_f64()).contains(&whole.sum), "{whole:?}: {least} s asked, {outside:?} taken");
    assert_eq!(off_cpu.count, whole.count);
    assert!(off_cpu.sum <= whole.sum && off_cpu.sum >= whole.sum * 0.9, "{off_cpu:?} of {whole:?}");
    let [whole, _] = waits(&after, "kst-futex", "changed");
    assert_eq!(whole.count, f64::from(2 * CHANGED), "{whole:?}");
    assert_eq!(waits(&after, "kst-futex", "woken")[0].count, 0.0, "a wake is no wait");
    // Others wait too.
    for (errno, made) in [("ETIMEDOUT", TIMEOUTS), ("EAGAIN", 2 * CHANGED)] {
        let counted = errors(&after, errno) - errors(&before, errno);
        let others = began.elapsed().as_secs_f64() * 2_000.0;
        assert!((f64::from(made)..=f64::from(made) + others).contains(&counted), "{errno}: {counted}, {made} made");
    }
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_thread_that_waits_for_another_is_woken_as_often() {
    const ROUNDS: u32 = 100;
    const HELD: Duration = Duration::from_millis(3);
    let agent = agent("futex");
    let (word, ready) = (AtomicU32::new(0), AtomicU32::new(0));
    let mut calls = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                wait_for("the other thread", Duration::from_secs(10), || {
                    (ready.load(Ordering::Acquire) == round).then_some(())
                });
                std::thread::sleep(HELD);
                word.store(round, Ordering::Release);
                futex(&word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1, null());
            }
        });
        load::named("kst-waiter", || {
            for round in 1..=ROUNDS {
                ready.store(round, Ordering::Release);
                while word.load(Ordering::Acquire) != round {
                    let (returned, _) = futex(&word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, round - 1, null());
                    calls += u32::from(returned == 0);
                }
            }
        });
    });
    let metrics = agent.scrape();
    complete(&metrics, "futex");
    let [whole, _] = waits(&metrics, "kst-waiter", "woken");
    // The end of the thread that ran it is no wait of its own.
    assert_eq!(whole.count, f64::from(calls), "{whole:?}");
    assert!(calls >= ROUNDS * 9 / 10, "{calls} waits slept of {ROUNDS}: nothing to compare");
    assert!(whole.sum >= f64::from(calls) * HELD.as_secs_f64() * 0.9, "{whole:?}");
    agent.stop();
}
