use super::*;
use crate::snapshot::{Descriptor, Family, Histograms, LabelTexts, Snapshot, Values};
use crate::{Format, exposition, to_text_0_0_4};
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECOND_NS: u64 = 1_000_000_000;

pub(crate) fn descriptor(name: &str, kind: Kind, unit: &str, labels: &[&str]) -> Arc<Descriptor> {
    Arc::new(Descriptor {
        name: name.into(),
        help: format!("A \"quoted\" help\nof {name}, with a \\."),
        kind,
        unit: unit.into(),
        raw_per_unit: if unit == "seconds" { SECOND_NS } else { 1 },
        label_names: labels.iter().map(|&name| name.into()).collect(),
    })
}

pub(crate) fn family(about: Arc<Descriptor>, labels: &[&[&str]], values: Values) -> Family {
    let created = Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_250));
    let texts = |labels: &&[&str]| -> LabelTexts { labels.iter().map(|&text| Arc::from(text)).collect() };
    let series = labels.iter().map(|labels| Series { labels: texts(labels), created }).collect();
    let columns = (0..about.label_names.len() as u32).collect();
    Family { about, columns, series, values }
}

fn seconds_scheme() -> Arc<Scheme> {
    let classic = ["0.000001", "0.0025", "1", "10"].map(String::from).to_vec();
    let spec = BucketSpec { schema: 0, raw_per_unit: SECOND_NS, min: 1000, max: 16 * SECOND_NS, classic };
    Arc::new(Scheme::new(&spec).unwrap())
}

/// Counts of observations of these values.
fn observe(scheme: &Scheme, values: &[u64]) -> Vec<u64> {
    let mut counts = vec![0; scheme.buckets()];
    for value in values {
        counts[scheme.index(*value)] += 1;
    }
    counts
}

pub(crate) fn sample() -> Snapshot {
    let scheme = seconds_scheme();
    // On a bound, one above it, beyond the last.
    let values = [1000, 1001, 2_500_000, 2_500_001, SECOND_NS, 10 * SECOND_NS + 1, u64::MAX >> 4];
    let mut counts = observe(&scheme, &values);
    counts.extend(observe(&scheme, &[5]));
    let sums = vec![values.iter().sum(), 5];
    let histograms = Values::Histograms(Histograms { scheme, sums, counts });
    let mut reversed = family(
        descriptor("kstrobe_errors_total", Kind::Counter, "", &["errno", "syscall"]),
        &[&["read", "EIO"], &["write", "line\nbreak \"q\" back\\slash"]],
        Values::Counters(vec![u64::MAX, 0]),
    );
    reversed.columns = Arc::from([1, 0]);
    let gauges = vec![Number::Unsigned(u64::MAX), Number::Signed(-1), Number::Float(0.25), Number::Float(f64::NAN)];
    let rows: [&[&str]; 4] = [&["0"], &["1"], &["2"], &["3"]];
    Snapshot {
        at: UNIX_EPOCH,
        families: vec![
            family(
                descriptor("kstrobe_wait_seconds", Kind::Histogram, "seconds", &["vector"]),
                &[&["net_rx"], &["rcu"]],
                histograms,
            ),
            reversed,
            family(
                descriptor("kstrobe_busy_seconds_total", Kind::Counter, "seconds", &[]),
                &[&[]],
                Values::Counters(vec![1_500_000_001]),
            ),
            family(
                descriptor("kstrobe_queue_depth", Kind::Gauge, "connections", &["cpu"]),
                &rows,
                Values::Gauges(gauges),
            ),
            family(
                descriptor("kstrobe_lag_seconds", Kind::Gauge, "seconds", &[]),
                &[&[]],
                Values::Gauges(vec![Number::Signed(-1_500_000_000)]),
            ),
            family(descriptor("kstrobe_absent_total", Kind::Counter, "", &[]), &[], Values::Counters(vec![])),
        ],
    }
}

fn golden(name: &str, actual: &[u8]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/text").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(String::from_utf8_lossy(actual), expected, "run with BLESS=1 to accept");
}

#[test]
fn text_0_0_4_is_as_blessed() {
    golden("sample.prom", &exposition(&sample(), &[], to_text_0_0_4(OWN).as_bytes(), Format::Text004, 0));
}

#[test]
fn openmetrics_is_as_blessed() {
    golden("sample.openmetrics", &exposition(&sample(), &[], OWN.as_bytes(), Format::OpenMetrics100, 0));
}

