//! Objectives: how they stand, from the recording rules.

use super::panel;
use crate::dashboard::{Dashboard, Row};
use crate::panel::{Look, MATCHERS, Panel, Target};

pub(super) fn board() -> Dashboard {
    let legend = "{{instance}} {{sloth_slo}}";
    let of = |metric: &str| format!("{metric}{{{MATCHERS}}}");
    let line = |title: &str, about: &str, unit, metric: &str| {
        panel(title, about, unit, Look::Lines, vec![Target::new(of(metric), legend)])
    };
    let windows = crate::slo::WINDOWS.map(|window| {
        let metric = format!("slo:sli_error:ratio_rate{window}");
        let about = format!("Share of observations slower than their objective within {window}.");
        Panel { width: 8, ..line(&format!("Slow share, {window}"), &about, "percentunit", &metric) }
    });
    let firing = format!(
        r#"sum by (severity) (ALERTS{{alertname="{}", alertstate="firing", {MATCHERS}}}) or on () vector(0)"#,
        crate::slo::ALERT
    );
    let now = vec![
        Panel {
            width: 24,
            ..panel(
                "Objectives",
                "Every objective with its share of observations that must be fast enough.",
                "percentunit",
                Look::Table,
                vec![Target::new("slo:objective:ratio", "")],
            )
        },
        line(
            "Burn rate",
            "How many times faster than allowed the budget burns now: above 1 it will not last.",
            "short",
            "slo:current_burn_rate:ratio",
        ),
        line(
            "Error budget left",
            "Share of the 30 days' budget that is left.",
            "percentunit",
            "slo:period_error_budget_remaining:ratio",
        ),
        panel(
            "Alerts that fire",
            "By severity; the runbook is docs/runbooks/KstrobeLatencyBudgetBurn.md.",
            "short",
            Look::Lines,
            vec![Target::new(firing, "{{severity}}")],
        ),
        line(
            "Burn rate over 30 days",
            "At 1 the budget of the period is just used up.",
            "short",
            "slo:period_burn_rate:ratio",
        ),
    ];
    Dashboard {
        uid: "kstrobe-slo".into(),
        title: "Objectives (SLO)".into(),
        about: "Latency objectives: budgets, burn rates and the slow share over each window. Needs the rules of \
                rules/kstrobe-slo-classic.yaml or rules/kstrobe-slo-native.yaml."
            .into(),
        rows: vec![
            Row { title: "Now".into(), collapsed: false, panels: now },
            Row { title: "Windows of the alerts".into(), collapsed: false, panels: windows.to_vec() },
        ],
    }
}
