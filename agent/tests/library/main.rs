//! The library of shipped probes, area by area, under loads of known size. Each row has a probe, a load in a thread of a name of its
//! own, and what bpftrace counts on the same load in the same run. The agent runs all probes of an area at once.

#[path = "../support/mod.rs"]
mod support;

mod cgroups;
mod files;
mod memory;
mod network;
mod scheduler;
mod syscalls;

use std::time::Duration;
use support::agent::Setup;
use support::bpftrace::Bpftrace;
use support::metrics::Metrics;
use support::{lab, load, wait_for, witnesses};

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
    let needed = if lab().is_some() { &[][..] } else { &["bpftrace"][..] };
    if !witnesses(test, needed) {
        return;
    }
    let script = |(at, row): (usize, &Row)| {
        let maps = row.oracle.replace("COMM", &comm(at)).replace('@', &format!("@m{at}"));
        (!row.oracle.is_empty()).then_some(maps)
    };
    let scripts: Vec<String> = rows.iter().enumerate().filter_map(script).collect();
    let oracle = lab().is_none().then(|| Bpftrace::start(&scripts.join("\n")));
    let mut probes: Vec<&str> = rows.iter().map(|row| row.probe).collect();
    probes.dedup();
    let agent = Setup { arguments: &["--only", &probes.join(",")], ..Setup::default() }.start();
    let start = agent.scrape();
    let detached = |probe: &&&str| {
        let labels = [("probe", **probe)];
        let mut hooks = start.series("kstrobe_probe_attached", &labels).peekable();
        hooks.peek().is_none() || hooks.any(|(_, value)| value != 1.0)
    };
    let detached: Vec<_> = probes.iter().filter(detached).collect();
    assert!(detached.is_empty(), "{detached:?}: {:?}", agent.get("/api/v1/probes"));
    let made: Vec<Made> = rows.iter().enumerate().map(|(at, row)| (row.load)(&comm(at))).collect();
    let counted = |metrics: &Metrics, at: usize| {
        let (row, name) = (&rows[at], comm(at));
        let fixed = row.labels.iter().map(|(key, value)| (*key, value.replace("COMM", &name)));
        let all: Vec<(&str, String)> = fixed.chain(made[at].labels.iter().cloned()).collect();
        let labels: Vec<(&str, &str)> = all.iter().map(|(key, value)| (*key, value.as_str())).collect();
        metrics.sum(&format!("kstrobe_{}", row.metric), &labels)
    };
    // Threads that end a load may be counted a moment later, and polls at their next reading.
    let enough = |metrics: &Metrics| (0..rows.len()).all(|at| counted(metrics, at) >= made[at].count);
    let limit = std::time::Instant::now() + Duration::from_secs(7);
    let metrics = wait_for("a scrape", Duration::from_secs(20), || {
        let metrics = agent.scrape();
        (enough(&metrics) || std::time::Instant::now() > limit).then_some(metrics)
    });
    let witness = oracle.map(Bpftrace::stop);
    let mut wrong = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let (ours, load) = (counted(&metrics, at), made[at].count);
        let other = witness.as_ref().filter(|_| !row.oracle.is_empty());
        let other = other.map(|maps| maps.total(&format!("@m{at}")) as f64);
        println!("{}: load {load}, kstrobe {ours}, bpftrace {other:?}", row.probe);
        let within = load <= ours && other.is_none_or(|other| ours <= other);
        let equal = !row.exact || (load == ours && other.is_none_or(|other| ours == other));
        if !(within && equal) {
            let series: Vec<_> = metrics.series(row.metric, &[]).take(8).collect();
            wrong.push(format!(
                "{} {}{:?}: load {load}, kstrobe {ours}, bpftrace {other:?} {series:?}",
                row.probe, row.metric, made[at].labels
            ));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), agent.log());
    agent.stop();
}

/// Does something in a thread of this name and returns what came of it.
fn named<T: Send>(comm: &str, work: impl FnOnce() -> T + Send) -> T {
    let mut result = None;
    load::named(comm, || result = Some(work()));
    result.expect("the thread has ended")
}
