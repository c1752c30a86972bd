//! The probes of the scheduler and of futexes against the kernel's own accounts of threads that only the test runs, and
//! against loads of known size.

mod support;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{Pid, gettid};
use std::io::{Read, Write, pipe};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::agent::{Agent, Setup};
use support::bpftrace::Bpftrace;
use support::metrics::{Histogram, Metrics};
use support::{Agreement, emulated, load, output, witnesses};

const FUTEX_SCRIPT: &str = "
    tracepoint:syscalls:sys_enter_futex { $op = args->op & 127; if ($op == 0 || $op == 9) { @waits[comm] = count(); } }
    tracepoint:syscalls:sys_enter_futex { $op = args->op & 127; if ($op == 1 || $op == 10) { @wakes[comm] = count(); } }";

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

/// A probe that was over its budget, or shares a hook with one that was, has not seen everything.
#[track_caller]
fn complete(metrics: &Metrics, probe: &str) {
    let of = [("probe", probe)];
    assert_eq!(
        metrics.sum("kstrobe_probe_over_budget", &of),
        0.0,
        "{probe}: more went on than its budget has room for"
    );
    let is_whole = metrics.series("kstrobe_probe_sampling_ratio", &of).all(|(_, ratio)| ratio == 1.0);
    assert!(is_whole, "{probe} was sampled");
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
        // An emulated CPU may itself have to wait between the kernel's clock and ours.
        let early_and_late = if emulated() { 0.25 } else { 0.03 };
        within(&format!("{comm}: seconds"), ours.sum, seconds, 0.1, times * TRACEPOINT_SECONDS + early_and_late);
        let counted =
            Agreement::new("runqueue_latency", "runqueue_latency_seconds", "/proc/PID/schedstat", ours.count, times);
        counted.record();
        let least = if comm == "kst-rq-sleeper" { 0.0 } else { 0.3 };
        assert!(seconds > least && times >= 20.0, "{comm}: too little waiting to compare: {seconds} s, {times} times");
    }
    agent.stop();
}

/// Lets the calling thread run until it waits for something: who it wakes on this CPU does not take its place, and so finds
/// it waiting.
fn not_preempted_by_equals() {
    output(Command::new("chrt").args(["--fifo", "--pid", "1", &gettid().to_string()]));
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
    const SLEEPS: u32 = 200;
    let agent = agent("wakeups");
    let comms = ["kst-ping", "kst-pong"];
    let blocked = ping_pong(comms, ROUNDS);
    load::named("kst-sleeps", || load::pselect_sleeps(SLEEPS, Duration::from_micros(500)));
    let metrics = agent.scrape();
    complete(&metrics, "wakeups");
    for (waker, wakee) in [(0, 1), (1, 0)] {
        let labels = [("waker", comms[waker]), ("wakee", comms[wakee])];
        let ours = metrics.sum("kstrobe_wakeups_total", &labels);
        within(&format!("{labels:?}"), ours, f64::from(ROUNDS), 0.01, 2.0);
        // The other witness: whoever leaves the CPU to wait comes back by a wakeup.
        let theirs = blocked[wakee] as f64;
        within(&format!("{labels:?} and its voluntary switches"), ours, theirs, 0.01, 5.0);
        Agreement::new("wakeups", "wakeups_total", "getrusage", ours, theirs).record();
    }
    // A timer wakes on an idle CPU, or in the name of whoever runs there.
    let by = |name| metrics.sum(name, &[("wakee", "kst-sleeps")]);
    let [interrupted, idle] = ["kstrobe_wakeups_total", "kstrobe_idle_wakeups_total"].map(by);
    within("sleeps", interrupted + idle, f64::from(SLEEPS), 0.01, 2.0);
    agent.stop();
}

/// What the probe says of a thread's waits: the whole, and the part off the CPU.
fn waits(metrics: &Metrics, comm: &str, result: &str) -> [Histogram; 2] {
    let labels = [("comm", comm), ("result", result)];
    ["kstrobe_futex_wait_duration_seconds", "kstrobe_futex_wait_off_cpu_seconds"].map(|n| metrics.histogram(n, &labels))
}

