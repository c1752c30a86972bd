//! What is queried is what was pushed: random loads against a list of all events.

use crate::query::Sort;
use crate::query::answer::{Group, Total, Values};
use crate::*;
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use kstrobe_export::reading::PackedFamily;
use kstrobe_export::snapshot::{self, Descriptor, Family, Histograms, Kind, Number, Series};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, UNIX_EPOCH};

const COMMS: [&str; 4] = ["nginx", "postgres", "redis", "a\"b"];
const CPUS: [&str; 2] = ["0", "1"];
pub(crate) const START: u64 = 1_700_000_000;

static SCHEME: LazyLock<Arc<Scheme>> = LazyLock::new(|| {
    let spec = BucketSpec { schema: 1, raw_per_unit: 10, min: 1, max: 1000, classic: vec!["2.5".into()] };
    Arc::new(Scheme::new(&spec).unwrap())
});

fn about(name: &str, kind: Kind) -> Arc<Descriptor> {
    Arc::new(Descriptor {
        name: name.into(),
        help: "X.".into(),
        kind,
        unit: "seconds".into(),
        raw_per_unit: 10,
        label_names: vec!["comm".into(), "cpu".into()],
    })
}

/// What happens in one second.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// Place in `COMMS`, place in `CPUS`, value.
    pub events: Vec<(usize, usize, u64)>,
    /// A series that begins anew before the events.
    pub reset: Option<(usize, usize)>,
    /// A reload before the events: another probe takes over, whose first counts both have.
    pub reload: bool,
    /// Seconds without a reading before it.
    pub late: u64,
}

pub(crate) fn turn() -> impl Strategy<Value = Turn> {
    let event = (0..COMMS.len(), 0..CPUS.len(), prop_oneof![Just(0), 1..50u64, 1..5000u64]);
    let reset = proptest::option::weighted(0.2, (0..COMMS.len(), 0..CPUS.len()));
    let late = prop_oneof![9 => Just(0), 1 => 1..4u64];
    (proptest::collection::vec(event, 0..12), reset, proptest::bool::weighted(0.1), late)
        .prop_map(|(events, reset, reload, late)| Turn { events, reset, reload, late })
}

/// An event as the list has it: second, comm, cpu, value.
pub(crate) type Event = (u64, usize, usize, u64);

/// The maps of a probe.
#[derive(Default)]
struct Maps {
    series: BTreeMap<(usize, usize), (u64, Vec<u64>)>,
}

impl Maps {
    fn add(&mut self, (comm, cpu, value): (usize, usize, u64), born: u64) {
        let fresh = || (born, Vec::new());
        self.series.entry((comm, cpu)).or_insert_with(fresh).1.push(value);
    }

    fn read(&self) -> Vec<PackedFamily> {
        // Texts are sorted, as those of a table are.
        let mut rows: Vec<_> = self.series.iter().collect();
        rows.sort_by_key(|((comm, cpu), _)| (COMMS[*comm], CPUS[*cpu]));
        let series = rows.iter().map(|((comm, cpu), (born, _))| Series {
            // Key order is not the order of the labels.
            labels: [CPUS[*cpu], COMMS[*comm]].map(Arc::from).into(),
            created: Some(UNIX_EPOCH + Duration::from_secs(*born)),
        });
        let mut series: Vec<Series> = series.collect();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|a, b| series[*a].labels.cmp(&series[*b].labels));
        series = order.iter().map(|at| series[*at].clone()).collect();
        let values: Vec<&Vec<u64>> = order.iter().map(|at| &rows[*at].1.1).collect();
        let counts = values.iter().flat_map(|values| {
            let mut counts = vec![0; SCHEME.buckets()];
            values.iter().for_each(|value| counts[SCHEME.index(*value)] += 1);
            counts
        });
        let sums: Vec<u64> = values.iter().map(|values| values.iter().sum()).collect();
        let histograms = Histograms { scheme: SCHEME.clone(), sums: sums.clone(), counts: counts.collect() };
        let family = |about, values| Family { about, columns: [1, 0].into(), series: series.clone(), values };
        let gauges = values.iter().map(|values| Number::Signed(-(values.len() as i64)));
        let families = [
            family(about("kstrobe_wait_seconds", Kind::Histogram), snapshot::Values::Histograms(histograms)),
            family(about("kstrobe_wait_total", Kind::Counter), snapshot::Values::Counters(sums)),
            family(about("kstrobe_depth", Kind::Gauge), snapshot::Values::Gauges(gauges.collect())),
        ];
        families.iter().map(PackedFamily::of).collect()
    }
}

