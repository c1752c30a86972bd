//! Objectives on latency: of all observations, so many per cent at or below a bound. Each becomes recording rules and
//! alerts on how fast the rest, its error budget, is used up. Names and labels are those of sloth, so that its dashboards
//! show them.

use crate::promql::{Form, Histogram};
use crate::rules::{Alert, Group, Rule};
use crate::{JOB, runbook_url};

#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// `sloth_service`.
    pub service: String,
    /// `sloth_slo`: unique in its service.
    pub name: String,
    /// Full name of a histogram.
    pub metric: String,
    /// Matchers besides that of the job, may be empty.
    pub matchers: String,
    /// A classic bound of the metric, in its unit.
    pub threshold: f64,
    /// Per cent of the observations at or below the threshold, above 0 and below 100.
    pub percent: f64,
    /// One budget for each combination of these labels.
    pub by: Vec<String>,
    /// What it says, for people.
    pub says: String,
}

/// Two windows and how many times too fast the budget must burn in both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burn {
    /// `page` or `ticket`.
    pub severity: &'static str,
    /// At 1, a budget of 30 days lasts 30 days.
    pub factor: f64,
    /// Says that it matters.
    pub long: &'static str,
    /// Says that it goes on.
    pub short: &'static str,
    /// How long both must hold.
    pub held_for: &'static str,
}

/// As the SRE workbook has them.
pub const BURNS: [Burn; 4] = [
    Burn { severity: "page", factor: 14.4, long: "1h", short: "5m", held_for: "2m" },
    Burn { severity: "page", factor: 6.0, long: "6h", short: "30m", held_for: "15m" },
    Burn { severity: "ticket", factor: 3.0, long: "1d", short: "2h", held_for: "1h" },
    Burn { severity: "ticket", factor: 1.0, long: "3d", short: "6h", held_for: "3h" },
];

/// Windows of the error ratios that are recorded.
pub const WINDOWS: [&str; 7] = ["5m", "30m", "1h", "2h", "6h", "1d", "3d"];

/// Days that a budget is for.
const PERIOD_DAYS: u32 = 30;

/// Observations per second below which an alert is silent: one slow call of ten in an hour is no burning budget.
pub const QUIET_PER_SECOND: f64 = 0.1;

/// Name of the alerts.
pub const ALERT: &str = "KstrobeLatencyBudgetBurn";

impl Objective {
    /// `sloth_id`
    pub fn id(&self) -> String {
        format!("{}-{}", self.service, self.name)
    }

    /// The share of observations that may be above the threshold.
    pub fn budget(&self) -> f64 {
        rounded(1.0 - self.percent / 100.0)
    }

    fn matchers(&self) -> String {
        let named = self.matchers.split(',').any(|matcher| matcher.trim_start().starts_with("job"));
        match (named, self.matchers.is_empty()) {
            (true, _) => self.matchers.clone(),
            (false, true) => JOB.to_owned(),
            (false, false) => format!("{JOB}, {}", self.matchers),
        }
    }

    /// The labels that distinguish sloth's rules.
    pub fn labels(&self) -> Vec<(&'static str, String)> {
        let labels =
            [("sloth_id", self.id()), ("sloth_service", self.service.clone()), ("sloth_slo", self.name.clone())];
        labels.to_vec()
    }

    fn selector(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        format!("{{sloth_id={}}}", quoted(&self.id()))
    }

    /// Groups of rules: error ratios, what sloth's dashboards ask for besides, alerts.
    pub fn groups(&self, form: Form) -> Vec<Group> {
        let id = self.id();
        let group = |kind: &str, rules| Group { name: format!("sloth-slo-{kind}-{id}"), rules };
        vec![
            group("sli-recordings", self.error_ratios(form)),
            group("meta-recordings", self.about(form)),
            group("alerts", BURNS.iter().map(|burn| self.alert(burn, form)).collect()),
        ]
    }

