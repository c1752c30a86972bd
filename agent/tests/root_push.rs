//! A real agent that sends to real receivers: what they have in the end is what the agent counted, also after a minute in which
//! none of them was there.

mod support;

use kstrobe_witness::{Api, Server, free, there};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use support::agent::{Agent, Setup};
use support::api::TOKEN;
use support::load::{self, getpgid_calls, named};
use support::tracing::graph_root;
use support::{Folder, wait_for};

/// How long the receivers are away.
const AWAY: Duration = Duration::from_secs(60);
/// Longest time that anything takes here.
const LIMIT: Duration = Duration::from_secs(120);
/// What the agent may grow by while nobody takes its reports: one report of each exporter, which are small here, and what any
/// minute of its life brings.
const MOST_GROWTH_BYTES: u64 = 16 << 20;

/// Each call is an observation whose value is known: the process id that is asked about, taken for microseconds.
const PROBE: &str = r#"
probe: asked
summary: What a test asks about.
at: syscall:getpgid:enter
where: comm == "kst-asks"
metrics:
  asked_seconds:
    type: histogram
    value: u64(args.pid) * 1us
    labels: { comm: comm }
    ttl: 0
    buckets: { schema: 3, min: 1us, max: 1000s, classic: [0.001, 0.01, 0.1, 1, 10] }
  asks_total: { type: counter, labels: { comm: comm }, ttl: 0 }
"#;

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn victoria_metrics(program: &Path) -> (Server, SocketAddr) {
    let address = free();
    let server = Server::start(program, address, "health", |folder| {
        vec![
            format!("-httpListenAddr={address}"),
            format!("-storageDataPath={}", folder.0.join("data").display()),
            "-search.latencyOffset=0s".into(),
            "-inmemoryDataFlushInterval=1s".into(),
        ]
    });
    (server, address)
}

fn prometheus(program: &Path) -> (Server, SocketAddr) {
    let address = free();
    let server = Server::start(program, address, "-/ready", |folder| {
        let config = folder.0.join("prometheus.yml");
        std::fs::write(&config, "scrape_configs: []\n").unwrap();
        vec![
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", folder.0.join("data").display()),
            format!("--web.listen-address={address}"),
            "--web.enable-remote-write-receiver".into(),
            "--enable-feature=native-histograms,exemplar-storage,metadata-wal-records".into(),
        ]
    });
    (server, address)
}

/// Prints what comes by both protocols.
fn collector(program: &Path) -> (Server, SocketAddr, SocketAddr) {
    let (grpc, http) = (free(), free());
    let server = Server::start(program, http, "", |folder| {
        let config = folder.0.join("config.yaml");
        let pipeline = "{ receivers: [otlp], exporters: [debug] }";
        let text = format!(
            "receivers: {{ otlp: {{ protocols: {{ grpc: {{ endpoint: '{grpc}' }}, http: {{ endpoint: '{http}' }} }} }} }}\n\
             exporters: {{ debug: {{ verbosity: detailed, sampling_initial: 1000000 }} }}\n\
             service:\n  telemetry: {{ metrics: {{ level: none }} }}\n  \
             pipelines: {{ metrics: {pipeline}, logs: {pipeline}, traces: {pipeline} }}\n"
        );
        std::fs::write(&config, text).unwrap();
        vec![format!("--config={}", config.display())]
    });
    (server, grpc, http)
}

/// Pauses are short, so that what is shown are many tries.
fn otlp(name: &str, address: SocketAddr, more: &str) -> String {
    format!(
        "{{ name: {name}, endpoint: 'http://{address}{more}, interval: 1s, timeout: 5s, \
         retry_on_failure: {{ initial_interval: 100ms, max_interval: 1s }} }}"
    )
}

fn of(agent: &Agent, metric: &str, exporter: &str) -> f64 {
    agent.scrape().sum(metric, &[("exporter", exporter)])
}

/// Asks so often about what takes so many microseconds.
fn ask(us: i32, times: u32) -> (u64, u64) {
    named("kst-asks", || getpgid_calls(us, times));
    (u64::from(times), u64::from(times) * us as u64)
}

/// What a collector printed of the test's metrics, by temporality: the last value of totals, the sum of differences.
#[derive(Debug, Default, PartialEq, Eq)]
struct Printed {
    asks: (u64, u64),
    observations: (u64, u64),
}

fn printed(log: &str) -> Printed {
    let mut found = Printed::default();
    let (mut name, mut delta) = (String::new(), false);
    for line in log.lines() {
        let line = line.trim().trim_start_matches("-> ");
        if let Some(new) = line.strip_prefix("Name: ") {
            name = new.to_owned();
        } else if let Some(temporality) = line.strip_prefix("AggregationTemporality: ") {
            delta = temporality == "Delta";
        }
        let (key, place) = match name.as_str() {
            "kstrobe.asks" => ("Value: ", &mut found.asks),
            "kstrobe.asked" => ("Count: ", &mut found.observations),
            _ => continue,
        };
        let Some(number) = line.strip_prefix(key).map(|text| text.parse::<u64>().unwrap()) else { continue };
        match delta {
            true => place.1 += number,
            false => place.0 = number,
        }
    }
    found
}

