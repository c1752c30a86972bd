//! Where to start: what is slow, whom it concerns, what fails, and what is not seen.

use super::{MAX_SERIES, histogram, panel, short};
use crate::catalogue::{Catalogue, Kind, Metric};
use crate::dashboard::{Dashboard, Row};
use crate::panel::{Look, MATCHERS, Panel, Target, WINDOW};
use crate::promql::{Form, rate, sum, top};

pub(super) fn board(catalogue: &Catalogue, form: Form) -> Dashboard {
    let by_default = catalogue.probes.iter().filter(|probe| probe.enabled).flat_map(|probe| &probe.metrics);
    let latencies = by_default.filter(|metric| metric.kind == Kind::Histogram && metric.unit == "seconds");
    Dashboard {
        uid: "kstrobe-start".into(),
        title: "Start here".into(),
        about: "What is slow, whom it concerns, what fails and what is not seen. Every series leads to its node and to the \
                page of the agent there, which has the last minutes second by second, events, stacks and captures."
            .into(),
        rows: vec![slow(&latencies.collect::<Vec<_>>(), form), who(form), errors(), unseen(), agents()],
    }
}

fn lines(title: &str, about: &str, unit: &'static str, targets: Vec<Target>) -> Panel {
    panel(title, about, unit, Look::Lines, targets)
}

fn row(title: &str, panels: Vec<Panel>) -> Row {
    Row { title: title.to_owned(), collapsed: false, panels }
}

fn slow(latencies: &[&Metric], form: Form) -> Row {
    let of_each = |expr: &dyn Fn(&str) -> String| {
        latencies.iter().map(|metric| Target::of(form, expr(&metric.name), short(metric))).collect()
    };
    let p99 = of_each(&|name| histogram(name, MATCHERS, form).quantile(0.99, ""));
    let time = of_each(&|name| histogram(name, MATCHERS, form).total(""));
    row(
        "What is slow",
        vec![
            lines("99th percentile of each latency", "Of the probes that run by default.", "s", p99),
            lines(
                "Where time goes",
                "Seconds within each latency in a second: how many tasks or CPUs are in it, on average.",
                "short",
                time,
            ),
        ],
    )
}

fn who(form: Form) -> Row {
    let spent = |metric: &str, matchers: &str, by: &str, legend: &str| {
        let expr = top(MAX_SERIES, &histogram(metric, matchers, form).total(by));
        vec![Target::of(form, expr, legend)]
    };
    let pods = format!(r#"{MATCHERS}, pod!="""#);
    let narrow = |panel: Panel| Panel { width: 8, ..panel };
    row(
        "Whom it concerns",
        vec![
            narrow(lines(
                "System calls that take most time",
                "Calls in progress, on average; waiting is part of it.",
                "short",
                spent("kstrobe_syscall_duration_seconds", MATCHERS, "syscall", "{{syscall}}"),
            )),
            narrow(lines(
                "Commands that receive",
                "Tasks in recvfrom(2) and recvmsg(2), on average: waiting for data and working on it.",
                "short",
                spent("kstrobe_recv_duration_seconds", MATCHERS, "comm", "{{comm}}"),
            )),
            narrow(lines(
                "Pods that receive",
                "The same by pod. Needs `probes: {override: {recvfrom: {labels: [namespace, pod]}}}` (docs/workloads.md).",
                "short",
                spent("kstrobe_recv_duration_seconds", &pods, "namespace, pod", "{{namespace}}/{{pod}}"),
            )),
        ],
    )
}

fn errors() -> Row {
    let failed = rate("kstrobe_syscall_errors_total", MATCHERS, WINDOW, "syscall, errno");
    let one = |metric: &str, legend: &str| Target::new(rate(metric, MATCHERS, WINDOW, ""), legend);
    row(
        "What fails",
        vec![
            lines(
                "System calls that fail",
                "By error. EAGAIN and ETIMEDOUT are often no mistake.",
                "cps",
                vec![Target::new(top(MAX_SERIES, &failed), "{{syscall}} {{errno}}")],
            ),
            lines(
                "Network losses",
                "TCP segments sent again, and packets dropped as a CPU's backlog was full.",
                "cps",
                vec![
                    one("kstrobe_tcp_retransmits_total", "retransmitted"),
                    one("kstrobe_softnet_dropped_total", "dropped"),
                ],
            ),
        ],
    )
}

fn unseen() -> Row {
    let sampled =
        format!("bottomk({MAX_SERIES}, min by (instance, probe) (kstrobe_probe_sampling_ratio{{{MATCHERS}}}))");
    let lost = rate("kstrobe_lost_total", MATCHERS, WINDOW, "instance, probe, reason");
    let blind = format!(
        "sum by (instance, probe, hook, reason) (kstrobe_probe_attached{{{MATCHERS}}} == 0) or on () vector(0)"
    );
    let narrow = |panel: Panel| Panel { width: 8, ..panel };
    row(
        "What is not seen",
        vec![
            narrow(lines(
                "Sampled",
                "Share of events that a probe measures, the least of them. Below 1 its counts stay right on average.",
                "percentunit",
                vec![Target::new(sampled, "{{instance}} {{probe}}")],
            )),
            narrow(lines(
                "Lost",
                "Events that were not measured, by reason.",
                "cps",
                vec![Target::new(top(MAX_SERIES, &lost), "{{instance}} {{probe}} {{reason}}")],
            )),
            narrow(panel(
                "Blind",
                "Hooks that are not attached, with the reason. 0 when all is well.",
                "short",
                Look::Table,
                vec![Target::new(blind, "{{instance}}")],
            )),
        ],
    )
}

fn agents() -> Row {
    let versions = format!("count by (instance, version) (kstrobe_build_info{{{MATCHERS}}})");
    let captures =
        sum("instance, trigger, result", &format!("increase(kstrobe_captures_total{{{MATCHERS}}}[{WINDOW}])"));
    row(
        "Agents",
        vec![
            panel(
                "Agents and their pages",
                "A click on a row leads to the agent's own page and its captures, where its address can be reached from here.",
                "short",
                Look::Table,
                vec![Target::new(versions, "{{instance}}")],
            ),
            lines(
                "Captures",
                "That ended or were refused, by who asked for them.",
                "short",
                vec![Target::new(captures, "{{instance}} {{trigger}} {{result}}")],
            ),
        ],
    )
}
