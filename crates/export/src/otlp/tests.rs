use super::*;
use crate::snapshot::{Link, Number};
use crate::test_data::{SECOND_NS, at, counters, gauges, histograms, scheme, snapshot};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;
use opentelemetry_proto::tonic::metrics::v1::exemplar;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;

const AT_NS: u64 = 1_700_000_010 * SECOND_NS;

fn decode(part: &Part) -> ExportMetricsServiceRequest {
    ExportMetricsServiceRequest::decode(part.body.as_slice()).unwrap()
}

fn metrics(request: &ExportMetricsServiceRequest) -> &[Metric] {
    &request.resource_metrics[0].scope_metrics[0].metrics
}

fn one(snapshot: &Snapshot, exemplars: &[Exemplar], temporality: Temporality) -> ExportMetricsServiceRequest {
    let from = Resource { attributes: vec![("service.name".into(), "kstrobe".into())], version: "1.2.3".into() };
    let parts = requests(snapshot, exemplars, &from, temporality);
    assert_eq!(parts.len(), 1);
    decode(&parts[0])
}

#[test]
fn resource_and_scope_say_who_sends() {
    let request = one(&snapshot(10, vec![counters("kstrobe_x_total", "", &[("a", None, 1)])]), &[], Temporality::Delta);
    let [from] = request.resource_metrics.as_slice() else { panic!("{request:?}") };
    assert_eq!(from.resource.as_ref().unwrap().attributes, [attribute("service.name", "kstrobe")]);
    let scope = from.scope_metrics[0].scope.as_ref().unwrap();
    assert_eq!((scope.name.as_str(), scope.version.as_str()), ("kstrobe", "1.2.3"));
}

#[test]
fn counters_are_monotonic_sums() {
    let rows = [("a", Some(at(3)), 5), ("b", None, u64::MAX)];
    for (temporality, code) in [(Temporality::Cumulative, 2), (Temporality::Delta, 1)] {
        let request = one(&snapshot(10, vec![counters("kstrobe_x_total", "", &rows)]), &[], temporality);
        let [metric] = metrics(&request) else { panic!("{request:?}") };
        assert_eq!((metric.name.as_str(), metric.unit.as_str()), ("kstrobe.x", ""));
        assert_eq!(metric.description, "Help of kstrobe_x_total.");
        let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
        assert_eq!((sum.is_monotonic, sum.aggregation_temporality), (true, code));
        let [a, b] = sum.data_points.as_slice() else { panic!("{sum:?}") };
        assert_eq!((a.start_time_unix_nano, a.time_unix_nano), (1_700_000_003 * SECOND_NS, AT_NS));
        assert_eq!((b.start_time_unix_nano, b.time_unix_nano), (0, AT_NS), "an unknown beginning");
        assert_eq!(a.attributes, [attribute("l", "a")]);
        assert_eq!(a.value, Some(Value::AsInt(5)));
        assert_eq!(b.value, Some(Value::AsDouble(u64::MAX as f64)), "more than OTLP's integers hold");
    }
}

#[test]
fn seconds_are_floats_also_when_whole() {
    let rows = [("a", None, 2 * SECOND_NS), ("b", None, 1_500_000_000)];
    let request =
        one(&snapshot(10, vec![counters("kstrobe_cpu_seconds_total", "seconds", &rows)]), &[], Temporality::Cumulative);
    let Some(Data::Sum(sum)) = &metrics(&request)[0].data else { panic!("{request:?}") };
    let values: Vec<_> = sum.data_points.iter().map(|point| point.value.unwrap()).collect();
    assert_eq!(values, [Value::AsDouble(2.0), Value::AsDouble(1.5)]);
    assert_eq!((metrics(&request)[0].name.as_str(), metrics(&request)[0].unit.as_str()), ("kstrobe.cpu", "s"));
}