/// Runs the turns, and returns the history, the list of events, and the last values of the gauge by second.
fn run(turns: &[Turn], limits: Limits) -> (History, Vec<Event>, Vec<(u64, i64)>) {
    let (seconds, events, depths) = seconds(turns);
    let mut history = History::new(limits);
    seconds.iter().for_each(|(second, probes)| history.push(*second, probes));
    (history, events, depths)
}

/// A second and what the readings of it have changed.
pub(crate) type Pushed = (Second, Vec<ProbeChanges>);

/// The same before it is pushed.
pub(crate) fn seconds(turns: &[Turn]) -> (Vec<Pushed>, Vec<Event>, Vec<(u64, i64)>) {
    let mut pushed = Vec::new();
    let (mut maps, mut cursor) = (Maps::default(), Cursor::default());
    let (mut events, mut depths) = (Vec::new(), Vec::new());
    let mut second = START;
    let changes = |metrics, sampled| ProbeChanges { probe: "wait".into(), sampled, metrics };
    for (number, turn) in turns.iter().enumerate() {
        let mut probes = Vec::new();
        second += turn.late;
        if let Some(reset) = turn.reset {
            maps.series.remove(&reset);
        }
        if turn.reload {
            // Half of the events are counted by the old probe, and the first of them by the new one as well.
            let mut next = Maps::default();
            let half = turn.events.len() / 2;
            turn.events[..half].iter().for_each(|event| maps.add(*event, number as u64));
            turn.events[..half].iter().take(1).for_each(|event| next.add(*event, 1_000_000 + number as u64));
            let mut last = cursor.advance(maps.read());
            let mut new = Cursor::default();
            new.skip(next.read(), |name| cursor.metrics().any(|old| old == name));
            last.extend(std::mem::replace(&mut cursor, new).end());
            probes.push(changes(last, false));
            maps = next;
            turn.events[half..].iter().for_each(|event| maps.add(*event, 1_000_000 + number as u64));
        } else {
            turn.events.iter().for_each(|event| maps.add(*event, number as u64));
        }
        events.extend(turn.events.iter().map(|(comm, cpu, value)| (second, *comm, *cpu, *value)));
        depths.push((second, -(maps.series.values().map(|(_, values)| values.len() as i64).sum::<i64>())));
        probes.push(changes(cursor.advance(maps.read()), number % 5 == 4));
        pushed.push((Second { start: second, seconds: turn.late + 1 }, probes));
        second += 1;
    }
    (pushed, events, depths)
}

pub(crate) const ALL: Limits = Limits { seconds: 100_000, bytes: usize::MAX };

pub(crate) fn query(options: &[(&str, &str)]) -> Query {
    Query::parse(options.iter().copied()).unwrap().unwrap()
}

fn counts(group: &Group, bounds: &[(f64, Option<f64>)]) -> Vec<BTreeMap<String, u64>> {
    let Values::Histogram { heat, .. } = &group.values else { panic!("a histogram") };
    let one = |pair: &[u64]| (format!("{:?}", bounds[pair[0] as usize]), pair[1]);
    heat.iter().map(|column| column.chunks(2).map(one).collect()).collect()
}

