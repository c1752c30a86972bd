//! Conditions over snapshots made by hand.

use super::world::{Folder, MS, agent, counter, gauge, histogram, scheme};
use kstrobe::capture::rules::configured;
use kstrobe::capture::rules::evaluator::{Evaluator, Verdict};
use kstrobe::capture::rules::measure::{above, measure, quantile, select};
use kstrobe::capture::rules::window::Window;
use kstrobe_config::model::When;
use kstrobe_export::snapshot::{Family, Number};
use proptest::prelude::*;
use std::time::Duration;

fn condition(when: &str) -> When {
    let folder = Folder::new();
    let text = format!("rules:\n  - name: r\n    when: {when}\n    capture: {{ events: quick }}\n");
    let agent = agent(&folder, "", &text);
    configured::rule(&agent.rules[0], agent.captures.as_ref().unwrap()).condition.unwrap()
}

const MYSQL: &[&str] = &["recvfrom", "mysqld"];
const NGINX: &[&str] = &["recvfrom", "nginx"];

/// What a condition finds between two moments ten seconds apart: the second label of each series, and its value.
fn found(when: &str, before: &Family, now: &Family) -> Vec<(String, f64)> {
    let condition = condition(when);
    let now = select(now, &condition.matchers);
    let found = measure(&condition, before, &now, 10.0);
    found.into_iter().map(|f| (f.labels[1].to_string(), f.value)).collect()
}

#[test]
fn quantiles_lie_between_the_bounds_of_their_bucket() {
    let upper = [10, 20, 40];
    // 2 in (0, 10], 4 in (10, 20], 2 in (20, 40], 2 above.
    let counts = [2, 4, 2, 2];
    for (share, expected) in
        [(0.1, 5.0), (0.2, 10.0), (0.4, 15.0), (0.6, 20.0), (0.7, 30.0), (0.8, 40.0), (0.9, 40.0), (1.0, 40.0)]
    {
        let found = quantile(&counts, &upper, share).unwrap();
        assert!((found - expected).abs() < 1e-9, "p{share}: {found}");
    }
    assert_eq!(quantile(&[0, 0, 0, 0], &upper, 0.5), None);
    assert_eq!(quantile(&[0, 0, 1, 0], &upper, 0.000001).map(f64::round), Some(20.0), "empty buckets are passed over");
    for (bound, expected) in [(0.0, 1.0), (5.0, 0.9), (10.0, 0.8), (15.0, 0.6), (20.0, 0.4), (30.0, 0.3), (40.0, 0.2)] {
        let found = above(&counts, &upper, bound).unwrap();
        assert!((found - expected).abs() < 1e-9, "above {bound}: {found}");
    }
    assert_eq!(above(&[0, 0, 0, 0], &upper, 5.0), None);
}

proptest! {
    #[test]
    fn a_quantile_is_in_the_bucket_of_the_true_one(
        mut values in proptest::collection::vec(0u64..20_000 * MS, 1..200),
        share in 0.01..1.0f64,
    ) {
        let scheme = scheme();
        let mut counts = vec![0; scheme.buckets()];
        values.iter().for_each(|value| counts[scheme.index(*value)] += 1);
        values.sort_unstable();
        let rank = ((share * values.len() as f64).ceil() as usize).clamp(1, values.len());
        let bucket = scheme.index(values[rank - 1]);
        let low = if bucket == 0 { 0 } else { scheme.upper[bucket - 1] };
        let high = scheme.upper.get(bucket).copied().unwrap_or(low);
        let found = quantile(&counts, &scheme.upper, share).unwrap();
        prop_assert!(low as f64 <= found && found <= high as f64, "{found} in {low}..{high}");
        let over = above(&counts, &scheme.upper, found).unwrap();
        prop_assert!(over <= 1.0 - share + 1e-9 || bucket == counts.len() - 1, "{over} are above p{share}");
    }
}

