use super::*;
use crate::push::exporter::tests::receiver;
use crate::snapshot::{Descriptor, Exemplar, Family, Histograms, Kind as MetricKind, Link, Series, Values};
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use prost::Message;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn queue(kind: Kind, temporality: Temporality, queue_bytes: usize) -> SendQueue {
    SendQueue::new(&Exporter { kind, temporality, queue_bytes, ..receiver() })
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Many series of one counter, each with this value; long labels make several requests of them.
fn reading(seconds: u64, series: std::ops::Range<usize>, value: u64) -> Reading {
    let label_names = vec!["l".to_owned()];
    let (name, help, unit) = ("kstrobe_x_total".to_owned(), String::new(), String::new());
    let about = Descriptor { name, help, kind: MetricKind::Counter, unit, raw_per_unit: 1, label_names };
    let labels = |n: usize| Arc::from([Arc::from(format!("{n:05}{}", "x".repeat(200)))]);
    let values = Values::Counters(vec![value; series.len()]);
    let series = series.map(|n| Series { labels: labels(n), created: Some(at(0)) }).collect();
    let family = Family { about: Arc::new(about), columns: Arc::from([0]), series, values };
    Reading {
        snapshot: Snapshot { at: at(seconds), families: vec![family] },
        exemplars: Vec::new(),
        native_bucket_limit: 0,
    }
}

/// Sum of all values of a request.
fn sum(part: &Part) -> i64 {
    let request = ExportMetricsServiceRequest::decode(part.body.as_slice()).unwrap();
    let metrics = request.resource_metrics.iter().flat_map(|r| &r.scope_metrics).flat_map(|s| &s.metrics);
    let points = metrics.flat_map(|metric| match &metric.data {
        Some(Data::Sum(sum)) => sum.data_points.clone(),
        other => panic!("{other:?}"),
    });
    points.map(|point| if let Some(Value::AsInt(value)) = point.value { value } else { panic!("{point:?}") }).sum()
}

#[test]
fn a_cumulative_report_takes_the_place_of_the_one_before() {
    let mut queue = queue(Kind::OtlpHttp, Temporality::Cumulative, usize::MAX);
    assert_eq!(queue.enqueue(reading(1, 0..20_000, 1)), Enqueued::default());
    assert!(queue.requests() > 2 && queue.points() == 20_000);
    let first = queue.first().unwrap().points;
    queue.pop();
    let taken = queue.enqueue(reading(2, 0..20_000, 5));
    assert_eq!(taken, Enqueued { superseded: 20_000 - first, dropped: 0 });
    let mut arrived = 0;
    while let Some(part) = queue.first() {
        arrived += sum(part);
        queue.pop();
    }
    assert_eq!((arrived, queue.points(), queue.bytes()), (100_000, 0, 0));
}

#[test]
fn differences_that_wait_become_part_of_the_next() {
    let mut queue = queue(Kind::OtlpGrpc, Temporality::Delta, usize::MAX);
    queue.enqueue(reading(1, 0..20_000, 1));
    let mut arrived = sum(queue.first().unwrap());
    queue.pop();
    // The rest of the first waits; what is gone meanwhile is still reported.
    assert_eq!(queue.enqueue(reading(2, 0..15_000, 4)), Enqueued::default());
    while let Some(part) = queue.first() {
        arrived += sum(part);
        queue.pop();
    }
    assert_eq!(arrived, 20_000 + 15_000 * 3);
    assert_eq!(queue.enqueue(reading(3, 0..15_000, 4)), Enqueued::default());
    assert_eq!(queue.requests(), 0, "nothing new");
}

#[test]
fn differences_of_one_receiver_go_on_where_those_of_another_ended() {
    let (mut old, mut sent) = (queue(Kind::OtlpGrpc, Temporality::Delta, usize::MAX), 0);
    let mut send = |queue: &mut SendQueue| {
        while let Some(part) = queue.first() {
            sent += sum(part);
            queue.pop();
        }
    };
    old.enqueue(reading(1, 0..10, 1));
    send(&mut old);
    old.enqueue(reading(2, 0..10, 3));
    let baseline = old.take_baseline().unwrap();
    assert_eq!((old.requests(), old.bytes()), (0, 0));
    let mut new = queue(Kind::OtlpHttp, Temporality::Delta, usize::MAX).resume_from(baseline.clone());
    assert_eq!(new.points(), 10, "what waited waits there");
    new.enqueue(reading(3, 0..5, 7));
    send(&mut old);
    send(&mut new);
    assert_eq!(sent, 10 + 10 * 2 + 5 * 4, "each count is sent by one of them, also of series that are gone");
    let mut early = queue(Kind::OtlpGrpc, Temporality::Delta, usize::MAX);
    let mut successor =
        queue(Kind::OtlpGrpc, Temporality::Delta, usize::MAX).resume_from(early.take_baseline().unwrap());
    successor.enqueue(reading(2, 0..10, 3));
    assert_eq!(sum(successor.first().unwrap()), 30, "no delta was sent before");
    let mut totals = queue(Kind::OtlpGrpc, Temporality::Cumulative, usize::MAX).resume_from(baseline);
    assert_eq!(totals.points(), 0);
    totals.enqueue(reading(2, 0..10, 3));
    assert_eq!(sum(totals.first().unwrap()), 30, "totals are of all");
    assert!(totals.take_baseline().is_none());
}

#[test]
fn memory_is_bounded_and_what_does_not_fit_is_counted() {
    for temporality in [Temporality::Cumulative, Temporality::Delta] {
        let mut queue = queue(Kind::OtlpHttp, temporality, 3 << 20);
        let taken = queue.enqueue(reading(1, 0..50_000, 1));
        assert!(queue.bytes() <= 3 << 20 && queue.requests() >= 1);
        assert_eq!(taken.dropped + queue.points(), 50_000, "{temporality:?}");
        // Series come and go while the receiver is away.
        let mut dropped = taken.dropped;
        for round in 2..20 {
            let from = 100_000 + round as usize * 10_000;
            let taken = queue.enqueue(reading(round, from..from + 10_000, 1));
            dropped += taken.dropped;
            assert!(queue.bytes() <= 3 << 20, "{temporality:?}: {} bytes", queue.bytes());
            if temporality == Temporality::Delta {
                assert_eq!(dropped + queue.points(), 50_000 + (round - 1) * 10_000);
            }
        }
        assert!(dropped > 0);
    }
}

#[test]
fn an_exemplar_is_sent_until_it_has_arrived_and_then_no_more() {
    let scheme = Arc::new(
        Scheme::new(&BucketSpec { schema: 0, raw_per_unit: 1, min: 1, max: 1024, classic: vec!["64".into()] }).unwrap(),
    );
    let labels: Arc<[Arc<str>]> = Arc::from([]);
    let (name, help, unit) = ("kstrobe_h".to_owned(), String::new(), String::new());
    let about =
        Arc::new(Descriptor { name, help, kind: MetricKind::Histogram, unit, raw_per_unit: 1, label_names: vec![] });
    let reading = |seconds, ids: &[&str]| {
        let mut counts = vec![0; scheme.buckets()];
        counts[scheme.index(5)] = seconds;
        let values = Values::Histograms(Histograms { scheme: scheme.clone(), sums: vec![5 * seconds], counts });
        let series = vec![Series { labels: labels.clone(), created: Some(at(0)) }];
        let family = Family { about: about.clone(), columns: Arc::from([]), series, values };
        let exemplar = |id: &&str| Exemplar {
            family: "kstrobe_h".into(),
            labels: labels.clone(),
            link: Link::Event((*id).to_owned()),
            value: 5.0,
            at: at(seconds),
        };
        let snapshot = Snapshot { at: at(seconds), families: vec![family] };
        Reading { snapshot, exemplars: ids.iter().map(exemplar).collect(), native_bucket_limit: 0 }
    };
    let exemplars = |part: &Part| {
        let request = ExportMetricsServiceRequest::decode(part.body.as_slice()).unwrap();
        match &request.resource_metrics[0].scope_metrics[0].metrics[0].data {
            Some(Data::ExponentialHistogram(h)) => h.data_points[0].exemplars.len(),
            other => panic!("{other:?}"),
        }
    };
    for temporality in [Temporality::Cumulative, Temporality::Delta] {
        let mut queue = queue(Kind::OtlpHttp, temporality, usize::MAX);
        queue.enqueue(reading(1, &["a"]));
        // That report did not arrive.
        queue.enqueue(reading(2, &["a", "b"]));
        assert_eq!(exemplars(queue.first().unwrap()), 2, "{temporality:?}");
        queue.pop();
        queue.enqueue(reading(3, &["a", "b", "c"]));
        assert_eq!(exemplars(queue.first().unwrap()), 1, "{temporality:?}");
        queue.pop();
        queue.enqueue(reading(4, &["c"]));
        assert_eq!(exemplars(queue.first().unwrap()), 0, "{temporality:?}");
    }
}

#[test]
fn remote_write_ends_series_until_the_receiver_knows() {
    let ends = |queue: &mut SendQueue| {
        let mut ends = 0;
        while let Some(part) = queue.first() {
            let request = remote_write::message::Request::decode(part.body.as_slice()).unwrap();
            let samples = request.timeseries.iter().flat_map(|series| &series.samples);
            ends += samples.filter(|sample| sample.value.is_nan()).count();
            queue.pop();
        }
        ends
    };
    let mut queue = queue(Kind::RemoteWrite, Temporality::Delta, usize::MAX);
    assert!(queue.is_cumulative(), "remote write has totals only");
    queue.enqueue(reading(1, 0..10, 1));
    assert_eq!(ends(&mut queue), 0);
    queue.enqueue(reading(2, 5..10, 1));
    // That report did not arrive: the next says it again.
    queue.enqueue(reading(3, 5..12, 1));
    assert_eq!(ends(&mut queue), 5);
    queue.enqueue(reading(4, 5..12, 1));
    assert_eq!(ends(&mut queue), 0);
}
