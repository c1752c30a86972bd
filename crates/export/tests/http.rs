//! Exporters against a receiver of OTLP over HTTP with scripted responses: what arrives, what is tried again, what is
//! counted.

mod support;

use kstrobe_export::otlp::Temporality;
use kstrobe_export::otlp::logs::Record;
use kstrobe_export::otlp::spans::Span;
use kstrobe_export::push::task::start_at;
use kstrobe_export::push::{Exporter, ExporterTask, Kind};
use kstrobe_testing::{Came, Receiving};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};
use support::{Counting, receiver, until};
use tokio::runtime::Handle;

fn push(receiver: Exporter, source: &Arc<Counting>) -> ExporterTask {
    let source = source.clone();
    start_at(receiver, Arc::new(move || source.read()), &Handle::current(), Duration::ZERO)
}

/// Value of the counter and count of the histogram.
fn values(came: &Came) -> (i64, u64) {
    let request = ExportMetricsServiceRequest::decode(came.body.as_slice()).unwrap();
    let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
    let [counter, histogram] = metrics.as_slice() else { panic!("{metrics:?}") };
    let (Some(Data::Sum(sum)), Some(Data::ExponentialHistogram(histogram))) = (&counter.data, &histogram.data) else {
        panic!("{metrics:?}")
    };
    let Some(Value::AsInt(value)) = sum.data_points[0].value else { panic!("{sum:?}") };
    (value, histogram.data_points[0].count)
}

