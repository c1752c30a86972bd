use super::message::{BucketSpan, Histogram, Metric as M, MetricFamily, MetricType};
use super::*;
use crate::snapshot::{Family, Histograms, LabelTexts, Link, Snapshot, Values};
use crate::text::tests::{descriptor, families, family, sample};
use crate::{Format, exposition as write_exposition};
use kstrobe_ebpf::buckets::BucketSpec;
use proptest::prelude::*;
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;

fn read(mut bytes: &[u8]) -> Vec<MetricFamily> {
    let mut families = Vec::new();
    while !bytes.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut bytes).unwrap());
    }
    families
}

fn written(snapshot: &Snapshot, exemplars: &[Exemplar], native_bucket_limit: usize) -> Vec<MetricFamily> {
    let bytes = write_exposition(snapshot, exemplars, b"", Format::Protobuf, native_bucket_limit);
    let families = read(&bytes);
    assert!(bytes == families.iter().flat_map(by_prost).collect::<Vec<u8>>(), "prost writes the same bytes");
    families
}

/// The unit stands before the series, as it is written before them.
fn by_prost(family: &MetricFamily) -> Vec<u8> {
    let mut bytes = MetricFamily { metric: Vec::new(), ..family.clone() }.encode_to_vec();
    for metric in &family.metric {
        bytes.push(METRIC_KEY);
        metric.encode_length_delimited(&mut bytes).unwrap();
    }
    let length = bytes.len();
    prepend_length(&mut bytes, length);
    bytes
}

#[test]
fn protobuf_is_as_blessed() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protobuf/sample.txt");
    let actual: String = written(&sample(), &[], 0).iter().map(|family| format!("{family:#?}\n")).collect();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(actual, expected, "run with BLESS=1 to accept");
}

#[test]
fn the_agents_own_families_follow() {
    let own = MetricFamily { name: "kstrobe_scrapes_total".into(), ..MetricFamily::default() };
    let bytes = write_exposition(&sample(), &[], &own.encode_length_delimited_to_vec(), Format::Protobuf, 0);
    assert_eq!(read(&bytes).last(), Some(&own));
}

fn seconds(schema: u8) -> Arc<Scheme> {
    let classic = ["0.001", "0.01", "0.1"].map(String::from).to_vec();
    let spec = BucketSpec { schema, raw_per_unit: SECOND_NS, min: 1000, max: 16 * SECOND_NS, classic };
    Arc::new(Scheme::new(&spec).unwrap())
}

/// A family with one histogram of these values in nanoseconds.
fn histogram(scheme: &Arc<Scheme>, values: &[u64]) -> Snapshot {
    let mut counts = vec![0; scheme.buckets()];
    values.iter().for_each(|value| counts[scheme.index(*value)] += 1);
    let histograms = Histograms { scheme: scheme.clone(), sums: vec![values.iter().sum()], counts };
    let about = descriptor("kstrobe_wait_seconds", Kind::Histogram, "seconds", &["comm"]);
    let families = vec![family(about, &[&["sh"]], Values::Histograms(histograms))];
    Snapshot { at: UNIX_EPOCH, families }
}

fn only(families: &[MetricFamily]) -> &Histogram {
    let [MetricFamily { metric, .. }] = families else { panic!("{families:?}") };
    let [M { histogram: Some(histogram), .. }] = metric.as_slice() else { panic!("{metric:?}") };
    histogram
}

#[test]
fn an_empty_histogram_is_still_a_native_one() {
    let families = written(&histogram(&seconds(3), &[]), &[], 160);
    let histogram = only(&families);
    assert_eq!(histogram.positive_span, [BucketSpan { offset: 0, length: 0 }]);
    assert_eq!((histogram.schema, histogram.sample_count, &histogram.positive_delta), (3, 0, &vec![]));
}

#[test]
fn the_limit_lowers_the_schema_of_the_histogram_that_needs_it() {
    // 1 us to 8 s, one value in each bucket of schema 3: 23 octaves.
    let values: Vec<u64> = (0..23 * 8).map(|step| (1000.0 * (f64::from(step) / 8.0).exp2()) as u64 + 1).collect();
    let scheme = seconds(3);
    for (limit, schema) in [(0, 3), (200, 3), (160, 2), (80, 1), (30, 0), (22, -1), (1, -4)] {
        let families = written(&histogram(&scheme, &values), &[], limit);
        let histogram = only(&families);
        assert_eq!(histogram.schema, schema, "limit {limit}");
        assert_eq!(histogram.zero_threshold, scheme.zero_threshold());
        let mut count = 0;
        let sum: i64 = histogram
            .positive_delta
            .iter()
            .map(|delta| {
                count += delta;
                count
            })
            .sum();
        assert_eq!(sum as u64 + histogram.zero_count, histogram.sample_count, "limit {limit}");
        assert_eq!(histogram.bucket.last().unwrap().cumulative_count, histogram.sample_count);
    }
}

