//! Every query of every file, variables substituted, so that each can be run against a real Prometheus.

use crate::boards;
use crate::catalogue::Catalogue;
use crate::dashboard::annotations;
use crate::panel::{Look, Target};
use crate::promql::{FORMS, Form};
use crate::{alerts, objectives};

/// A query that the files contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// Where it stands.
    pub place: String,
    /// The form of histograms it reads; `None` when it reads none.
    pub form: Option<Form>,
    /// The query, variables substituted.
    pub text: String,
    /// Names of the metrics and recorded series in it, without a histogram's `_bucket`, `_sum` and `_count`.
    pub metrics: Vec<String>,
    /// Whether no result is a good one: of an alert, and of a mark where nothing happened.
    pub quiet: bool,
}

/// All of them. `window` stands for `$__rate_interval`.
pub fn expressions(catalogue: &Catalogue, window: &str) -> Vec<Expression> {
    let mut found = Vec::new();
    let substituted =
        |expr: &str| expr.replace("$__rate_interval", window).replace("$job", ".+").replace("$instance", ".+");
    for form in FORMS {
        for board in boards::all(catalogue, form) {
            for (row, panel) in board.panels().filter(|(_, panel)| panel.look != Look::Text) {
                // What reads no histograms is the same in both sets.
                let asked = |target: &&Target| target.form.is_some() || form == FORMS[0];
                for target in panel.targets.iter().filter(asked) {
                    let place = format!("{}: {row}: {}", crate::board_path(form, &board), panel.title);
                    found.push(expression(place, target.form, substituted(&target.expr), false));
                }
            }
        }
    }
    for annotation in annotations() {
        let place = format!("annotation of every dashboard: {}", annotation.name);
        found.push(expression(place, None, substituted(&annotation.expr), true));
    }
    let mut rules = |file: &str, form, groups: Vec<crate::rules::Group>| {
        for rule in groups.into_iter().flat_map(|group| group.rules) {
            let place = format!("rules/{file}: {}", rule.name);
            for signal in rule.alert.iter().flat_map(|alert| &alert.signals) {
                found.push(expression(format!("{place}: signal"), form, signal.clone(), false));
            }
            found.push(expression(place, form, rule.expr, rule.alert.is_some()));
        }
    };
    rules("kstrobe-alerts.yaml", None, alerts::groups());
    for form in FORMS {
        let groups = objectives::shipped().iter().flat_map(|objective| objective.groups(form)).collect();
        rules(&format!("kstrobe-slo-{}.yaml", form.name()), Some(form), groups);
    }
    found
}

fn expression(place: String, form: Option<Form>, text: String, quiet: bool) -> Expression {
    let metrics = metrics(&text);
    Expression { place, form, text, metrics, quiet }
}

/// Names in a query of metrics of ours, of processes and of recorded series.
pub(crate) fn metrics(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let words = without_strings(text);
    let words = words.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    for word in words.filter(|w| ["kstrobe_", "process_", "slo:", "sloth_slo"].iter().any(|start| w.starts_with(start)))
    {
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word);
        if name != "sloth_slo" && !found.iter().any(|known| known == name) {
            found.push(name.to_owned());
        }
    }
    found
}

fn without_strings(text: &str) -> String {
    text.split('"').step_by(2).collect::<Vec<_>>().join("\"")
}
