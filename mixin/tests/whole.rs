//! Nothing is named that is not there, and nothing is left out.

use kstrobe_mixin::alerts::HEALTH;
use kstrobe_mixin::catalogue::Kind;
use kstrobe_mixin::{FORMS, catalogue, expressions, objectives, own, runbook_path, slo, topics};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_latency_has_an_objective_or_a_reason() {
    assert_eq!(objectives::mistakes(&catalogue()), [""; 0]);
}

#[test]
fn every_pack_has_one_topic() {
    assert_eq!(topics::misplaced(&catalogue()), [""; 0]);
}

#[test]
fn every_metric_in_a_query_is_in_the_catalogue() {
    let catalogue = catalogue();
    let recorded: BTreeSet<String> = expressions(&catalogue, "5m")
        .iter()
        .filter(|e| e.place.starts_with("rules/"))
        .filter_map(|e| Some(e.place.split(": ").nth(1)?.to_owned()))
        .collect();
    for expression in expressions(&catalogue, "5m") {
        for name in &expression.metrics {
            let known = catalogue.find(name).is_some() || recorded.contains(name);
            assert!(known, "{}: no metric {name}", expression.place);
        }
        assert!(!expression.text.contains('$'), "{}: {}", expression.place, expression.text);
        let forms: Vec<_> = FORMS.iter().filter(|form| expression.form == Some(**form)).collect();
        assert!(forms.len() <= 1);
    }
}

#[test]
fn every_metric_is_on_a_dashboard() {
    let catalogue = catalogue();
    let shown = expressions(&catalogue, "5m");
    let shown: BTreeSet<&String> =
        shown.iter().filter(|e| e.place.starts_with("dashboards/")).flat_map(|e| &e.metrics).collect();
    let series = catalogue.metrics().filter(|metric| !matches!(metric.kind, Kind::Stacks));
    let missing: Vec<_> = series.filter(|metric| !shown.contains(&metric.name)).map(|m| &m.name).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_alert_has_a_page_and_every_page_an_alert() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let alerts: BTreeSet<&str> = HEALTH.iter().map(|alert| alert.name).chain([slo::ALERT]).collect();
    for alert in &alerts {
        let path = root.join(runbook_path(alert));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for part in [
            format!("# {alert}\n"),
            "\n## What it means\n".into(),
            "\n## How to look\n".into(),
            "\n## What to do\n".into(),
        ] {
            assert!(page.contains(&part), "{alert}: no {part}");
        }
        assert!(page.contains("kstrobe ") || page.contains("curl "), "{alert}: no command");
    }
    let folder = std::fs::read_dir(root.join("docs/runbooks")).unwrap().flatten();
    let pages: Vec<_> = folder.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(pages.len(), alerts.len(), "{pages:?}");
}

#[test]
fn own_metrics_are_read_from_an_exposition() {
    let text = "# HELP kstrobe_build Version.\n# TYPE kstrobe_build info\nkstrobe_build_info{version=\"1\"} 1\n\
                # HELP kstrobe_t_seconds Time..\n# TYPE kstrobe_t_seconds histogram\n# UNIT kstrobe_t_seconds seconds\n\
                kstrobe_t_seconds_sum 0\nkstrobe_t_seconds_bucket{le=\"0.5\"} 0\nkstrobe_t_seconds_bucket{le=\"+Inf\"} 0\n\
                # HELP kstrobe_lost Lost.\n# TYPE kstrobe_lost counter\n\
                kstrobe_lost_total{probe=\"a=\\\"b\\\"}\",reason=\"x\"} 1\nkstrobe_lost_total{probe=\"b\",reason=\"y\"} 1\n# EOF\n";
    let metrics = own::from_openmetrics(text);
    let names: Vec<_> = metrics.iter().map(|m| (m.name.as_str(), m.kind, m.labels.join(","))).collect();
    assert_eq!(
        names,
        [
            ("kstrobe_build_info", Kind::Info, "version".to_owned()),
            ("kstrobe_lost_total", Kind::Counter, "probe,reason".to_owned()),
            ("kstrobe_t_seconds", Kind::ClassicHistogram, String::new()),
        ]
    );
    assert_eq!(
        (metrics[2].unit.as_str(), metrics[2].help.as_str(), &metrics[2].bounds[..]),
        ("seconds", "Time.", &[0.5][..])
    );
    // Hostile text makes no trouble.
    own::from_openmetrics("# TYPE\n# HELP \nx{a=\"\\\n{=\"} 1\nkstrobe{le=\"");
    own::recorded();
}
