//! A real agent that sends to real receivers: what they have in the end is what the agent counted, also after a while in which
//! none of them was there.

mod support;

use kstrobe_testing::servers::{self, Collector, Point, total};
use kstrobe_testing::{Api, Receiving, Sample, there};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::agent::{Agent, Setup};
use support::api::TOKEN;
use support::load::{self, Asking, getpgid_calls, named};
use support::tracing::graph_root;
use support::{Folder, emulated, memory_bytes, wait_for};

/// How long the receivers are away.
const AWAY: Duration = Duration::from_secs(60);
/// Longest time that anything takes here.
const LIMIT: Duration = Duration::from_secs(120);
/// What the agent may grow by while nobody takes its reports: one report of each exporter, which are small here, and what any
/// minute of its life brings.
const MAX_GROWTH_BYTES: u64 = 16 << 20;

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

/// Pauses are short, so that what is shown are many tries.
fn otlp(name: &str, address: SocketAddr, more: &str) -> String {
    // A request that was taken and whose answer comes too late would come again.
    let timeout = if emulated() { 60 } else { 5 };
    format!(
        "{{ name: {name}, endpoint: 'http://{address}{more}, interval: 1s, timeout: {timeout}s, \
         retry_on_failure: {{ initial_interval: 100ms, max_interval: 1s }} }}"
    )
}

fn of(agent: &Agent, metric: &str, exporter: &str) -> f64 {
    agent.scrape().sum(metric, &[("exporter", exporter)])
}

/// Asks so often about what takes so many microseconds.
fn ask(us: i32, times: u32) {
    named("kst-asks", || getpgid_calls(us, times));
}

/// A bucket: what its values are above, the largest of them, how many there are.
type Bucket = (f64, f64, u64);

/// Buckets at a Collector: those of totals are the last point's, those of differences the sum of all.
fn at_collector(points: &[Point], temporality: &str) -> Vec<Bucket> {
    let of = |point: &&Point| point.metric == "kstrobe.asked" && point.temporality == temporality;
    let points: Vec<&Point> = points.iter().filter(of).collect();
    let points = if temporality == "Delta" { &points[..] } else { &points[points.len().saturating_sub(1)..] };
    let mut found: Vec<Bucket> = Vec::new();
    for (lower, upper, count) in points.iter().flat_map(|point| &point.buckets) {
        match found.iter_mut().find(|bucket| (bucket.0, bucket.1) == (*lower, *upper)) {
            Some(bucket) => bucket.2 += count,
            None => found.push((*lower, *upper, *count)),
        }
    }
    found
}

/// Buckets at VictoriaMetrics, each of which is a series whose label has the bounds.
fn at_victoria_metrics(address: SocketAddr) -> Vec<Bucket> {
    let selector = "last_over_time({__name__=\"kstrobe.asked_bucket\",comm=\"kst-asks\"}[1h])";
    let bucket = |sample: Sample| {
        let (lower, upper) = sample.labels["vmrange"].split_once("...").unwrap();
        (lower.parse().unwrap(), upper.parse().unwrap(), sample.value as u64)
    };
    Api(address).query(selector).into_iter().map(bucket).collect()
}

/// Each bucket has what was asked within its bounds: so often each number of microseconds.
#[track_caller]
fn assert_buckets(who: &str, found: &[Bucket], asked: &BTreeMap<i32, u32>) {
    // A Collector prints six places: bounds of small buckets look alike.
    let found: Vec<&Bucket> = found.iter().filter(|(lower, ..)| *lower >= 0.0001).collect();
    let whole: u64 = asked.range(128..).map(|(_, times)| u64::from(*times)).sum();
    assert_eq!(found.iter().map(|bucket| bucket.2).sum::<u64>(), whole, "{who}: {found:?}");
    for (lower, upper, count) in found {
        let within = |us: i32| (*lower..=*upper).contains(&(f64::from(us) / 1e6));
        let expected: u64 = asked.iter().filter(|(us, _)| within(**us)).map(|(_, times)| u64::from(*times)).sum();
        assert_eq!(*count, expected, "{who}: ({lower}, {upper}] of {asked:?}");
        assert!(upper / lower < 1.1, "{who}: ({lower}, {upper}], but a bucket of schema 3 is 9 % wide");
    }
}

