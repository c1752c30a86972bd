//! Nothing is named that is not there, and nothing is left out.

use kstrobe_export::own::{OwnFamily, OwnHistogram, OwnKind, OwnSeries, OwnValue};
use kstrobe_mixin::alerts::HEALTH;
use kstrobe_mixin::catalogue::Kind;
use kstrobe_mixin::{Expression, FORMS, catalogue, expressions, objectives, own, runbook_path, slo, topics};
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
    }
}

#[test]
fn every_metric_is_on_a_dashboard() {
    let catalogue = catalogue();
    let shown = expressions(&catalogue, "5m");
    for form in FORMS {
        let of_set =
            |e: &&Expression| e.place.starts_with("dashboards/grafana/") && e.form.is_none_or(|own| own == form);
        let shown: BTreeSet<&String> = shown.iter().filter(of_set).flat_map(|e| &e.metrics).collect();
        let series = catalogue.metrics().filter(|metric| !matches!(metric.kind, Kind::Stacks));
        let missing: Vec<_> = series.filter(|metric| !shown.contains(&metric.name)).map(|m| &m.name).collect();
        assert!(missing.is_empty(), "{form:?}: {missing:?}");
    }
}

#[test]
fn every_alert_has_a_page_and_every_page_an_alert() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
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

/// `config` cannot ask this room.
#[test]
fn no_probe_can_take_the_name_of_an_own_metric() {
    let own = own::recorded();
    let own: Vec<&str> = own.iter().filter_map(|metric| metric.name.strip_prefix(kstrobe_config::PREFIX)).collect();
    assert_eq!(own, kstrobe_config::OWN_METRICS, "write these into `OWN_METRICS` in config/src/names.rs");
}

#[test]
fn own_metrics_are_what_their_families_say() {
    let series = |labels: &[(&str, &str)], value| OwnSeries {
        labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        value,
    };
    let family = |name: &str, kind, unit: &str, series| OwnFamily {
        name: name.into(),
        help: "Help".into(),
        kind,
        unit: unit.into(),
        series,
    };
    let one = || OwnValue::Number(1.0);
    let histogram = OwnHistogram { count: 1, sum: 0.1, cumulative: vec![(0.5, 1), (f64::INFINITY, 1)] };
    let families = [
        family("t_seconds", OwnKind::Histogram, "seconds", vec![series(&[], OwnValue::Histogram(histogram))]),
        family(
            "lost_total",
            OwnKind::Counter,
            "",
            vec![series(&[("probe", "a")], one()), series(&[("probe", "b"), ("reason", "c")], one())],
        ),
        family("build_info", OwnKind::Gauge, "", vec![series(&[("version", "1")], one())]),
    ];
    let metrics = own::metrics(&families);
    let rows: Vec<_> = metrics.iter().map(|m| (m.name.as_str(), m.kind, m.labels.join(","), m.help.as_str())).collect();
    assert_eq!(
        rows,
        [
            ("build_info", Kind::Info, "version".to_owned(), "Help."),
            ("lost_total", Kind::Counter, "probe,reason".to_owned(), "Help."),
            ("t_seconds", Kind::ClassicHistogram, String::new(), "Help."),
        ]
    );
    assert_eq!((metrics[2].unit.as_str(), &metrics[2].bounds[..]), ("seconds", &[0.5][..]));
    assert!(own::recorded().len() > 30);
}