#[test]
#[ignore = "needs root"]
fn root_push_after_a_minute_without_receivers_they_have_what_metrics_has() {
    let test = "root_push_after_a_minute";
    let victoria = there(test, "victoria-metrics");
    let prometheus_there = there(test, "prometheus");
    let (Some(victoria), Some(prometheus_there)) = (victoria, prometheus_there) else { return };
    let (mut vm, vm_address) = victoria_metrics(&victoria);
    let (mut prom, prom_address) = prometheus(&prometheus_there);
    // It is built on request; the rest is shown without it.
    let mut collector = kstrobe_witness::collector(test).map(|program| collector(&program));

    let mut exporters = vec!["vm", "prom"];
    let mut receivers = vec![otlp("vm", vm_address, "/opentelemetry', protocol: http")];
    if let Some((_, grpc, http)) = &collector {
        receivers.push(otlp("grpc", *grpc, "', protocol: grpc"));
        receivers.push(otlp("delta", *http, "', protocol: http, temporality: delta"));
        exporters.extend(["grpc", "delta"]);
    }
    let config = format!(
        "exporters:\n  otlp: [{}]\n  remote_write: {{ name: prom, url: 'http://{prom_address}/api/v1/write', interval: 1s, \
         remote_timeout: 5s, queue_config: {{ min_backoff: 100ms, max_backoff: 1s }} }}\n",
        receivers.join(", ")
    );
    let agent = Setup { probes: &[("asked", PROBE)], config: &config, ..Setup::default() }.start();
    let mut asked = (0, 0);
    let mut more = |us: i32, times: u32| {
        let (count, sum) = ask(us, times);
        asked = (asked.0 + count, asked.1 + sum);
    };
    more(300, 100);
    let sent =
        |agent: &Agent| exporters.iter().map(|e| of(agent, "kstrobe_export_points_sent_total", e)).collect::<Vec<_>>();
    let all_send = |agent: &Agent| {
        let before = sent(agent);
        wait_for("reports to all", LIMIT, || {
            sent(agent).iter().zip(&before).all(|(now, before)| now > before).then_some(())
        });
    };
    // Its memory is what it will be.
    (0..5).for_each(|_| all_send(&agent));

    let before = resident_bytes(agent.pid());
    vm.kill();
    prom.kill();
    if let Some((server, ..)) = &mut collector {
        // In good order: a difference that it took and could not say so would come again.
        server.terminate();
    }
    let (begun, mut most, mut queued) = (Instant::now(), 0, 0.0f64);
    let mut turn = 0;
    while begun.elapsed() < AWAY {
        more(1 << (turn % 20), 50);
        turn += 1;
        std::thread::sleep(Duration::from_millis(500));
        most = most.max(resident_bytes(agent.pid()));
        let bytes: f64 = exporters.iter().map(|e| of(&agent, "kstrobe_export_queue_bytes", e)).sum();
        queued = queued.max(bytes);
    }
    for exporter in &exporters {
        let failures = of(&agent, "kstrobe_export_failures_total", exporter);
        assert!(failures >= 20.0, "{exporter}: {failures} failures in a minute");
        assert_eq!(of(&agent, "kstrobe_export_points_dropped_total", exporter), 0.0, "{exporter}");
    }
    assert!(most < before + MOST_GROWTH_BYTES, "{before} bytes became {most}");

    vm.again();
    prom.again();
    if let Some((server, ..)) = &mut collector {
        server.again();
    }
    all_send(&agent);
    more(70, 9);
    let after = resident_bytes(agent.pid());
    let metrics = agent.scrape();
    let labels = [("comm", "kst-asks")];
    let (count, sum) = (asked.0 as f64, asked.1 as f64 / 1e6);
    assert_eq!(metrics.sum("kstrobe_asks_total", &labels), count);
    assert_eq!(metrics.sum("kstrobe_asked_seconds_count", &labels), count);
    assert!((metrics.sum("kstrobe_asked_seconds_sum", &labels) - sum).abs() < 1e-9 * sum);
    for exporter in &exporters {
        assert_eq!(of(&agent, "kstrobe_export_points_dropped_total", exporter), 0.0, "{exporter}");
    }
    println!(
        "{count} calls; resident {before} bytes before, {most} at most in a minute without receivers, {after} after; \
         {queued} bytes waited at most"
    );
    agent.stop();

    let selector = |name: &str| format!("last_over_time({{__name__=\"{name}\",comm=\"kst-asks\"}}[1h])");
    wait_for("the last report at VictoriaMetrics", LIMIT, || {
        (Api(vm_address).value(&selector("kstrobe.asks")) == Some(count)).then_some(())
    });
    assert_eq!(Api(vm_address).value(&selector("kstrobe.asked_count")), Some(count));
    assert!((Api(vm_address).value(&selector("kstrobe.asked_sum")).unwrap() - sum).abs() < 1e-9 * sum);
    let selector = "{comm=\"kst-asks\"}";
    wait_for("the last report at Prometheus", LIMIT, || {
        (Api(prom_address).value(&format!("kstrobe_asks_total{selector}")) == Some(count)).then_some(())
    });
    assert_eq!(Api(prom_address).value(&format!("histogram_count(kstrobe_asked_seconds{selector})")), Some(count));
    let found = Api(prom_address).value(&format!("histogram_sum(kstrobe_asked_seconds{selector})")).unwrap();
    assert!((found - sum).abs() < 1e-9 * sum, "{found} of {sum}");
    if let Some((server, ..)) = &collector {
        let expected = Printed { asks: (asked.0, asked.0), observations: (asked.0, asked.0) };
        wait_for("the last report at the collector", LIMIT, || (printed(&server.log()) == expected).then_some(()));
    }
}

