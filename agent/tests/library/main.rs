//! The library of shipped probes, area by area, under loads of known size. Each row has a probe, a load in a thread of a name of its
//! own, and what bpftrace counts on the same load in the same run. The agent runs all probes of an area at once.

#[path = "../support/mod.rs"]
mod support;

mod cgroups;
mod files;
mod functions;
mod histograms;
mod memory;
mod network;
mod scheduler;
mod syscalls;

use std::time::{Duration, Instant};
use support::agent::Setup;
use support::bpftrace::{Bpftrace, Maps};
use support::metrics::{Histogram, Metrics};
use support::{Agreement, lab, load, not_asked_for, wait_for, witnesses};

/// A probe, its load, and how both are counted.
struct Row {
    probe: &'static str,
    /// Name of the metric without the prefix; of a histogram that is not compared by its bounds with `_count` or `_sum`.
    metric: &'static str,
    /// Labels of the series that count. `COMM` is the name of the load's thread.
    labels: &'static [(&'static str, &'static str)],
    /// Whether the series count this load and nothing else, and not the whole machine.
    exact: bool,
    oracle: Oracle,
    /// Makes the events in a thread of this name; says how many, and further labels.
    load: fn(&str) -> Made,
}

/// What bpftrace does to have the same number. `COMM` is the name of the load's thread.
enum Oracle {
    /// No hook of bpftrace has the number.
    None,
    /// The events of these hooks.
    Count { at: &'static str },
    /// A sum over the events of these hooks.
    Sum { at: &'static str, value: &'static str },
    /// The events of which the probe counts a part: an upper bound.
    Whole { at: &'static str },
    /// Each value at these hooks, in units of which so many are one of the metric.
    Values { at: &'static str, value: &'static str, per: f64 },
    /// Each time from an event to the next one of the same key.
    Times { start: &'static str, end: &'static str, keys: [&'static str; 2] },
}

const fn counts(at: &'static str) -> Oracle {
    Oracle::Count { at }
}

const fn sums(at: &'static str, value: &'static str) -> Oracle {
    Oracle::Sum { at, value }
}

const fn whole(at: &'static str) -> Oracle {
    Oracle::Whole { at }
}

const fn values(at: &'static str, value: &'static str, per: f64) -> Oracle {
    Oracle::Values { at, value, per }
}

/// Times of one key at both ends.
const fn times(start: &'static str, end: &'static str, key: &'static str) -> Oracle {
    Oracle::Times { start, end, keys: [key, key] }
}

/// Nanoseconds by which a time may differ between two tools, each of which runs within the other's.
const TOOL_OVERHEAD_NS: f64 = 5_000.0;
/// Events of the whole machine that one tool may see before a mark and the other behind it, being on another CPU.
const AT_THE_EDGES: f64 = 2.0;
/// Share of the whole machine's times, and number of them, that may be longer for one tool by an interrupt between the two tools' programs.
const INTERRUPTED: (f64, f64) = (0.02, 5.0);
/// Processes that do not exist: bpftrace counts apart what follows a call for the group of each, and nothing after the last.
/// During a scrape, which has some events of its time or not.
const SCRAPE: i32 = 0x3fff_0001;
/// Between the first scrape and the last.
const BETWEEN: i32 = 0x3fff_0002;
const END: i32 = 0x3fff_0003;

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

/// Runs all loads with all probes, and compares. What a load makes is at most what the agent counts. bpftrace counts what happens
/// between the first scrape and the last, and during these two: where a series counts one load alone, all three numbers are equal.
fn compare(test: &str, rows: &[Row]) {
    // Guests of the lab have no bpftrace, and kernels older than some of the hooks.
    if lab().is_none() && !witnesses(test, &["bpftrace"]) {
        return;
    }
    let oracle = lab().is_none().then(|| Bpftrace::start(&script(rows)));
    let mut probes: Vec<&str> = rows.iter().map(|row| row.probe).collect();
    probes.sort_unstable();
    probes.dedup();
    let agent = Setup { arguments: &["--only", &probes.join(",")], ..Setup::default() }.start();
    load::getpgid_calls(SCRAPE, 1);
    let start = agent.scrape();
    load::getpgid_calls(BETWEEN, 1);
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
    wait_for("enough events", Duration::from_secs(20), || {
        let metrics = agent.scrape();
        let enough = made.iter().all(|(at, made)| ours(&metrics, *at, &rows[*at], made).count() >= made.count);
        (enough || Instant::now() > limit).then_some(())
    });
    load::getpgid_calls(SCRAPE, 1);
    let metrics = agent.scrape();
    load::getpgid_calls(END, 1);
    let witness = oracle.map(Bpftrace::stop);
    let mut wrong = Vec::new();
    for (at, made) in &made {
        let row = &rows[*at];
        let now = ours(&metrics, *at, row, made);
        // What nothing else counts is of this load alone, or a level.
        let ours = match row.oracle {
            Oracle::None => now,
            _ => now.since(&ours(&start, *at, row, made)),
        };
        let (said, agreed) = match &witness {
            Some(maps) => beside(row, &ours, maps, *at),
            None => (String::new(), true),
        };
        let (count, load) = (ours.count(), made.count);
        let line = format!("{} {}: load {load}, kstrobe {count}{said}", row.probe, row.metric);
        println!("{line}");
        // What the machine makes in the meantime is in no load.
        if !agreed || count < load || (row.exact && count != load) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), agent.log());
    agent.stop();
}

/// What bpftrace says of a row, and whether that agrees.
fn beside(row: &Row, ours: &Ours, maps: &Maps, at: usize) -> (String, bool) {
    let (between, scrapes) = (format!("@between{at}"), format!("@scrapes{at}"));
    let total = [&between, &scrapes].map(|map| maps.total(map) as f64);
    let values = [&between, &scrapes].map(|map| maps.counts_by_value(map));
    let at_most = |[low, high]: [f64; 2]| {
        let of = |values: &[(f64, f64)], bound| values.iter().filter(|(v, _)| *v <= bound).map(|(_, n)| n).sum::<f64>();
        [of(&values[0], low), of(&values[0], high) + of(&values[1], high)]
    };
    let slack = if row.exact { 0.0 } else { AT_THE_EDGES };
    let fits = |ours: f64, [least, most]: [f64; 2], slack: f64| least - slack <= ours && ours <= most + slack;
    let record = |[least, most]: [f64; 2], bounds: usize| {
        let plain = Agreement::new(row.probe, row.metric, "bpftrace", ours.count(), least);
        Agreement { bounds, theirs: (least, most), ..plain }.record();
    };
    let said = |[least, most]: [f64; 2]| format!(", bpftrace {least} to {most}");
    let histogram = match (&row.oracle, ours) {
        (Oracle::None, _) => return (String::new(), true),
        (Oracle::Values { .. } | Oracle::Times { .. }, Ours::Buckets(histogram)) => histogram,
        (Oracle::Whole { .. }, _) => {
            let most = total[0] + total[1];
            return (format!(", bpftrace at most {most}"), ours.count() <= most + slack);
        }
        _ => {
            let range = [total[0], total[0] + total[1]];
            record(range, 0);
            return (said(range), fits(ours.count(), range, slack));
        }
    };
    let count = at_most([f64::MAX; 2]);
    // Units of a value that are one of the metric; by how much values may differ; how many may differ by more.
    let (per, overhead, late) = match row.oracle {
        Oracle::Values { per, .. } => (per, 0.0, slack),
        _ if row.exact => (1e9, TOOL_OVERHEAD_NS, 1.0),
        _ => (1e9, TOOL_OVERHEAD_NS, slack + count[1] * INTERRUPTED.0 + INTERRUPTED.1),
    };
    let is_apart = |(le, n): &&(f64, f64)| !fits(*n, at_most([le * per - overhead, le * per + overhead]), late);
    let apart: Vec<_> = histogram.buckets.iter().filter(is_apart).collect();
    record(count, histogram.buckets.len());
    let more = if apart.is_empty() { String::new() } else { format!(", apart at {apart:?} of {values:?}") };
    (said(count) + &more, apart.is_empty() && fits(ours.count(), count, slack))
}

/// One script of bpftrace for all rows, each with maps of its own.
fn script(all: &[Row]) -> String {
    let rows = all.iter().enumerate().map(|(at, row)| {
        let count = |key: &str, value: &str| {
            format!(
                "if (@on == {BETWEEN}) {{ @between{at}{key} = {value}; }} \
                 if (@on == {SCRAPE}) {{ @scrapes{at}{key} = {value}; }}"
            )
        };
        let text = match row.oracle {
            Oracle::None => String::new(),
            Oracle::Count { at: hooks } | Oracle::Whole { at: hooks } => {
                format!("{hooks} {{ {} }}\n", count("", "count()"))
            }
            Oracle::Sum { at: hooks, value } => format!("{hooks} {{ {} }}\n", count("", &format!("sum({value})"))),
            Oracle::Values { at: hooks, value, .. } => {
                format!("{hooks} {{ {} }}\n", count(&format!("[{value}]"), "count()"))
            }
            // The end of one may be the start of the next.
            Oracle::Times { start, end, keys: [key, end_key] } => format!(
                "{end} {{ if (@s{at}[{end_key}]) {{ $ns = nsecs - @s{at}[{end_key}]; {} delete(@s{at}[{end_key}]); }} }}\n\
                 {start} {{ @s{at}[{key}] = nsecs; }}\n",
                count("[$ns]", "count()")
            ),
        };
        text.replace("COMM", &comm(at))
    });
    let times =
        |(at, row): (usize, &Row)| matches!(row.oracle, Oracle::Times { .. }).then(|| format!("clear(@s{at}); "));
    let clear: String = all.iter().enumerate().filter_map(times).collect();
    let marks = format!(
        "tracepoint:syscalls:sys_enter_getpgid /args->pid >= {SCRAPE} && args->pid <= {END}/ {{ @on = args->pid; }}\n"
    );
    marks + &rows.collect::<String>() + &format!("END {{ clear(@on); {clear}}}\n")
}

/// What the agent has counted for a row.
enum Ours {
    Count(f64),
    Buckets(Histogram),
}

impl Ours {
    fn count(&self) -> f64 {
        match self {
            Ours::Count(count) => *count,
            Ours::Buckets(histogram) => histogram.count,
        }
    }

    fn since(&self, earlier: &Ours) -> Ours {
        match (self, earlier) {
            (Ours::Count(now), earlier) => Ours::Count(now - earlier.count()),
            (Ours::Buckets(now), Ours::Buckets(earlier)) => Ours::Buckets(now.since(earlier)),
            (Ours::Buckets(now), Ours::Count(_)) => Ours::Buckets(now.clone()),
        }
    }
}

fn ours(metrics: &Metrics, at: usize, row: &Row, made: &Made) -> Ours {
    let fixed = row.labels.iter().map(|(key, value)| (*key, value.replace("COMM", &comm(at))));
    let all: Vec<(&str, String)> = fixed.chain(made.labels.iter().cloned()).collect();
    let labels: Vec<(&str, &str)> = all.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let name = format!("kstrobe_{}", row.metric);
    match row.oracle {
        Oracle::Values { .. } | Oracle::Times { .. } => Ours::Buckets(metrics.histogram(&name, &labels)),
        _ => Ours::Count(metrics.sum(&name, &labels)),
    }
}

/// Does something in a thread of this name and returns what came of it.
fn named<T: Send>(comm: &str, work: impl FnOnce() -> T + Send) -> T {
    let mut result = None;
    load::named(comm, || result = Some(work()));
    result.expect("the thread has ended")
}