fn bucket(value: u64) -> String {
    let at = SCHEME.index(value);
    let bound = |at: usize| SCHEME.upper.get(at).map(|raw| *raw as f64 / 10.0);
    format!("{:?}", (at.checked_sub(1).and_then(bound).unwrap_or(0.0), bound(at)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_query_has_all_events_of_its_range_and_no_others(
        turns in proptest::collection::vec(turn(), 1..40),
        from in 0..40u64, length in 1..40u64, step in 1..7u64,
        by in proptest::sample::subsequence(vec!["comm", "cpu"], 0..=2),
        matcher in proptest::option::of(prop_oneof![
            Just(("comm=\"redis\"", [2].as_slice())), Just(("comm!=\"redis\"", [0, 1, 3].as_slice())),
            Just(("comm=~\"n.*|postgres\"", [0, 1].as_slice())), Just((r#"comm="a\"b""#, [3].as_slice())),
            Just(("comm!~\".*s\"", [0, 3].as_slice())),
        ]),
    ) {
        let (history, events, _) = run(&turns, ALL);
        let texts = [(START + from).to_string(), (START + from + length).to_string(), step.to_string(), by.join(",")];
        let mut options = vec![("metric", "wait_seconds"), ("from", &*texts[0]), ("to", &*texts[1]), ("step", &*texts[2])];
        options.extend([("by", &*texts[3]), ("top", "1000")]);
        options.extend(matcher.map(|(matcher, _)| ("match", matcher)));
        let answer = history.query(&query(&options), 0).unwrap();
        prop_assert!(answer.from <= START + from && answer.from % step == 0 && answer.to >= START + from + length);
        prop_assert_eq!(answer.left_out, 0);
        let is_in = |event: &&Event| {
            (answer.from..answer.to).contains(&event.0) && matcher.is_none_or(|(_, comms)| comms.contains(&event.1))
        };
        let mut expected: BTreeMap<Vec<&str>, Vec<&Event>> = BTreeMap::new();
        if by.is_empty() {
            expected.insert(Vec::new(), Vec::new());
        }
        for event in events.iter().filter(is_in) {
            let key = by.iter().map(|label| if *label == "comm" { COMMS[event.1] } else { CPUS[event.2] });
            expected.entry(key.collect()).or_default().push(event);
        }
        prop_assert_eq!(answer.groups.len(), expected.len());
        for group in &answer.groups {
            let key: Vec<&str> = by.iter().map(|label| &*group.labels[*label]).collect();
            let events = &expected[&key];
            let Total::Histogram { count, sum, p50, p90, p99, max } = &group.total else { panic!("a histogram") };
            prop_assert_eq!(*count, events.len() as u64);
            prop_assert_eq!(*sum, events.iter().map(|event| event.3).sum::<u64>() as f64 / 10.0);
            let largest = events.iter().map(|event| event.3).max();
            prop_assert_eq!(*max, largest.and_then(|value| SCHEME.upper.get(SCHEME.index(value))).map(|raw| *raw as f64 / 10.0));
            prop_assert!(p50 <= p90 && p90 <= p99 && p50.is_some() == largest.is_some());
            let mut columns = vec![BTreeMap::<String, u64>::new(); answer.columns];
            for event in events {
                *columns[((event.0 - answer.from) / step) as usize].entry(bucket(event.3)).or_default() += 1;
            }
            prop_assert_eq!(counts(group, &answer.bounds), columns);
        }
        // The counter beside it has the sums of the same events.
        options[0].1 = "kstrobe_wait_total";
        let increase: f64 = history.query(&query(&options), 0).unwrap().groups.iter().map(|group| match &group.total {
            Total::Counter { count } => (count * 10.0).round(),
            _ => panic!("a counter"),
        }).sum();
        prop_assert_eq!(increase as u64, events.iter().filter(is_in).map(|event| event.3).sum::<u64>());
    }

    #[test]
    fn a_short_history_has_the_newest_seconds_unchanged(
        turns in proptest::collection::vec(turn(), 1..150), keep in 1..60u64,
    ) {
        let (short, _, depths) = run(&turns, Limits { seconds: keep, ..ALL });
        let (whole, ..) = run(&turns, ALL);
        let usage = short.usage();
        prop_assert!(usage.seconds <= whole.usage().seconds && usage.bytes <= whole.usage().bytes);
        prop_assert_eq!(usage.lost.memory, 0);
        let oldest = short.overview(false).oldest.unwrap();
        for metric in ["wait_seconds", "wait_total", "depth"] {
            let from = oldest.to_string();
            let query = query(&[("metric", metric), ("from", &from), ("step", "1"), ("by", "comm,cpu"), ("top", "99")]);
            let (short, whole) = (short.query(&query, 0).unwrap(), whole.query(&query, 0).unwrap());
            prop_assert_eq!(short, whole);
        }
        let all = query(&[("metric", "depth"), ("from", "-1000"), ("step", "1")]);
        let answer = whole.query(&all, 0).unwrap();
        let Values::Gauge { value } = &answer.groups[0].values else { panic!("a gauge") };
        for (second, depth) in depths {
            let value = value[(second - answer.from) as usize].unwrap_or(0.0);
            prop_assert_eq!((value * 10.0).round() as i64, depth, "at {}", second - START);
        }
    }

    #[test]
    fn memory_stays_below_its_limit(turns in proptest::collection::vec(turn(), 100..200), limit in 2_000..8_000usize) {
        let (history, ..) = run(&turns, Limits { bytes: limit, ..ALL });
        let usage = history.usage();
        prop_assert!(usage.bytes <= limit || history.second(history.end() - 2).is_none(), "{usage:?}");
        let all: u64 = turns.iter().map(|turn| turn.late + 1).sum();
        prop_assert_eq!(usage.seconds + usage.lost.memory, all);
    }
}

#[test]
fn seconds_that_were_not_sampled_are_no_zeros() {
    let turn = |late| Turn { events: vec![(0, 0, 5)], reset: None, reload: false, late };
    let (history, ..) = run(&[turn(0), turn(2), turn(0)], ALL);
    let answer = history.query(&query(&[("metric", "wait_seconds"), ("from", "-5"), ("step", "1")]), 0).unwrap();
    let Values::Histogram { rate, p50, .. } = &answer.groups[0].values else { panic!("a histogram") };
    let third = Some(1.0 / 3.0);
    assert_eq!(*rate, [Some(1.0), None, None, third, Some(1.0)], "the counts of three seconds");
    assert_eq!(p50[1], None);
    assert_eq!(history.usage().lost, Lost { late: 2, memory: 0 });
}

#[test]
fn the_largest_groups_are_in_the_answer() {
    let events = [(0, 0, 1000), (1, 0, 1), (1, 1, 1), (1, 1, 2), (2, 0, 40), (2, 0, 40)];
    let turn = Turn { events: events.to_vec(), reset: None, reload: false, late: 0 };
    let (history, ..) = run(&[turn], ALL);
    let names = |options: &[(&str, &str)]| {
        let options = [&[("metric", "wait_seconds"), ("by", "comm"), ("top", "2")], options].concat();
        let answer = history.query(&query(&options), 0).unwrap();
        assert_eq!(answer.left_out, 1);
        answer.groups.iter().map(|group| group.labels["comm"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["postgres", "redis"]);
    assert_eq!(names(&[("sort", "sum")]), ["nginx", "redis"]);
    assert_eq!(names(&[("sort", "p99")]), ["nginx", "redis"]);
    assert_eq!(query(&[("metric", "x"), ("sort", "rate")]).sort, Sort::Count);
}

#[test]
fn what_cannot_be_answered_is_explained() {
    let turn = Turn { events: vec![(0, 0, 5)], reset: None, reload: false, late: 0 };
    let (history, ..) = run(&[turn], ALL);
    let refused = |options: &[(&str, &str)]| {
        let query = Query::parse(options.iter().copied()).and_then(|query| query.ok_or(QueryError::NoMetric));
        let error = query.and_then(|query| history.query(&query, 0)).unwrap_err();
        format!("{error}: {}", error.hint())
    };
    for (options, part) in [
        (vec![], "names no metric"),
        (vec![("metric", "nope")], "no metric `nope`"),
        (vec![("metric", "wait_seconds"), ("by", "pod")], "no label `pod`: its labels are comm, cpu"),
        (vec![("metric", "wait_seconds"), ("match", "pod=\"x\"")], "no label `pod`"),
        (vec![("metric", "wait_seconds"), ("match", "comm~x")], "`comm~x` is no matcher"),
        (vec![("metric", "wait_seconds"), ("from", "yesterday")], "from=yesterday is no time"),
        (vec![("metric", "wait_seconds"), ("from", "-5"), ("to", "-9")], "ends before it begins"),
        (vec![("metric", "wait_seconds"), ("from", "-5000"), ("step", "1")], "5000 columns"),
        (vec![("metric", "wait_seconds"), ("step", "0")], "step=0 is no whole number"),
        (vec![("metric", "wait_seconds"), ("top", "0")], "top=0 is no whole number"),
        (vec![("metric", "wait_seconds"), ("sort", "up")], "sort=up is no order"),
        (vec![("metric", "wait_seconds"), ("last", "5")], "no option `last`"),
    ] {
        let text = refused(&options);
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_second_is_the_query_of_that_second() {
    let turn = |value| Turn { events: vec![(0, 0, value), (2, 1, 7)], reset: None, reload: false, late: 0 };
    let (history, ..) = run(&[turn(5), turn(900), turn(5)], ALL);
    for metric in ["wait_seconds", "depth", "wait_total"] {
        let from = (START + 1).to_string();
        let to = (START + 2).to_string();
        let range = query(&[("metric", metric), ("by", "comm"), ("from", &from), ("to", &to), ("step", "1")]);
        let second = history.query_second(&query(&[("metric", metric), ("by", "comm")]), 1).unwrap().unwrap();
        assert_eq!(second, history.query(&range, 0).unwrap());
    }
    let summary = history.summary(1).unwrap();
    let wait = summary.metrics.iter().find(|metric| metric.metric == "kstrobe_wait_seconds").unwrap();
    assert_eq!((wait.count, wait.rate, wait.series), (Some(2.0), Some(2.0), 2));
    assert_eq!(wait.heat.as_ref().unwrap().chunks(2).map(|pair| pair[1]).sum::<u64>(), 2);
    let depth = summary.metrics.iter().find(|metric| metric.metric == "kstrobe_depth").unwrap();
    assert_eq!((depth.count, depth.value.map(|value| (value * 10.0).round())), (None, Some(-4.0)));
    assert_eq!(history.summary(3), None);
    assert!(serde_json::to_string(&summary).unwrap().contains("\"bounds\":[["));
}

#[test]
fn marks_are_on_the_time_line() {
    let turn = Turn { events: vec![(0, 0, 5)], reset: None, reload: false, late: 0 };
    let (mut history, ..) = run(&[turn.clone(), turn], Limits { seconds: 2, ..ALL });
    let mark = |time, text: &str| Mark { time, kind: MarkKind::Reload, text: text.into(), link: None };
    history.mark(mark(START as f64 + 1.5, "second"));
    history.mark(mark(START as f64 + 0.5, "first"));
    let texts = |history: &History| {
        let answer = history.query(&query(&[("metric", "wait_seconds")]), 0).unwrap();
        answer.marks.iter().map(|mark| mark.text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts(&history), ["first", "second"]);
    assert_eq!(history.summary(1).unwrap().marks.len(), 1);
    history.push(Second { start: START + 2, seconds: 1 }, &[]);
    assert_eq!(texts(&history), ["second"], "a mark goes with its second");
}

#[test]
fn the_overview_covers_ten_seconds_or_one_reading() {
    let turn = |late| Turn { events: vec![(0, 0, 7)], reset: None, reload: false, late };
    // Events and their rate, of one event in each reading.
    let seen = |lates: &[u64]| {
        let (history, ..) = run(&lates.iter().map(|late| turn(*late)).collect::<Vec<_>>(), ALL);
        let metrics = history.overview(false).metrics;
        let metric = metrics.iter().find(|metric| metric.metric == "kstrobe_wait_seconds").unwrap();
        (metric.count.unwrap(), metric.rate.unwrap())
    };
    assert_eq!(seen(&[0; 20]), (10.0, 1.0));
    assert_eq!(seen(&[0; 4]), (4.0, 1.0));
    assert_eq!(seen(&[0, 0, 0, 239]), (1.0, 1.0 / 240.0), "a rest");
    assert_eq!(seen(&[0, 239, 0, 0]), (3.0, 3.0 / 242.0), "the seconds after one, and it");
}
