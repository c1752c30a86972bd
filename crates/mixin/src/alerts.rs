//! Alerts about the agents themselves, each with an example on which it fires and one on which it is silent.

use crate::rules::{Alert, Group, Rule};
use crate::{JOB, runbook_url};

/// An alert and its examples.
pub struct Health {
    /// Its name; its page is `docs/runbooks/NAME.md`.
    pub name: &'static str,
    /// `critical`: nothing is measured anywhere; `warning`: something is not measured; `info`: it is worth a look.
    pub severity: &'static str,
    /// How long it must hold.
    pub held_for: &'static str,
    /// What is looked at, `JOB` standing for the matcher of the job. It has a result while all is well.
    pub signal: &'static str,
    /// What is wrong with it: `> 0`.
    pub wrong: &'static str,
    /// For people; may have `{{ $labels.x }}`.
    pub summary: &'static str,
    /// The same at length; `VALUE` is the value.
    pub description: &'static str,
    /// Series on which it fires within two hours.
    pub fires: &'static [(&'static str, &'static str)],
    /// Series on which it does not.
    pub silent: &'static [(&'static str, &'static str)],
    /// Labels besides the severity with which it fires there.
    pub labels: &'static [(&'static str, &'static str)],
    /// The value then, as `humanize` writes it.
    pub value: &'static str,
}

/// A label set for examples.
const ON: [(&str, &str); 2] = [("job", "kstrobe"), ("instance", "n1:9779")];
const ON_PROBE: [(&str, &str); 3] = [ON[0], ON[1], ("probe", "softirq")];

