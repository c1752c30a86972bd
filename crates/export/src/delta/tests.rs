use super::*;
use crate::snapshot::Number;
use crate::test_data::{at, counters, gauges, histograms, scheme, snapshot};
use proptest::prelude::*;

/// Label, beginning in seconds, value: a histogram's value is its count.
fn rows(snapshot: &Snapshot) -> Vec<(String, Option<u64>, u64)> {
    let mut out = Vec::new();
    for family in &snapshot.families {
        for (row, series) in family.series.iter().enumerate() {
            let value = match &family.values {
                Values::Counters(values) => values[row],
                Values::Histograms(histograms) => histograms.counts_of(row).iter().sum(),
                Values::Gauges(values) => match values[row] {
                    Number::Unsigned(value) => value,
                    other => panic!("{other:?}"),
                },
            };
            let began = series.created.map(|time| time.duration_since(at(0)).unwrap().as_secs());
            out.push((series.labels[0].to_string(), began, value));
        }
    }
    out
}

fn row(label: &str, began: Option<u64>, value: u64) -> (String, Option<u64>, u64) {
    (label.to_owned(), began, value)
}

const NAME: &str = "kstrobe_x_total";

#[test]
fn every_fate_of_a_counter() {
    let before = [
        ("came back", Some(at(1)), 5),
        ("gone", Some(at(1)), 5),
        ("grew", Some(at(1)), 5),
        ("idle", Some(at(1)), 5),
        ("known once", Some(at(1)), 5),
        ("unknown", None, 1000),
        ("went back", Some(at(1)), 5),
        ("went back, unknown", None, 5),
    ];
    let now = [
        // Evicted and seen again; it has passed its old value.
        ("came back", Some(at(11)), 7),
        ("grew", Some(at(1)), 8),
        ("idle", Some(at(1)), 5),
        ("known once", None, 7),
        ("new", Some(at(12)), 2),
        ("new, since when?", None, 1_000_000),
        ("unknown", None, 1001),
        ("went back", Some(at(1)), 4),
        ("went back, unknown", None, 4),
    ];
    let (before, now) = (snapshot(10, vec![counters(NAME, "", &before)]), snapshot(20, vec![counters(NAME, "", &now)]));
    let expected = [
        row("came back", Some(11), 7),
        row("grew", Some(10), 3),
        row("known once", Some(10), 2),
        row("new", Some(12), 2),
        row("unknown", Some(10), 1),
        row("went back", Some(1), 4),
        row("went back, unknown", Some(10), 4),
    ];
    let difference = difference(Some(&before), &now);
    assert_eq!((difference.at, rows(&difference)), (at(20), expected.to_vec()));
}

#[test]
fn the_first_look_reports_what_has_a_beginning() {
    let scheme = scheme(0);
    let first = snapshot(
        10,
        vec![
            counters(NAME, "", &[("known", Some(at(3)), 5), ("unknown", None, 5), ("zero", Some(at(3)), 0)]),
            gauges("kstrobe_g", "", &[("g", Number::Unsigned(4))]),
            histograms("kstrobe_h_seconds", &scheme, &[("empty", Some(at(2)), &[]), ("h", Some(at(2)), &[1, 2_000])]),
        ],
    );
    let expected = [row("known", Some(3), 5), row("g", None, 4), row("h", Some(2), 2)];
    assert_eq!(rows(&difference(None, &first)), expected);
}

#[test]
fn histograms_differ_bucket_by_bucket() {
    let scheme = scheme(3);
    let family = |observations: &[u64]| histograms("kstrobe_h_seconds", &scheme, &[("a", Some(at(1)), observations)]);
    let before = snapshot(10, vec![family(&[1_500, 5_000_000])]);
    let now = snapshot(20, vec![family(&[1_500, 5_000_000, 5_000_001, 900_000_000])]);
    let mut expected = snapshot(20, vec![family(&[5_000_001, 900_000_000])]);
    expected.families[0].series[0].created = Some(at(10));
    let difference = difference(Some(&before), &now);
    assert_eq!(difference.families[0].values, expected.families[0].values);
    assert_eq!(difference.families[0].series, expected.families[0].series);
    // The same number in other buckets is a new beginning.
    let moved = super::difference(Some(&before), &snapshot(20, vec![family(&[1_500, 6_000_000])]));
    assert_eq!(rows(&moved), [row("a", Some(1), 2)]);
}

