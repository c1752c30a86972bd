//! Perf events: profiles, software and hardware events, against what the kernel's own accounts say of the same load.

mod support;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use std::time::{Duration, Instant};
use support::agent::Agent;
use support::{emulated, load};

const PROFILE: &str = "
probe: task_samples
summary: What runs, 99 times a second on each CPU.
at: profile:hz:99
where: comm == \"kst-busy\"
metrics:
  task_samples_total: { type: counter, labels: { user: args.user_mode } }
  task_sampled_seconds_total: { type: counter, value: args.sample_period * 1ns }
";

/// Computes for so long, and says how much CPU time it had, in user mode and in the kernel, and how long it ran.
fn burn(time: Duration) -> (f64, f64, load::Ran) {
    let (begin, mut ran) = (Instant::now(), load::Ran::new());
    let mut x = 1u64;
    while begin.elapsed() < time {
        ran.look();
        for _ in 0..10_000 {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    (seconds(usage.user_time()), seconds(usage.system_time()), ran)
}

#[test]
#[ignore = "needs root"]
fn root_a_profile_counts_cpu_time() {
    let agent = Agent::start_with(&[], &[("task_samples", PROFILE)]);
    let mut spent = (0.0, 0.0, load::Ran::new());
    load::named("kst-busy", || spent = burn(Duration::from_secs(3)));
    let after = agent.scrape();
    let samples = |user: &str| after.sum("kstrobe_task_samples_total", &[("user", user)]);
    let (user, system) = (samples("true"), samples("false"));
    // A sample stands for 10.1 ms: the ends of the load and each switch to another task may cost one.
    // An emulated CPU that stood still makes up for its time, but not for the samples.
    let (expected, slack, lost) = ((spent.0 + spent.1) * 99.0, 12.0, if emulated() { 0.4 } else { 0.05 });
    let all = user + system;
    let most = if emulated() { expected * 1.05 + slack } else { spent.2.most_samples(99.0).max(expected) };
    let range = expected * (1.0 - lost) - slack..=most;
    assert!(range.contains(&all), "{all} samples, {expected:.0} expected of {spent:?}");
    assert!(user >= 0.9 * all, "{user} of {all} samples in user mode, it does nothing else");
    let seconds = after.sum("kstrobe_task_sampled_seconds_total", &[]);
    assert!((seconds - all * 0.010_101_010).abs() < 1e-6, "{seconds} s of {all} samples");
    agent.stop();
}

const BY_CPU: &str = "
probe: pinned_samples
summary: What runs, by CPU.
at: profile:hz:99
where: comm == \"kst-pinned\"
metrics:
  pinned_samples_total: { type: counter, labels: { cpu: cpu } }
---
probe: beats
summary: Ten times a second.
at: interval:ms:100
metrics:
  beats_total: { type: counter, labels: { cpu: cpu } }
";

/// The second CPU, online again at the end.
struct SecondCpu;

impl SecondCpu {
    fn set(online: bool) {
        std::fs::write("/sys/devices/system/cpu/cpu1/online", if online { "1" } else { "0" }).unwrap();
    }
}

impl Drop for SecondCpu {
    fn drop(&mut self) {
        SecondCpu::set(true);
    }
}

/// A CPU that was offline is sampled again, whether the agent looked in between or not.
#[test]
#[ignore = "needs root"]
fn root_a_cpu_that_comes_back_is_sampled_again() {
    let test = "root_a_cpu_that_comes_back_is_sampled_again";
    if support::lab().is_none() {
        return support::not_run(test, "it takes a CPU of a machine that nobody else needs");
    }
    let second = SecondCpu;
    let agent = Agent::start_with(&[], &[("pinned_samples", BY_CPU)]);
    let samples = || {
        let before = agent.scrape();
        load::named("kst-pinned", || {
            let mut cpus = nix::sched::CpuSet::new();
            cpus.set(1).unwrap();
            nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cpus).unwrap();
            burn(Duration::from_secs(1));
        });
        let after = agent.scrape();
        let of = |name: &str, cpu: &str| after.sum(name, &[("cpu", cpu)]) - before.sum(name, &[("cpu", cpu)]);
        (of("kstrobe_pinned_samples_total", "1"), of("kstrobe_beats_total", "0"))
    };
    let begin = Instant::now();
    let in_time = |what: &str| assert!(begin.elapsed() < Duration::from_secs(180), "{what}\n{}", agent.log());
    let sampled_again = || {
        while samples().0 <= 20.0 {
            in_time("it is not sampled");
        }
    };
    sampled_again();
    // For a moment, so that both looks see the same CPUs.
    SecondCpu::set(false);
    SecondCpu::set(true);
    sampled_again();
    SecondCpu::set(false);
    let follows = || agent.log().matches("the CPUs that are online\" probe=pinned_samples").count();
    let before = follows();
    while follows() == before {
        in_time("it does not see that it is away");
        std::thread::sleep(Duration::from_millis(100));
    }
    SecondCpu::set(true);
    sampled_again();
    assert!(samples().1 > 2.0, "the first CPU was there all the time");
    drop(second);
    agent.stop();
}

const FAULTS: &str = "
probe: faults
summary: Page faults.
at: software:page-faults:1
where: comm == \"kst-faults\"
metrics:
  faults_total: { type: counter, labels: { user: args.user_mode } }
---
probe: minor_faults
summary: Page faults without reading a disk.
at: software:minor-faults:1
where: comm == \"kst-faults\"
metrics:
  minor_faults_total: { type: counter }
---
probe: faults_at
summary: Page faults in the memory that the test has made, by the lowest bits of their page.
at: software:faults:1
where: comm == \"kst-faults\"
metrics:
  faults_at_total: { type: counter, labels: { page: u64(args.addr) >> 12 & 3 } }
---
probe: every_tenth
summary: One of ten.
at: software:page-faults:10
metrics:
  tenth_faults_total: { type: counter, labels: { cpu: cpu } }
";

#[test]
#[ignore = "needs root"]
fn root_page_faults_are_those_of_getrusage() {
    let agent = Agent::start_with(&[], &[("faults", FAULTS)]);
    let before = agent.scrape();
    let pages = 4000;
    let mut taken = 0;
    load::named("kst-faults", || taken = load::touch_pages(pages));
    let after = agent.scrape();
    let sum = |name: &str| after.sum(name, &[]) - before.sum(name, &[]);
    let [faults, minor] = ["kstrobe_faults_total", "kstrobe_minor_faults_total"].map(sum);
    // The thread's own start and end are outside what it measures of itself.
    assert!((taken as f64..taken as f64 + 64.0).contains(&faults), "{faults} counted, getrusage says {taken}");
    assert!((taken as f64..taken as f64 + 64.0).contains(&minor), "{minor} counted, getrusage says {taken}");
    assert!(taken >= pages as i64, "{taken} faults of {pages} pages");
    for page in 0..4 {
        let n = after.sum("kstrobe_faults_at_total", &[("page", &page.to_string())]);
        assert!(n >= pages as f64 / 4.0 && n < pages as f64 / 4.0 + 64.0, "page {page}: {n}");
    }
    let tenth = sum("kstrobe_tenth_faults_total");
    assert!(tenth >= (faults / 10.0).floor() - 2.0, "{tenth} of at least {faults} faults");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_hardware_event_counts_or_says_why_not() {
    let probe = "
probe: cycles
summary: Cycles.
at: hardware:cycles:1000000
metrics:
  cycle_samples_total: { type: counter, labels: { cpu: cpu } }
";
    let agent = Agent::start_with(&[], &[("cycles", probe)]);
    load::named("kst-busy", || {
        let _ = burn(Duration::from_millis(300));
    });
    let after = agent.scrape();
    let (labels, _) = after.series("kstrobe_probe_attached", &[("probe", "cycles")]).next().unwrap();
    // A processor whose counters the kernel knows has a PMU in sysfs with this event, which arm64 writes with an underscore.
    let pmus =
        std::fs::read_dir("/sys/bus/event_source/devices").unwrap().map(|pmu| pmu.unwrap().path().join("events"));
    let counters = pmus.filter_map(|events| std::fs::read_dir(events).ok()).flatten().any(|event| {
        let name = event.unwrap().file_name();
        name == "cpu-cycles" || name == "cpu_cycles"
    });
    if counters {
        assert_eq!(labels["reason"], "");
        assert!(after.sum("kstrobe_cycle_samples_total", &[]) > 0.0);
    } else {
        assert!(labels["reason"].contains("no hardware counter for cpu-cycles"), "{labels:?}");
        assert_eq!(after.sum("kstrobe_cycle_samples_total", &[]), 0.0);
    }
    agent.stop();
}
