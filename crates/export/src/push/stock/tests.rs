use super::*;
use crate::push::settings::tests::receiver;
use crate::snapshot::{Descriptor, Exemplar, Family, Histograms, Kind as MetricKind, Link, Series, Values};
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use prost::Message;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn stock(kind: Kind, temporality: Temporality, queue_bytes: usize) -> Stock {
    Stock::new(&Receiver { kind, temporality, queue_bytes, ..receiver() })
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
    let mut stock = stock(Kind::OtlpHttp, Temporality::Cumulative, usize::MAX);
    assert_eq!(stock.take_in(reading(1, 0..20_000, 1)), TakenIn::default());
    assert!(stock.requests() > 2 && stock.points() == 20_000);
    let first = stock.first().unwrap().points;
    stock.done();
    let taken = stock.take_in(reading(2, 0..20_000, 5));
    assert_eq!(taken, TakenIn { superseded: 20_000 - first, dropped: 0 });
    let mut arrived = 0;
    while let Some(part) = stock.first() {
        arrived += sum(part);
        stock.done();
    }
    assert_eq!((arrived, stock.points(), stock.bytes()), (100_000, 0, 0));
}

#[test]
fn differences_that_wait_become_part_of_the_next() {
    let mut stock = stock(Kind::OtlpGrpc, Temporality::Delta, usize::MAX);
    stock.take_in(reading(1, 0..20_000, 1));
    let mut arrived = sum(stock.first().unwrap());
    stock.done();
    // The rest of the first waits; what is gone meanwhile is still reported.
    assert_eq!(stock.take_in(reading(2, 0..15_000, 4)), TakenIn::default());
    while let Some(part) = stock.first() {
        arrived += sum(part);
        stock.done();
    }
    assert_eq!(arrived, 20_000 + 15_000 * 3);
    assert_eq!(stock.take_in(reading(3, 0..15_000, 4)), TakenIn::default());
    assert_eq!(stock.requests(), 0, "nothing new");
}

#[test]
fn differences_of_one_receiver_go_on_where_those_of_another_ended() {
    let (mut old, mut sent) = (stock(Kind::OtlpGrpc, Temporality::Delta, usize::MAX), 0);
    let mut send = |stock: &mut Stock| {
        while let Some(part) = stock.first() {
            sent += sum(part);
            stock.done();
        }
    };
    old.take_in(reading(1, 0..10, 1));
    send(&mut old);
    old.take_in(reading(2, 0..10, 3));
    let legacy = old.leave().unwrap();
    assert_eq!((old.requests(), old.bytes()), (0, 0));
    let mut new = stock(Kind::OtlpHttp, Temporality::Delta, usize::MAX).since(legacy.clone());
    assert_eq!(new.points(), 10, "what waited waits there");
    new.take_in(reading(3, 0..5, 7));
    send(&mut old);
    send(&mut new);
    assert_eq!(sent, 10 + 10 * 2 + 5 * 4, "each count is sent by one of them, also of series that are gone");
    let mut early = stock(Kind::OtlpGrpc, Temporality::Delta, usize::MAX);
    let mut heir = stock(Kind::OtlpGrpc, Temporality::Delta, usize::MAX).since(early.leave().unwrap());
    heir.take_in(reading(2, 0..10, 3));
    assert_eq!(sum(heir.first().unwrap()), 30, "nothing was told before");
    let mut totals = stock(Kind::OtlpGrpc, Temporality::Cumulative, usize::MAX).since(legacy);
    assert_eq!(totals.points(), 0);
    totals.take_in(reading(2, 0..10, 3));
    assert_eq!(sum(totals.first().unwrap()), 30, "totals are of all");
    assert!(totals.leave().is_none());
}

#[test]
fn memory_is_bounded_and_what_does_not_fit_is_counted() {
    for temporality in [Temporality::Cumulative, Temporality::Delta] {
        let mut stock = stock(Kind::OtlpHttp, temporality, 3 << 20);
        let taken = stock.take_in(reading(1, 0..50_000, 1));
        assert!(stock.bytes() <= 3 << 20 && stock.requests() >= 1);
        assert_eq!(taken.dropped + stock.points(), 50_000, "{temporality:?}");
        // Series come and go while the receiver is away.
        let mut dropped = taken.dropped;
        for round in 2..20 {
            let from = 100_000 + round as usize * 10_000;
            let taken = stock.take_in(reading(round, from..from + 10_000, 1));
            dropped += taken.dropped;
            assert!(stock.bytes() <= 3 << 20, "{temporality:?}: {} bytes", stock.bytes());
            if temporality == Temporality::Delta {
                assert_eq!(dropped + stock.points(), 50_000 + (round - 1) * 10_000);
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
        let mut stock = stock(Kind::OtlpHttp, temporality, usize::MAX);
        stock.take_in(reading(1, &["a"]));
        // That report did not arrive.
        stock.take_in(reading(2, &["a", "b"]));
        assert_eq!(exemplars(stock.first().unwrap()), 2, "{temporality:?}");
        stock.done();
        stock.take_in(reading(3, &["a", "b", "c"]));
        assert_eq!(exemplars(stock.first().unwrap()), 1, "{temporality:?}");
        stock.done();
        stock.take_in(reading(4, &["c"]));
        assert_eq!(exemplars(stock.first().unwrap()), 0, "{temporality:?}");
    }
}

#[test]
fn remote_write_ends_series_until_the_receiver_knows() {
    let ends = |stock: &mut Stock| {
        let mut ends = 0;
        while let Some(part) = stock.first() {
            let request = remote_write::message::Request::decode(part.body.as_slice()).unwrap();
            let samples = request.timeseries.iter().flat_map(|series| &series.samples);
            ends += samples.filter(|sample| sample.value.is_nan()).count();
            stock.done();
        }
        ends
    };
    let mut stock = stock(Kind::RemoteWrite, Temporality::Delta, usize::MAX);
    assert!(stock.replaces(), "remote write has totals only");
    stock.take_in(reading(1, 0..10, 1));
    assert_eq!(ends(&mut stock), 0);
    stock.take_in(reading(2, 5..10, 1));
    // That report did not arrive: the next says it again.
    stock.take_in(reading(3, 5..12, 1));
    assert_eq!(ends(&mut stock), 5);
    stock.take_in(reading(4, 5..12, 1));
    assert_eq!(ends(&mut stock), 0);
}
