//! Unit tests for promtool: each alert on data on which it fires, and on data on which it must not.

use crate::alerts::HEALTH;
use crate::objectives;
use crate::promql::{FORMS, Form, braces};
use crate::rules::quoted;
use crate::slo::{ALERT, BURNS, Burn, Objective, QUIET_PER_SECOND};
use crate::{File, MADE};
use kstrobe_export::bound_text;
use std::fmt::Write;

/// Where the agent of the examples is.
const NODE: &str = r#"job="kstrobe", instance="n1:9779""#;

pub fn files() -> Vec<File> {
    let mut files = vec![File { path: "dashboards/rules/tests/kstrobe-alerts.yaml".into(), text: health() }];
    for form in FORMS {
        files.push(File {
            path: format!("dashboards/rules/tests/kstrobe-slo-{}.yaml", form.name()),
            text: burning(form),
        });
    }
    files
}

type Pairs = Vec<(String, String)>;

/// An alert that must fire.
struct Expected {
    labels: Pairs,
    annotations: Pairs,
}

struct Test<'a> {
    name: String,
    series: Vec<(String, String)>,
    at: &'a str,
    alert: &'a str,
    expected: Vec<Expected>,
}

fn head(rules: &str, interval: &str) -> String {
    format!("# {MADE}\nrule_files: [../{rules}]\nevaluation_interval: {interval}\n")
}

fn write_test(out: &mut String, test: &Test) {
    let _ = writeln!(out, "  - name: {}\n    interval: 1m\n    input_series:", quoted(&test.name));
    for (series, values) in &test.series {
        let _ = writeln!(out, "      - {{series: {}, values: {}}}", quoted(series), quoted(values));
    }
    let _ = writeln!(out, "    alert_rule_test:\n      - eval_time: {}\n        alertname: {}", test.at, test.alert);
    if test.expected.is_empty() {
        out.push_str("        exp_alerts: []\n");
        return;
    }
    out.push_str("        exp_alerts:\n");
    for Expected { labels, annotations } in &test.expected {
        let _ =
            writeln!(out, "          - exp_labels: {}\n            exp_annotations: {}", map(labels), map(annotations));
    }
}