const OWN: &str = "# HELP kstrobe_scrapes Scrapes.\n# TYPE kstrobe_scrapes counter\nkstrobe_scrapes_total 1\n# EOF\n";

/// One sample line as a strict reader sees it.
#[derive(Clone, Debug, PartialEq)]
struct Parsed {
    name: String,
    labels: Vec<(String, String)>,
    value: String,
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !text.as_bytes()[0].is_ascii_digit()
}

fn parse_labels(text: &str) -> (Vec<(String, String)>, &str) {
    let Some(mut rest) = text.strip_prefix('{') else { return (vec![], text) };
    let mut labels = vec![];
    loop {
        let (name, value) = rest.split_once("=\"").expect("a label");
        assert!(is_name(name), "{name}");
        let mut unescaped = String::new();
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next().expect("a closing quote") {
                (at, '"') => break at,
                (_, '\\') => unescaped.push(match chars.next().expect("an escape").1 {
                    'n' => '\n',
                    other @ ('\\' | '"') => other,
                    other => panic!("unknown escape \\{other}"),
                }),
                (_, other) => unescaped.push(other),
            }
        };
        labels.push((name.to_owned(), unescaped));
        rest = &value[end + 1..];
        match rest.as_bytes()[0] {
            b',' => rest = &rest[1..],
            b'}' => return (labels, &rest[1..]),
            other => panic!("{other} after a label"),
        }
    }
}