/// All of them.
pub const HEALTH: &[Health] = &[
    Health {
        name: "KstrobeAgentDown",
        severity: "warning",
        held_for: "5m",
        signal: "up{JOB}",
        wrong: "== 0",
        summary: "The kstrobe agent at {{ $labels.instance }} cannot be scraped.",
        description: "Prometheus has had no answer for 5 minutes. Nothing is measured on this node, or no measurement arrives.",
        fires: &[(r#"up{job="kstrobe", instance="n1:9779"}"#, "1x10 0x120")],
        silent: &[(r#"up{job="kstrobe", instance="n1:9779"}"#, "1x130")],
        labels: &ON,
        value: "0",
    },
    Health {
        name: "KstrobeAgentsAbsent",
        severity: "critical",
        held_for: "10m",
        // Agents that push have no `up`.
        signal: "up{JOB} or kstrobe_build_info{JOB}",
        wrong: "absent(up{JOB}) and absent(kstrobe_build_info{JOB})",
        summary: "Prometheus has no kstrobe agent to scrape, and none pushes.",
        description: "No target has this job: the scrape configuration or the agents' discovery is broken.",
        fires: &[(r#"up{job="other", instance="n1:9779"}"#, "1x130")],
        silent: &[(r#"kstrobe_build_info{job="kstrobe", instance="n1"}"#, "1x130")],
        labels: &[ON[0]],
        value: "1",
    },
    Health {
        name: "KstrobeAgentRestarts",
        severity: "warning",
        held_for: "",
        signal: "changes(process_start_time_seconds{JOB}[30m])",
        wrong: "> 2",
        summary: "The kstrobe agent at {{ $labels.instance }} starts again and again.",
        description: "It was started VALUE times within 30 minutes. Counts begin anew at each start.",
        fires: &[(r#"process_start_time_seconds{job="kstrobe", instance="n1:9779"}"#, "1x100 2x5 3x5 4x5 5x20")],
        silent: &[(r#"process_start_time_seconds{job="kstrobe", instance="n1:9779"}"#, "1x110 2x20")],
        labels: &ON,
        value: "4",
    },
    Health {
        name: "KstrobeProbeNotAttached",
        severity: "warning",
        held_for: "10m",
        signal: "count by (job, instance, probe) (kstrobe_probe_attached{JOB})",
        // What its budget keeps off its hooks has an alert of its own.
        wrong: r#"count by (job, instance, probe) (kstrobe_probe_attached{JOB, reason!="over its budget"} == 0)"#,
        summary: "Probe {{ $labels.probe }} does not run whole at {{ $labels.instance }}.",
        description: "VALUE of its hooks are not attached; the label `reason` of kstrobe_probe_attached says why.",
        fires: &[
            (r#"kstrobe_probe_attached{job="kstrobe", instance="n1:9779", probe="softirq", hook="a"}"#, "0x130"),
            (r#"kstrobe_probe_attached{job="kstrobe", instance="n1:9779", probe="softirq", hook="b"}"#, "1x130"),
            (r#"kstrobe_probe_attached{job="kstrobe", instance="n1:9779", probe="softirq", hook="c"}"#, "0x130"),
        ],
        silent: &[
            (r#"kstrobe_probe_attached{job="kstrobe", instance="n1:9779", probe="softirq", hook="a"}"#, "1x130"),
            (
                r#"kstrobe_probe_attached{job="kstrobe", instance="n1:9779", probe="flood", hook="a", reason="over its budget"}"#,
                "0x130",
            ),
        ],
        labels: &ON_PROBE,
        value: "2",
    },
    Health {
        name: "KstrobeEventsLost",
        severity: "warning",
        held_for: "10m",
        // Ends without a start are calls that were under way when the probe came; the limit on records and the one on label
        // sets are what the user asked for.
        signal: r#"sum by (job, instance, probe, reason) (rate(kstrobe_lost_total{JOB, reason!~"no_start|events_limited|series_overflow|cgroup_undecided"}[10m]))"#,
        wrong: "> 1",
        summary: "Probe {{ $labels.probe }} at {{ $labels.instance }} loses events ({{ $labels.reason }}).",
        description: "VALUE events a second are not measured: its histograms and counters show less than there was.",
        fires: &[(
            r#"kstrobe_lost_total{job="kstrobe", instance="n1:9779", probe="softirq", reason="spans_full"}"#,
            "0+180x130",
        )],
        silent: &[
            (
                r#"kstrobe_lost_total{job="kstrobe", instance="n1:9779", probe="softirq", reason="spans_full"}"#,
                "0+6x130",
            ),
            (
                r#"kstrobe_lost_total{job="kstrobe", instance="n1:9779", probe="softirq", reason="no_start"}"#,
                "0+600x130",
            ),
        ],
        labels: &[ON[0], ON[1], ("probe", "softirq"), ("reason", "spans_full")],
        value: "3",
    },
    Health {
        name: "KstrobeSeriesOverflow",
        severity: "info",
        held_for: "30m",
        signal: "sum by (job, instance, probe) (rate(kstrobe_series_overflow_total{JOB}[30m]))",
        wrong: "> 0",
        summary: "Probe {{ $labels.probe }} at {{ $labels.instance }} has more label sets than max_series.",
        description: "VALUE events a second are counted in the series whose labels are all `other`.",
        fires: &[(r#"kstrobe_series_overflow_total{job="kstrobe", instance="n1:9779", probe="softirq"}"#, "0+120x130")],
        silent: &[(r#"kstrobe_series_overflow_total{job="kstrobe", instance="n1:9779", probe="softirq"}"#, "7x130")],
        labels: &ON_PROBE,
        value: "2",
    },
    Health {
        name: "KstrobeProbeOverBudget",
        severity: "warning",
        held_for: "15m",
        signal: "max by (job, instance, probe) (kstrobe_probe_over_budget{JOB})",
        wrong: "== 1",
        summary: "Probe {{ $labels.probe }} at {{ $labels.instance }} costs more than its budget.",
        description: "It passes events over or is off its hooks. kstrobe_probe_sampling_ratio says how many it still measures.",
        fires: &[(r#"kstrobe_probe_over_budget{job="kstrobe", instance="n1:9779", probe="softirq"}"#, "0x10 1x120")],
        // It comes and goes.
        silent: &[(
            r#"kstrobe_probe_over_budget{job="kstrobe", instance="n1:9779", probe="softirq"}"#,
            "0x10 1x5 0x110",
        )],
        labels: &ON_PROBE,
        value: "1",
    },
    Health {
        name: "KstrobeOverheadHigh",
        severity: "warning",
        held_for: "15m",
        signal: "sum by (job, instance) (rate(kstrobe_program_run_seconds_total{JOB}[10m])) \
                 + on (job, instance) sum by (job, instance) (rate(process_cpu_seconds_total{JOB}[10m]))",
        wrong: "> 0.5",
        summary: "kstrobe takes much of a CPU at {{ $labels.instance }}.",
        description: "Programs in the kernel and the agent itself take VALUE CPUs together.",
        fires: &[
            (
                r#"kstrobe_program_run_seconds_total{job="kstrobe", instance="n1:9779", probe="softirq", program="p0"}"#,
                "0+30x130",
            ),
            (r#"process_cpu_seconds_total{job="kstrobe", instance="n1:9779"}"#, "0+15x130"),
        ],
        silent: &[
            (
                r#"kstrobe_program_run_seconds_total{job="kstrobe", instance="n1:9779", probe="softirq", program="p0"}"#,
                "0+6x130",
            ),
            (r#"process_cpu_seconds_total{job="kstrobe", instance="n1:9779"}"#, "0+3x130"),
        ],
        labels: &ON,
        value: "750m",
    },
    Health {
        name: "KstrobeMapNearlyFull",
        severity: "info",
        held_for: "15m",
        signal: "max by (job, instance, probe, map) (kstrobe_map_entries{JOB} / (kstrobe_map_capacity{JOB} > 0))",
        wrong: "> 0.9",
        summary: "Map {{ $labels.map }} of probe {{ $labels.probe }} is nearly full at {{ $labels.instance }}.",
        description: "VALUE of its elements are in use. When it is full, events are lost or states are given up.",
        fires: &[
            (r#"kstrobe_map_entries{job="kstrobe", instance="n1:9779", probe="softirq", map="keys"}"#, "96x130"),
            (r#"kstrobe_map_capacity{job="kstrobe", instance="n1:9779", probe="softirq", map="keys"}"#, "100x130"),
        ],
        silent: &[
            (r#"kstrobe_map_entries{job="kstrobe", instance="n1:9779", probe="softirq", map="keys"}"#, "50x130"),
            (r#"kstrobe_map_capacity{job="kstrobe", instance="n1:9779", probe="softirq", map="keys"}"#, "100x130"),
        ],
        labels: &[ON[0], ON[1], ("probe", "softirq"), ("map", "keys")],
        value: "960m",
    },
    Health {
        name: "KstrobeReadErrors",
        severity: "warning",
        held_for: "10m",
        signal: "sum by (job, instance, probe) (rate(kstrobe_read_errors_total{JOB}[10m]))",
        wrong: "> 0",
        summary: "The agent at {{ $labels.instance }} cannot read what probe {{ $labels.probe }} counts.",
        description: "VALUE reads a second of its tables in the kernel fail: its metrics are missing or old.",
        fires: &[(r#"kstrobe_read_errors_total{job="kstrobe", instance="n1:9779", probe="softirq"}"#, "0+60x130")],
        silent: &[(r#"kstrobe_read_errors_total{job="kstrobe", instance="n1:9779", probe="softirq"}"#, "3x130")],
        labels: &ON_PROBE,
        value: "1",
    },
    Health {
        name: "KstrobePollErrors",
        severity: "warning",
        held_for: "10m",
        signal: "sum by (job, instance, source) (rate(kstrobe_poll_errors_total{JOB}[10m]))",
        wrong: "> 0",
        summary: "The agent at {{ $labels.instance }} cannot read the source {{ $labels.source }}.",
        description: "VALUE reads a second fail: the gauges and counters from it are missing.",
        fires: &[(r#"kstrobe_poll_errors_total{job="kstrobe", instance="n1:9779", source="softnet"}"#, "0+12x130")],
        silent: &[(r#"kstrobe_poll_errors_total{job="kstrobe", instance="n1:9779", source="softnet"}"#, "1x130")],
        labels: &[ON[0], ON[1], ("source", "softnet")],
        value: "200m",
    },
    Health {
        name: "KstrobeEventsUnwritten",
        severity: "warning",
        held_for: "10m",
        signal: "rate(kstrobe_events_unwritten_total{JOB}[10m])",
        wrong: "> 0",
        summary: "The agent at {{ $labels.instance }} cannot write single events.",
        description: "VALUE records of slow events a second did not reach the place that `events` names.",
        fires: &[(r#"kstrobe_events_unwritten_total{job="kstrobe", instance="n1:9779"}"#, "0+60x130")],
        silent: &[(r#"kstrobe_events_unwritten_total{job="kstrobe", instance="n1:9779"}"#, "0x130")],
        labels: &ON,
        value: "1",
    },
    Health {
        name: "KstrobeScrapeSlow",
        severity: "warning",
        held_for: "15m",
        signal: "rate(kstrobe_scrape_duration_seconds_sum{JOB}[10m]) / (rate(kstrobe_scrape_duration_seconds_count{JOB}[10m]) > 0)",
        wrong: "> 1",
        summary: "Scrapes of the agent at {{ $labels.instance }} are slow.",
        description: "One takes VALUE s on average. Above the scraper's time limit the answer is the one before (kstrobe_scrape_age_seconds).",
        fires: &[
            (r#"kstrobe_scrape_duration_seconds_sum{job="kstrobe", instance="n1:9779"}"#, "0+8x130"),
            (r#"kstrobe_scrape_duration_seconds_count{job="kstrobe", instance="n1:9779"}"#, "0+4x130"),
        ],
        silent: &[
            (r#"kstrobe_scrape_duration_seconds_sum{job="kstrobe", instance="n1:9779"}"#, "0+0.04x130"),
            (r#"kstrobe_scrape_duration_seconds_count{job="kstrobe", instance="n1:9779"}"#, "0+4x130"),
        ],
        labels: &ON,
        value: "2",
    },
    Health {
        name: "KstrobeConfigErrors",
        severity: "warning",
        held_for: "10m",
        signal: "kstrobe_config_errors{JOB}",
        wrong: "> 0",
        summary: "The configuration of the agent at {{ $labels.instance }} has mistakes.",
        description: "VALUE mistakes in kstrobe.yaml or in probe files: what they ask for does not run.",
        fires: &[(r#"kstrobe_config_errors{job="kstrobe", instance="n1:9779"}"#, "3x130")],
        silent: &[(r#"kstrobe_config_errors{job="kstrobe", instance="n1:9779"}"#, "0x130")],
        labels: &ON,
        value: "3",
    },
    Health {
        name: "KstrobeConfigReloadFailed",
        severity: "warning",
        held_for: "5m",
        signal: "kstrobe_config_last_reload_successful{JOB}",
        wrong: "== 0",
        summary: "The agent at {{ $labels.instance }} did not take its new configuration.",
        description: "It goes on with the old one. Its log has the mistakes with their places.",
        fires: &[(r#"kstrobe_config_last_reload_successful{job="kstrobe", instance="n1:9779"}"#, "1x10 0x120")],
        silent: &[(r#"kstrobe_config_last_reload_successful{job="kstrobe", instance="n1:9779"}"#, "1x130")],
        labels: &ON,
        value: "0",
    },
    Health {
        name: "KstrobeWebConfigReloadFailed",
        severity: "warning",
        held_for: "5m",
        signal: "kstrobe_web_config_last_reload_successful{JOB}",
        wrong: "== 0",
        summary: "The agent at {{ $labels.instance }} did not take its new web configuration.",
        description: "It goes on with the certificates and passwords that it had, until those expire.",
        fires: &[(r#"kstrobe_web_config_last_reload_successful{job="kstrobe", instance="n1:9779"}"#, "1x10 0x120")],
        silent: &[(r#"kstrobe_web_config_last_reload_successful{job="kstrobe", instance="n1:9779"}"#, "1x130")],
        labels: &ON,
        value: "0",
    },
    Health {
        name: "KstrobeExportFailing",
        severity: "warning",
        held_for: "15m",
        signal: "sum by (job, instance, exporter) (rate(kstrobe_export_failures_total{JOB}[10m]))",
        wrong: "> 0",
        summary: "The agent at {{ $labels.instance }} cannot send to {{ $labels.exporter }}.",
        description: "VALUE requests a second fail. What is not sent waits in memory, and is dropped when that is full.",
        fires: &[(
            r#"kstrobe_export_failures_total{job="kstrobe", instance="n1:9779", exporter="otlp", reason="refused"}"#,
            "0+12x130",
        )],
        // A restart of the receiver.
        silent: &[(
            r#"kstrobe_export_failures_total{job="kstrobe", instance="n1:9779", exporter="otlp", reason="refused"}"#,
            "0x100 0+1x4 4x30",
        )],
        labels: &[ON[0], ON[1], ("exporter", "otlp")],
        value: "200m",
    },
    Health {
        name: "KstrobeExportDropping",
        severity: "warning",
        held_for: "5m",
        signal: "sum by (job, instance, exporter, reason) (rate(kstrobe_export_points_dropped_total{JOB}[10m]))",
        wrong: "> 0",
        summary: "The agent at {{ $labels.instance }} loses what it should send to {{ $labels.exporter }}.",
        description: "VALUE data points a second are dropped ({{ $labels.reason }}).",
        fires: &[(
            r#"kstrobe_export_points_dropped_total{job="kstrobe", instance="n1:9779", exporter="otlp", reason="queue_full"}"#,
            "0+120x130",
        )],
        silent: &[(
            r#"kstrobe_export_points_dropped_total{job="kstrobe", instance="n1:9779", exporter="otlp", reason="queue_full"}"#,
            "120x130",
        )],
        labels: &[ON[0], ON[1], ("exporter", "otlp"), ("reason", "queue_full")],
        value: "2",
    },
    Health {
        name: "KstrobeCapturesFailing",
        severity: "warning",
        held_for: "",
        // The series begins with its first failure, which is no increase of it: hence the second half.
        signal: "sum by (job, instance, trigger) (kstrobe_captures_total{JOB})",
        wrong: "sum by (job, instance, trigger) (increase(kstrobe_captures_total{JOB, result=\"failed\"}[1h])) > 0\n\
                or\n\
                (sum by (job, instance, trigger) (kstrobe_captures_total{JOB, result=\"failed\"})\n  \
                unless sum by (job, instance, trigger) (kstrobe_captures_total{JOB, result=\"failed\"} offset 1h))",
        summary: "Captures at {{ $labels.instance }} fail ({{ $labels.trigger }}).",
        description: "VALUE captures failed within the last hour.",
        fires: &[(
            r#"kstrobe_captures_total{job="kstrobe", instance="n1:9779", trigger="rule", result="failed"}"#,
            "_x100 1x30",
        )],
        silent: &[
            (r#"kstrobe_captures_total{job="kstrobe", instance="n1:9779", trigger="rule", result="failed"}"#, "1x130"),
            (r#"kstrobe_captures_total{job="kstrobe", instance="n1:9779", trigger="rule", result="done"}"#, "0+1x130"),
        ],
        labels: &[ON[0], ON[1], ("trigger", "rule")],
        value: "1",
    },
];

impl Health {
    /// Its query.
    pub fn expr(&self) -> String {
        let text = match self.wrong {
            whole if whole.contains("JOB") => whole.to_owned(),
            compared => format!("{} {compared}", self.signal),
        };
        text.replace("JOB", JOB)
    }

    /// Its annotations, in the order of the file.
    pub fn annotations(&self) -> Vec<(&'static str, String)> {
        vec![
            ("summary", self.summary.to_owned()),
            ("description", self.description.replace("VALUE", "{{ $value | humanize }}")),
            ("runbook_url", runbook_url(self.name)),
        ]
    }

    pub fn rule(&self) -> Rule {
        let alert = Alert {
            held_for: self.held_for.to_owned(),
            annotations: self.annotations(),
            signals: vec![self.signal.replace("JOB", JOB)],
        };
        let labels = vec![("severity", self.severity.to_owned())];
        Rule { name: self.name.to_owned(), expr: self.expr(), labels, alert: Some(alert) }
    }
}

/// The rules of all of them.
pub fn groups() -> Vec<Group> {
    vec![Group { name: "kstrobe-agent".into(), rules: HEALTH.iter().map(Health::rule).collect() }]
}
