//! Dashboards, recording rules, alerts and the metric reference, made from the catalogue of all metrics, so that none of them
//! can name what is not there. Pure functions: they return the texts of files and read nothing.
#![forbid(unsafe_code)]

pub mod alerts;
mod boards;
pub mod catalogue;
pub mod coverage;
mod dashboard;
mod expressions;
mod jsonnet;
mod library;
pub mod objectives;
pub mod own;
mod panel;
mod promql;
mod promtests;
mod reference;
pub mod request;
pub mod rules;
pub mod slo;
pub mod topics;

use catalogue::Catalogue;
use dashboard::Dashboard;
pub use expressions::{Expression, expressions};
pub use promql::{FORMS, Form};
use slo::Objective;

/// Matcher of the agents' scrape job in rules. Dashboards have a variable for it.
pub const JOB: &str = r#"job="kstrobe""#;

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// From the project's root.
    pub path: String,
    pub text: String,
}

/// Where the page of an alert is.
pub fn runbook_url(alert: &str) -> String {
    format!("{}/blob/main/{}", env!("CARGO_PKG_REPOSITORY"), runbook_path(alert))
}

/// The same from the project's root.
pub fn runbook_path(alert: &str) -> String {
    format!("docs/runbooks/{alert}.md")
}

/// All metrics of the shipped probes and of the agent.
pub fn catalogue() -> Catalogue {
    let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
    Catalogue::new(&probes, own::recorded())
}

/// The rules of these objectives as a file.
pub fn slo_rules(head: &str, objectives: &[Objective], form: Form) -> String {
    let groups: Vec<_> = objectives.iter().flat_map(|objective| objective.groups(form)).collect();
    rules::yaml(head, &groups)
}

/// A set of dashboards for each form of histograms. Both have the same addresses, so that links hold in either.
fn board_path(form: Form, board: &Dashboard) -> String {
    format!("dashboards/grafana/{}/{}.json", form.name(), board.uid)
}

const FOLDER_OF_JSONNET: &str = "dashboards/jsonnet/generated";

/// Folders that hold generated files and no others.
pub const FOLDERS: [&str; 5] = [
    "dashboards/grafana/classic",
    "dashboards/grafana/native",
    "dashboards/rules",
    "dashboards/rules/tests",
    FOLDER_OF_JSONNET,
];

/// Says where generated files come from.
const MADE: &str = "Made by `cargo xtask mixin`; do not edit.";

/// Every generated file.
pub fn files(catalogue: &Catalogue) -> Vec<File> {
    let mut files = vec![
        File { path: "docs/metrics.md".into(), text: reference::page(catalogue) },
        File { path: "docs/probes.md".into(), text: library::page(catalogue) },
        File { path: "docs/coverage.md".into(), text: coverage::page(catalogue) },
    ];
    for form in FORMS {
        let boards = boards::all(catalogue, form);
        files.extend(boards.iter().map(|board| File { path: board_path(form, board), text: board.text() }));
    }
    files
        .push(File { path: "dashboards/rules/kstrobe-alerts.yaml".into(), text: rules::yaml(MADE, &alerts::groups()) });
    for form in FORMS {
        let head = format!(
            "{MADE}\nLatency objectives over {} histograms. Load this file or the one of the other form, not both.",
            form.name()
        );
        let text = slo_rules(&head, &objectives::shipped(), form);
        files.push(File { path: format!("dashboards/rules/kstrobe-slo-{}.yaml", form.name()), text });
    }
    files.extend(promtests::files());
    files.extend(jsonnet::files(catalogue));
    files
}
