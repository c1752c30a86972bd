//! A real Prometheus scrapes the agent in every format: what it then knows is compared with what was really there.

mod support;

use nix::sys::signal::Signal;
use serde_json::Value;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::load::{getpgid_calls, named};
use support::prometheus::{JOBS, PROGRAM, Prometheus, SOON};
use support::{wait_for, witnesses};

/// Each call is an observation whose value is known: the process id that is asked about, taken for microseconds.
const PROBE: &str = r#"
probe: asked
summary: What a test asks about.
at: syscall:getpgid:enter
where: comm == "kst-asks" || comm == "kst-asks-2"
metrics:
  asked_seconds:
    type: histogram
    value: u64(args.pid) * 1us
    labels: { comm: comm }
    ttl: 2s
    buckets: { schema: 3, min: 1us, max: 1000s, classic: [0.001, 0.01, 0.1, 1, 10] }
  asked_total: { type: counter, labels: { comm: comm }, ttl: 2s }
"#;

/// The same that never forgets.
/// Nothing to do with what is asked.
const OTHER: &str = "probe: other\nsummary: S.\nat: syscall:getsid:enter\nmetrics:\n  other_total: { type: counter }\n";

fn lasting() -> String {
    PROBE.replace("ttl: 2s", "ttl: 0")
}

fn start(probe: &str) -> Agent {
    Agent::start_with(&[], &[("asked", probe)])
}

fn ask(comm: &str, microseconds: &[i32]) {
    named(comm, || microseconds.iter().for_each(|us| getpgid_calls(*us, 1)));
}

/// 3000 microseconds of so many octaves, each with as many values, from this one up.
fn distribution(from: i32, octaves: f64) -> Vec<i32> {
    (0..3000).map(|n| (f64::from(from) * (octaves * f64::from(n) / 3000.0).exp2()) as i32).collect()
}

fn seconds(us: i32) -> f64 {
    f64::from(us) / 1e6
}

/// `[boundary rule, lower, upper, count]`, all as text but the rule.
fn buckets(histogram: &Value) -> Vec<(f64, f64, f64)> {
    let number = |value: &Value| value.as_str().unwrap().parse::<f64>().unwrap();
    let buckets = histogram["buckets"].as_array().expect("buckets").iter();
    buckets.map(|bucket| (number(&bucket[1]), number(&bucket[2]), number(&bucket[3]))).collect()
}

