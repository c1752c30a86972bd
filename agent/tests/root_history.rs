//! The history holds what `/metrics` counts, second by second, exactly, and a reload in between loses none of it.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::memory_group::MemoryGroup;
use support::metrics::Histogram;
use support::{load, now, wait_for};

const LIMIT: Duration = Duration::from_secs(20);
/// As long as one thread of this name calls.
const COMM: &str = "kst-pattern";

fn probe(summary: &str, extra: &str) -> String {
    format!(
        "probe: slept\nsummary: {summary}\nspan: {{ start: 'syscall:pselect6:enter', end: 'syscall:pselect6:exit' }}\n\
         where: comm == \"{COMM}\"{extra}\nmetrics:\n  \
         slept_seconds: {{ type: histogram, value: elapsed, labels: {{ comm: comm, cpu: cpu }} }}\n  \
         slept_calls_total: {{ type: counter, labels: {{ comm: comm }} }}\n"
    )
}

/// Sleeps from well within the next second on, and returns the second in which the sleeps began and that after their end.
fn sleep_in_a_second(count: u32, each: Duration) -> (u64, u64) {
    std::thread::sleep(Duration::from_secs_f64(1.3 - now().fract()));
    let begun = now();
    load::named(COMM, || load::pselect_sleeps(count, each));
    (begun as u64, now() as u64 + 1)
}

/// Waits until the second before `end` is in the history.
fn wait_until(agent: &Agent, end: u64) {
    wait_for("the second in the history", LIMIT, || {
        (agent.json("/api/v1/history")["newest"].as_u64()? >= end).then_some(())
    });
}

/// The answer for a range of seconds, one group of everything.
fn query(agent: &Agent, (from, to): (u64, u64), more: &str) -> Value {
    agent.json(&path_of((from, to), more))
}

fn path_of((from, to): (u64, u64), more: &str) -> String {
    format!("/api/v1/query?metric=slept_seconds&from={from}&to={to}&step=1{more}")
}

fn count(answer: &Value) -> u64 {
    answer["groups"].as_array().unwrap().iter().map(|group| group["total"]["count"].as_u64().unwrap()).sum()
}

/// Counts at or below a bound, in all groups and columns.
fn at_most(answer: &Value, le: f64) -> u64 {
    let upper = |at: &Value| answer["bounds"][at.as_u64().unwrap() as usize][1].as_f64().unwrap_or(f64::INFINITY);
    let pairs = |column: &Value| -> u64 {
        let column = column.as_array().unwrap().chunks(2);
        column.filter(|pair| upper(&pair[0]) <= le * (1.0 + 1e-9)).map(|pair| pair[1].as_u64().unwrap()).sum()
    };
    let columns = |group: &Value| -> u64 { group["heat"].as_array().unwrap().iter().map(pairs).sum() };
    answer["groups"].as_array().unwrap().iter().map(columns).sum()
}

fn assert_same(answer: &Value, scraped: &Histogram) {
    for (le, count) in &scraped.buckets {
        assert_eq!(at_most(answer, *le) as f64, *count, "le={le}: {answer}");
    }
    assert_eq!(count(answer) as f64, scraped.count);
    let sum: f64 =
        answer["groups"].as_array().unwrap().iter().map(|group| group["total"]["sum"].as_f64().unwrap()).sum();
    assert!((sum - scraped.sum).abs() < 1e-6, "{sum} and {}", scraped.sum);
}

