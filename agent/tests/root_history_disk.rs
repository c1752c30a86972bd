//! The history on disk: what an agent has counted is there after a SIGKILL, a full disk harms nothing else, and what is exported adds
//! up to `/metrics`.

mod support;

use kstrobe_history::disk::{Archive, DiskError};
use kstrobe_history::{Change, MetricChanges};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::agent::{Agent, Setup, command};
use support::{Folder, load, now, wait_for, witnesses};

const LIMIT: Duration = Duration::from_secs(30);
const COMM: &str = "kst-disk";
/// Each sleep of a thread of this name is an observation.
const PROBE: &str = "probe: slept\nsummary: Sleeps.\n\
    span: { start: 'syscall:pselect6:enter', end: 'syscall:pselect6:exit' }\n\
    where: comm == \"kst-disk\"\nmetrics:\n  \
    slept_seconds: { type: histogram, value: elapsed, labels: { comm: comm, cpu: cpu } }\n  \
    slept_calls_total: { type: counter, labels: { comm: comm } }\n";

fn start(history: &str) -> Agent {
    let config = format!("history: {history}\n");
    Setup { probes: &[("slept", PROBE)], config: &config, ..Setup::default() }.start()
}

/// Sleeps well within a second, which is returned.
fn sleep_in_a_second(count: u32) -> u64 {
    std::thread::sleep(Duration::from_secs_f64(1.3 - now().fract()));
    let second = now() as u64;
    load::named(COMM, || load::pselect_sleeps(count, Duration::from_millis(1)));
    assert_eq!(now() as u64, second, "this machine is too busy for the test");
    second
}

/// Sleeps by second, as they are on the disk; which of them are not there is up to the caller.
fn on_disk(path: &Path) -> (BTreeMap<u64, u64>, u64) {
    let (mut seconds, mut newest) = (BTreeMap::new(), 0);
    let damaged = Archive::open(path).unwrap().replay(0, u64::MAX, |replayed| {
        let calls = |changes: &MetricChanges| -> u64 {
            let is_calls = changes.about.name == "kstrobe_slept_calls_total";
            let increase = |change: &Change| if let Change::Counter(increase) = change { *increase } else { 0 };
            changes.rows.iter().filter(|_| is_calls).map(|row| increase(&row.change)).sum()
        };
        let sum = replayed.probes.iter().flat_map(|probe| &probe.metrics).map(calls).sum::<u64>();
        *seconds.entry(replayed.second.start).or_default() += sum;
        newest = replayed.second.start + 1;
        Ok::<(), DiskError>(())
    });
    // At most the tail that the next start cuts.
    assert!(damaged.unwrap().len() <= 1);
    (seconds, newest)
}

fn disk_newest(agent: &Agent, second: u64) {
    wait_for("the second in the history", LIMIT, || {
        (agent.json("/api/v1/history")["newest"].as_u64()? > second).then_some(())
    });
}