#[test]
fn only_what_came_within_the_window_counts() {
    let scheme = scheme();
    let before = histogram(&scheme, &[(MYSQL, &[1_000 * MS; 50]), (NGINX, &[MS])]);
    let slow: Vec<u64> = [vec![1_000 * MS; 50], vec![60 * MS; 3], vec![2 * MS; 97]].concat();
    let now = histogram(&scheme, &[(MYSQL, &slow), (NGINX, &[MS])]);
    let p = |share: &str| found(&format!("p{share}(recv_wait_seconds) > 1s"), &before, &now);
    // Nothing came of nginx.
    let [(comm, p99)] = &p("99")[..] else { panic!("{:?}", p("99")) };
    assert!(comm == "mysqld" && (0.055..0.066).contains(p99), "{p99}");
    assert!((0.0018..0.0022).contains(&p("97")[0].1) && (0.0018..0.0022).contains(&p("50")[0].1));
    let share = found("share(recv_wait_seconds > 50ms) > 1%", &before, &now);
    assert!((share[0].1 - 0.03).abs() < 1e-9, "{share:?}");
    let share = found("share(recv_wait_seconds < 50ms) > 1%", &before, &now);
    assert!((share[0].1 - 0.97).abs() < 1e-9, "{share:?}");
    let rate = found("rate(recv_wait_seconds) > 1", &before, &now);
    assert_eq!(rate, [("mysqld".into(), 10.0), ("nginx".into(), 0.0)]);
}

#[test]
fn series_that_are_new_or_began_anew_count_from_nothing() {
    let scheme = scheme();
    let before = histogram(&scheme, &[(MYSQL, &[MS; 50])]);
    let now = histogram(&scheme, &[(MYSQL, &[200 * MS; 20]), (NGINX, &[300 * MS; 10])]);
    let rate = found("rate(recv_wait_seconds) > 1", &before, &now);
    assert_eq!(rate, [("mysqld".into(), 2.0), ("nginx".into(), 1.0)]);
    let p50 = found("p50(recv_wait_seconds) > 1s", &before, &now);
    assert!((0.18..0.22).contains(&p50[0].1) && (0.27..0.33).contains(&p50[1].1), "{p50:?}");
    let before = counter("kstrobe_calls_total", &[(MYSQL, 100), (NGINX, 5)]);
    let now = counter("kstrobe_calls_total", &[(MYSQL, 40), (NGINX, 25)]);
    assert_eq!(found("rate(calls_total) > 1", &before, &now), [("mysqld".into(), 4.0), ("nginx".into(), 2.0)]);
}

#[test]
fn counters_and_gauges_are_in_their_unit() {
    let before = counter("kstrobe_busy_seconds_total", &[(MYSQL, 0)]);
    let now = counter("kstrobe_busy_seconds_total", &[(MYSQL, 5_000 * MS)]);
    assert_eq!(found("rate(busy_seconds_total) > 10%", &before, &now), [("mysqld".into(), 0.5)]);
    let now = gauge(
        "kstrobe_lag_seconds",
        &[
            (MYSQL, Number::Unsigned(250 * MS)),
            (NGINX, Number::Signed(-1_000 * MS as i64)),
            (&["", ""], Number::Float(3.5)),
        ],
    );
    let values = found("value(lag_seconds) > 1s", &now, &now);
    assert_eq!(values, [("mysqld".into(), 0.25), ("nginx".into(), -1.0), (String::new(), 3.5)]);
}

#[test]
fn matchers_choose_series() {
    let names = [MYSQL, NGINX, &["read", "mysqld-7"], &["read", ""]];
    let family = counter("kstrobe_calls_total", &names.map(|labels| (labels, 1)));
    for (matchers, expected) in [
        ("", "mysqld nginx mysqld-7 "),
        ("comm=\"mysqld\"", "mysqld"),
        ("comm!=\"mysqld\"", "nginx mysqld-7 "),
        ("comm=~\"mysqld*\"", "mysqld mysqld-7"),
        ("comm=~\"mysqld-?\"", "mysqld-7"),
        ("comm!~\"m*\"", "nginx "),
        ("comm=\"\"", ""),
        ("comm!=\"\", syscall=\"read\"", "mysqld-7"),
        ("comm=\"m*\"", "nothing"),
        ("other=\"\"", "mysqld nginx mysqld-7 "),
        ("other!=\"\"", "nothing"),
    ] {
        let condition = condition(&format!("'rate(calls_total{{{matchers}}}) > 1'"));
        let selected = select(&family, &condition.matchers);
        let comms: Vec<&str> = selected.series.iter().map(|s| &*s.labels[1]).collect();
        let found = if comms.is_empty() { "nothing".to_owned() } else { comms.join(" ") };
        assert_eq!(found, expected, "{matchers}");
    }
}

/// A verdict as a letter: nothing, holding, or the series that fires.
fn letter(verdict: Verdict) -> String {
    match verdict {
        Verdict::Quiet => ".".into(),
        Verdict::Holding => "h".into(),
        Verdict::Fires(found) => found.labels[1].to_string(),
    }
}

