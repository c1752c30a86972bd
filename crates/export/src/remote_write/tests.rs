use super::*;
use crate::snapshot::{Link, Number};
use crate::test_data::{SECOND_NS, at, counters, gauges, histograms, scheme, snapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn resource() -> Resource {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let attributes =
        vec![pair("service.name", "kstrobe"), pair("service.instance.id", "node-1"), pair("host.arch", "amd64")];
    Resource { attributes, version: "1".into() }
}

fn decode(parts: &[Part]) -> Vec<Request> {
    parts.iter().map(|part| Request::decode(part.body.as_slice()).unwrap()).collect()
}

fn labels(request: &Request, refs: &[u32]) -> BTreeMap<String, String> {
    let text = |number: u32| request.symbols[number as usize].clone();
    let pairs: Vec<_> = refs.chunks(2).map(|pair| (text(pair[0]), text(pair[1]))).collect();
    assert!(pairs.is_sorted_by(|a, b| a.0 < b.0), "names ascend: {pairs:?}");
    pairs.into_iter().collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// All series of one request by their labels.
fn one(snapshot: &Snapshot, exemplars: &[snapshot::Exemplar], gone: &[Gone]) -> (Request, Vec<TimeSeries>) {
    let resource = resource();
    let parts = requests(snapshot, exemplars, gone, Sender { resource: &resource, native_bucket_limit: 0 });
    let mut requests = decode(&parts);
    assert_eq!(requests.len(), 1);
    let request = requests.remove(0);
    assert_eq!(request.symbols[0], "");
    let unique: BTreeSet<_> = request.symbols.iter().collect();
    assert_eq!(unique.len(), request.symbols.len(), "each text once");
    let series = request.timeseries.clone();
    assert_eq!(parts[0].points, series.len() as u64);
    (request, series)
}

const AT_MS: i64 = 1_700_000_010_000;

#[test]
fn counters_and_gauges() {
    let all = snapshot(
        10,
        vec![
            counters("kstrobe_cpu_seconds_total", "seconds", &[("a", Some(at(3)), 1_500_000_000), ("", None, 1)]),
            gauges("kstrobe_g", "", &[("a", Number::Signed(-3))]),
        ],
    );
    let (request, series) = one(&all, &[], &[]);
    let [a, unnamed, gauge, info] = series.as_slice() else { panic!("{series:?}") };
    let expected = [("__name__", "kstrobe_cpu_seconds_total"), ("instance", "node-1"), ("job", "kstrobe"), ("l", "a")];
    assert_eq!(labels(&request, &a.labels_refs), map(&expected));
    assert_eq!(labels(&request, &unnamed.labels_refs), map(&expected[..3]), "an empty label is none");
    assert_eq!(a.samples, [Sample { value: 1.5, timestamp: AT_MS, start_timestamp: 1_700_000_003_000 }]);
    assert_eq!((a.created_timestamp, unnamed.created_timestamp), (1_700_000_003_000, 0));
    assert_eq!((unnamed.samples[0].start_timestamp, gauge.samples[0].start_timestamp), (0, 0));
    let metadata = a.metadata.unwrap();
    let text = |number: u32| request.symbols[number as usize].as_str();
    assert_eq!((metadata.kind, text(metadata.unit_ref)), (1, "seconds"));
    assert_eq!(text(metadata.help_ref), "Help of kstrobe_cpu_seconds_total.");
    assert_eq!((gauge.samples[0].value, gauge.metadata.unwrap().kind, gauge.created_timestamp), (-3.0, 2, 0));
    let expected = [("__name__", "target_info"), ("host_arch", "amd64"), ("instance", "node-1"), ("job", "kstrobe")];
    assert_eq!(labels(&request, &info.labels_refs), map(&expected));
    assert_eq!((info.samples[0].value, info.metadata.unwrap().kind), (1.0, 6));
}

#[test]
fn histograms_are_native_with_exemplars() {
    let observations = [0, 3_000_000, 3_000_001, 900_000_000, SECOND_NS];
    let family = histograms("kstrobe_h_seconds", &scheme(0), &[("a", Some(at(1)), &observations)]);
    let exemplar = snapshot::Exemplar {
        family: "kstrobe_h_seconds".into(),
        labels: family.series[0].labels.clone(),
        link: Link::Event("c1".into()),
        value: 0.9,
        at: at(9),
    };
    let (request, series) = one(&snapshot(10, vec![family]), &[exemplar], &[]);
    let histogram = &series[0].histograms[0];
    // 2^-9 < 0.003 <= 2^-8 (index -8), 2^-1 < 0.9 <= 2^0 (index 0).
    let expected = Histogram {
        count_int: 5,
        sum: 1.906_000_001,
        schema: 0,
        zero_threshold: 0.5f64.powi(20),
        zero_count_int: 1,
        positive_spans: vec![BucketSpan { offset: -8, length: 1 }, BucketSpan { offset: 7, length: 1 }],
        positive_deltas: vec![2, 0],
        timestamp: AT_MS,
        start_timestamp: 1_700_000_001_000,
    };
    assert_eq!(histogram, &expected);
    assert_eq!(series[0].created_timestamp, expected.start_timestamp);
    assert!(series[0].samples.is_empty());
    let [exemplar] = series[0].exemplars.as_slice() else { panic!("{series:?}") };
    assert_eq!(labels(&request, &exemplar.labels_refs), map(&[("event_id", "c1")]));
    assert_eq!((exemplar.value, exemplar.timestamp), (0.9, 1_700_000_009_000));
}

#[test]
fn series_that_are_gone_are_ended() {
    let scheme = scheme(0);
    let before = snapshot(
        0,
        vec![
            counters("kstrobe_x_total", "", &[("a", None, 1), ("b", None, 2)]),
            counters("kstrobe_y_total", "", &[("a", None, 1)]),
            histograms("kstrobe_h_seconds", &scheme, &[("h", None, &[5])]),
        ],
    );
    let now = snapshot(10, vec![counters("kstrobe_x_total", "", &[("b", None, 2), ("c", None, 3)])]);
    let gone = Seen::of(&before).gone(&now);
    let (request, series) = one(&now, &[], &gone);
    let stale = |value: f64| value.to_bits() == 0x7ff0_0000_0000_0002;
    let mut ended = Vec::new();
    for series in &series {
        let labels = labels(&request, &series.labels_refs);
        if series.samples.iter().any(|sample| stale(sample.value)) || series.histograms.iter().any(|h| stale(h.sum)) {
            ended.push((labels["__name__"].clone(), labels["l"].clone(), series.histograms.len()));
        }
    }
    let expected = [("kstrobe_h_seconds", "h", 1), ("kstrobe_x_total", "a", 0), ("kstrobe_y_total", "a", 0)];
    assert_eq!(ended, expected.map(|(name, label, n)| (name.to_owned(), label.to_owned(), n)));
    assert!(Seen::of(&now).gone(&now).is_empty());
    let mut both = Seen::of(&before);
    both.and(Seen::of(&now));
    let nothing = both.gone(&snapshot(20, vec![]));
    assert_eq!(nothing.iter().map(|gone| gone.family.len()).sum::<usize>(), 5);
}

#[test]
fn series_whose_labels_come_in_another_order_or_with_empty_ones_live_on() {
    let family = |names: &[&str], columns: &[u32], rows: &[&[&str]]| {
        let mut family = counters("kstrobe_x_total", "", &[]);
        let about = Arc::make_mut(&mut family.about);
        about.label_names = names.iter().map(|name| (*name).to_owned()).collect();
        family.columns = columns.into();
        let texts = |row: &&[&str]| row.iter().map(|text| Arc::from(*text)).collect();
        family.series = rows.iter().map(|row| Series { labels: texts(row), created: None }).collect();
        family.values = Values::Counters(vec![1; rows.len()]);
        snapshot(0, vec![family])
    };
    let seen = Seen::of(&family(&["a", "b"], &[0, 1], &[&["1", "2"], &["2", "1"], &["3", ""]]));
    for (names, columns, rows, first) in [
        (vec!["b", "a"], vec![0, 1], vec![vec!["1", "2"], vec!["2", "1"], vec!["", "3"]], ["2", "1"]),
        (vec!["a", "b"], vec![1, 0], vec![vec!["1", "2"], vec!["2", "1"], vec!["", "3"]], ["2", "1"]),
        (
            vec!["a", "c", "b"],
            vec![0, 1, 2],
            vec![vec!["1", "", "2"], vec!["2", "", "1"], vec!["3", "", ""]],
            ["1", "2"],
        ),
    ] {
        let rows: Vec<&[&str]> = rows.iter().map(Vec::as_slice).collect();
        assert!(seen.gone(&family(&names, &columns, &rows)).is_empty(), "{names:?} {columns:?}");
        let gone = seen.gone(&family(&names, &columns, &rows[1..]));
        assert_eq!(gone.iter().map(|gone| gone.family.len()).sum::<usize>(), 1, "{names:?} {columns:?}");
        let labels: Vec<&str> = (0..2).map(|at| gone[0].family.label(&gone[0].family.series[0], at)).collect();
        assert_eq!(labels, first);
    }
}

#[test]
fn labels_of_the_target_win() {
    let mut family = counters("kstrobe_x_total", "", &[("theirs", None, 1)]);
    let mut about = (*family.about).clone();
    about.label_names = vec!["job".into()];
    family.about = about.into();
    let (request, series) = one(&snapshot(10, vec![family]), &[], &[]);
    let labels = labels(&request, &series[0].labels_refs);
    assert_eq!((labels["job"].as_str(), labels["exported_job"].as_str()), ("kstrobe", "theirs"));
}

#[test]
fn a_large_snapshot_makes_requests_below_the_bound_with_every_series_once() {
    let texts: Vec<String> = (0..300).map(|n| format!("label {n:04}")).collect();
    let rows: Vec<_> = texts.iter().map(|label| (label.as_str(), Some(at(1)), [5u64, 3_000_000].as_slice())).collect();
    let counts: Vec<_> = texts.iter().map(|label| (label.as_str(), Some(at(1)), 7)).collect();
    let all = snapshot(
        10,
        vec![counters("kstrobe_x_total", "", &counts), histograms("kstrobe_h_seconds", &scheme(3), &rows)],
    );
    let resource = resource();
    let from = Sender { resource: &resource, native_bucket_limit: 160 };
    for most_bytes in [1, 400, 3_000, 20_000, 1 << 20] {
        let parts = bounded_requests(&all, &[], &[], from, most_bytes);
        let mut seen = BTreeSet::new();
        for (part, request) in parts.iter().zip(decode(&parts)) {
            let size = part.body.len();
            assert!(size <= most_bytes || request.timeseries.len() == 1, "{size} bytes for {most_bytes}");
            let used: BTreeSet<u32> = request.timeseries.iter().flat_map(|series| series.labels_refs.clone()).collect();
            assert!(request.symbols.len() <= used.len() + 5, "no symbols of other requests");
            for series in &request.timeseries {
                assert!(seen.insert(labels(&request, &series.labels_refs)), "twice");
            }
        }
        assert_eq!(seen.len(), 601, "at {most_bytes}");
    }
}

#[test]
fn bodies_are_compressed_as_blocks_of_snappy() {
    let body = "kstrobe ".repeat(1000).into_bytes();
    let compressed = compress(&body).unwrap();
    assert!(compressed.len() < body.len() / 10);
    assert_eq!(snap::raw::Decoder::new().decompress_vec(&compressed).unwrap(), body);
}