#[test]
#[ignore = "needs root"]
fn root_a_killed_agent_loses_at_most_one_second() {
    let rounds = std::env::var("KSTROBE_KILLS").map_or(12, |text| text.parse().expect("a number of kills"));
    let folder = Folder::new();
    let dir = folder.0.join("history");
    let history = format!("{{ dir: {} }}", dir.display());
    let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut lost, mut random) = (0, 0x9e37_79b9_7f4a_7c15u64);
    for round in 0..rounds {
        let agent = start(&history);
        let started = now();
        let count = 20 + round as u32 % 7;
        let second = sleep_in_a_second(count);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((random >> 33) % 1_700_000));
        let killed = now();
        agent.kill();
        let (found, newest) = on_disk(&dir);
        // An agent that starts at the very end of a second has the next one first: nothing from before its start is missing.
        let whole = newest.max(started as u64);
        assert!(
            killed as u64 <= whole + 1,
            "round {round}: started at {started}, killed at {killed}, the last second on the disk ends at {newest}"
        );
        lost += killed as u64 - whole;
        if newest > second {
            expected.insert(second, count.into());
        }
        for (second, count) in &expected {
            assert_eq!(found.get(second), Some(count), "second {second} in round {round}");
        }
        let all: u64 = found.values().sum();
        assert_eq!(all, expected.values().sum::<u64>(), "round {round}: {found:?}");
    }
    println!("{rounds} kills, {lost} seconds lost, {} with all of their events", expected.len());
    // The next agent answers for those before it.
    let agent = start(&history);
    let (from, to) = (expected.keys().next().unwrap(), expected.keys().next_back().unwrap() + 1);
    let begun = Instant::now();
    let answer = agent.json(&format!("/api/v1/query?metric=slept_calls_total&from={from}&to={to}"));
    println!("the whole range was answered in {:?}", begun.elapsed());
    assert_eq!(answer["groups"][0]["total"]["count"], expected.values().sum::<u64>() as f64);
    assert!(agent.json("/api/v1/history")["oldest"].as_u64().unwrap() <= *from);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_full_disk_stops_nothing_but_the_history_on_it() {
    let folder = Folder::new();
    let dir = folder.0.join("history");
    fs::create_dir_all(&dir).unwrap();
    let mount = format!("mount -t tmpfs -o size=1m none {} && exec \"$0\" \"$@\"", dir.display());
    let config = format!("history: {{ dir: {} }}\n", dir.display());
    // With these a second takes more than what is left of the last page.
    let packs = &["syscalls"];
    let under = &["unshare", "--mount", "sh", "-c", &mount];
    let agent = Setup { packs, probes: &[("slept", PROBE)], config: &config, under, ..Setup::default() }.start();
    // As the agent sees it: nothing else has this mount.
    let there = Path::new("/proc").join(agent.pid().to_string()).join("root").join(dir.strip_prefix("/").unwrap());
    let stopped = |expected: f64| {
        wait_for("the state of the disk", LIMIT, || {
            (agent.scrape().sum("kstrobe_history_disk_stopped", &[]) == expected).then_some(())
        });
    };
    let count = || agent.scrape().histogram("kstrobe_slept_seconds", &[]).count;
    let first = sleep_in_a_second(30);
    disk_newest(&agent, first + 1);
    assert_eq!(on_disk(&there).0.get(&first), Some(&30));
    stopped(0.0);

    let filler = there.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    drop(file);
    stopped(1.0);
    let second = sleep_in_a_second(40);
    disk_newest(&agent, second);
    assert_eq!(count(), 70.0, "metrics go on");
    let recent = agent.json(&format!("/api/v1/query?metric=slept_seconds&from={second}&to={}", second + 1));
    assert_eq!(recent["groups"][0]["total"]["count"], 40, "the history in memory goes on");
    let (status, ready) = agent.get("/readyz").unwrap();
    assert!(status == 200 && ready.contains("the history is not written to disk: "), "{ready}");
    assert!(ready.contains("No space left on device"), "{ready}");
    assert!(agent.json("/api/v1/probes")["history"].as_str().unwrap().contains("No space left"));
    // Long enough for another attempt.
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(agent.log().matches("the history is not written").count(), 1, "it says so once");
    assert!(agent.scrape().sum("kstrobe_history_disk_dropped_seconds_total", &[("reason", "failed")]) >= 10.0);

    fs::remove_file(&filler).unwrap();
    stopped(0.0);
    assert!(agent.log().contains("the history is written again"));
    let third = sleep_in_a_second(50);
    disk_newest(&agent, third + 1);
    let (found, _) = on_disk(&there);
    assert_eq!((found.get(&first), found.get(&second), found.get(&third)), (Some(&30), None, Some(&50)));
    assert_eq!(count(), 120.0);
    agent.stop();
}

/// The value of a series in OpenMetrics with timestamps: that of its last sample.
fn last_values(text: &str) -> BTreeMap<String, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (rest, _) = line.rsplit_once(' ').unwrap();
        let (series, value) = rest.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    };
    samples.map(sample).collect()
}

/// An agent that has counted, and has all of it on the disk; its folder, and what it says.
fn counted(folder: &Folder) -> (Agent, String) {
    let dir = folder.0.join("history");
    let agent = start(&format!("{{ dir: {} }}", dir.display()));
    let mut last = 0;
    for count in [30, 5, 17] {
        last = sleep_in_a_second(count);
    }
    disk_newest(&agent, last + 1);
    (agent, dir.display().to_string())
}