/// Receives of this test that are slow.
const RECEIVES: &str = "
probe: slow_receives
summary: Receives of this test that take longer than 20 ms.
span: { start: 'syscall:recvfrom:enter', end: 'syscall:recvfrom:exit', where: comm == \"kst-slow\" }
metrics:
  receives_seconds: { type: histogram, value: elapsed }
slow: { when: elapsed > 20ms, max_per_second: 1000, fields: { call: syscall, took: elapsed } }
";

#[test]
#[ignore = "needs root"]
fn root_push_slow_events_and_captures_arrive_by_both_protocols() {
    const SLOW: u32 = 7;
    let test = "root_push_slow_events_and_captures";
    let Some(program) = kstrobe_witness::collector(test) else { return };
    let Some(function) = graph_root(test, "recvfrom") else { return };
    let (server, grpc, http) = collector(&program);
    let folder = Folder::new();
    let token = folder.write("token", TOKEN);
    let more = "logs: true, traces: true";
    let config = format!(
        "exporters: {{ otlp: [{}, {}] }}\ncaptures: {{ dir: {}, token_file: {} }}\n",
        otlp("grpc", grpc, &format!("', protocol: grpc, {more}")),
        otlp("http", http, &format!("', protocol: http, {more}")),
        folder.0.join("captures").display(),
        token.display()
    );
    let agent = Setup { probes: &[("slow", RECEIVES)], config: &config, ..Setup::default() }.start();
    let (address, echo) = load::delayed_echo(Duration::from_millis(30));
    load::ask(address, SLOW, "kst-slow");
    echo.join().unwrap();
    let total = f64::from(SLOW);
    wait_for("all events", LIMIT, || (agent.scrape().sum("kstrobe_slow_events_total", &[]) == total).then_some(()));
    for exporter in ["grpc/logs", "http/logs"] {
        wait_for(exporter, LIMIT, || (of(&agent, "kstrobe_export_points_sent_total", exporter) == total).then_some(()));
    }
    let events: Value = serde_json::from_str(&agent.get("/api/v1/events").unwrap().1).unwrap();
    let ids: Vec<&str> = events["events"].as_array().unwrap().iter().map(|e| e["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), SLOW as usize);
    let log = server.log();
    for id in ids {
        let attribute = format!("kstrobe.event.id: Str({id})");
        assert_eq!(log.lines().filter(|line| line.contains(&attribute)).count(), 2, "{id} comes once by each protocol");
        let found: Value = serde_json::from_str(&agent.get(&format!("/api/v1/events?id={id}")).unwrap().1).unwrap();
        assert_eq!(found["events"].as_array().unwrap().len(), 1);
    }
    assert_eq!(log.matches("EventName: kstrobe.slow").count(), 2 * SLOW as usize);

    let (address, echo) = load::delayed_echo(Duration::from_millis(5));
    let asking = std::thread::spawn(move || load::ask(address, 200, "kst-slow"));
    let request = json!({
        "tracer": "function_graph", "graph_roots": [function], "comms": ["kst-slow"], "duration": "500ms",
    });
    let capture = agent.begin(&request);
    let ended = agent.ended(&capture);
    asking.join().unwrap();
    echo.join().unwrap();
    assert_eq!(ended["state"], "done", "{ended}");
    wait_for("spans", LIMIT, || {
        let sent = |exporter| of(&agent, "kstrobe_export_points_sent_total", exporter);
        (sent("grpc/traces") > 1.0 && sent("grpc/traces") == sent("http/traces")).then_some(())
    });
    agent.stop();
    let log = server.log();
    let of_capture = format!("kstrobe.capture.id: Str({capture})");
    assert_eq!(log.lines().filter(|line| line.contains(&of_capture)).count(), 2, "its first span by each protocol");
    let calls = format!("code.function.name: Str({function})");
    let calls = log.lines().filter(|line| line.contains(&calls)).count();
    assert!(calls >= 20 && calls % 2 == 0, "{calls} calls of {function}");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let by_hand = format!("printf '%s %s' {capture} {} | sha256sum | cut -c 1-32", host.trim());
    let trace = support::output(std::process::Command::new("sh").args(["-c", &by_hand]));
    assert!(log.contains(&format!("Trace ID       : {}", trace.trim())), "{} is not in the log", trace.trim());
}
