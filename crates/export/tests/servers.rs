//! Real receivers: VictoriaMetrics (OTLP over HTTP), Prometheus (remote write 2.0) and an OpenTelemetry Collector (OTLP over
//! gRPC and HTTP). Each is killed while it is sent to, and what it has in the end is what was counted.

mod support;

use kstrobe_export::otlp::Temporality;
use kstrobe_export::push::task::start_at;
use kstrobe_export::push::{Exporter, ExporterTask, Kind, Usage};
use kstrobe_testing::servers::{self, Collector, total};
use kstrobe_testing::{Api, Server, there};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{Counting, receiver, until};
use tokio::runtime::Handle;

const PATIENCE: Duration = Duration::from_secs(60);

fn push(receiver: Exporter, source: &Arc<Counting>) -> ExporterTask {
    let source = source.clone();
    start_at(receiver, Arc::new(move || source.read()), &Handle::current(), Duration::ZERO)
}

async fn sent(pusher: &ExporterTask, points: u64) {
    let from = pusher.usage().sent;
    until("points", || pusher.usage().sent >= from + points).await;
}

/// The server is away for a while, in which memory holds one report. `end` is how it ends.
async fn away(pusher: &ExporterTask, server: &mut Server, end: fn(&mut Server)) {
    sent(pusher, 6).await;
    end(server);
    let failed = |usage: &Usage| usage.failed.values().sum::<u64>();
    let before = failed(&pusher.usage());
    until("failures", || failed(&pusher.usage()) >= before + 5).await;
    let usage = pusher.usage();
    assert!(usage.queue_points <= 3 && usage.queue_bytes < 4096, "one report of two series is kept: {usage:?}");
    server.again();
    sent(pusher, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs VictoriaMetrics"]
async fn root_victoria_metrics_has_what_was_counted() {
    let Some(program) = there("root_victoria_metrics_has_what_was_counted", "victoria-metrics") else { return };
    for temporality in [Temporality::Cumulative, Temporality::Delta] {
        victoria_metrics(&program, temporality).await;
    }
}

/// VictoriaMetrics keeps differences as they come: their sum over time is the total.
async fn victoria_metrics(program: &std::path::Path, temporality: Temporality) {
    let mut server = servers::victoria_metrics(program, None);
    let source = Counting::new();
    let url = format!("http://{}/opentelemetry", server.address());
    let pusher = push(receiver(Kind::OtlpHttp, &url, temporality), &source);
    // In good order: a difference that it took and could not say so would come again.
    let (over_time, end): (_, fn(&mut Server)) = match temporality {
        Temporality::Cumulative => ("last_over_time", Server::kill),
        Temporality::Delta => ("sum_over_time", Server::terminate),
    };
    away(&pusher, &mut server, end).await;
    let usage = pusher.stop(PATIENCE).await;
    assert!(usage.dropped.is_empty(), "{usage:?}");

    let counted = source.grown.load(Ordering::SeqCst) as f64;
    let selector = |name: &str| format!("{over_time}({{__name__=\"{name}\",l=\"a\"}}[1h])");
    until("the last report", || Api(server.address()).value(&selector("kstrobe.grown")) == Some(counted)).await;
    assert_eq!(Api(server.address()).value(&selector("kstrobe.wait_count")), Some(counted));
    let sum = Api(server.address()).value(&selector("kstrobe.wait_sum")).unwrap();
    assert!((sum - counted * 0.003).abs() < 1e-9, "{sum}");
    let buckets = Api(server.address()).query(&selector("kstrobe.wait_bucket"));
    let [bucket] = buckets.as_slice() else { panic!("all observations are alike: {buckets:?}") };
    assert_eq!(bucket.value, counted);
    let range = &bucket.labels["vmrange"];
    let (lower, upper) = range.split_once("...").unwrap();
    let (lower, upper): (f64, f64) = (lower.parse().unwrap(), upper.parse().unwrap());
    assert!(lower < 0.003 && 0.003 <= upper && upper / lower < 1.1, "{range}: a bucket of schema 3 is 9 % wide");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus"]
async fn root_prometheus_has_what_was_counted() {
    let Some(program) = there("root_prometheus_has_what_was_counted", "prometheus") else { return };
    let mut server = servers::prometheus(&program, None);
    let source = Counting::new();
    let url = format!("http://{}/api/v1/write", server.address());
    let mut receiver = receiver(Kind::RemoteWrite, &url, Temporality::Cumulative);
    receiver.resource.attributes.push(("service.instance.id".into(), "node-1".into()));
    receiver.resource.attributes.push(("host.arch".into(), "amd64".into()));
    let pusher = push(receiver, &source);
    away(&pusher, &mut server, Server::kill).await;
    let usage = pusher.stop(PATIENCE).await;
    assert!(usage.dropped.is_empty(), "{usage:?}");

    let counted = source.grown.load(Ordering::SeqCst) as f64;
    let target = "job=\"kstrobe\",instance=\"node-1\",l=\"a\"";
    until("the last report", || {
        Api(server.address()).value(&format!("kstrobe_grown_total{{{target}}}")) == Some(counted)
    })
    .await;
    let value = |expression: String| {
        Api(server.address()).value(&expression).unwrap_or_else(|| panic!("{expression}: nothing"))
    };
    let histogram = format!("kstrobe_wait_seconds{{{target}}}");
    assert_eq!(value(format!("histogram_count({histogram})")), counted);
    assert!((value(format!("histogram_sum({histogram})")) - counted * 0.003).abs() < 1e-9);
    let median = value(format!("histogram_quantile(0.5, {histogram})"));
    assert!((median / 0.003 - 1.0).abs() < 0.09, "{median}: a bucket of schema 3 is 9 % wide");
    assert_eq!(value("target_info{host_arch=\"amd64\"}".into()), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus"]
async fn root_prometheus_ends_series_that_are_gone() {
    let Some(program) = there("root_prometheus_ends_series_that_are_gone", "prometheus") else { return };
    let server = servers::prometheus(&program, None);
    let source = Counting::new();
    let gone = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let url = format!("http://{}/api/v1/write", server.address());
    let (reads, hides) = (source.clone(), gone.clone());
    let read = move || {
        let mut reading = reads.read();
        if hides.load(Ordering::SeqCst) {
            for family in &mut reading.snapshot.families {
                let values = family.values.clone();
                *family = kstrobe_export::snapshot::Family { series: Vec::new(), values, ..family.clone() };
            }
        }
        reading
    };
    let receiver = receiver(Kind::RemoteWrite, &url, Temporality::Cumulative);
    let pusher = start_at(receiver, Arc::new(read), &Handle::current(), Duration::ZERO);
    let live = || Api(server.address()).query("{__name__=~\"kstrobe_.*\"}").len();
    until("both series", || live() == 2).await;
    gone.store(true, Ordering::SeqCst);
    // Without markers they would be there for five minutes.
    until("their end", || live() == 0).await;
    let usage = pusher.stop(PATIENCE).await;
    assert!(usage.dropped.is_empty() && usage.failed.is_empty(), "{usage:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an OpenTelemetry Collector"]
async fn root_collector_has_what_was_counted() {
    let Some(program) = kstrobe_testing::collector("root_collector_has_what_was_counted") else { return };
    for kind in [Kind::OtlpGrpc, Kind::OtlpHttp] {
        for temporality in [Temporality::Cumulative, Temporality::Delta] {
            collector(&program, kind, temporality).await;
        }
    }
}

async fn collector(program: &std::path::Path, kind: Kind, temporality: Temporality) {
    let mut collector = Collector::start(program, None);
    let source = Counting::new();
    let address = if kind == Kind::OtlpGrpc { collector.grpc } else { collector.http };
    let pusher = push(receiver(kind, &format!("http://{address}"), temporality), &source);
    // In good order: a difference that it took and could not say so would come again.
    let end = if temporality == Temporality::Delta { Server::terminate } else { Server::kill };
    away(&pusher, &mut collector.server, end).await;
    let usage = pusher.stop(PATIENCE).await;
    assert!(usage.dropped.is_empty(), "{kind:?} {temporality:?}: {usage:?}");
    let counted = source.grown.load(Ordering::SeqCst) as f64;
    let (points, expected) = (collector.points(), format!("{temporality:?}"));
    let total = |metric| total(&points, metric, &expected);
    let totals = (total("kstrobe.grown"), total("kstrobe.wait"));
    assert_eq!(totals, (counted, counted), "{kind:?} {temporality:?}: {points:?}");
    for point in &points {
        assert_eq!(point.temporality, expected, "{point:?}");
        match (point.metric.as_str(), point.buckets.as_slice()) {
            ("kstrobe.grown", []) => {}
            ("kstrobe.wait", [(lower, upper, count)]) => {
                assert!(*lower < 0.003 && 0.003 <= *upper && upper / lower < 1.1, "{point:?}");
                assert_eq!(*count as f64, point.value);
            }
            _ => panic!("{point:?}"),
        }
    }
}
