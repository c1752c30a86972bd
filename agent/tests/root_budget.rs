//! The overhead budget: a probe that floods is sampled within seconds, or taken off breakpoints, says so everywhere, and
//! the machine gets its time back.

mod support;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::agent::{Agent, Setup};
use support::frames::kst_burn_one;
use support::metrics::Metrics;
use support::{emulated, kernel_objects, load, now, softirqs, wait_for, witnesses};

/// Calls per second of a thread's own CPU time, in one slice of the load: what others do on the machine does not matter.
#[derive(Clone, Copy, Debug)]
struct Slice {
    at: Duration,
    per_second: f64,
    per_cpu_second: f64,
}

fn cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6
}

/// Calls getppid in a thread named `kst-flood` until `stop` is set, pausing after each burst; gives the throughput.
fn flood(stop: &AtomicBool, burst: u32, pause: Duration) -> Vec<Slice> {
    let begin = Instant::now();
    let mut slices = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (at, before) = (begin.elapsed(), cpu_seconds());
        let mut calls = 0;
        while begin.elapsed() < at + Duration::from_millis(250) {
            load::getppid_calls(burst);
            calls += burst;
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        // The clock of CPU time counts scheduler ticks on some machines: shorter slices would be lumps.
        let per_cpu_second = f64::from(calls) / (cpu_seconds() - before).max(1e-6);
        slices.push(Slice { at, per_second: f64::from(calls) / (begin.elapsed() - at).as_secs_f64(), per_cpu_second });
    }
    slices
}

/// Runs the load beside `work`; gives its slices and what the work gave.
fn beside<T>(burst: u32, pause: Duration, work: impl FnOnce() -> T) -> (Vec<Slice>, T) {
    beside_threads(1, burst, pause, work)
}

/// The same with so many threads of it.
fn beside_threads<T>(threads: usize, burst: u32, pause: Duration, work: impl FnOnce() -> T) -> (Vec<Slice>, T) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = || flood(&stop, burst, pause);
        let start = || std::thread::Builder::new().name("kst-flood".to_owned()).spawn_scoped(scope, flood).unwrap();
        let threads: Vec<_> = (0..threads).map(|_| start()).collect();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        let slices = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        (slices, result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The value below which so many quarters of all lie.
fn quartile(quarters: usize, values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() * quarters / 4]
}

fn median(slices: &[Slice]) -> f64 {
    quartile(2, slices.iter().map(|s| s.per_cpu_second))
}

/// What it reaches in the best quarter: others on the machine make slices slower, a probe on its hooks makes all so.
fn undisturbed(slices: &[Slice]) -> f64 {
    quartile(3, slices.iter().map(|s| s.per_cpu_second))
}

/// What throughput must be again at least: most of what it lost. The speed of a CPU is not the same from second to second, and
/// two emulated ones share a machine with others.
fn recovered(during: f64, without: f64) -> f64 {
    if emulated() { 0.5 * without } else { during + 0.6 * (without - during) }
}

fn budgeted(probes: &[(&str, &str)]) -> Agent {
    Setup { probes, budget: true, ..Setup::default() }.start()
}

fn default_probes() -> Agent {
    Setup { packs: &support::agent::DEFAULT_PACKS, budget: true, ..Setup::default() }.start()
}

/// Whether the processor is too slow for a load to fit any budget, which the test then leaves to real ones.
fn too_slow(test: &str) -> bool {
    if emulated() {
        eprintln!("{test}: not run on an emulated processor");
    }
    emulated()
}

