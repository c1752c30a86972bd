//! The same probes by both engines on one load: programs in the kernel, and the agent over the records of an ftrace session.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::metrics::{Labels, Metrics};
use support::{load, wait_for};

/// Both engines see the same events, but each reads the clock at a moment of its own, a microsecond apart: what is timed
/// falls in the middle of buckets that are a power of ten wide, what is not timed must be the same to the bit.
fn probes(engine: &str) -> String {
    format!(
        r#"
probe: writes_{engine}
summary: Bytes that this test asks to be written, and what it got.
engine: {engine}
span: {{ start: 'syscall:[write, pwrite64]:enter', end: 'syscall:[write, pwrite64]:exit', where: comm == "kst-session", save: {{ asked: args.count }} }}
metrics:
  {engine}_asked_bytes: {{ type: histogram, value: start.asked, labels: {{ comm: comm, call: syscall }} }}
  {engine}_got_bytes_total: {{ type: counter, value: u64(retval), where: retval > 0 }}
  {engine}_calls_total: {{ type: counter, labels: {{ failed: retval < 0 }} }}
---
probe: sleeps_{engine}
summary: Sleeps of this test.
engine: {engine}
where: comm == "kst-session"
span: {{ start: 'syscall:pselect6:enter', end: 'syscall:pselect6:exit' }}
metrics:
  {engine}_sleep_seconds: {{ type: histogram, value: elapsed, labels: {{ comm: comm }}, buckets: {{ classic: [0.001, 0.1, 10] }} }}
---
probe: switches_{engine}
summary: How often this test leaves a CPU, by why.
engine: {engine}
at: tracepoint:sched:sched_switch
where: args.prev_comm == "kst-session"
metrics:
  {engine}_switches_total: {{ type: counter, labels: {{ state: args.prev_state }} }}
"#
    )
}

/// Values by name and labels.
type Values = BTreeMap<(String, Labels), f64>;

/// Series whose names begin with the engine's, without it.
fn of(metrics: &Metrics, engine: &str) -> Values {
    let names = [
        "asked_bytes_bucket",
        "asked_bytes_sum",
        "asked_bytes_count",
        "got_bytes_total",
        "calls_total",
        "switches_total",
    ];
    let timed = ["sleep_seconds_bucket", "sleep_seconds_count"];
    let mut found = BTreeMap::new();
    for name in names.into_iter().chain(timed) {
        for (labels, value) in metrics.series(&format!("kstrobe_{engine}_{name}"), &[]) {
            found.insert((name.to_owned(), labels.clone()), value);
        }
    }
    found
}

const WRITES: usize = 500;
const SLEEPS: u32 = 20;

fn work() {
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    let mut null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let bytes = vec![7; 70_000];
    for n in 0..WRITES {
        null.write_all(&bytes[..n * 137 % bytes.len()]).unwrap();
        // Not open for writing: fails.
        assert!(zero.write_at(&bytes[..n], 0).is_err());
    }
    load::pselect_sleeps(SLEEPS, Duration::from_millis(10));
}

fn measured(agent: &Agent) -> (Values, Values) {
    let scrape = agent.scrape();
    (of(&scrape, "bpf"), of(&scrape, "ftrace"))
}

#[test]
#[ignore = "needs root"]
fn root_both_engines_measure_the_same() {
    let yaml = format!("{}\n---\n{}", probes("bpf").trim(), probes("ftrace").trim());
    let agent = Setup { probes: &[("session", &yaml)], ..Setup::default() }.start();
    let scrape = agent.scrape();
    for probe in ["writes", "sleeps", "switches"] {
        for (engine, kind) in [("bpf", None), ("ftrace", Some("ftrace"))] {
            let probe = format!("{probe}_{engine}");
            let labels = [("probe", probe.as_str())];
            let (labels, attached) = scrape.series("kstrobe_probe_attached", &labels).next().expect("a series");
            assert_eq!(attached, 1.0, "{labels:?}");
            assert!(kind.is_none_or(|kind| labels["kind"] == kind), "{labels:?}");
        }
    }
    load::named("kst-session", work);
    // The last switch is the thread's end, which may come after `join` returns.
    let (bpf, ftrace) = wait_for("both engines", Duration::from_secs(90), || {
        Some(measured(&agent)).filter(|(bpf, ftrace)| bpf == ftrace)
    });
    assert_eq!(bpf, ftrace);
    let calls: f64 = bpf.iter().filter(|((name, _), _)| name == "asked_bytes_count").map(|(_, n)| n).sum();
    assert!(calls >= 2.0 * WRITES as f64 - 1.0, "{bpf:?}");
    let sleeps: f64 = bpf.iter().filter(|((name, _), _)| name == "sleep_seconds_count").map(|(_, n)| n).sum();
    assert_eq!(sleeps, f64::from(SLEEPS));
    let failed =
        bpf.iter().find(|((name, l), _)| name == "calls_total" && l.get("failed").is_some_and(|f| f == "true"));
    assert_eq!(failed.map(|(_, calls)| *calls), Some(WRITES as f64));
    let lost = agent.scrape();
    for reason in ["ring_buffer_full", "not_understood", "page_not_understood"] {
        assert_eq!(lost.sum("kstrobe_lost_total", &[("probe", "writes_ftrace"), ("reason", reason)]), 0.0, "{reason}");
    }
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_flood_of_records_is_measured_or_counted_as_lost() {
    let yaml = "probe: flood
summary: Calls of this test.
engine: ftrace
at: tracepoint:raw_syscalls:sys_enter
where: tid == TID
metrics:
  flood_calls_total: { type: counter }
";
    const CALLS: u32 = 300_000;
    load::named("kst-session", move || {
        let tid = nix::unistd::gettid().to_string();
        let yaml = yaml.replace("TID", &tid);
        let agent = Setup { probes: &[("session", &yaml)], ..Setup::default() }.start();
        load::getppid_calls(CALLS);
        let scrape = agent.scrape();
        let counted = scrape.sum("kstrobe_flood_calls_total", &[]);
        let lost = scrape.sum("kstrobe_lost_total", &[("probe", "flood"), ("reason", "ring_buffer_full")]);
        // Calls besides, for the agent's own start: the test talks to it.
        assert!(counted + lost >= f64::from(CALLS), "{counted} and {lost} lost of {CALLS}");
        assert!(counted > 0.0 && (lost > 0.0 || counted < 2.0 * f64::from(CALLS)), "{counted} and {lost} lost");
        agent.stop();
    });
}