/// Reads an exposition and checks its grammar: every sample under the TYPE of its family, each family and series once,
/// `# EOF` last where it belongs.
fn parse(text: &str, format: Format) -> Vec<Parsed> {
    let open = format == Format::OpenMetrics100;
    let body = if open { text.strip_suffix("# EOF\n").expect("EOF") } else { text };
    let (mut family, mut kind) = ("", "");
    let (mut families, mut seen, mut samples) = (HashSet::new(), HashSet::new(), vec![]);
    for line in body.split_terminator('\n') {
        if let Some(comment) = line.strip_prefix("# ") {
            let [keyword, name, text] = comment.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert!(is_name(name), "{line}");
            match keyword {
                "TYPE" => {
                    assert!(name == family && ["counter", "gauge", "histogram"].contains(&text), "{line}");
                    kind = text;
                }
                "UNIT" => assert!(open && name == family && name.ends_with(&format!("_{text}"))),
                "HELP" => {
                    assert!(families.insert(name), "{name} twice");
                    assert!(!open || !text.replace("\\\"", "").contains('"'), "{line}");
                    (family, kind) = (name, "");
                }
                _ => panic!("{line}"),
            }
            continue;
        }
        let end = line.find(['{', ' ']).expect("a value");
        let name = &line[..end];
        let suffixes: &[&str] = match (kind, open) {
            ("counter", true) => &["_total", "_created"],
            ("histogram", true) => &["_bucket", "_sum", "_count", "_created"],
            ("histogram", false) => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(name.strip_prefix(family).is_some_and(|suffix| suffixes.contains(&suffix)), "{name} under {family}");
        let (labels, rest) = parse_labels(&line[end..]);
        let value = rest.strip_prefix(' ').expect("one space").to_owned();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(seen.insert(line[..line.len() - value.len()].to_owned()), "{line} twice");
        samples.push(Parsed { name: name.into(), labels, value });
    }
    samples
}

#[test]
fn the_sample_parses_and_histograms_add_up() {
    for format in [Format::Text004, Format::OpenMetrics100] {
        let samples = parse(std::str::from_utf8(&exposition(&sample(), &[], b"", format, 0)).unwrap(), format);
        let of = |name: &str, le: &str| {
            let wanted = |sample: &&Parsed| {
                sample.name == name
                    && sample.labels.contains(&("vector".into(), "net_rx".into()))
                    && (le.is_empty() || sample.labels.contains(&("le".into(), le.into())))
            };
            samples.iter().find(wanted).unwrap_or_else(|| panic!("{name} {le}")).value.clone()
        };
        for (le, count) in [("1e-06", "1"), ("0.0025", "3"), ("1.0", "5"), ("10.0", "5"), ("+Inf", "7")] {
            assert_eq!(of("kstrobe_wait_seconds_bucket", le), count, "{le}");
        }
        assert_eq!(of("kstrobe_wait_seconds_count", ""), "7");
        assert_eq!(of("kstrobe_wait_seconds_sum", ""), "1152921515.611848978");
    }
}

/// Label rows, raw values, kind, a label name.
type Random = (BTreeSet<Vec<String>>, Vec<u64>, u8, String);

/// Families of counters, gauges and histograms with any label text, each series once.
pub(crate) fn families() -> impl Strategy<Value = Vec<Family>> {
    let texts = proptest::collection::btree_set(proptest::collection::vec(any::<String>(), 2), 0..4);
    let one = (texts, any::<Vec<u64>>(), 0..3u8, "[a-z_]{1,8}");
    proptest::collection::vec(one, 0..4).prop_map(|families| {
        let build = |(index, (texts, raw, kind, label)): (usize, Random)| {
            let value = |at: usize| raw.get(at % raw.len().max(1)).copied().unwrap_or(0);
            let scheme = seconds_scheme();
            let (suffix, kind, values) = match kind {
                0 => ("total", Kind::Counter, Values::Counters((0..texts.len()).map(value).collect())),
                1 => (
                    "x",
                    Kind::Gauge,
                    Values::Gauges((0..texts.len()).map(|at| Number::Signed(value(at) as i64)).collect()),
                ),
                _ => {
                    let counts = (0..texts.len() * scheme.buckets()).map(|at| value(at) >> 32).collect();
                    let sums = (0..texts.len()).map(value).collect();
                    ("seconds", Kind::Histogram, Values::Histograms(Histograms { scheme, sums, counts }))
                }
            };
            let name = format!("kstrobe_f{index}_{suffix}");
            let rows: Vec<Vec<&str>> = texts.iter().map(|row| row.iter().map(String::as_str).collect()).collect();
            let rows: Vec<&[&str]> = rows.iter().map(Vec::as_slice).collect();
            family(descriptor(&name, kind, "seconds", &["first", &format!("x{label}")]), &rows, values)
        };
        families.into_iter().enumerate().map(build).collect()
    })
}

proptest! {
    #[test]
    fn any_snapshot_parses_and_labels_round_trip(families in families()) {
        let snapshot = Snapshot { at: UNIX_EPOCH, families };
        for format in [Format::Text004, Format::OpenMetrics100] {
            let text = String::from_utf8(exposition(&snapshot, &[], b"", format, 0)).unwrap();
            let samples = parse(&text, format);
            for family in &snapshot.families {
                let expected: HashSet<Vec<String>> = family
                    .series
                    .iter()
                    .map(|series| (0..2).map(|at| family.label(series, at).replace('\0', "\u{fffd}")).collect())
                    .collect();
                let base = family.about.name.trim_end_matches("_total");
                let mine = samples.iter().filter(|sample| sample.name.starts_with(base));
                let found: HashSet<Vec<String>> =
                    mine.map(|sample| sample.labels[..2].iter().map(|(_, value)| value.clone()).collect()).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}

/// `cargo test -p kstrobe --release -- --ignored --nocapture cost_of`
#[test]
#[ignore = "prints a measurement"]
fn cost_of_writing_10_000_histograms() {
    let bounds = (-6..2).flat_map(|power| ["1", "2.5", "5"].map(|digits| format!("{digits}e{power}")));
    let classic = bounds.take(22).collect();
    let spec = BucketSpec { schema: 3, raw_per_unit: SECOND_NS, min: 1000, max: 16 * SECOND_NS, classic };
    let scheme = Arc::new(Scheme::new(&spec).unwrap());
    let labels: Vec<String> = (0..10_000).map(|series| format!("comm-{series}")).collect();
    let rows: Vec<[&str; 2]> = labels.iter().map(|label| ["recvfrom", label.as_str()]).collect();
    let rows: Vec<&[&str]> = rows.iter().map(<[&str; 2]>::as_slice).collect();
    let counts = (0..10_000 * scheme.buckets() as u64).map(|at| at % 1000).collect();
    let histograms = Histograms { scheme, sums: vec![123_456_789_012; 10_000], counts };
    let about = descriptor("kstrobe_recv_duration_seconds", Kind::Histogram, "seconds", &["syscall", "comm"]);
    let families = vec![family(about, &rows, Values::Histograms(histograms))];
    let snapshot = Snapshot { at: UNIX_EPOCH, families };
    for format in Format::ALL {
        let best = (0..10).map(|_| {
            let start = Instant::now();
            let text = exposition(&snapshot, &[], b"", format, 160);
            (start.elapsed(), text)
        });
        let (spent, text) = best.min_by_key(|(spent, _)| *spent).unwrap();
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        let ns = spent.as_nanos() as f64 / lines as f64;
        println!(
            "{format:?}: {lines} lines, {} bytes (capacity {}), {spent:?}, {ns:.1} ns/line",
            text.len(),
            text.capacity()
        );
    }
}