fn map(pairs: &[(String, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}: {}", quoted(value))).collect();
    format!("{{{}}}", pairs.join(", "))
}

fn health() -> String {
    let mut out = head("kstrobe-alerts.yaml", "1m") + "tests:\n";
    for alert in HEALTH {
        let owned = |series: &[(&str, &str)]| {
            series.iter().map(|(series, values)| ((*series).to_owned(), (*values).to_owned())).collect::<Vec<_>>()
        };
        let mut labels = owned(alert.labels);
        let annotations = alert.annotations().into_iter().map(|(key, text)| {
            let text = labels
                .iter()
                .fold(text, |text, (label, value)| text.replace(&format!("{{{{ $labels.{label} }}}}"), value));
            (key.to_owned(), text.replace("{{ $value | humanize }}", alert.value))
        });
        let annotations = annotations.collect();
        labels.push(("severity".to_owned(), alert.severity.to_owned()));
        let expected = vec![Expected { labels, annotations }];
        let test = |what: &str, series, expected| Test {
            name: format!("{} {what}", alert.name),
            series: owned(series),
            at: "2h",
            alert: alert.name,
            expected,
        };
        write_test(&mut out, &test("fires", alert.fires, expected));
        write_test(&mut out, &test("is silent", alert.silent, Vec::new()));
    }
    out
}

/// Observations per minute of the examples.
const PER_MINUTE: u64 = 60_000;

/// What happens to all objectives at once.
struct Course {
    name: &'static str,
    /// For so many minutes the budget burns so many times too fast, at so many observations a minute.
    parts: &'static [(u64, f64, u64)],
    /// Which alerts fire at the end.
    fires: fn(&Burn) -> bool,
    /// How many times too fast it burned over all.
    mean: f64,
}

/// Four hours each: the slowest alert waits for three.
const COURSES: &[Course] = &[
    Course { name: "half as fast as allowed", parts: &[(240, 0.5, PER_MINUTE)], fires: |_| false, mean: 0.5 },
    Course { name: "2 times too fast", parts: &[(240, 2.0, PER_MINUTE)], fires: |b| b.factor < 2.0, mean: 2.0 },
    Course { name: "4 times too fast", parts: &[(240, 4.0, PER_MINUTE)], fires: |b| b.factor < 4.0, mean: 4.0 },
    Course { name: "8 times too fast", parts: &[(240, 8.0, PER_MINUTE)], fires: |b| b.factor < 8.0, mean: 8.0 },
    Course { name: "20 times too fast", parts: &[(240, 20.0, PER_MINUTE)], fires: |_| true, mean: 20.0 },
    Course {
        // Of 240 steps 180 are slow. The short windows of the pages are clean again; those of the tickets still hold half of it.
        name: "20 times too fast, over for an hour",
        parts: &[(180, 20.0, PER_MINUTE), (60, 0.0, PER_MINUTE)],
        fires: |burn| burn.severity == "ticket",
        mean: 15.0,
    },
    Course { name: "all slow, but idle", parts: &[(240, f64::INFINITY, 3)], fires: |_| false, mean: 0.0 },
];

fn burning(form: Form) -> String {
    // Seldom, since there are hundreds of rules: for that, recordings must come before the alerts that read them.
    let mut out = head(&format!("kstrobe-slo-{}.yaml", form.name()), "10m") + "group_eval_order:\n";
    for group in objectives::shipped().iter().flat_map(|objective| objective.groups(form)) {
        let _ = writeln!(out, "  - {}", quoted(&group.name));
    }
    out.push_str("tests:\n");
    // The idle course is below the guard.
    const { assert!(3.0 / 60.0 < QUIET_PER_SECOND) };
    for course in COURSES {
        let objectives = objectives::shipped();
        let expected = objectives.iter().flat_map(|objective| {
            BURNS.iter().filter(|burn| (course.fires)(burn)).map(|burn| expected(objective, burn, course.mean))
        });
        let test = Test {
            name: course.name.to_owned(),
            series: objectives.iter().flat_map(|objective| series(objective, course, form)).collect(),
            at: "4h",
            alert: ALERT,
            expected: expected.collect(),
        };
        write_test(&mut out, &test);
    }
    out
}

fn expected(objective: &Objective, burn: &Burn, factor: f64) -> Expected {
    let rule = objective.alert(burn, Form::Classic);
    let own = [("job", "kstrobe"), ("instance", "n1:9779")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let pairs = |pairs: Vec<(&'static str, String)>| pairs.into_iter().map(|(key, value)| (key.to_owned(), value));
    let labels = own.into_iter().chain(pairs(rule.labels)).collect();
    let percent = format!("{}%", crate::slo::rounded(factor * objective.budget() * 100.0));
    let annotations = pairs(rule.alert.map(|alert| alert.annotations).unwrap_or_default()).map(|(key, text)| {
        let text = text.replace("{{ $labels.instance }}", "n1:9779");
        (key, text.replace("{{ $value | humanizePercentage }}", &percent))
    });
    Expected { labels, annotations: annotations.collect() }
}

/// The objective's metric on this course.
fn series(objective: &Objective, course: &Course, form: Form) -> Pairs {
    let labels = format!("{NODE}{}", example(&objective.matchers));
    let slow = |factor: f64, all: u64| ((factor * objective.budget()).min(1.0) * all as f64).round() as u64;
    match form {
        Form::Classic => {
            let bound = format!("le=\"{}\"", bound_text(objective.threshold));
            let counts = |part: fn(u64, u64) -> u64| {
                let mut sum = 0;
                // The first sample is before the first step.
                let parts = course.parts.iter().map(|(minutes, factor, all)| {
                    let step = part(*all, slow(*factor, *all));
                    let text = format!("{}+{step}x{}", sum + step, minutes - 1);
                    sum += step * minutes;
                    text
                });
                format!("0 {}", parts.collect::<Vec<_>>().join(" "))
            };
            vec![
                (format!("{}_bucket{}", objective.metric, braces(&labels, &bound)), counts(|all, slow| all - slow)),
                (format!("{}_count{}", objective.metric, braces(&labels, "")), counts(|all, _| all)),
            ]
        }
        Form::Native => {
            let mut sums = (0, 0);
            let parts = course.parts.iter().map(|(minutes, factor, all)| {
                let slow = slow(*factor, *all);
                let text = format!(
                    "{}+{}x{}",
                    native(objective.threshold, sums.0 + all - slow, sums.1 + slow),
                    native(objective.threshold, all - slow, slow),
                    minutes - 1
                );
                sums = (sums.0 + (all - slow) * minutes, sums.1 + slow * minutes);
                text
            });
            let values = format!("{} {}", native(objective.threshold, 0, 0), parts.collect::<Vec<_>>().join(" "));
            vec![(format!("{}{}", objective.metric, braces(&labels, "")), values)]
        }
    }
}

/// A native histogram with so many observations far below and far above a bound.
fn native(bound: f64, below: u64, above: u64) -> String {
    // Of schema 0, bucket i ends at 2^i.
    let near = bound.log2().floor() as i32;
    let all = below + above;
    format!("{{{{schema:0 count:{all} sum:{all} offset:{} buckets:[{below} 0 0 0 0 0 {above}]}}}}", near - 3)
}

/// Labels that fulfil matchers: of alternatives the first.
fn example(matchers: &str) -> String {
    let mut found = String::new();
    for matcher in matchers.split(", ").filter(|matcher| !matcher.is_empty()) {
        let (label, value) = matcher.split_once('=').unwrap_or((matcher, ""));
        let value = value.trim_start_matches('~').trim_matches('"').split('|').next().unwrap_or_default();
        let _ = write!(found, ", {label}=\"{value}\"");
    }
    found
}