#[test]
#[ignore = "needs root"]
fn root_futex_waits_in_vain_time_out() {
    const TIMEOUTS: u32 = 60;
    const EACH: Duration = Duration::from_millis(5);
    let agent = agent("futex");
    let errors = |m: &Metrics, errno: &str| m.sum("kstrobe_futex_wait_errors_total", &[("errno", errno)]);
    let before = agent.scrape();
    let mut taken = Duration::ZERO;
    load::named("kst-futex", || {
        let begin = Instant::now();
        for _ in 0..TIMEOUTS {
            // One futex(2) with FUTEX_WAIT_BITSET.
            std::thread::park_timeout(EACH);
        }
        taken = begin.elapsed();
    });
    let after = agent.scrape();
    complete(&after, "futex");
    let [whole, off_cpu] = waits(&after, "kst-futex", "timed_out");
    assert_eq!(whole.count, f64::from(TIMEOUTS), "{whole:?}");
    let asked = whole.count * EACH.as_secs_f64();
    // std computes the point in time before it makes the call.
    assert!((asked * 0.99..=taken.as_secs_f64()).contains(&whole.sum), "{whole:?}: {asked} s asked, {taken:?} taken");
    assert_eq!(off_cpu.count, whole.count);
    assert!(off_cpu.sum <= whole.sum && off_cpu.sum >= whole.sum * 0.9, "{off_cpu:?} of {whole:?}");
    let waited = after.sum("kstrobe_futex_wait_duration_seconds_count", &[("comm", "kst-futex")]);
    assert_eq!(waited, whole.count, "no wait ended otherwise");
    // Over all threads, as others wait too, and those of this test's are among them.
    let counted = errors(&after, "ETIMEDOUT") - errors(&before, "ETIMEDOUT");
    let of_all = |m: &Metrics| m.sum("kstrobe_futex_wait_duration_seconds_count", &[("result", "timed_out")]);
    assert!(counted >= whole.count, "{counted} errors, {whole:?}");
    within("errors and results", counted, of_all(&after) - of_all(&before), 0.0, 3.0);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_futex_waits_for_another_thread_end_by_its_wake() {
    const ROUNDS: u32 = 100;
    const HELD: Duration = Duration::from_millis(3);
    let agent = agent("futex");
    let bpftrace = witnesses("root_futex_waits_for_another_thread_end_by_its_wake", &["bpftrace"])
        .then(|| Bpftrace::start(FUTEX_SCRIPT));
    let ready = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let waiter = std::thread::Builder::new().name("kst-waiter".into());
        let wait = || {
            for round in 1..=ROUNDS {
                ready.store(round, Ordering::Release);
                std::thread::park();
            }
        };
        let waiter = waiter.spawn_scoped(scope, wait).unwrap();
        load::named("kst-waker", || {
            for round in 1..=ROUNDS {
                // Without a futex of its own: a wait of this thread would be counted.
                while ready.load(Ordering::Acquire) != round {
                    std::thread::sleep(Duration::from_micros(100));
                }
                std::thread::sleep(HELD);
                waiter.thread().unpark();
            }
        });
    });
    let metrics = agent.scrape();
    complete(&metrics, "futex");
    let [whole, _] = waits(&metrics, "kst-waiter", "woken");
    // On a busy machine a thread may be woken before it got to wait, which then needs no call; its start may wait once for
    // a lock.
    assert!((f64::from(ROUNDS) * 0.97..=f64::from(ROUNDS) + 1.0).contains(&whole.count), "{whole:?}");
    assert!(whole.sum >= f64::from(ROUNDS) * 0.97 * HELD.as_secs_f64() * 0.9, "{whole:?}");
    let of = |comm| metrics.sum("kstrobe_futex_wait_duration_seconds_count", &[("comm", comm)]);
    // The start of a thread may wait once for a lock.
    assert!(of("kst-waker") <= 1.0, "to wake is not to wait");
    if let Some(maps) = bpftrace.map(Bpftrace::stop) {
        assert_eq!(of("kst-waiter"), maps.number("@waits", "kst-waiter") as f64);
        assert!(maps.number("@wakes", "kst-waker") as f64 >= whole.count, "the waker called futex(2)");
    }
    agent.stop();
}
