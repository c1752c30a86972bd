//! All nodes: which of them are worst, and how fast budgets burn.

use super::{MAX_SERIES, histogram, panel};
use crate::dashboard::{Dashboard, Row};
use crate::objectives;
use crate::panel::{Look, MATCHERS, Panel, Target, WINDOW};
use crate::promql::{Form, rate, top};

pub(super) fn board(form: Form) -> Dashboard {
    Dashboard {
        uid: "kstrobe-fleet".into(),
        title: "Fleet".into(),
        about: "All nodes: the worst of them by 99th percentile, and how fast their error budgets burn.".into(),
        rows: vec![numbers(), budgets(), worst(form), errors()],
    }
}

fn number(title: &str, about: &str, expr: String) -> Panel {
    Panel { width: 6, ..panel(title, about, "short", Look::Number, vec![Target::new(expr, title)]) }
}

fn numbers() -> Row {
    let m = MATCHERS;
    let panels = vec![
        number("Agents", "Agents that answer.", format!("count(kstrobe_build_info{{{m}}})")),
        number(
            "Hooks not attached",
            "Hooks of enabled probes that are not attached; the agent dashboard has the reasons.",
            format!("count(kstrobe_probe_attached{{{m}}} == 0) or on () vector(0)"),
        ),
        number(
            "Probes over budget",
            "Probes that are sampled or off their hooks because they cost too much.",
            format!("sum(kstrobe_probe_over_budget{{{m}}}) or on () vector(0)"),
        ),
        number(
            "Burning budgets",
            "Alerts about latency budgets that fire.",
            format!(
                r#"count(ALERTS{{alertname="{}", alertstate="firing", {m}}}) or on () vector(0)"#,
                crate::slo::ALERT
            ),
        ),
    ];
    Row { title: "Now".into(), collapsed: false, panels }
}

fn budgets() -> Row {
    let burn = top(MAX_SERIES, &format!("slo:current_burn_rate:ratio{{{MATCHERS}}}"));
    let left = format!("bottomk({MAX_SERIES}, slo:period_error_budget_remaining:ratio{{{MATCHERS}}})");
    let legend = "{{instance}} {{sloth_slo}}";
    let about =
        "How many times faster than allowed the error budget burns; needs the rules of rules/kstrobe-slo-*.yaml.";
    let panels = vec![
        panel("Burn rate", about, "short", Look::Lines, vec![Target::new(burn, legend)]),
        panel(
            "Error budget left",
            "Share of the 30 days' budget that is left, the least of them.",
            "percentunit",
            Look::Lines,
            vec![Target::new(left, legend)],
        ),
    ];
    Row { title: "Objectives".into(), collapsed: false, panels }
}

fn worst(form: Form) -> Row {
    let panels = objectives::shipped().into_iter().map(|objective| {
        let separator = if objective.matchers.is_empty() { "" } else { ", " };
        let matchers = format!("{MATCHERS}{separator}{}", objective.matchers);
        let p99 = top(MAX_SERIES, &histogram(&objective.metric, &matchers, form).quantile(0.99, "job, instance"));
        let title = format!("{}: nodes by p99", objective.name);
        let about = format!("99th percentile of {} by node. Objective: {}.", objective.metric, objective.says);
        Panel { width: 8, ..panel(&title, &about, "s", Look::Bars, vec![Target::of(form, p99, "{{instance}}")]) }
    });
    Row { title: "Worst nodes".into(), collapsed: false, panels: panels.collect() }
}

fn errors() -> Row {
    let counters = [
        ("kstrobe_tcp_retransmits_total", "TCP segments retransmitted"),
        ("kstrobe_packet_drops_total", "Packets dropped by the kernel"),
        ("kstrobe_softnet_dropped_total", "Packets dropped as the backlog was full"),
        ("kstrobe_oom_kills_total", "Processes killed because memory was out"),
    ];
    let panels = counters.map(|(name, title)| {
        let expr = top(MAX_SERIES, &rate(name, MATCHERS, WINDOW, "job, instance"));
        let about = format!("{name} per second, the most of all nodes. No series where there was none.");
        panel(title, &about, "cps", Look::Lines, vec![Target::new(expr, "{{instance}}")])
    });
    Row { title: "Errors".into(), collapsed: false, panels: panels.to_vec() }
}