fn taken(receiving: &Receiving) -> Vec<Came> {
    receiving.came().into_iter().filter(|came| came.answer.starts_with("200")).collect()
}

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn cumulative_reports_arrive_and_failures_are_made_up_for() {
    let receiving = Receiving::start(&["503 Down\r\nRetry-After: 0", "200 OK", "429 Slow down"]);
    let source = Counting::new();
    let url = format!("http://{}/base/", receiving.address);
    let pusher = push(receiver(Kind::OtlpHttp, &url, Temporality::Cumulative), &source);
    until("five reports", || taken(&receiving).len() >= 5).await;
    let usage = pusher.stop(PATIENCE).await;

    let came = receiving.came();
    assert!(came.iter().all(|came| came.path == "/base/v1/metrics"));
    for (name, value) in [
        ("content-type", "application/x-protobuf"),
        ("content-encoding", "gzip"),
        ("user-agent", "kstrobe/0"),
        ("x-scope-orgid", "7"),
    ] {
        assert!(came.iter().all(|came| came.headers.get(name).is_some_and(|there| there == value)), "{name}");
    }
    let totals: Vec<_> = taken(&receiving).iter().map(values).collect();
    assert!(totals.is_sorted() && totals.iter().all(|(counter, histogram)| *counter as u64 == *histogram));
    // The last report is of the moment of stopping.
    assert_eq!(totals.last().map(|t| t.1), Some(source.grown.load(Ordering::SeqCst)));
    // A report that is read anew after a pause is not sent another time.
    assert_eq!(usage.sent, 2 * totals.len() as u64);
    assert!(usage.retried <= 2);
    assert_eq!(usage.failed.into_iter().collect::<Vec<_>>(), [("server_error", 1), ("throttled", 1)]);
    assert!(usage.dropped.is_empty() && usage.last_success.is_some() && usage.queue_points == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn differences_add_up_though_reports_fail() {
    let down = "503 Down";
    let receiving = Receiving::start(&["200 OK", down, down, down, "200 OK", down]);
    let source = Counting::new();
    let url = format!("http://{}", receiving.address);
    let pusher = push(receiver(Kind::OtlpHttp, &url, Temporality::Delta), &source);
    until("six reports", || taken(&receiving).len() >= 6).await;
    let usage = pusher.stop(PATIENCE).await;
    let arrived = taken(&receiving).iter().map(values).fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let counted = source.grown.load(Ordering::SeqCst);
    assert_eq!(arrived, (counted as i64, counted));
    assert!(usage.dropped.is_empty() && usage.failed["server_error"] == 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_for_good_is_dropped_and_counted() {
    let receiving = Receiving::start(&["400 What", "401 Who"]);
    let source = Counting::new();
    let url = format!("http://{}", receiving.address);
    let pusher = push(receiver(Kind::OtlpHttp, &url, Temporality::Delta), &source);
    until("two reports", || taken(&receiving).len() >= 2).await;
    let usage = pusher.stop(PATIENCE).await;
    let arrived: u64 = taken(&receiving).iter().map(|came| values(came).1).sum();
    assert_eq!(arrived, source.grown.load(Ordering::SeqCst) - 2, "each refused report had one");
    assert_eq!((usage.dropped["refused"], usage.retried), (4, 0));
    assert_eq!(usage.failed.into_iter().collect::<Vec<_>>(), [("bad_request", 1), ("unauthorized", 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_receiver_of_remote_write_wrote_of_a_refused_report_is_sent() {
    let written = "X-Prometheus-Remote-Write-Samples-Written: 1\r\nX-Prometheus-Remote-Write-Histograms-Written: 1";
    let partly = format!("400 What\r\n{written}");
    let receiving = Receiving::start(&[partly.as_str(), "400 What"]);
    let url = format!("http://{}", receiving.address);
    let pusher = push(receiver(Kind::RemoteWrite, &url, Temporality::Cumulative), &Counting::new());
    until("two reports", || pusher.usage().failed.get("bad_request") == Some(&2)).await;
    let usage = pusher.stop(PATIENCE).await;
    // A counter, a histogram and `target_info`; the other reports are refused as a whole.
    assert_eq!((usage.sent, usage.retried, usage.last_success.is_some()), (2, 0, true));
    assert_eq!(usage.dropped["refused"], 3 * receiving.came().len() as u64 - 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_away_is_waited_for_with_one_report_in_memory() {
    // An address without a listener, until one is opened.
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    for kind in [Kind::OtlpHttp, Kind::OtlpGrpc] {
        let source = Counting::new();
        let mut receiver = receiver(kind, &format!("http://{address}"), Temporality::Cumulative);
        receiver.resource.attributes.clear();
        let pusher = push(receiver, &source);
        until("failures", || pusher.usage().failed.values().sum::<u64>() >= 4).await;
        let usage = pusher.usage();
        assert_eq!((usage.queue_points, usage.sent, usage.last_success), (2, 0, None), "{kind:?}");
        let usage = pusher.stop(Duration::from_millis(300)).await;
        assert_eq!(usage.dropped.into_iter().collect::<Vec<_>>(), [("stopped", 2)], "{kind:?}");
        assert!(
            usage.superseded > 0 && usage.failed.keys().all(|reason| reason.starts_with("connect")),
            "{:?}",
            usage.failed
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn differences_go_on_where_they_ended() {
    // One that answers now and then, and one that takes a connection and never answers.
    let receiving = Receiving::start(&["200 OK", "503 Down"]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Counting::new();
    let to = |address| receiver(Kind::OtlpHttp, &format!("http://{address}"), Temporality::Delta);
    let first = push(to(receiving.address), &source);
    until("two reports", || taken(&receiving).len() >= 2).await;
    let go_on = async |old: ExporterTask, patience: Duration, address| {
        let left = old.hand_over(patience);
        let legacy = tokio::task::spawn_blocking(move || left.recv_timeout(PATIENCE).unwrap()).await.unwrap();
        let waits = legacy.unsent.is_some();
        let usage = old.stop(PATIENCE).await;
        assert!(usage.dropped.is_empty() && usage.queue_points == 0, "{usage:?}");
        let read = source.clone();
        (kstrobe_export::push::start(to(address), Arc::new(move || read.read()), legacy, &Handle::current()), waits)
    };
    let (second, _) = go_on(first, PATIENCE, silent.local_addr().unwrap()).await;
    until("a report that waits", || second.usage().queue_points > 0).await;
    let (third, waits) = go_on(second, Duration::from_millis(100), receiving.address).await;
    assert!(waits, "what the silent one did not take");
    let before = taken(&receiving).len();
    until("two more", || taken(&receiving).len() >= before + 2).await;
    assert!(third.stop(PATIENCE).await.dropped.is_empty());
    let arrived = taken(&receiving).iter().map(values).fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let counted = source.grown.load(Ordering::SeqCst);
    assert_eq!(arrived, (counted as i64, counted));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_arrive_once_though_requests_fail() {
    let down = "503 Down\r\nRetry-After: 0";
    let receiving = Receiving::start(&[down, "200 OK", down, down, "429 Slow down"]);
    let mut receiver =
        receiver(Kind::OtlpHttp, &format!("http://{}/base?token=x", receiving.address), Temporality::Cumulative);
    receiver.queue_bytes = 1 << 20;
    let (pusher, batches) = kstrobe_export::push::start_logs(&receiver, &Handle::current());
    let record = |line: String| Record { at: UNIX_EPOCH, read: UNIX_EPOCH, attributes: vec![], line };
    for number in 0..3 {
        batches.push(record(number.to_string()));
        until("it", || pusher.usage().sent == number + 1).await;
    }
    // What was put just before the end is sent with it.
    batches.push(record("3".into()));
    batches.push(record("x".repeat(2 << 20)));
    let watch = pusher.watch();
    assert_eq!(watch.usage().queue_points, 1);
    let usage = pusher.stop(PATIENCE).await;
    assert_eq!((usage.receiver.as_str(), usage.sent, usage.queue_points), ("test/logs", 4, 0));
    assert_eq!(
        usage.dropped.into_iter().collect::<Vec<_>>(),
        [("full", 1)],
        "it is larger than all the memory there is"
    );
    assert!(usage.retried >= 3 && usage.failed["server_error"] == 3 && usage.failed["throttled"] == 1);
    let came = receiving.came();
    assert!(came.iter().all(|came| came.path == "/base/v1/logs?token=x"));
    let lines: Vec<String> = taken(&receiving).iter().flat_map(lines).collect();
    assert_eq!(lines, ["0", "1", "2", "3"]);
}

/// Bodies of the log records of a request.
fn lines(came: &Came) -> Vec<String> {
    let request = ExportLogsServiceRequest::decode(came.body.as_slice()).unwrap();
    let records = request.resource_logs.into_iter().flat_map(|r| r.scope_logs).flat_map(|s| s.log_records);
    let bodies = records.map(|record| record.body.unwrap().value.unwrap());
    bodies.map(|body| if let any_value::Value::StringValue(line) = body { line } else { panic!("{body:?}") }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_cannot_be_sent_are_kept_within_a_bound_and_counted() {
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", place.local_addr().unwrap());
    drop(place);
    let mut receiver = receiver(Kind::OtlpHttp, &url, Temporality::Cumulative);
    receiver.queue_bytes = 1 << 20;
    let (pusher, batches) = kstrobe_export::push::start_traces(&receiver, &Handle::current());
    let span = |number: u64| Span {
        trace: [1; 16],
        id: number.to_be_bytes(),
        parent: None,
        name: "x".repeat(1000),
        start: UNIX_EPOCH,
        end: UNIX_EPOCH,
        attributes: vec![],
        error: None,
    };
    (1..=3000).for_each(|number| batches.push(span(number)));
    until("failures", || pusher.usage().failed.values().sum::<u64>() >= 4).await;
    let usage = pusher.usage();
    assert_eq!(usage.dropped["full"] + usage.queue_points, 3000, "{usage:?}");
    assert!(usage.queue_bytes <= 1 << 20 && usage.queue_points > 500, "{usage:?}");
    let usage = pusher.stop(Duration::from_millis(300)).await;
    assert_eq!(usage.dropped["full"] + usage.dropped["stopped"], 3000);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_read_again_from_their_file() {
    let receiving = Receiving::start(&[]);
    let file = std::env::temp_dir().join(format!("kstrobe-push-headers-{}", std::process::id()));
    std::fs::write(&file, "Authorization: Bearer old\n").unwrap();
    let mut receiver = receiver(Kind::OtlpHttp, &format!("http://{}", receiving.address), Temporality::Cumulative);
    receiver.headers_file = Some(file.clone());
    let pusher = push(receiver, &Counting::new());
    let with = |token: &str| {
        let came = receiving.came();
        came.iter().any(|came| came.headers.get("authorization").is_some_and(|there| there == token))
    };
    until("the old token", || with("Bearer old")).await;
    std::fs::write(&file, "Authorization: Bearer new\n").unwrap();
    until("the new token", || with("Bearer new")).await;
    std::fs::remove_file(&file).unwrap();
    until("a failure", || pusher.usage().failed.contains_key("settings")).await;
    std::fs::write(&file, "Authorization: Bearer newest\n").unwrap();
    until("the newest token", || with("Bearer newest")).await;
    pusher.stop(PATIENCE).await;
    std::fs::remove_file(&file).unwrap();
}