#[test]
fn gauges_have_no_beginning() {
    let rows = [("a", Number::Signed(-3)), ("b", Number::Float(0.25)), ("c", Number::Unsigned(7))];
    let request = one(&snapshot(10, vec![gauges("kstrobe_g_bytes", "bytes", &rows)]), &[], Temporality::Delta);
    let Some(Data::Gauge(gauge)) = &metrics(&request)[0].data else { panic!("{request:?}") };
    let points: Vec<_> = gauge.data_points.iter().map(|p| (p.start_time_unix_nano, p.value.unwrap())).collect();
    assert_eq!(points, [(0, Value::AsInt(-3)), (0, Value::AsDouble(0.25)), (0, Value::AsInt(7))]);
}

/// The bounds of exponential buckets are given by the protocol: bucket `i` is `(base^(offset + i), base^(offset + i + 1)]`
/// with `base = 2^(2^-scale)`. Each observation must lie in the bucket that has its count.
#[test]
fn observations_lie_in_the_exponential_buckets_that_count_them() {
    for schema in 0..=5 {
        let scheme = scheme(schema);
        let base = 2f64.powf(0.5f64.powi(schema.into()));
        for value in [1, 900, 1_500, 2_500_000, 2_500_001, 5_000_000, 999_999_999, SECOND_NS, 7 * SECOND_NS] {
            let family = histograms("kstrobe_h_seconds", &scheme, &[("a", Some(at(1)), &[value])]);
            let request = one(&snapshot(10, vec![family]), &[], Temporality::Cumulative);
            let metric = &metrics(&request)[0];
            assert_eq!((metric.name.as_str(), metric.unit.as_str()), ("kstrobe.h", "s"));
            let Some(Data::ExponentialHistogram(histogram)) = &metric.data else { panic!("{request:?}") };
            let point = &histogram.data_points[0];
            assert_eq!((point.count, point.scale, point.sum), (1, i32::from(schema), Some(value as f64 / 1e9)));
            let buckets = point.positive.as_ref().unwrap();
            let seconds = value as f64 / 1e9;
            if seconds <= point.zero_threshold {
                assert_eq!((point.zero_count, buckets.bucket_counts.len()), (1, 0), "{seconds} at schema {schema}");
            } else {
                assert_eq!((point.zero_count, buckets.bucket_counts.as_slice()), (0, [1].as_slice()));
                let (lower, upper) = (base.powi(buckets.offset), base.powi(buckets.offset + 1));
                assert!(lower < seconds && seconds <= upper * (1.0 + 1e-12), "{lower} {seconds} {upper}");
            }
        }
    }
}

#[test]
fn empty_buckets_between_full_ones_are_written() {
    let family = histograms("kstrobe_h_seconds", &scheme(0), &[("a", None, &[0, 3_000_000, 3_000_001, 900_000_000])]);
    let request = one(&snapshot(10, vec![family]), &[], Temporality::Delta);
    let Some(Data::ExponentialHistogram(histogram)) = &metrics(&request)[0].data else { panic!("{request:?}") };
    let point = &histogram.data_points[0];
    let buckets = point.positive.as_ref().unwrap();
    // 2^-9 < 0.003 <= 2^-8, and 2^-1 < 0.9 <= 2^0.
    assert_eq!((buckets.offset, buckets.bucket_counts.as_slice()), (-9, [2, 0, 0, 0, 0, 0, 0, 0, 1].as_slice()));
    assert_eq!((point.count, point.zero_count, point.min, point.max), (4, 1, None, None));
    assert_eq!(histogram.aggregation_temporality, 1);
}