#[test]
fn exemplars_stand_in_both_forms_at_their_series() {
    let scheme = seconds(3);
    let snapshot = histogram(&scheme, &[5_000_000, 6_000_000, SECOND_NS]);
    let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(1_700_000_000_000 + ms);
    let labels: LabelTexts = ["sh"].map(Arc::from).into_iter().collect();
    let exemplar = |capture: &str, value, ms| Exemplar {
        family: "kstrobe_wait_seconds".into(),
        labels: labels.clone(),
        link: Link::Capture(capture.into()),
        value,
        at: at(ms),
    };
    let elsewhere = Exemplar { labels: ["bash"].map(Arc::from).into_iter().collect(), ..exemplar("d", 0.005, 9) };
    let other = Exemplar { family: "kstrobe_other_seconds".into(), ..exemplar("e", 0.005, 9) };
    let exemplars = [exemplar("a", 0.005, 250), exemplar("c", 1.0, 100), exemplar("b", 0.006, 300), elsewhere, other];
    let families = written(&snapshot, &exemplars, 160);
    let histogram = only(&families);
    let ids = |e: &super::message::Exemplar| (e.label[0].name.clone(), e.label[0].value.clone());
    let classic: Vec<_> = histogram.bucket.iter().map(|b| b.exemplar.as_ref().map(|e| ids(e).1)).collect();
    assert_eq!(classic, [None, Some("b".into()), None, Some("c".into())]);
    let native: Vec<_> = histogram.exemplars.iter().map(ids).collect();
    assert_eq!(native, ["c", "a", "b"].map(|id| ("capture_id".to_owned(), id.to_owned())), "by time");
    let time = histogram.exemplars[1].timestamp.unwrap();
    assert_eq!((time.seconds, time.nanos), (1_700_000_000, 250_000_000));
}

proptest! {
    #[test]
    fn any_snapshot_reads_back(families in families(), limit in 0usize..20) {
        let snapshot = Snapshot { at: UNIX_EPOCH, families };
        let read = written(&snapshot, &[], limit);
        let expected: Vec<&Family> = snapshot.families.iter().filter(|family| !family.is_empty()).collect();
        prop_assert_eq!(read.len(), expected.len());
        for (read, family) in read.iter().zip(expected) {
            prop_assert_eq!((&read.name, read.metric.len()), (&family.about.name, family.len()));
            for (position, (metric, series)) in read.metric.iter().zip(&family.series).enumerate() {
                for (at, label) in metric.label.iter().enumerate() {
                    prop_assert_eq!(&label.name, &family.about.label_names[at]);
                    prop_assert_eq!(&label.value, &family.label(series, at).replace('\0', "\u{fffd}"));
                }
                match &family.values {
                    Values::Counters(values) => {
                        let counter = metric.counter.unwrap();
                        prop_assert_eq!(counter.value, quotient(values[position], family.about.raw_per_unit));
                        prop_assert_eq!(counter.start_timestamp.unwrap().nanos, 250_000_000);
                        prop_assert_eq!(read.kind(), MetricType::Counter);
                    }
                    Values::Gauges(_) => prop_assert!(metric.gauge.is_some() && read.kind() == MetricType::Gauge),
                    Values::Histograms(histograms) => {
                        let histogram = metric.histogram.as_ref().unwrap();
                        let total: u64 = histograms.counts_of(position).iter().sum();
                        prop_assert_eq!(histogram.sample_count, total);
                        let (mut count, mut sum) = (0, histogram.zero_count);
                        for delta in &histogram.positive_delta {
                            count += delta;
                            sum += count as u64;
                        }
                        prop_assert_eq!(sum, total);
                        let length: u32 = histogram.positive_span.iter().map(|span| span.length).sum();
                        prop_assert_eq!(length as usize, histogram.positive_delta.len());
                    }
                }
            }
        }
    }
}