#[test]
fn other_buckets_are_a_new_beginning() {
    let family = |schema| histograms("kstrobe_h_seconds", &scheme(schema), &[("a", Some(at(1)), &[1_500, 5_000_000])]);
    let (before, now) = (snapshot(10, vec![family(0)]), snapshot(20, vec![family(3)]));
    assert_eq!(rows(&difference(Some(&before), &now)), [row("a", Some(1), 2)]);
    let (merged, lost) = merge(&before, &now, usize::MAX);
    assert_eq!((rows(&merged), lost), (vec![row("a", Some(1), 2)], 1), "what cannot be added is counted");
}

#[test]
fn merged_differences_lose_nothing() {
    let older = snapshot(
        10,
        vec![
            counters(NAME, "", &[("both", Some(at(0)), 1), ("gone", Some(at(0)), 2)]),
            counters("kstrobe_gone_total", "", &[("x", Some(at(0)), 9)]),
            gauges("kstrobe_g", "", &[("both", Number::Unsigned(1)), ("gone", Number::Unsigned(1))]),
        ],
    );
    let newer = snapshot(
        20,
        vec![
            counters(NAME, "", &[("both", Some(at(10)), 10), ("new", Some(at(15)), 3)]),
            gauges("kstrobe_g", "", &[("both", Number::Unsigned(2))]),
        ],
    );
    let expected = [
        row("both", Some(0), 11),
        row("gone", Some(0), 2),
        row("new", Some(15), 3),
        row("both", None, 2),
        row("x", Some(0), 9),
    ];
    let (merged, lost) = merge(&older, &newer, usize::MAX);
    assert_eq!((merged.at, rows(&merged), lost), (at(20), expected.to_vec(), 0));
}

#[test]
fn a_full_merge_drops_what_is_gone_and_counts_it() {
    let many: Vec<String> = (0..100).map(|n| format!("{n:03}")).collect();
    let many: Vec<(&str, Option<SystemTime>, u64)> = many.iter().map(|label| (label.as_str(), None, 1)).collect();
    let older = snapshot(10, vec![counters(NAME, "", &many)]);
    let newer = snapshot(20, vec![counters(NAME, "", &[("050", None, 1), ("zzz", None, 1)])]);
    let family_row_bytes = row_bytes(&older.families[0]);
    let (merged, lost) = merge(&older, &newer, 12 * family_row_bytes);
    assert_eq!((merged.families[0].len(), lost), (12, 89));
    let (merged, lost) = merge(&older, &newer, 0);
    assert_eq!(
        rows(&merged),
        [row("050", None, 2), row("zzz", None, 1)],
        "what is new is kept however small the bound"
    );
    assert_eq!(lost, 99);
}

#[test]
fn a_slice_has_the_series_of_its_runs() {
    let all = snapshot(
        10,
        vec![
            counters(NAME, "", &[("a", None, 1), ("b", None, 2), ("c", None, 3)]),
            histograms("kstrobe_h_seconds", &scheme(0), &[("h", None, &[5]), ("i", None, &[5, 6])]),
        ],
    );
    let some = slice(&all, &[(0, 1..2), (1, 1..2), (0, 2..9), (7, 0..1)]);
    // Requests cut a family into runs; merging finds families by their names.
    assert_eq!(rows(&some), [row("b", None, 2), row("c", None, 3), row("i", None, 2)]);
    assert_eq!(some.families.len(), 2);
}

proptest! {
    /// However reports fail, what arrives adds up to what was counted.
    #[test]
    fn what_arrives_adds_up(
        steps in prop::collection::vec((prop::collection::vec(0u64..4, 3), any::<bool>()), 1..12),
    ) {
        let labels = ["a", "b", "c"];
        let (mut totals, mut arrived) = ([0u64; 3], [0u64; 3]);
        let (mut base, mut unsent): (Option<Snapshot>, Option<Snapshot>) = (None, None);
        let last = steps.len() - 1;
        for (step, (increments, taken)) in steps.into_iter().enumerate() {
            for (total, increment) in totals.iter_mut().zip(&increments) {
                *total += increment;
            }
            let rows: Vec<_> = labels.iter().zip(totals).map(|(label, total)| (*label, Some(at(0)), total)).collect();
            let now = snapshot(10 * (step as u64 + 1), vec![counters(NAME, "", &rows)]);
            let new = difference(base.as_ref(), &now);
            let (all, lost) = match &unsent {
                Some(unsent) => merge(unsent, &new, usize::MAX),
                None => (new, 0),
            };
            prop_assert_eq!(lost, 0);
            base = Some(now);
            if taken || step == last {
                for (label, _, value) in self::rows(&all) {
                    arrived[labels.iter().position(|known| *known == label).unwrap()] += value;
                }
                unsent = None;
            } else {
                unsent = Some(all);
            }
        }
        prop_assert_eq!(arrived, totals);
    }
}