    fn error_ratios(&self, form: Form) -> Vec<Rule> {
        let (matchers, by) = (self.matchers(), self.by.join(", "));
        let ratio = |window: &&str| {
            let histogram = Histogram { name: &self.metric, matchers: &matchers, window, form };
            self.record(
                &format!("slo:sli_error:ratio_rate{window}"),
                histogram.share_above(self.threshold, &by),
                window,
            )
        };
        let mut rules: Vec<Rule> = WINDOWS.iter().map(ratio).collect();
        let five = format!("slo:sli_error:ratio_rate5m{}[{PERIOD_DAYS}d]", self.selector());
        let period = format!("sum_over_time({five})\n/ ignoring (sloth_window)\ncount_over_time({five})");
        rules.push(self.record(&format!("slo:sli_error:ratio_rate{PERIOD_DAYS}d"), period, &format!("{PERIOD_DAYS}d")));
        rules
    }

    fn record(&self, name: &str, expr: String, window: &str) -> Rule {
        let mut labels = self.labels();
        if !window.is_empty() {
            labels.push(("sloth_window", window.to_owned()));
        }
        Rule { name: name.to_owned(), expr, labels, alert: None }
    }

    fn about(&self, form: Form) -> Vec<Rule> {
        let selector = self.selector();
        let plain = |name: &str, expr: String| self.record(name, expr, "");
        let burn = |window: &str| {
            let on = "on (sloth_id, sloth_slo, sloth_service) group_left ()";
            format!("slo:sli_error:ratio_rate{window}{selector}\n/ {on}\nslo:error_budget:ratio{selector}")
        };
        let mut info = plain("sloth_slo_info", "vector(1)".to_owned());
        info.labels.push(("sloth_mode", "kstrobe".to_owned()));
        info.labels.push(("sloth_spec", format!("kstrobe/{}", form.name())));
        info.labels.push(("sloth_objective", self.percent.to_string()));
        vec![
            plain("slo:objective:ratio", format!("vector({})", rounded(self.percent / 100.0))),
            plain("slo:error_budget:ratio", format!("vector({})", self.budget())),
            plain("slo:time_period:days", format!("vector({PERIOD_DAYS})")),
            plain("slo:current_burn_rate:ratio", burn("5m")),
            plain("slo:period_burn_rate:ratio", burn(&format!("{PERIOD_DAYS}d"))),
            plain("slo:period_error_budget_remaining:ratio", format!("1 - slo:period_burn_rate:ratio{selector}")),
            info,
        ]
    }

    /// The alert of one pair of windows.
    pub fn alert(&self, burn: &Burn, form: Form) -> Rule {
        let selector = self.selector();
        let limit = rounded(burn.factor * self.budget());
        let ratio = |window: &str| format!("max without (sloth_window) (slo:sli_error:ratio_rate{window}{selector})");
        let (matchers, by) = (self.matchers(), self.by.join(", "));
        let events = Histogram { name: &self.metric, matchers: &matchers, window: burn.short, form }.count(&by);
        let expr = format!(
            "({} > {limit})\nand\n({} > {limit})\nand on ({by})\n({events} > {QUIET_PER_SECOND})",
            ratio(burn.long),
            ratio(burn.short)
        );
        let mut labels = self.labels();
        labels.push(("severity", burn.severity.to_owned()));
        labels.push(("sloth_severity", burn.severity.to_owned()));
        labels.push(("long_window", burn.long.to_owned()));
        labels.push(("short_window", burn.short.to_owned()));
        let place = if self.by.iter().any(|label| label == "instance") { " on {{ $labels.instance }}" } else { "" };
        let annotations = vec![
            (
                "summary",
                format!(
                    "{}{place}: slow events use up their budget at {} times the allowed rate or more.",
                    self.name, burn.factor
                ),
            ),
            (
                "description",
                format!(
                    "Objective: {}. {{{{ $value | humanizePercentage }}}} were slower within {} (allowed: {} %).",
                    // What a selector holds is no template.
                    self.says.replace("{{", "{{ `{{` }}"),
                    burn.long,
                    rounded(self.budget() * 100.0)
                ),
            ),
            ("runbook_url", runbook_url(ALERT)),
        ];
        let signals = vec![ratio(burn.long), ratio(burn.short), events];
        let alert = Alert { held_for: burn.held_for.to_owned(), annotations, signals };
        Rule { name: ALERT.to_owned(), expr, labels, alert: Some(alert) }
    }
}

/// Without what binary fractions leave behind: 0.001, not 0.0010000000000000009.
pub fn rounded(value: f64) -> f64 {
    (value * 1e10).round() / 1e10
}