#[test]
#[ignore = "needs root"]
fn root_the_history_has_each_second_as_metrics_count_it() {
    let first = probe("Sleeps.", "");
    let agent =
        Setup { probes: &[("slept", &first)], arguments: &["--web.enable-lifecycle"], ..Setup::default() }.start();
    let scraped = |agent: &Agent| agent.scrape().histogram("kstrobe_slept_seconds", &[]);
    wait_until(&agent, now() as u64);
    let before = scraped(&agent);
    let short = sleep_in_a_second(100, Duration::from_millis(4));
    let between = scraped(&agent);
    let long = sleep_in_a_second(25, Duration::from_millis(16));
    let after = scraped(&agent);
    wait_until(&agent, long.1);
    assert_eq!((between.since(&before).count, after.since(&between).count), (100.0, 25.0));
    assert_same(&query(&agent, short, "&by=cpu"), &between.since(&before));
    assert_same(&query(&agent, long, "&by=comm,cpu"), &after.since(&between));
    // All of them are in these seconds, and no sleep of the first kind is as long as one of the second.
    let all = query(&agent, (short.0 - 5, long.1), "");
    assert_same(&all, &after);
    assert_eq!(at_most(&query(&agent, long, ""), 0.01), 0);
    let none = query(&agent, (short.0, long.1), "&match=comm!~%22kst.*%22");
    assert_eq!(count(&none), 0);

    // The same metrics by another program: its counts begin at 0, while the first one's last counts are not in any scrape.
    load::named(COMM, || load::pselect_sleeps(30, Duration::from_millis(1)));
    agent.write("probes/slept.yaml", &probe("Sleeps.", " && pid > 1"));
    assert!(agent.reload(200).starts_with("reloaded; probes: 0 unchanged, 1 replaced"));
    assert_eq!(scraped(&agent).count, 0.0);
    let last = sleep_in_a_second(10, Duration::from_millis(2));
    wait_until(&agent, last.1);
    let whole = query(&agent, (short.0 - 5, last.1), "");
    assert_eq!(count(&whole), 100 + 25 + 30 + 10);
    assert_same(&query(&agent, last, ""), &scraped(&agent));
    let calls =
        agent.json(&format!("/api/v1/query?metric=kstrobe_slept_calls_total&from={}&to={}", short.0 - 5, last.1));
    assert_eq!(calls["groups"][0]["total"]["count"], 165.0);
    let marks = whole["marks"].as_array().unwrap();
    assert!(marks.iter().any(|mark| mark["kind"] == "reload"), "{marks:?}");
    let metrics = agent.scrape();
    assert!(metrics.sum("kstrobe_history_kept_seconds", &[]) >= 4.0);
    assert!(metrics.sum("kstrobe_history_size_bytes", &[]) > 0.0);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_warnings_of_the_kernel_are_marks() {
    let agent = Setup { probes: &[("slept", &probe("Sleeps.", ""))], ..Setup::default() }.start();
    let begun = now() as u64;
    wait_until(&agent, begun);
    let group = MemoryGroup::new("oom", 8 << 20);
    let words = group.words();
    // tail(1) keeps a line in memory, and this one has no end.
    let status = Command::new(&words[0]).args(&words[1..]).args(["tail", "/dev/zero"]).status().unwrap();
    assert!(!status.success() && group.oom_kills() == 1, "{status}");
    load::named(COMM, || load::pselect_sleeps(1, Duration::from_millis(1)));
    let mark = wait_for("the mark of the kill", LIMIT, || {
        // 400 until the first whole second with the metric is over.
        let answer = agent.json_once_there(&path_of((begun, now() as u64), ""))?;
        let is_kernel = |mark: &&Value| mark["kind"] == "kernel";
        answer["marks"].as_array()?.iter().find(is_kernel).cloned()
    });
    // The first line of several that the kernel writes of one kill.
    let text = mark["text"].as_str().unwrap();
    assert!(text.starts_with("tail invoked oom-killer") && text.contains(" more"), "{text}");
    assert!((begun as f64..now()).contains(&mark["time"].as_f64().unwrap()), "{mark}");
}

#[test]
#[ignore = "needs root"]
fn root_a_history_that_was_off_answers_nothing_of_before() {
    let slept = probe("Sleeps.", "");
    let agent =
        Setup { probes: &[("slept", &slept)], arguments: &["--web.enable-lifecycle"], ..Setup::default() }.start();
    let slept = sleep_in_a_second(10, Duration::from_millis(2));
    wait_until(&agent, slept.1);
    let path = path_of((slept.0, slept.1), "");
    // The second of two equal queries within a second is answered with what was made for the first.
    assert_eq!([count(&agent.json(&path)), count(&agent.json(&path))], [10, 10]);
    let url = format!("http://{}/api/v1/live", agent.address());
    let mut reader =
        Command::new("curl").args(["--silent", "--no-buffer", &url]).stdout(Stdio::piped()).spawn().unwrap();
    let mut seconds = BufReader::new(reader.stdout.take().unwrap()).lines();
    assert_eq!(seconds.next().unwrap().unwrap(), "event: second");
    let on = std::fs::read_to_string(agent.folder().join("kstrobe.yaml")).unwrap();
    agent.write("kstrobe.yaml", &format!("{on}history: {{ enabled: false }}\n"));
    agent.reload(200);
    assert!(reader.wait().unwrap().success() && seconds.all(|line| line.unwrap() != "event: dropped"));
    let (status, off) = agent.get(&path).unwrap();
    assert!(status == 404 && off.contains("history.enabled"), "{status} {off}");
    agent.write("kstrobe.yaml", &on);
    agent.reload(200);
    // The same query: the metric has no second, or only those since then.
    let again = || agent.get(&path).unwrap();
    let until = now() + 3.0;
    while now() < until {
        let (status, text) = again();
        let none = status == 400 || count(&serde_json::from_str(&text).unwrap()) == 0;
        assert!(none, "{status} {text}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(again().0, 200);
    agent.stop();
}