fn export(dir: &str, to: &Path) -> String {
    let done = support::done(&mut command(&["history", "export", "-o", to.to_str().unwrap(), "--dir", dir]));
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    done.out
}

#[test]
#[ignore = "needs root"]
fn root_exports_have_what_metrics_count() {
    let folder = Folder::new();
    let (agent, dir) = counted(&folder);
    let scraped = agent.scrape().histogram("kstrobe_slept_seconds", &[]);
    assert_eq!(scraped.count, 52.0);

    let om = folder.0.join("x.om");
    export(&dir, &om);
    let text = fs::read_to_string(&om).unwrap();
    let values = last_values(&text);
    let sum = |name: &str, part: &str| -> f64 {
        values.iter().filter(|(series, _)| series.starts_with(name) && series.contains(part)).map(|(_, v)| v).sum()
    };
    assert_eq!(sum("kstrobe_slept_calls_total{", ""), 52.0);
    assert_eq!(sum("kstrobe_slept_seconds_count{", ""), scraped.count);
    assert!((sum("kstrobe_slept_seconds_sum{", "") - scraped.sum).abs() < 1e-9);
    for (le, count) in scraped.buckets.iter().filter(|(le, _)| le.is_finite()) {
        assert_eq!(sum("kstrobe_slept_seconds_bucket{", &format!("le=\"{le:?}\"")), *count, "le={le}");
    }
    if witnesses("promtool", &["promtool"]) {
        let blocks = folder.0.join("blocks");
        let mut promtool = Command::new(support::program("promtool").unwrap());
        promtool.args(["tsdb", "create-blocks-from", "openmetrics"]).arg(&om).arg(&blocks);
        let done = support::done(&mut promtool);
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        // It reads blocks of a server, which has one.
        fs::create_dir(blocks.join("wal")).unwrap();
        let mut promtool = Command::new(support::program("promtool").unwrap());
        promtool
            .args(["tsdb", "dump", "--match={__name__=~\"kstrobe_slept_(seconds_count|seconds_sum|calls_total)\"}"])
            .arg(&blocks);
        let dump = support::done(promtool.stdin(Stdio::null()));
        assert_eq!(dump.code, Some(0), "{}", dump.err);
        let dumped = last_values(&dump.out);
        let sum = |name: &str| -> f64 {
            dumped.iter().filter(|(series, _)| series.contains(&format!("\"{name}\""))).map(|(_, value)| value).sum()
        };
        assert_eq!(sum("kstrobe_slept_seconds_count"), scraped.count, "{}", dump.out);
        assert_eq!(sum("kstrobe_slept_calls_total"), 52.0, "{}", dump.out);
        assert!((sum("kstrobe_slept_seconds_sum") - scraped.sum).abs() < 1e-9, "{}", dump.out);
    }

    // The same from an export of the export, and of a range.
    let own = folder.0.join("x.kstrobe");
    assert!(export(&dir, &own).contains(" seconds, "));
    let again = folder.0.join("again.om");
    export(own.to_str().unwrap(), &again);
    let values = last_values(&fs::read_to_string(&again).unwrap());
    assert_eq!(values.get("kstrobe_slept_calls_total{comm=\"kst-disk\"}"), Some(&52.0));
    let listed = support::done(&mut command(&["history", "--dir", &dir, "--output", "json"]));
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed["metrics"]["kstrobe_slept_calls_total"]["series"], 1);
    assert_eq!((listed["gaps"].as_array().unwrap().len(), listed["damaged"].as_array().unwrap().len()), (0, 0));
    let url = format!("http://{}", agent.address());
    let listed = support::done(&mut command(&["history", "--url", &url]));
    assert!(listed.out.contains(&dir) && listed.out.contains("kstrobe_slept_seconds"), "{}{}", listed.out, listed.err);
    let listed = support::done(&mut command(&["history", "--dir", &dir, "--from", "-2", "--output", "json"]));
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed["seconds"], 2, "{listed}");
    let newest =
        support::done(&mut command(&["history", "export", "-o", own.to_str().unwrap(), "--url", &url, "--from", "-2"]));
    assert!(newest.out.contains(": 2 seconds, "), "{}{}", newest.out, newest.err);
    let none =
        support::done(&mut command(&["history", "export", "-o", own.to_str().unwrap(), "--dir", &dir, "--to", "5"]));
    assert!(none.code == Some(1) && none.err.contains("there is no second from 1970-01-01T00:00:00Z"), "{}", none.err);
    agent.stop();
}

