//! The library of shipped probes, area by area, under loads of known size. Each row has a probe, a load in a thread of a name of its
//! own, and what bpftrace counts on the same load in the same run. The agent runs all probes of an area at once.

#[path = "../support/mod.rs"]
mod support;

mod cgroups;
mod files;
mod functions;
mod memory;
mod network;
mod scheduler;
mod syscalls;

use std::time::{Duration, Instant};
use support::agent::Setup;
use support::bpftrace::Bpftrace;
use support::metrics::Metrics;
use support::{lab, load, not_asked_for, wait_for, witnesses};

/// A probe, its load, and how both are counted.
struct Row {
    probe: &'static str,
    /// Name of the metric without the prefix; of a histogram with `_count` or `_sum`.
    metric: &'static str,
    /// Labels of the series that count. `COMM` is the name of the load's thread.
    labels: &'static [(&'static str, &'static str)],
    /// Whether the series count this load and nothing else.
    exact: bool,
    /// A probe of bpftrace that counts the same in `@`; `COMM` is the name of the load's thread. Empty where it has no hook for it.
    oracle: &'static str,
    /// Makes the events in a thread of this name; says how many, and further labels.
    load: fn(&str) -> Made,
}

/// What a load made.
struct Made {
    count: f64,
    labels: Vec<(&'static str, String)>,
}

impl Made {
    fn events(count: impl Into<f64>) -> Made {
        Made { count: count.into(), labels: Vec::new() }
    }

    fn with(mut self, label: &'static str, value: impl ToString) -> Made {
        self.labels.push((label, value.to_string()));
        self
    }
}

/// Names of threads have 15 bytes at most.
fn comm(at: usize) -> String {
    format!("kst-row-{at}")
}

/// Runs all loads with all probes, and compares. What a load makes is at most what the agent counts; that is at most what bpftrace
/// counts, which is attached before it and longer. Where a series counts one load alone, all three are equal.
fn compare(test: &str, rows: &[Row]) {
    // Guests of the lab have no bpftrace, and kernels older than some of the hooks.
    if lab().is_none() && !witnesses(test, &["bpftrace"]) {
        return;
    }
    let oracle = lab().is_none().then(|| Bpftrace::start(&script(rows)));
    let mut probes: Vec<&str> = rows.iter().map(|row| row.probe).collect();
    probes.dedup();
    let agent = Setup { arguments: &["--only", &probes.join(",")], ..Setup::default() }.start();
    let start = agent.scrape();
    let is_attached = |probe: &str| {
        let labels = [("probe", probe)];
        let mut hooks = start.series("kstrobe_probe_attached", &labels).peekable();
        hooks.peek().is_some() && hooks.all(|(_, value)| value == 1.0)
    };
    let (attached, detached): (Vec<usize>, Vec<usize>) = (0..rows.len()).partition(|at| is_attached(rows[*at].probe));
    let detached: Vec<&str> = detached.iter().map(|at| rows[*at].probe).collect();
    assert!(lab().is_some() || detached.is_empty(), "{detached:?}: {:?}", agent.get("/api/v1/probes"));
    detached.iter().for_each(|probe| not_asked_for(test, &format!("this kernel lacks a hook of {probe}")));
    let made: Vec<(usize, Made)> = attached.into_iter().map(|at| (at, (rows[at].load)(&comm(at)))).collect();
    // Threads that end a load may be counted a moment later, and polls at their next reading.
    let limit = Instant::now() + Duration::from_secs(7);
    let metrics = wait_for("a scrape", Duration::from_secs(20), || {
        let metrics = agent.scrape();
        let enough = made.iter().all(|(at, made)| counted(&metrics, *at, &rows[*at], made) >= made.count);
        (enough || Instant::now() > limit).then_some(metrics)
    });
    let witness = oracle.map(Bpftrace::stop);
    let mut wrong = Vec::new();
    for (at, made) in &made {
        let row = &rows[*at];
        let (ours, load) = (counted(&metrics, *at, row, made), made.count);
        let other = witness.as_ref().filter(|_| !row.oracle.is_empty());
        let other = other.map(|maps| maps.total(&format!("@m{at}")) as f64);
        let line = format!("{} {}: load {load}, kstrobe {ours}, bpftrace {other:?}", row.probe, row.metric);
        println!("{line}");
        let within = load <= ours && other.is_none_or(|other| ours <= other);
        let equal = !row.exact || (load == ours && other.is_none_or(|other| ours == other));
        if !(within && equal) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), agent.log());
    agent.stop();
}

/// One script of bpftrace for all rows, each with a map of its own.
fn script(rows: &[Row]) -> String {
    let one = |(at, row): (usize, &Row)| row.oracle.replace("COMM", &comm(at)).replace('@', &format!("@m{at}"));
    rows.iter().enumerate().map(one).collect::<Vec<_>>().join("\n")
}

/// What the agent has counted for a row.
fn counted(metrics: &Metrics, at: usize, row: &Row, made: &Made) -> f64 {
    let fixed = row.labels.iter().map(|(key, value)| (*key, value.replace("COMM", &comm(at))));
    let all: Vec<(&str, String)> = fixed.chain(made.labels.iter().cloned()).collect();
    let labels: Vec<(&str, &str)> = all.iter().map(|(key, value)| (*key, value.as_str())).collect();
    metrics.sum(&format!("kstrobe_{}", row.metric), &labels)
}

/// Does something in a thread of this name and returns what came of it.
fn named<T: Send>(comm: &str, work: impl FnOnce() -> T + Send) -> T {
    let mut result = None;
    load::named(comm, || result = Some(work()));
    result.expect("the thread has ended")
}
