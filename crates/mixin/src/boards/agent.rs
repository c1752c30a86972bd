//! The agents themselves: what runs, what it costs, what is lost.

use super::{MAX_SERIES, generic, panel};
use crate::catalogue::{Catalogue, Kind};
use crate::dashboard::{Dashboard, Row};
use crate::panel::{Look, MATCHERS, Target, WINDOW};
use crate::promql::{Form, Histogram, rate, sum, top};

pub(super) fn board(catalogue: &Catalogue) -> Dashboard {
    let mut board = Dashboard {
        uid: "kstrobe-agent".into(),
        title: "Agent health".into(),
        about: "The agents themselves: versions, probes that do not run, what programs cost, what is lost and why."
            .into(),
        rows: vec![running(), cost(), losses(), scrapes()],
    };
    let shown: Vec<String> =
        board.panels().flat_map(|(_, panel)| &panel.targets).map(|target| target.expr.clone()).collect();
    let is_shown = |name: &str| shown.iter().any(|expr| expr.contains(name));
    let others = catalogue.own.iter().filter(|metric| metric.kind != Kind::Info && !is_shown(&metric.name));
    // None of them is a histogram with two forms.
    let panels = others.flat_map(|metric| generic(metric, Form::Classic)).collect();
    board.rows.push(Row { title: "Everything else".into(), collapsed: true, panels });
    board
}

fn running() -> Row {
    let m = MATCHERS;
    let table = |title: &str, about: &str, expr: String, legend: &str| {
        panel(title, about, "short", Look::Table, vec![Target::new(expr, legend)])
    };
    let panels = vec![
        table(
            "Versions",
            "Agents by version.",
            format!("count by (version, revision) (kstrobe_build_info{{{m}}})"),
            "",
        ),
        table(
            "Hooks not attached",
            "With the reason. Empty when all is well.",
            format!("sum by (instance, probe, hook, reason) (kstrobe_probe_attached{{{m}}} == 0) or on () vector(0)"),
            "{{instance}}",
        ),
        table(
            "Choices for this kernel",
            "What hooks became, and why not something better.",
            format!("sum by (instance, probe, wanted, got, because) (kstrobe_probe_choice_info{{{m}}})"),
            "{{instance}}",
        ),
        panel(
            "Probes over budget",
            "1 while a probe passes events over or is off its hooks because of its budget.",
            "short",
            Look::Lines,
            vec![Target::new(
                format!("max by (instance, probe) (kstrobe_probe_over_budget{{{m}}})"),
                "{{instance}} {{probe}}",
            )],
        ),
        panel(
            "Share of events measured",
            "Below 1 a probe is sampled; its counts stay right on average.",
            "percentunit",
            Look::Lines,
            vec![Target::new(
                format!("min by (instance, probe) (kstrobe_probe_sampling_ratio{{{m}}})"),
                "{{instance}} {{probe}}",
            )],
        ),
        panel(
            "Mistakes in the configuration",
            "What they ask for does not run.",
            "short",
            Look::Lines,
            vec![Target::new(format!("max by (instance) (kstrobe_config_errors{{{m}}})"), "{{instance}}")],
        ),
    ];
    Row { title: "What runs".into(), collapsed: false, panels }
}

fn cost() -> Row {
    let by = "instance, probe";
    let seconds = rate("kstrobe_program_run_seconds_total", MATCHERS, WINDOW, by);
    let runs = rate("kstrobe_program_runs_total", MATCHERS, WINDOW, by);
    let lines = |title: &str, about: &str, unit, expr: String| {
        panel(title, about, unit, Look::Lines, vec![Target::new(expr, "{{instance}} {{probe}}")])
    };
    let of_agent = |metric: &str| format!("sum by (instance) ({metric}{{{MATCHERS}}})");
    let node = |title: &str, about: &str, unit, expr: String| {
        panel(title, about, unit, Look::Lines, vec![Target::new(expr, "{{instance}}")])
    };
    let panels = vec![
        lines(
            "CPU of programs",
            "Part of one CPU that a probe's programs take, as the kernel counts it.",
            "percentunit",
            top(MAX_SERIES, &seconds),
        ),
        lines(
            "Time per run",
            "Mean time of a program's run.",
            "s",
            top(MAX_SERIES, &format!("{seconds} / ({runs} > 0)")),
        ),
        lines("Runs", "Runs of programs per second.", "cps", top(MAX_SERIES, &runs)),
        node(
            "CPU of the agent",
            "Part of one CPU that the agent's process takes.",
            "percentunit",
            top(MAX_SERIES, &rate("process_cpu_seconds_total", MATCHERS, WINDOW, "instance")),
        ),
        node(
            "Memory of the agent",
            "Resident memory.",
            "bytes",
            top(MAX_SERIES, &of_agent("process_resident_memory_bytes")),
        ),
        node("Open files of the agent", "Descriptors.", "short", top(MAX_SERIES, &of_agent("process_open_fds"))),
    ];
    Row { title: "What it costs".into(), collapsed: false, panels }
}

fn losses() -> Row {
    let counted = |title: &str, about: &str, metric: &str, by: &str, legend: &str| {
        panel(
            title,
            about,
            "cps",
            Look::Lines,
            vec![Target::new(top(MAX_SERIES, &rate(metric, MATCHERS, WINDOW, by)), legend)],
        )
    };
    let fill = format!(
        "max by (instance, probe, map) (kstrobe_map_entries{{{MATCHERS}}} / (kstrobe_map_capacity{{{MATCHERS}}} > 0))"
    );
    let panels = vec![
        counted(
            "Events lost",
            "Events that were not measured, by reason.",
            "kstrobe_lost_total",
            "instance, probe, reason",
            "{{instance}} {{probe}} {{reason}}",
        ),
        counted(
            "Events of label sets beyond max_series",
            "They are counted in the series whose labels are all `other`.",
            "kstrobe_series_overflow_total",
            "instance, probe",
            "{{instance}} {{probe}}",
        ),
        panel(
            "Fill of maps",
            "Elements in use of those there are.",
            "percentunit",
            Look::Lines,
            vec![Target::new(top(MAX_SERIES, &fill), "{{instance}} {{probe}} {{map}}")],
        ),
        counted(
            "Runs missed",
            "Runs that the kernel skipped as the program was running already on that CPU.",
            "kstrobe_program_missed_total",
            "instance, probe",
            "{{instance}} {{probe}}",
        ),
    ];
    Row { title: "What is lost".into(), collapsed: false, panels }
}

fn scrapes() -> Row {
    // The agent's own histogram has no native form.
    let scrape =
        Histogram { name: "kstrobe_scrape_duration_seconds", matchers: MATCHERS, window: WINDOW, form: Form::Classic };
    let quantile = |q: f64, legend: &str| Target::new(scrape.quantile(q, ""), legend);
    let age = format!("max by (instance) (kstrobe_scrape_age_seconds{{{MATCHERS}}})");
    let captures = sum("trigger, result", &format!("increase(kstrobe_captures_total{{{MATCHERS}}}[{WINDOW}])"));
    let panels = vec![
        panel(
            "Time of a scrape",
            "To read all maps and write one exposition; how old it is where that took too long.",
            "s",
            Look::Lines,
            vec![quantile(0.5, "p50"), quantile(0.99, "p99"), Target::new(age, "age {{instance}}")],
        ),
        panel(
            "Captures",
            "That ended or were refused, by who asked for them.",
            "short",
            Look::Lines,
            vec![Target::new(captures, "{{trigger}} {{result}}")],
        ),
    ];
    Row { title: "What is asked of it".into(), collapsed: false, panels }
}