/// A second after another: how many observations of which nanoseconds each series has in it.
fn watch(when: &str, seconds: &[&[(&'static [&'static str], u64, usize)]]) -> String {
    let (condition, scheme) = (condition(when), scheme());
    let mut evaluator = Evaluator::new(&condition);
    let mut all: Vec<(&[&str], Vec<u64>)> = Vec::new();
    let mut letters = Vec::new();
    for (second, observed) in seconds.iter().enumerate() {
        for (labels, value, times) in *observed {
            let at = all.iter().position(|(known, _)| known == labels).unwrap_or_else(|| {
                all.push((labels, Vec::new()));
                all.len() - 1
            });
            all[at].1.extend(std::iter::repeat_n(*value, *times));
        }
        let series: Vec<(&[&str], &[u64])> = all.iter().map(|(labels, values)| (*labels, values.as_slice())).collect();
        let family = histogram(&scheme, &series);
        letters.push(letter(evaluator.look(&condition, Duration::from_secs(second as u64), Some(&family))));
    }
    letters.join(" ")
}

#[test]
fn a_condition_fires_when_it_has_held_for_long_enough() {
    let fast: &[_] = &[(MYSQL, MS, 10)];
    let slow: &[_] = &[(MYSQL, 100 * MS, 10)];
    let when = "p50(recv_wait_seconds) over 2s > 50ms for 3s";
    // No window is whole before the third look; half of it is slow at the fourth, all of it from the fifth on.
    let seconds = [fast, fast, fast, slow, slow, slow, slow, slow, fast, fast, fast];
    assert_eq!(watch(when, &seconds), ". . . . h h h mysqld . . .");
    // What nobody observes does not go on.
    let seconds = [fast, fast, fast, slow, slow, slow, &[], &[], &[], &[]];
    assert_eq!(watch(when, &seconds), ". . . . h h h . . .");
    // Without `for`, at once.
    assert_eq!(watch("p50(recv_wait_seconds) over 1s > 50ms", &[fast, slow, fast]), ". mysqld .");
}

#[test]
fn each_series_holds_for_itself_and_the_worst_fires() {
    let both: &[_] = &[(MYSQL, 100 * MS, 10), (NGINX, 300 * MS, 10)];
    let one: &[_] = &[(MYSQL, 100 * MS, 10), (NGINX, MS, 10)];
    let other: &[_] = &[(MYSQL, MS, 10), (NGINX, 300 * MS, 10)];
    let when = "p50(recv_wait_seconds) over 1s > 50ms for 2s";
    assert_eq!(watch(when, &[both, both, both, both]), ". h h nginx");
    // One after the other is not one for all of the time.
    assert_eq!(watch(when, &[one, one, one, other, other, other]), ". h h h h nginx");
    assert_eq!(watch(when, &[both, both, one, one]), ". h h mysqld");
    assert_eq!(watch("p50(recv_wait_seconds) over 1s < 200ms", &[both, other]), ". mysqld");
}

#[test]
fn a_metric_that_is_not_there_is_quiet() {
    let condition = condition("value(lag_seconds) > 1s for 1s");
    let late = gauge("kstrobe_lag_seconds", &[(MYSQL, Number::Unsigned(2_000 * MS))]);
    let mut evaluator = Evaluator::new(&condition);
    let mut look = |second, family| letter(evaluator.look(&condition, Duration::from_secs(second), family));
    assert_eq!(look(0, Some(&late)), "h", "a gauge has no past");
    assert_eq!(look(1, Some(&late)), "mysqld");
    assert_eq!(look(2, None), ".");
    assert_eq!(look(3, Some(&late)), "h");
}

#[test]
fn a_window_keeps_few_moments_however_long_and_often_it_is_looked_at() {
    let family = counter("kstrobe_calls_total", &[]);
    for (over, every) in [(10, 100), (600, 100), (600, 1000), (1, 100), (1, 60_000)] {
        let mut window = Window::new(Duration::from_secs(over));
        for look in 0..20_000u64 {
            let at = Duration::from_millis(look * every);
            if let Some((_, span)) = window.before(at) {
                let most = Duration::from_secs(over).mul_f64(1.2) + Duration::from_millis(every);
                assert!(span >= Duration::from_secs(over) && span <= most, "{over} {every}: {span:?} at {look}");
            } else {
                assert!(
                    at <= Duration::from_secs(over) + Duration::from_millis(every),
                    "{over} {every}: nothing at {at:?}"
                );
            }
            window.push(at, family.clone());
            assert!(window.len() <= 14, "{over} {every}: {}", window.len());
        }
    }
}