#[test]
fn exemplars_go_with_their_series() {
    let family = histograms("kstrobe_h_seconds", &scheme(0), &[("a", None, &[5]), ("b", None, &[5])]);
    let exemplar = Exemplar {
        family: "kstrobe_h_seconds".into(),
        labels: family.series[1].labels.clone(),
        link: Link::Capture("20231114T221320000Z-0a1b2c".into()),
        value: 0.25,
        at: at(9),
    };
    let other = Exemplar { family: "kstrobe_other_seconds".into(), ..exemplar.clone() };
    let request = one(&snapshot(10, vec![family]), &[exemplar, other], Temporality::Cumulative);
    let Some(Data::ExponentialHistogram(histogram)) = &metrics(&request)[0].data else { panic!("{request:?}") };
    let [a, b] = histogram.data_points.as_slice() else { panic!("{histogram:?}") };
    assert!(a.exemplars.is_empty());
    let [exemplar] = b.exemplars.as_slice() else { panic!("{b:?}") };
    assert_eq!(exemplar.filtered_attributes, [attribute("capture_id", "20231114T221320000Z-0a1b2c")]);
    assert_eq!(
        (exemplar.time_unix_nano, exemplar.value),
        (1_700_000_009 * SECOND_NS, Some(exemplar::Value::AsDouble(0.25)))
    );
}

#[test]
fn a_large_snapshot_makes_requests_below_the_bound_with_every_series_once() {
    let labels: Vec<String> = (0..500).map(|n| format!("label {n:04}")).collect();
    let rows: Vec<_> = labels.iter().map(|label| (label.as_str(), Some(at(1)), [5u64, 3_000_000].as_slice())).collect();
    let counts: Vec<_> = labels.iter().map(|label| (label.as_str(), Some(at(1)), 7)).collect();
    let all = snapshot(
        10,
        vec![
            counters("kstrobe_x_total", "", &counts),
            counters("kstrobe_empty_total", "", &[]),
            histograms("kstrobe_h_seconds", &scheme(3), &rows),
            counters("kstrobe_y_total", "", &counts),
        ],
    );
    let from = Resource { attributes: vec![("service.name".into(), "kstrobe".into())], version: String::new() };
    for most_bytes in [1, 300, 4_000, 10_000, 1 << 20] {
        let parts = bounded_requests(&all, &[], &from, Temporality::Cumulative, most_bytes);
        let mut seen = std::collections::BTreeSet::new();
        for part in &parts {
            assert!(
                part.body.len() <= most_bytes || part.points == 1,
                "{} bytes, {} points",
                part.body.len(),
                part.points
            );
            assert_eq!(part.points, part.runs.iter().map(|(_, run)| run.len() as u64).sum::<u64>());
            let request = decode(part);
            let names: Vec<_> = metrics(&request).iter().map(|metric| metric.name.as_str()).collect();
            let runs: Vec<_> = part.runs.iter().map(|(family, _)| metric_name(&all.families[*family].about)).collect();
            assert_eq!(names, runs);
            for metric in metrics(&request) {
                let points: Vec<_> = match metric.data.as_ref().unwrap() {
                    Data::Sum(sum) => sum.data_points.iter().map(|point| point.attributes.clone()).collect(),
                    Data::ExponentialHistogram(h) => {
                        h.data_points.iter().map(|point| point.attributes.clone()).collect()
                    }
                    other => panic!("{other:?}"),
                };
                for attributes in points {
                    assert!(seen.insert((metric.name.clone(), format!("{attributes:?}"))), "twice");
                }
            }
        }
        assert_eq!(seen.len(), 1500, "at {most_bytes}");
    }
}

#[test]
fn nothing_makes_no_request() {
    assert!(requests(&snapshot(1, vec![]), &[], &Resource::default(), Temporality::Delta).is_empty());
    let empty = snapshot(1, vec![counters("kstrobe_x_total", "", &[])]);
    assert!(requests(&empty, &[], &Resource::default(), Temporality::Delta).is_empty());
}

#[test]
fn partial_success_is_read() {
    let partial = ExportMetricsPartialSuccess { rejected_data_points: 3, error_message: "too old".into() };
    let response = ExportMetricsServiceResponse { partial_success: Some(partial) };
    assert_eq!(refused(&response.encode_to_vec()), (3, "too old".into()));
    assert_eq!(refused(b""), (0, String::new()));
    assert_eq!(refused(b"<html>"), (0, String::new()));
}