#[test]
#[ignore = "needs root and DuckDB's Python package"]
fn oracle_duckdb_reads_what_metrics_count() {
    let python = std::env::var_os("KSTROBE_DUCKDB_PYTHON").expect("KSTROBE_DUCKDB_PYTHON names a Python with DuckDB");
    let folder = Folder::new();
    let (agent, dir) = counted(&folder);
    let scraped = agent.scrape().histogram("kstrobe_slept_seconds", &[]);
    let file = folder.0.join("x.parquet");
    export(&dir, &file);
    let script = "import duckdb, json, sys
rows = duckdb.sql(f\"\"\"select field, labels->>'$.comm' as comm, sum(value) from '{sys.argv[1]}'
    where metric = 'kstrobe_slept_seconds' group by all order by all\"\"\").fetchall()
below = duckdb.sql(f\"\"\"select sum(value) from '{sys.argv[1]}'
    where metric = 'kstrobe_slept_seconds' and field = 'bucket' and upper <= 0.0025\"\"\").fetchall()[0][0]
calls = duckdb.sql(f\"\"\"select sum(value) from '{sys.argv[1]}'
    where metric = 'kstrobe_slept_calls_total' and field = 'increase'\"\"\").fetchall()[0][0]
seconds = duckdb.sql(f\"select count(distinct time) from '{sys.argv[1]}' where metric = 'kstrobe_slept_calls_total'\").fetchall()[0][0]
print(json.dumps({'rows': rows, 'below': below, 'calls': calls, 'seconds': seconds}))";
    let done = support::done(Command::new(python).args(["-c", script]).arg(&file));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let read: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(read["rows"][0], serde_json::json!(["bucket", COMM, scraped.count]));
    assert_eq!(read["calls"].as_f64(), Some(52.0));
    let sum = read["rows"][1][2].as_f64().unwrap();
    assert!((sum - scraped.sum).abs() < 1e-9, "{sum} and {}", scraped.sum);
    let below = scraped.buckets.iter().find(|(le, _)| *le == 0.0025).unwrap().1;
    assert_eq!((read["below"].as_f64(), read["seconds"].as_u64()), (Some(below), Some(3)));
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_a_view_answers_as_the_agent_did() {
    let folder = Folder::new();
    let (agent, dir) = counted(&folder);
    let newest = agent.json("/api/v1/history")["newest"].as_u64().unwrap();
    let path = format!("/api/v1/query?metric=slept_seconds&by=comm&from={}&to={newest}&step=1", newest - 20);
    let answer = agent.json(&path);
    agent.stop();
    let file = folder.0.join("x.kstrobe");
    export(&dir, &file);
    for from in [dir.as_str(), file.to_str().unwrap()] {
        let mut view = command(&["view", from]);
        let view = view.stdout(Stdio::piped()).spawn().unwrap();
        let mut view = support::Killed(view);
        let mut line = String::new();
        let out = view.0.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap().trim_end_matches('/').parse().unwrap();
        let get = |path: &str| wait_for("an answer of the view", LIMIT, || support::agent::get(address, path));
        let (status, body) = get(&path);
        assert_eq!(status, 200, "{body}");
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), answer);
        let (status, page) = get("/");
        assert!(status == 200 && page.contains("<html"), "{page}");
        let overview: Value = serde_json::from_str(&get("/api/v1/history").1).unwrap();
        assert!(
            overview["metrics"].as_array().unwrap().iter().any(|metric| metric["metric"] == "kstrobe_slept_seconds")
        );
        let asked = support::http::ask(address, "POST", "/api/v1/captures", &[], "{}").unwrap();
        assert_eq!(asked.status, 403);
    }
}