const FLOODED: &str = "
probe: flooded
summary: Every call of the flood, by more than it needs.
span: { start: 'syscall:*:enter', end: 'syscall:*:exit', where: comm == \"kst-flood\" }
budget_cpu_percent: 2
metrics:
  flooded_seconds: { type: histogram, value: elapsed, labels: { comm: comm, uid: uid, cgroup: cgroup } }
  flooded_work_seconds: { type: histogram, value: elapsed.on_cpu, labels: { comm: comm, uid: uid, cgroup: cgroup } }
";

#[test]
#[ignore = "needs root"]
fn root_a_flooded_probe_is_sampled_and_stays_on_its_hooks() {
    let (calm, ()) = beside(1000, Duration::ZERO, || std::thread::sleep(Duration::from_secs(1)));
    let agent = budgeted(&[("flooded", FLOODED)]);
    let probe = [("probe", "flooded")];
    let before = agent.scrape();
    assert_eq!(before.sum("kstrobe_probe_over_budget", &probe), 0.0);
    assert_eq!(before.sum("kstrobe_probe_sampling_ratio", &probe), 1.0);
    // It may be sampled several times first.
    let limit = Duration::from_secs(if emulated() { 20 } else { 10 });
    let (slices, (at, seconds)) = beside(1000, Duration::ZERO, || {
        let begin = Instant::now();
        wait_for("the probe to be sampled", limit, || {
            (agent.scrape().sum("kstrobe_probe_sampling_ratio", &probe) < 1.0).then_some(())
        });
        let at = begin.elapsed();
        std::thread::sleep(Duration::from_secs(4));
        let mut seconds = Vec::new();
        for _ in 0..12 {
            let metrics = agent.scrape();
            let off = metrics.series("kstrobe_probe_attached", &probe).find(|(_, attached)| *attached != 1.0);
            assert!(off.is_none(), "{off:?}");
            seconds.push(metrics.sum("kstrobe_flooded_seconds_count", &[]));
            std::thread::sleep(Duration::from_millis(250));
        }
        (at, seconds)
    });
    // The first: it is not sampled sooner than after two short windows.
    let during: Vec<Slice> = slices.iter().copied().filter(|s| s.at < Duration::from_millis(250)).collect();
    let after: Vec<Slice> = slices.iter().copied().filter(|s| s.at > at + Duration::from_secs(4)).collect();
    let (calm, during) = (median(&calm), median(&during));
    assert!(during < 0.8 * calm, "{during:.0} calls a second with the probe, {calm:.0} without: it is no flood");
    // What is counted stands for all calls.
    let (made, counted) = (mean(after.iter().map(|s| s.per_second)), (seconds[11] - seconds[0]) / (11.0 * 0.25));
    assert!(
        emulated() || (0.7..1.3).contains(&(counted / made)),
        "{counted:.0} calls a second counted, {made:.0} made"
    );
    assert!(
        emulated() || undisturbed(&after) > during,
        "{:.0} calls a second, {during:.0} before",
        undisturbed(&after)
    );

    let metrics = agent.scrape();
    assert_eq!(metrics.sum("kstrobe_probe_over_budget", &probe), 1.0);
    assert!(metrics.sum("kstrobe_probe_throttled_total", &probe) >= 1.0);
    let (status, ready) = agent.get("/readyz").unwrap();
    assert!(status == 200 && ready.contains("flooded: over its budget"), "{status} {ready}");
    let (_, listed) = agent.get("/api/v1/probes").unwrap();
    assert!(listed.contains(r#""throttled":"over its budget of 2 % of a CPU"#), "{listed}");
    assert!(agent.log().contains("events is sampled"), "{}", agent.log());
    agent.stop();
}

const EVERY_CALL: &str = "
probe: every_call
summary: Each system call of the machine.
at: rawtracepoint:sys_enter
budget_cpu_percent: 2
metrics:
  every_call_total: { type: counter, labels: { comm: comm } }
";

/// Events a second at the hook while it floods, at least.
const FLOOD: f64 = 1e6;

#[test]
#[ignore = "needs root"]
fn root_a_million_events_a_second_are_sampled_or_left_in_time() {
    let threads = std::thread::available_parallelism().unwrap().get().clamp(2, 4);
    let (calm, ()) = beside_threads(threads, 1000, Duration::ZERO, || std::thread::sleep(Duration::from_millis(1500)));
    let agent = Agent::start_with(&[], &[("every_call", EVERY_CALL)]);
    let probe = [("probe", "every_call")];
    assert_eq!(agent.scrape().sum("kstrobe_probe_over_budget", &probe), 0.0);
    let limit = Duration::from_secs(if emulated() { 20 } else { 5 });
    let (slices, (at, seconds)) = beside_threads(threads, 1000, Duration::ZERO, || {
        let begin = Instant::now();
        wait_for("the probe to be held back", limit, || {
            (agent.scrape().sum("kstrobe_probe_over_budget", &probe) == 1.0).then_some(())
        });
        let at = begin.elapsed();
        // It may need further steps before it costs no more than it may.
        std::thread::sleep(Duration::from_secs(4));
        let spent = || agent.scrape().sum("kstrobe_program_run_seconds_total", &probe);
        let mut seconds = [spent(); 4];
        for second in &mut seconds[1..] {
            std::thread::sleep(Duration::from_secs(1));
            *second = spent();
        }
        (at, seconds)
    });
    let flooded: Vec<Slice> = slices.iter().copied().filter(|s| s.at < at).collect();
    let rate = threads as f64 * mean(flooded.iter().map(|s| s.per_second));
    eprintln!("{rate:.0} events a second by {threads} threads, held back after {at:?}");
    assert!(emulated() || rate >= FLOOD, "{rate:.0} events a second: no flood");
    let after: Vec<Slice> = slices.iter().copied().filter(|s| s.at > at + Duration::from_secs(4)).collect();

    let metrics = agent.scrape();
    assert_eq!(metrics.sum("kstrobe_probe_over_budget", &probe), 1.0);
    assert!(metrics.sum("kstrobe_probe_throttled_total", &probe) >= 1.0);
    assert!(metrics.sum("kstrobe_every_call_total", &[("comm", "kst-flood")]) > 0.0);
    let held_back = metrics.sum("kstrobe_probe_sampling_ratio", &probe) < 1.0
        || metrics.series("kstrobe_probe_attached", &probe).all(|(_, attached)| attached == 0.0);
    assert!(held_back, "it says neither that it is sampled nor that it is off its hooks");
    for page in ["/readyz", "/api/v1/probes"] {
        let (status, text) = agent.get(page).unwrap();
        assert!(status == 200 && text.contains("over its budget of 2 % of a CPU"), "{page}: {status} {text}");
    }
    assert!(agent.log().contains("throttled") && agent.log().contains("over its budget"), "{}", agent.log());
    agent.stop();
    let (alone, ()) = beside_threads(threads, 1000, Duration::ZERO, || std::thread::sleep(Duration::from_secs(1)));
    let (without, after) = (median(&calm).min(median(&alone)), undisturbed(&after));
    // What a window shows is taken for a second: a CPU that stood still within a program looks like ten times as much.
    let each = quartile(2, seconds.windows(2).map(|pair| pair[1] - pair[0]));
    // To pass an event over costs no more than to reach the program, some 50 ns.
    let most = f64::max(0.02, rate * 50e-9);
    assert!(emulated() || each <= 2.0 * most, "{each} s of a second, after the steps: {seconds:?}");
    // A probe that passes most events over still has a program that is called, and one that is off is back within a second.
    let least = 0.5 * without;
    assert!(
        emulated() || after >= least,
        "{after:.0} calls a second of CPU afterwards, {without:.0} without the agent; {rate:.0} events a second"
    );
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / f64::max(count, 1.0)
}

const BUSY: &str = "
probe: busy_calls
summary: Calls of the load.
at: tracepoint:syscalls:sys_enter_getppid
budget_cpu_percent: 1.5
where: comm == \"kst-flood\"
metrics:
  busy_calls_total: { type: counter, labels: { comm: comm, uid: uid, cgroup: cgroup, netns: netns } }
  busy_parents_total: { type: counter, labels: { comm: task.real_parent.comm, uid: uid, netns: netns } }
  busy_leaders_total: { type: counter, labels: { comm: task.group_leader.comm, gid: gid, netns: netns } }
  busy_names: { type: histogram, value: u64(task.tgid), labels: { comm: task.comm, gid: gid, name: task.parent.comm } }
";

#[test]
#[ignore = "needs root"]
fn root_a_busy_probe_is_sampled_and_its_counts_stay_right() {
    if too_slow("root_a_busy_probe_is_sampled_and_its_counts_stay_right") {
        return;
    }
    let agent = budgeted(&[("busy_calls", BUSY)]);
    let probe = [("probe", "busy_calls")];
    let limit = Duration::from_secs(if emulated() { 20 } else { 5 });
    // Some 100,000 calls a second: more than the budget has room for, and few enough to be passed over within it.
    beside(60, Duration::from_micros(500), || {
        wait_for("the probe to be sampled", limit, || {
            let ratio = agent.scrape().sum("kstrobe_probe_sampling_ratio", &probe);
            (ratio < 1.0).then_some(())
        });
        // It may need further steps.
        std::thread::sleep(Duration::from_secs(4));
    });
    // Windows without the load: none of its strikes is left.
    std::thread::sleep(Duration::from_secs(2));
    let metrics = agent.scrape();
    assert_eq!(metrics.sum("kstrobe_probe_over_budget", &probe), 1.0);
    for (labels, attached) in metrics.series("kstrobe_probe_attached", &probe) {
        assert!(attached == 1.0 && labels["reason"].is_empty(), "{labels:?}");
    }
    // A burst too short to change anything: the share that is sampled stands for all of it.
    let calls = 200_000;
    let before = agent.scrape();
    load::named("kst-flood", || load::getppid_calls(calls));
    let after = agent.scrape();
    let now = after.sum("kstrobe_probe_sampling_ratio", &probe);
    assert!((1.0 / 1024.0..=0.5).contains(&now), "{now}");
    let counted = after.sum("kstrobe_busy_calls_total", &[]) - before.sum("kstrobe_busy_calls_total", &[]);
    assert_eq!(before.sum("kstrobe_probe_sampling_ratio", &probe), now, "the burst was short");
    // Six standard deviations of a sum of `calls * now` events that count for `1 / now` each.
    let error = 6.0 * (f64::from(calls) / now).sqrt();
    assert!((counted - f64::from(calls)).abs() < error, "{counted} of {calls} counted at 1 of {}", 1.0 / now);
    assert_eq!(counted % (1.0 / now), 0.0, "each sampled event has the same weight");
    let (status, ready) = agent.get("/readyz").unwrap();
    assert!(status == 200 && ready.contains("busy_calls: over its budget of 1.5 % of a CPU"), "{status} {ready}");
    assert!(ready.contains("events is sampled"), "{ready}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_the_default_probes_keep_their_budget_under_a_normal_load() {
    if too_slow("root_the_default_probes_keep_their_budget_under_a_normal_load") {
        return;
    }
    let agent = default_probes();
    // Of each second, by probe: a pause of a CPU within one window is taken for ten times as long.
    let spent = |metrics: &Metrics| {
        ["syscalls", "softirq"].map(|probe| metrics.sum("kstrobe_program_run_seconds_total", &[("probe", probe)]))
    };
    let mut seconds = vec![spent(&agent.scrape())];
    for _ in 0..7 {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(1) {
            load::pselect_sleeps(20, Duration::from_micros(500));
            load::datagrams(100);
            load::getppid_calls(200);
            std::thread::sleep(Duration::from_millis(10));
        }
        seconds.push(spent(&agent.scrape()));
    }
    let metrics = agent.scrape();
    let throttled: Vec<_> = metrics.series("kstrobe_probe_throttled_total", &[]).collect();
    assert!(throttled.len() >= 5, "{throttled:?}");
    assert!(throttled.iter().all(|(_, times)| *times == 0.0), "{throttled:?}\n{}", agent.get("/readyz").unwrap().1);
    // What is estimated of their cost is there, and within what they may use.
    for probe in [0, 1] {
        let each = quartile(2, seconds.windows(2).map(|pair| pair[1][probe] - pair[0][probe]));
        assert!((1e-9..0.02).contains(&each), "{each} s of a second: {seconds:?}");
    }
    agent.stop();
}

type Sleep = fn(Duration);
const THREADS: u32 = 100;

/// Ends a call in [`THREADS`] threads again and again until `stop` is set. Returns how many ended.
fn sleepers(stop: &AtomicBool, call: Sleep, each: Duration) -> u64 {
    // Calls that all begin at once would be in a slice together or not at all.
    let sleep = |number: u32| {
        std::thread::sleep(each * number / THREADS);
        let mut calls = 0;
        while !stop.load(Ordering::Relaxed) {
            call(each);
            calls += 1;
        }
        calls
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || sleep(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn ppoll(time: Duration) {
    assert_eq!(nix::poll::ppoll(&mut [], Some(time.into()), None), Ok(0));
}

#[test]
#[ignore = "needs root"]
fn root_long_calls_are_measured_as_often_as_short_ones_in_slices() {
    const LONG: Duration = Duration::from_millis(400);
    const SHORT: Duration = Duration::from_millis(30);
    if too_slow("root_long_calls_are_measured_as_often_as_short_ones_in_slices") {
        return;
    }
    let agent = default_probes();
    let probe = [("probe", "syscalls")];
    let (stop, name) = (AtomicBool::new(false), "kstrobe_syscall_duration_seconds");
    // The second is what `std::thread::sleep` calls.
    const CALLS: [(&str, Sleep, Duration); 2] =
        [("ppoll", ppoll, LONG), ("clock_nanosleep", std::thread::sleep, SHORT)];
    let (_, made) = beside_threads(2, 1000, Duration::ZERO, || {
        wait_for("slices of time", Duration::from_secs(30), || {
            agent.get("/readyz").unwrap().1.contains("in slices of time").then_some(())
        });
        let before = agent.scrape();
        let made = std::thread::scope(|scope| {
            let stop = &stop;
            let threads = CALLS.map(|(_, call, each)| scope.spawn(move || sleepers(stop, call, each)));
            std::thread::sleep(Duration::from_secs(20));
            stop.store(true, Ordering::Relaxed);
            threads.map(|thread| thread.join().unwrap())
        });
        let after = agent.scrape();
        let ratio_in = |metrics: &Metrics| metrics.sum("kstrobe_probe_sampling_ratio", &probe);
        let ratio = ratio_in(&before).min(ratio_in(&after));
        let parts = [0, 1].map(|which| {
            let ((call, _, each), made) = (CALLS[which], made[which]);
            let of = |metrics: &Metrics| metrics.histogram(name, &[("syscall", call)]);
            let new = of(&after).since(&of(&before));
            // A slice is a tenth of a long call. Eight standard deviations of events that count for 1 / ratio each.
            let error = 8.0 * (1.0 / (made as f64 * ratio)).sqrt();
            let (part, mean) = (new.count / made as f64, new.mean());
            // Slices are longer or shorter by up to half for the other threads' load, whose calls follow one another.
            assert!((2.0 / 3.0 - error..1.5 + error).contains(&part), "{part} of {made} at {ratio}");
            assert!((each.as_secs_f64()..each.as_secs_f64() + 0.05).contains(&mean), "{mean} s of {each:?}");
            (part, error)
        });
        let [(long, of_long), (short, of_short)] = parts;
        assert!(ratio <= 0.125 && (long - short).abs() < of_long.max(of_short), "{parts:?} at {ratio}");
        made
    });
    eprintln!("{made:?} long and short calls");
    agent.stop();
}

/// Waits in recvfrom(2), which nothing comes to, in threads of this name until `stop` is set.
fn receivers(stop: &AtomicBool, name: &str, each: Duration) {
    let receive = || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(each)).unwrap();
        while !stop.load(Ordering::Relaxed) {
            assert!(socket.recv(&mut [0; 8]).is_err());
        }
    };
    std::thread::scope(|scope| {
        let start = || std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, receive).unwrap();
        (0..10).for_each(|_| _ = start());
    });
}

#[test]
#[ignore = "needs root"]
fn root_receives_keep_their_waits_while_context_switches_rest() {
    const SHORT: (&str, Duration) = ("kst-short", Duration::from_millis(10));
    const LONG: (&str, Duration) = ("kst-long", Duration::from_millis(400));
    let test = "root_receives_keep_their_waits_while_context_switches_rest";
    if too_slow(test) || !witnesses(test, &["bpftool"]) {
        return;
    }
    let agent = default_probes();
    let stop = AtomicBool::new(false);
    // For a while; gives how many of the looks found the switches watched.
    let watch = |what: &[(&str, Duration)]| {
        let before = agent.scrape();
        let look = |_| {
            std::thread::sleep(Duration::from_millis(100));
            kernel_objects::is_at("sched_switch")
        };
        let watched = (0..100).map(look).filter(|watched| *watched).count();
        let after = agent.scrape();
        for (comm, each) in what {
            let new = |name: &str| {
                let of = |metrics: &Metrics| metrics.histogram(name, &[("comm", comm), ("syscall", "recvfrom")]);
                of(&after).since(&of(&before))
            };
            let (all, wait, work) = (
                new("kstrobe_recv_duration_seconds"),
                new("kstrobe_recv_wait_seconds"),
                new("kstrobe_recv_work_seconds"),
            );
            let quick = work.buckets.iter().filter(|(le, _)| *le <= 0.004).map(|(_, count)| *count);
            let worked = work.count - quick.fold(0.0, f64::max);
            eprintln!(
                "{comm}: {} receives of {} s, {} s of them waits, {worked} without",
                all.count,
                all.mean(),
                wait.mean()
            );
            assert!(all.count > 0.0 && all.mean() > each.as_secs_f64(), "{}", agent.log());
            assert!(worked <= 0.02 * all.count, "{worked} of {} receives of {comm} were not seen to wait", all.count);
        }
        watched
    };
    beside_threads(2, 1000, Duration::ZERO, || {
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || receivers(stop, SHORT.0, SHORT.1));
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                wait_for("slices of time", Duration::from_secs(40), || {
                    let ratio = agent.scrape().sum("kstrobe_probe_sampling_ratio", &[("probe", "recvfrom")]);
                    (ratio <= 0.125).then_some(())
                });
                // A receive of another process that is seen and lasts for long keeps them watched meanwhile.
                let mut watched = Vec::new();
                let rests = (0..6).any(|_| {
                    watched.push(watch(&[SHORT]));
                    watched.last().is_some_and(|watched| (1..60).contains(watched))
                });
                assert!(rests, "context switches were watched at {watched:?} of 100 looks");
                scope.spawn(move || receivers(stop, LONG.0, LONG.1));
                let watched = watch(&[SHORT, LONG]);
                eprintln!("with long receives: watched at {watched} of 100 looks");
            }));
            stop.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    });
    // When it ends, all are watched.
    wait_for("all receives, with context switches watched all the time", Duration::from_secs(60), || {
        let ratio = agent.scrape().sum("kstrobe_probe_sampling_ratio", &[("probe", "recvfrom")]);
        let is_watched = || {
            (0..10).all(|_| {
                std::thread::sleep(Duration::from_millis(50));
                kernel_objects::is_at("sched_switch")
            })
        };
        (ratio == 1.0 && is_watched()).then_some(())
    });
    agent.stop();
}