#[test]
#[ignore = "needs root"]
fn root_prometheus_knows_the_true_distribution_in_both_forms() {
    if !witnesses("prometheus: distribution", &[PROGRAM]) {
        return;
    }
    let agent = start(&lasting());
    let prometheus = Prometheus::start(agent.address());
    // 19 octaves of 8 buckets are below the limit of 160.
    let values = distribution(200, 19.0);
    ask("kst-asks", &values);
    let count = values.len() as f64;
    let sum: f64 = values.iter().map(|us| seconds(*us)).sum();

    let native = r#"kstrobe_asked_seconds{job="protobuf"}"#;
    prometheus.wait(&format!("histogram_count({native})"), |n| n == count);
    let found = prometheus.value(&format!("histogram_sum({native})")).unwrap();
    assert!((found - sum).abs() < 1e-9 * sum, "sum {found}, truly {sum}");
    for (job, _) in JOBS {
        prometheus.wait(&format!(r#"kstrobe_asked_seconds_count{{job="{job}"}}"#), |n| n == count);
        let found = prometheus.value(&format!(r#"kstrobe_asked_seconds_sum{{job="{job}"}}"#)).unwrap();
        assert!((found - sum).abs() < 1e-9 * sum, "{job}: sum {found}, truly {sum}");
    }

    compare_buckets(&prometheus, native, &values, 0.125);

    for q in [0.01, 0.1, 0.5, 0.9, 0.99, 0.999] {
        let truth = seconds(values[(q * count).ceil() as usize - 1]);
        let found = prometheus.value(&format!("histogram_quantile({q}, {native})")).unwrap();
        let width = 2f64.powf(0.125);
        assert!(found > truth / width && found < truth * width, "native p{q}: {found}, truly {truth}");
        for (job, _) in JOBS {
            let classic = format!(r#"histogram_quantile({q}, kstrobe_asked_seconds_bucket{{job="{job}"}})"#);
            let found = prometheus.value(&classic).unwrap();
            let bounds = [0.0, 0.001, 0.01, 0.1, 1.0, 10.0];
            let above = bounds.iter().rposition(|bound| *bound < truth).unwrap();
            // Beyond the last bound Prometheus gives that bound.
            let upper = bounds.get(above + 1).copied().unwrap_or(10.0);
            let expected = bounds[above]..=upper;
            assert!(expected.contains(&found), "{job} p{q}: {found}, truly {truth}, which is in {expected:?}");
        }
    }
    // 1 s is a bound of both forms: the share below it is exact.
    let below = values.iter().filter(|us| **us <= 1_000_000).count() as f64 / count;
    let found = prometheus.value(&format!("histogram_fraction(0, 1, {native})")).unwrap();
    assert!((found - below).abs() < 1e-9, "native share {found}, truly {below}");
    for (job, _) in JOBS {
        let share = format!(
            r#"kstrobe_asked_seconds_bucket{{job="{job}",le="1.0"}} / ignoring(le) kstrobe_asked_seconds_count{{job="{job}"}}"#
        );
        let found = prometheus.value(&share).unwrap();
        assert!((found - below).abs() < 1e-9, "{job}: share {found}, truly {below}");
    }
    assert_eq!(prometheus.scrape_errors(), Vec::<String>::new());
    agent.stop();
}

/// Every native bucket has exactly the values between its bounds, and is `2^octaves` wide.
fn compare_buckets(prometheus: &Prometheus, series: &str, values: &[i32], octaves: f64) {
    let sample = prometheus.query(series);
    let buckets = buckets(sample[0].histogram.as_ref().expect("a native histogram"));
    for &(lower, upper, n) in &buckets {
        let inside = |us: &&i32| seconds(**us) > lower && seconds(**us) <= upper;
        assert_eq!(n, values.iter().filter(inside).count() as f64, "({lower}, {upper}]");
        assert!((upper / lower - octaves.exp2()).abs() < 1e-9, "({lower}, {upper}]");
    }
    assert_eq!(buckets.iter().map(|(_, _, n)| n).sum::<f64>(), values.len() as f64);
}

#[test]
#[ignore = "needs root"]
fn root_prometheus_gets_coarser_histograms_where_there_would_be_too_many_buckets() {
    if !witnesses("prometheus: bucket limit", &[PROGRAM]) {
        return;
    }
    let agent = start(&lasting());
    let prometheus = Prometheus::start(agent.address());
    let values = distribution(2, 25.0);
    ask("kst-asks", &values);
    // Another series of the same metric keeps its own schema.
    ask("kst-asks-2", &values[..100]);
    for (comm, values, octaves) in [("kst-asks", &values[..], 0.25), ("kst-asks-2", &values[..100], 0.125)] {
        let series = format!(r#"kstrobe_asked_seconds{{job="protobuf",comm="{comm}"}}"#);
        prometheus.wait(&format!("histogram_count({series})"), |n| n == values.len() as f64);
        compare_buckets(&prometheus, &series, values, octaves);
    }
    assert_eq!(prometheus.scrape_errors(), Vec::<String>::new());
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_prometheus_sees_series_begin_at_zero_and_end() {
    if !witnesses("prometheus: begin and end of a series", &[PROGRAM]) {
        return;
    }
    let agent = start(PROBE);
    let prometheus = Prometheus::start(agent.address());
    for (job, _) in JOBS {
        prometheus.wait(&format!(r#"kstrobe_build_info{{job="{job}"}}"#), |one| one == 1.0);
    }
    ask("kst-asks", &[1000; 7]);
    for (job, _) in JOBS {
        prometheus.wait(&format!(r#"kstrobe_asked_total{{job="{job}"}}"#), |n| n == 7.0);
    }
    // Without that zero, `increase` would never see the seven.
    for (job, first) in [("protobuf", 0.0), ("openmetrics", 0.0), ("text", 7.0)] {
        let samples = prometheus.samples(&format!(r#"kstrobe_asked_total{{job="{job}"}}[5m]"#));
        assert_eq!(samples[0], first, "{job}: {samples:?}");
        assert!(samples[1..].iter().all(|n| *n == 7.0), "{job}: {samples:?}");
    }
    let samples = prometheus.samples(r#"kstrobe_asked_seconds{job="protobuf"}[5m]"#);
    assert!(samples[0] == 0.0 && samples[1..].iter().all(|n| *n == 7.0), "native: {samples:?}");

    // Two idle seconds later the series is forgotten. Prometheus would show it for five minutes if it were not marked stale.
    for (job, _) in JOBS {
        for series in ["kstrobe_asked_total", "kstrobe_asked_seconds_count"] {
            let series = format!(r#"{series}{{job="{job}"}}"#);
            wait_for(&format!("the end of {series}"), SOON, || prometheus.value(&series).is_none().then_some(()));
        }
    }
    assert!(prometheus.query(r#"kstrobe_asked_seconds{job="protobuf"}"#).is_empty(), "the native one, too");
    assert!(agent.scrape().sum("kstrobe_series_evicted_total", &[("probe", "asked")]) >= 1.0);

    // It comes back as another series of the same name: from zero again.
    ask("kst-asks", &[1000; 3]);
    let series = r#"kstrobe_asked_total{job="protobuf"}"#;
    prometheus.wait(series, |n| n == 3.0);
    assert_eq!(prometheus.value(&format!("resets({series}[5m])")), Some(1.0));
    assert_eq!(prometheus.scrape_errors(), Vec::<String>::new());
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_prometheus_sees_a_restart_as_one_reset() {
    if !witnesses("prometheus: restart", &[PROGRAM]) {
        return;
    }
    // Both agents are at this address.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (probe, listen) = (lasting(), address.to_string());
    let probes = [("asked", probe.as_str())];
    let setup = Setup { probes: &probes, arguments: &["--web.listen-address", &listen], ..Setup::default() };
    let agent = setup.start();
    let prometheus = Prometheus::start(address);
    ask("kst-asks", &[1000; 7]);
    let wait_for_count = |count: f64| {
        for (job, _) in JOBS {
            prometheus.wait(&format!(r#"kstrobe_asked_total{{job="{job}"}}"#), |n| n == count);
            prometheus.wait(&format!(r#"kstrobe_asked_seconds_count{{job="{job}"}}"#), |n| n == count);
        }
        prometheus.wait(r#"histogram_count(kstrobe_asked_seconds{job="protobuf"})"#, |n| n == count);
    };
    wait_for_count(7.0);
    // A reload that changes other probes is none.
    agent.write("probes/other.yaml", OTHER);
    agent.signal(Signal::SIGHUP);
    wait_for("the other probe", Duration::from_secs(60), || {
        agent.scrape().series("kstrobe_probe_attached", &[("probe", "other")]).next().map(|_| ())
    });
    ask("kst-asks", &[1000; 3]);
    wait_for_count(10.0);
    for (job, _) in JOBS {
        for series in ["kstrobe_asked_total", "kstrobe_asked_seconds_count"] {
            let resets = prometheus.value(&format!(r#"resets({series}{{job="{job}"}}[5m])"#));
            assert_eq!(resets, Some(0.0), "{job}: {series}");
        }
    }
    agent.stop();
    let agent = setup.start();
    ask("kst-asks", &[1000; 5]);
    wait_for_count(5.0);
    for (job, _) in JOBS {
        for series in ["kstrobe_asked_total", "kstrobe_asked_seconds_count"] {
            let resets = prometheus.value(&format!(r#"resets({series}{{job="{job}"}}[5m])"#));
            let samples = prometheus.samples(&format!(r#"{series}{{job="{job}"}}[5m]"#));
            assert_eq!(resets, Some(1.0), "{job}: {series}: {samples:?}");
        }
    }
    // `resets` of the native form counts also what follows a zero sample: Prometheus makes that at schema 0, and takes a
    // histogram of a higher schema for a reset.
    let counts = prometheus.samples(r#"kstrobe_asked_seconds{job="protobuf"}[5m]"#);
    let drops = counts.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert_eq!(drops, 1, "native: {counts:?}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_prometheus_has_the_capture_as_an_exemplar() {
    if !witnesses("prometheus: exemplars", &[PROGRAM]) {
        return;
    }
    let folder = support::Folder::new();
    let config = format!(
        "captures: {{ dir: {} }}\n\
         rules:\n  - {{ name: long_asked, when: 'p50(asked_seconds{{comm=\"kst-asks\"}}) over 1s > 1s', every: 100ms, \
         capture: {{ events: sched_process_exec, duration: 1s }} }}\n",
        folder.0.join("captures").display()
    );
    let probe = lasting();
    let setup = Setup { probes: &[("asked", &probe)], config: &config, ..Setup::default() };
    let agent = setup.start();
    let prometheus = Prometheus::start(agent.address());
    let id = wait_for("a capture", SOON, || {
        ask("kst-asks", &[5_000_000; 5]);
        ask("kst-asks-2", &[5_000_000; 5]);
        std::thread::sleep(Duration::from_millis(200));
        let list: Value = serde_json::from_str(&agent.get("/api/v1/captures").unwrap().1).unwrap();
        let done = list["captures"].as_array()?.iter().find(|capture| capture["state"] == "done")?;
        Some(done["id"].as_str()?.to_owned())
    });
    for (selector, le) in [
        (r#"kstrobe_asked_seconds{job="protobuf"}"#, None),
        (r#"kstrobe_asked_seconds_bucket{job="protobuf"}"#, Some("10.0")),
        (r#"kstrobe_asked_seconds_bucket{job="openmetrics"}"#, Some("10.0")),
    ] {
        let found = wait_for(&format!("exemplars of {selector}"), SOON, || {
            Some(prometheus.exemplars(selector)).filter(|found| !found.is_empty())
        });
        let [(labels, exemplars)] = found.as_slice() else { panic!("{selector}: {found:?}") };
        assert_eq!(labels.get("comm").map(String::as_str), Some("kst-asks"), "{selector}");
        assert_eq!(labels.get("le").map(String::as_str), le, "{selector}");
        assert_eq!(exemplars[0]["labels"]["capture_id"], id, "{selector}: {exemplars:?}");
        let value: f64 = exemplars[0]["value"].as_str().unwrap().parse().unwrap();
        assert!(value > 1.0 && value <= 10.0, "{selector}: {value}");
    }
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_prometheus_has_a_slow_event_as_an_exemplar() {
    if !witnesses("prometheus: exemplars of events", &[PROGRAM]) {
        return;
    }
    // What the record says in its own fields is neither value nor label of the histogram.
    let probe = format!(
        "{}slow: {{ when: args.pid > 1000000, max_per_second: 1000, fields: {{ asked: args.pid }} }}\n",
        lasting()
    );
    let agent = start(&probe);
    let prometheus = Prometheus::start(agent.address());
    ask("kst-asks", &[5_000_000, 700, 20_000_000, 6_000_000]);
    ask("kst-asks-2", &[2_000_000]);
    let events = wait_for("events", SOON, || {
        let answer: Value = serde_json::from_str(&agent.get("/api/v1/events").unwrap().1).unwrap();
        answer["events"].as_array().filter(|events| events.len() == 4).cloned()
    });
    let id = |asked: i64| {
        let event = events.iter().find(|event| event["fields"]["asked"] == asked).unwrap();
        assert_eq!(event["fields"].as_object().unwrap().len(), 1, "{event}: only what the user wants is shown");
        event["id"].as_str().unwrap().to_owned()
    };
    // Of the two in a bucket the newer; in the native form both, as they are an octave's part apart.
    let (six, twenty, two) = (id(6_000_000), id(20_000_000), id(2_000_000));
    for (selector, comm, le, expected) in [
        (r#"kstrobe_asked_seconds_bucket{job="protobuf",comm="kst-asks",le="10.0"}"#, "kst-asks", Some("10.0"), &six),
        (
            r#"kstrobe_asked_seconds_bucket{job="openmetrics",comm="kst-asks",le="10.0"}"#,
            "kst-asks",
            Some("10.0"),
            &six,
        ),
        (
            r#"kstrobe_asked_seconds_bucket{job="openmetrics",comm="kst-asks",le="+Inf"}"#,
            "kst-asks",
            Some("+Inf"),
            &twenty,
        ),
        (r#"kstrobe_asked_seconds_bucket{job="protobuf",comm="kst-asks-2"}"#, "kst-asks-2", Some("10.0"), &two),
        (r#"kstrobe_asked_seconds{job="protobuf",comm="kst-asks-2"}"#, "kst-asks-2", None, &two),
    ] {
        let found = wait_for(&format!("exemplars of {selector}"), SOON, || {
            let found = prometheus.exemplars(selector);
            found
                .iter()
                .any(|(_, exemplars)| exemplars.iter().any(|e| e["labels"]["event_id"] == **expected))
                .then_some(found)
        });
        let [(labels, exemplars)] = found.as_slice() else { panic!("{selector}: {found:?}") };
        assert_eq!(labels.get("comm").map(String::as_str), Some(comm), "{selector}");
        assert_eq!(labels.get("le").map(String::as_str), le, "{selector}");
        let newest = exemplars.iter().find(|e| e["labels"]["event_id"] == **expected).unwrap();
        let value: f64 = newest["value"].as_str().unwrap().parse().unwrap();
        let event = events.iter().find(|event| event["id"] == **expected).unwrap();
        assert_eq!(value, event["fields"]["asked"].as_f64().unwrap() / 1e6, "{selector}: {exemplars:?}");
    }
    assert_eq!(prometheus.scrape_errors(), Vec::<String>::new());
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_promtool_finds_no_fault_with_the_text() {
    if !witnesses("promtool", &["promtool"]) {
        return;
    }
    let agent = start(&lasting());
    ask("kst-asks", &distribution(200, 19.0));
    let (_, text) = agent.get("/metrics").unwrap();
    let mut promtool = Command::new(support::program("promtool").unwrap());
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = promtool.spawn().unwrap();
    std::io::Write::write_all(&mut running.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let done = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{said}");
    agent.stop();
}