#[test]
#[ignore = "needs root"]
fn root_push_after_a_while_without_receivers_they_have_what_metrics_has() {
    let test = "root_push_after_a_while";
    let victoria = there(test, "victoria-metrics");
    let prometheus_there = there(test, "prometheus");
    let (Some(victoria), Some(prometheus_there)) = (victoria, prometheus_there) else { return };
    let mut vm = servers::victoria_metrics(&victoria, None);
    let mut prom = servers::prometheus(&prometheus_there, None);
    let (vm_address, prom_address) = (vm.address(), prom.address());
    // It is built on request; the rest is shown without it.
    let mut collector = kstrobe_testing::collector(test).map(|program| Collector::start(&program, None));

    let mut exporters = vec!["vm", "prom"];
    let mut receivers = vec![otlp("vm", vm_address, "/opentelemetry', protocol: http")];
    if let Some(collector) = &collector {
        receivers.push(otlp("grpc", collector.grpc, "', protocol: grpc"));
        receivers.push(otlp("delta", collector.http, "', protocol: http, temporality: delta"));
        exporters.extend(["grpc", "delta"]);
    }
    let config = format!(
        "exporters:\n  otlp: [{}]\n  remote_write: {{ name: prom, url: 'http://{prom_address}/api/v1/write', interval: 1s, \
         remote_timeout: 5s, queue_config: {{ min_backoff: 100ms, max_backoff: 1s }} }}\n",
        receivers.join(", ")
    );
    let agent = Setup { probes: &[("asked", PROBE)], config: &config, ..Setup::default() }.start();
    let mut asked: BTreeMap<i32, u32> = BTreeMap::new();
    let mut more = |us: i32, times: u32| {
        ask(us, times);
        *asked.entry(us).or_default() += times;
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

    let before = memory_bytes(agent.pid(), "VmRSS:");
    vm.kill();
    prom.kill();
    if let Some(Collector { server, .. }) = &mut collector {
        // In good order: a difference that it took and could not say so would come again.
        server.terminate();
    }
    let (begun, mut most, mut queued) = (Instant::now(), 0, 0.0f64);
    let mut turn = 0;
    while begun.elapsed() < AWAY {
        more(1 << (turn % 20), 50);
        turn += 1;
        std::thread::sleep(Duration::from_millis(500));
        most = most.max(memory_bytes(agent.pid(), "VmRSS:"));
        let bytes: f64 = exporters.iter().map(|e| of(&agent, "kstrobe_export_queue_bytes", e)).sum();
        queued = queued.max(bytes);
    }
    for exporter in &exporters {
        let failures = of(&agent, "kstrobe_export_failures_total", exporter);
        assert!(failures >= AWAY.as_secs_f64() / 3.0, "{exporter}: {failures} failures in {AWAY:?}");
        assert_eq!(of(&agent, "kstrobe_export_points_dropped_total", exporter), 0.0, "{exporter}");
    }
    assert!(most < before + MAX_GROWTH_BYTES, "{before} bytes became {most}");

    vm.again();
    prom.again();
    if let Some(Collector { server, .. }) = &mut collector {
        server.again();
    }
    all_send(&agent);
    more(70, 9);
    let after = memory_bytes(agent.pid(), "VmRSS:");
    let metrics = agent.scrape();
    let labels = [("comm", "kst-asks")];
    let count = f64::from(asked.values().sum::<u32>());
    let sum = asked.iter().map(|(us, times)| f64::from(*us) * f64::from(*times)).sum::<f64>() / 1e6;
    assert_eq!(metrics.sum("kstrobe_asks_total", &labels), count);
    assert_eq!(metrics.sum("kstrobe_asked_seconds_count", &labels), count);
    assert!((metrics.sum("kstrobe_asked_seconds_sum", &labels) - sum).abs() < 1e-9 * sum);
    for exporter in &exporters {
        assert_eq!(of(&agent, "kstrobe_export_points_dropped_total", exporter), 0.0, "{exporter}");
    }
    println!(
        "{count} calls; resident {before} bytes before, {most} at most in {AWAY:?} without receivers, {after} after; \
         {queued} bytes waited at most"
    );
    agent.stop();

    let selector = |name: &str| format!("last_over_time({{__name__=\"{name}\",comm=\"kst-asks\"}}[1h])");
    wait_for("the last report at VictoriaMetrics", LIMIT, || {
        (Api(vm_address).value(&selector("kstrobe.asks")) == Some(count)).then_some(())
    });
    assert_eq!(Api(vm_address).value(&selector("kstrobe.asked_count")), Some(count));
    assert!((Api(vm_address).value(&selector("kstrobe.asked_sum")).unwrap() - sum).abs() < 1e-9 * sum);
    // A series that is new may be found a little later than those that it came with.
    let all = |found: &Vec<Bucket>| found.iter().map(|bucket| bucket.2 as f64).sum::<f64>() == count;
    let found = wait_for("all buckets", LIMIT, || Some(at_victoria_metrics(vm_address)).filter(all));
    assert_buckets("VictoriaMetrics", &found, &asked);
    let selector = "{comm=\"kst-asks\"}";
    wait_for("the last report at Prometheus", LIMIT, || {
        (Api(prom_address).value(&format!("kstrobe_asks_total{selector}")) == Some(count)).then_some(())
    });
    assert_eq!(Api(prom_address).value(&format!("histogram_count(kstrobe_asked_seconds{selector})")), Some(count));
    let found = Api(prom_address).value(&format!("histogram_sum(kstrobe_asked_seconds{selector})")).unwrap();
    assert!((found - sum).abs() < 1e-9 * sum, "{found} of {sum}");
    if let Some(collector) = &collector {
        wait_for("the last report at the collector", LIMIT, || {
            let points = collector.points();
            let has = |metric| ["Cumulative", "Delta"].iter().all(|kind| total(&points, metric, kind) == count);
            (has("kstrobe.asks") && has("kstrobe.asked")).then_some(())
        });
        let points = collector.points();
        for temporality in ["Cumulative", "Delta"] {
            assert_buckets(temporality, &at_collector(&points, temporality), &asked);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn root_push_what_a_receiver_refuses_is_counted_as_dropped() {
    let refusing = Receiving::start(&["400 No", "400 No"]);
    let config = format!(
        "exporters: {{ otlp: [{{ name: it, endpoint: 'http://{}', protocol: http, interval: 1s }}] }}\n",
        refusing.address
    );
    let agent = Setup { probes: &[("asked", PROBE)], config: &config, ..Setup::default() }.start();
    let dropped =
        || agent.scrape().sum("kstrobe_export_points_dropped_total", &[("exporter", "it"), ("reason", "refused")]);
    let before = wait_for("what was refused", LIMIT, || Some(dropped()).filter(|points| *points > 0.0));
    wait_for("what was taken", LIMIT, || (of(&agent, "kstrobe_export_points_sent_total", "it") > 0.0).then_some(()));
    let failures =
        agent.scrape().sum("kstrobe_export_failures_total", &[("exporter", "it"), ("reason", "bad_request")]);
    assert!(failures == 2.0 && dropped() >= before, "{failures} failures, {before} points, then {}", dropped());
    agent.stop();
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

/// An agent that sends slow events and captures to a collector by both protocols. The folder is the captures'.
fn sends_all_to(collector: &Collector, probe: &str) -> (Agent, Folder) {
    let folder = Folder::new();
    let token = folder.write("token", TOKEN);
    let more = "logs: true, traces: true";
    let config = format!(
        "exporters: {{ otlp: [{}, {}] }}\ncaptures: {{ dir: {}, token_file: {} }}\n",
        otlp("grpc", collector.grpc, &format!("', protocol: grpc, {more}")),
        otlp("http", collector.http, &format!("', protocol: http, {more}")),
        folder.path("captures"),
        token.display()
    );
    (Setup { probes: &[("slow", probe)], config: &config, ..Setup::default() }.start(), folder)
}

/// Receives that are slow.
const SLOW: u32 = 7;

/// Receives slowly, and gives the events once these exporters have sent each of them.
fn sent_events(agent: &Agent, exporters: [&str; 2]) -> Vec<Value> {
    let (address, echo) = load::delayed_echo(Duration::from_millis(30));
    load::ask(address, SLOW, "kst-slow");
    echo.join().unwrap();
    let total = f64::from(SLOW);
    wait_for("all events", LIMIT, || (agent.scrape().sum("kstrobe_slow_events_total", &[]) == total).then_some(()));
    for exporter in exporters {
        wait_for(exporter, LIMIT, || (of(agent, "kstrobe_export_points_sent_total", exporter) == total).then_some(()));
    }
    let events = agent.slow_events("");
    assert_eq!(events.len(), SLOW as usize);
    events
}

#[test]
#[ignore = "needs root"]
fn root_push_slow_events_arrive_as_logs_by_both_protocols() {
    let Some(program) = kstrobe_testing::collector("root_push_slow_events_arrive_as_logs") else { return };
    let collector = Collector::start(&program, None);
    let (agent, _folder) = sends_all_to(&collector, RECEIVES);
    let events = sent_events(&agent, ["grpc/logs", "http/logs"]);
    let ids = events.iter().map(|event| event["id"].as_str().unwrap());
    let log = collector.server.log();
    for id in ids {
        let attribute = format!("kstrobe.event.id: Str({id})");
        assert_eq!(log.lines().filter(|line| line.contains(&attribute)).count(), 2, "{id} comes once by each protocol");
        assert_eq!(agent.slow_events(&format!("?id={id}")).len(), 1);
    }
    assert_eq!(log.matches("EventName: kstrobe.slow").count(), 2 * SLOW as usize);
    agent.stop();
}

/// Receives of this test that are slow, in a trace of which the thread's id is the high half of the id.
const TRACED: &str = "
probe: traced_receives
summary: Receives of this test that take longer than 20 ms.
span: { start: 'syscall:recvfrom:enter', end: 'syscall:recvfrom:exit', where: comm == \"kst-slow\", save: { fd: args.fd } }
metrics:
  traced_receives_seconds: { type: histogram, value: elapsed }
slow:
  when: elapsed > 20ms
  max_per_second: 1000
  fields: { fd: start.fd, took: elapsed }
  span: { trace_id: [tid, 7], parent_id: start.fd, name: syscall }
";

#[test]
#[ignore = "needs root"]
fn root_push_slow_events_arrive_as_spans_of_their_traces() {
    let Some(program) = kstrobe_testing::collector("root_push_slow_events_arrive_as_spans") else { return };
    let collector = Collector::start(&program, None);
    let (agent, _folder) = sends_all_to(&collector, TRACED);
    let events = sent_events(&agent, ["grpc/traces", "http/traces"]);
    agent.stop();
    let log = collector.server.log();
    for event in &events {
        let [tid, fd] = [&event["tid"], &event["fields"]["fd"]].map(|number| number.as_u64().unwrap());
        let ids = [
            format!("    Trace ID       : {tid:016x}0000000000000007"),
            format!("    Parent ID      : {fd:016x}"),
            format!("    ID             : {}", event["id"].as_str().unwrap()),
            "    Name           : recvfrom".to_owned(),
        ];
        assert_eq!(log.matches(&ids.join("\n")).count(), 2, "once by each protocol: {ids:?}\n{log}");
    }
}

#[test]
#[ignore = "needs root"]
fn root_push_a_capture_without_calls_arrives_as_one_span_by_both_protocols() {
    let Some(program) = kstrobe_testing::collector("root_push_a_capture_without_calls_arrives_as_one_span") else {
        return;
    };
    let collector = Collector::start(&program, None);
    let (agent, _folder) = sends_all_to(&collector, RECEIVES);
    let capture = agent.begin(&json!({ "events": "sched:sched_process_exit", "duration": "100ms" }));
    assert_eq!(agent.ended(&capture)["state"], "done");
    for exporter in ["grpc/traces", "http/traces"] {
        wait_for(exporter, LIMIT, || (of(&agent, "kstrobe_export_points_sent_total", exporter) == 1.0).then_some(()));
    }
    agent.stop();
    assert_its_trace(&capture, &collector.server.log());
}

/// The capture is the first span of a trace, by each protocol, whose id can be had from the capture's.
fn assert_its_trace(capture: &str, log: &str) {
    let of_capture = format!("kstrobe.capture.id: Str({capture})");
    assert_eq!(log.lines().filter(|line| line.contains(&of_capture)).count(), 2, "its first span by each protocol");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let by_hand = format!("printf '%s %s' {capture} {} | sha256sum | cut -c 1-32", host.trim());
    let trace = support::output(std::process::Command::new("sh").args(["-c", &by_hand]));
    assert!(log.contains(&format!("Trace ID       : {}", trace.trim())), "{} is not in the log", trace.trim());
}

#[test]
#[ignore = "needs root"]
fn root_push_captures_of_calls_arrive_as_spans_by_both_protocols() {
    let test = "root_push_captures_of_calls_arrive_as_spans";
    let Some(program) = kstrobe_testing::collector(test) else { return };
    let Some(function) = graph_root(test, "recvfrom") else { return };
    let collector = Collector::start(&program, None);
    let (agent, _folder) = sends_all_to(&collector, RECEIVES);
    let asking = Asking::start(Duration::from_millis(5), "kst-slow");
    let request = json!({
        "tracer": "function_graph", "graph": [function], "comms": ["kst-slow"], "duration": "500ms",
    });
    let capture = agent.begin(&request);
    let ended = agent.ended(&capture);
    asking.end();
    assert_eq!(ended["state"], "done", "{ended}");
    wait_for("spans", LIMIT, || {
        let sent = |exporter| of(&agent, "kstrobe_export_points_sent_total", exporter);
        (sent("grpc/traces") > 1.0 && sent("grpc/traces") == sent("http/traces")).then_some(())
    });
    agent.stop();
    let log = collector.server.log();
    assert_its_trace(&capture, &log);
    let calls = format!("code.function.name: Str({function})");
    let calls = log.lines().filter(|line| line.contains(&calls)).count();
    assert!(calls >= 20 && calls % 2 == 0, "{calls} calls of {function}");
}