/// Sends datagrams to itself over loopback until `stop` is set, each of which raises a softirq.
fn datagrams(stop: &AtomicBool) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(socket.local_addr().unwrap()).unwrap();
    let mut received = [0; 8];
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..20 {
            socket.send(&[1; 8]).unwrap();
            socket.recv(&mut received).unwrap();
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
#[ignore = "needs root"]
fn root_softirqs_in_slices_are_as_many_as_the_kernels() {
    let test = "root_softirqs_in_slices_are_as_many_as_the_kernels";
    if too_slow(test) || !witnesses(test, &["bpftool"]) {
        return;
    }
    let agent = default_probes();
    let ratio = |metrics: &Metrics| metrics.sum("kstrobe_probe_sampling_ratio", &[("probe", "softirq")]);
    let counted = |metrics: &Metrics| metrics.sum("kstrobe_softirq_duration_seconds_count", &[]);
    let kernels = || softirqs().iter().map(|(_, total)| total).sum::<f64>();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        (0..2).for_each(|_| _ = scope.spawn(|| datagrams(&stop)));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for("slices of time", Duration::from_secs(40), || (ratio(&agent.scrape()) <= 0.125).then_some(()));
            // What the pace of the load is taken from.
            std::thread::sleep(Duration::from_secs(5));
            let (before, first) = (counted(&agent.scrape()), kernels());
            let looks: Vec<bool> = (0..200)
                .map(|_| {
                    std::thread::sleep(Duration::from_millis(100));
                    kernel_objects::is_at("softirq_exit")
                })
                .collect();
            let (after, made) = (agent.scrape(), kernels() - first);
            let attached = looks.iter().filter(|attached| **attached).count();
            let part = (counted(&after) - before) / made;
            eprintln!("{part} of {made} softirqs, attached at {attached} of {} looks", looks.len());
            assert!((0.9..1.1).contains(&part), "{part} of {made} softirqs");
            assert!((1..looks.len() / 2).contains(&attached), "attached at {attached} of {} looks", looks.len());
            assert!(ratio(&after) <= 0.125);
            let lost = after.series("kstrobe_lost_total", &[("probe", "softirq")]);
            // One that ends just as all begins are seen again has none, on each CPU.
            assert!(lost.map(|(_, lost)| lost).sum::<f64>() < 10.0, "{}", agent.log());
        }));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    // When it ends, all are seen.
    wait_for("all softirqs", Duration::from_secs(40), || (ratio(&agent.scrape()) == 1.0).then_some(()));
    std::thread::sleep(Duration::from_secs(1));
    let (before, first) = (counted(&agent.scrape()), kernels());
    std::thread::sleep(Duration::from_secs(3));
    let (seen, made) = (counted(&agent.scrape()) - before, kernels() - first);
    assert!((seen - made).abs() <= 0.1 * made + 20.0, "{seen} of {made} softirqs");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_flood_is_noticed_when_it_begins() {
    if too_slow("root_a_flood_is_noticed_when_it_begins") {
        return;
    }
    let agent = default_probes();
    let threads = std::thread::available_parallelism().unwrap().get().clamp(2, 4);
    let half = Duration::from_millis(500);
    // Budgets look when a second of the wall clock ends: these half seconds are between two looks.
    let looks_beside = |work: &dyn Fn()| {
        std::thread::sleep(Duration::from_secs_f64(1.2 - now() % 1.0));
        let before = agent.waits("budgets");
        work();
        agent.waits("budgets") - before
    };
    let without = looks_beside(&|| std::thread::sleep(half));
    let with = looks_beside(&|| drop(beside_threads(threads, 1000, Duration::ZERO, || std::thread::sleep(half))));
    // The alarm, and two short windows.
    assert!(without <= 1 && with >= 2, "{without} without, {with} with a flood");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_the_default_probes_count_a_flood_on_their_shared_budget() {
    if too_slow("root_the_default_probes_count_a_flood_on_their_shared_budget") {
        return;
    }
    let agent = default_probes();
    let count = |metrics: &Metrics| metrics.sum("kstrobe_syscall_duration_seconds_count", &[("syscall", "getppid")]);
    let before = count(&agent.scrape());
    let (second, burst) = (Duration::from_secs(1), 100);
    let calls = 8 * 100_000;
    let begin = Instant::now();
    for done in (0..calls).step_by(burst as usize) {
        // 100,000 a second.
        std::thread::sleep((begin + second * done / 100_000).saturating_duration_since(Instant::now()));
        load::getppid_calls(burst);
    }
    let metrics = agent.scrape();
    let ready = agent.get("/readyz").unwrap().1;
    for (labels, attached) in metrics.series("kstrobe_probe_attached", &[]) {
        assert_eq!(attached, 1.0, "{labels:?}\n{ready}");
    }
    let ratio = metrics.sum("kstrobe_probe_sampling_ratio", &[("probe", "syscalls")]);
    let (counted, calls) = (count(&metrics) - before, f64::from(calls));
    // Six standard deviations, as if all had been sampled at the last rate; other threads call it, too.
    let error = 6.0 * (calls * (1.0 / ratio - 1.0)).sqrt();
    assert!((counted - calls).abs() <= error + 0.001 * calls, "{counted} of {calls} at a ratio of {ratio}\n{ready}");
    agent.stop();
}

/// Calls of a function that does next to nothing, per second of this thread's CPU time.
fn calls_per_cpu_second() -> f64 {
    let (begin, before, mut calls) = (Instant::now(), cpu_seconds(), 0.0);
    while begin.elapsed() < Duration::from_millis(500) {
        (0..100).for_each(|_| kst_burn_one(1));
        calls += 100.0;
    }
    calls / (cpu_seconds() - before).max(1e-6)
}

/// Its program alone would be within the budget once few events are measured; what each breakpoint costs would stay.
#[test]
#[ignore = "needs root"]
fn root_a_breakpoint_that_is_hit_all_the_time_is_taken_off() {
    if too_slow("root_a_breakpoint_that_is_hit_all_the_time_is_taken_off") {
        return;
    }
    let probe = format!(
        "probe: trapped\nsummary: Calls of a small function.\nat: uprobe:{}:kst_burn_one\nbudget_cpu_percent: 2\n\
         metrics: {{ trapped_total: {{ type: counter }} }}\n",
        std::env::current_exe().unwrap().display()
    );
    let calm = calls_per_cpu_second();
    let agent = budgeted(&[("trapped", &probe)]);
    let mut during = f64::MAX;
    wait_for("the probe's end", Duration::from_secs(5), || {
        during = during.min(calls_per_cpu_second());
        agent.get("/readyz")?.1.contains("trapped: over its budget").then_some(())
    });
    let after = calls_per_cpu_second();
    let metrics = agent.scrape();
    let of = |name: &str| metrics.sum(name, &[("probe", "trapped")]);
    let off = [of("kstrobe_probe_over_budget"), of("kstrobe_probe_throttled_total"), of("kstrobe_probe_attached")];
    assert_eq!(off, [1.0, 1.0, 0.0], "off its hooks at once");
    assert!(during < 0.2 * calm, "{during:.0} calls a second with the probe, {calm:.0} without: no flood");
    assert!(after > recovered(during, calm), "{after:.0} calls a second afterwards, {calm:.0} without");
    agent.stop();
}
