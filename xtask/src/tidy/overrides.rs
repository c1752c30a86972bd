//! Settings of the demonstration, the benchmarks and the tests that differ from those of an installed agent. Each setting stands
//! here with its reason: one that is not here, and one that is no longer there, is an error. `agent/tests/root_load.rs` runs the shipped
//! configuration as it is.

use super::{Finding, Level};
use std::ffi::OsStr;
use std::path::Path;

/// Folders whose agents are for development only.
const PLACES: &[&str] = &["agent/tests/", "xtask/src/"];
/// Not of agents: this room.
const NOT_HERE: &str = "xtask/src/tidy/";

/// Settings that change what an agent measures, or how much it may take.
const SETTINGS: &[&str] = &[
    "budget_cpu_percent:",
    "budget_percent:",
    "native_bucket_limit:",
    "workloads: {",
    "override: {",
    "disable: [",
    "max_concurrent:",
    "max_total_bytes:",
    "max_duration:",
    "--web.max-requests",
];

/// File, setting, reason.
const OVERRIDES: &[(&str, &str, &str)] = &[
    ("agent/tests/captures/api.rs", "max_duration:", "a request above the limit is refused"),
    ("agent/tests/captures/rule_engine.rs", "max_concurrent:", "two rules start captures at once"),
    ("agent/tests/captures/objects.rs", "max_concurrent:", "several objects run at once"),
    ("agent/tests/check.rs", "disable: [", "one probe's configuration is checked, and none runs"),
    ("agent/tests/faults.rs", "disable: [", "a wrong name is shown at its place"),
    ("agent/tests/root_budget.rs", "budget_cpu_percent:", "the budgets themselves are tested"),
    ("agent/tests/root_fleet.rs", "disable: [", "agents of many nodes on one kernel: each would run all probes"),
    ("agent/tests/root_fleet.rs", "budget_percent:", "counts of nodes are compared with the load exactly"),
    ("agent/tests/root_pods.rs", "workloads: {", "names come and go within seconds, not minutes"),
    ("agent/tests/root_pods.rs", "max_duration:", "a capture of pods is cancelled, and not ended by its limit"),
    ("agent/tests/root_reload.rs", "budget_cpu_percent:", "counts are compared exactly"),
    ("agent/tests/root_reload.rs", "budget_percent:", "a reload changes the budget"),
    ("agent/tests/root_reload.rs", "disable: [", "one probe's reload is looked at; and a wrong name in it"),
    ("agent/tests/root_reload.rs", "max_concurrent:", "a reload changes the limit while a capture runs"),
    ("agent/tests/root_rules.rs", "max_concurrent:", "one more capture than that is refused"),
    ("agent/tests/root_rules.rs", "max_duration:", "captures last as long as the test needs them"),
    ("agent/tests/root_rules.rs", "max_total_bytes:", "the quota is reached within seconds"),
    ("agent/tests/root_slow.rs", "budget_cpu_percent:", "events are compared one by one with the load's own"),
    ("agent/tests/root_slow.rs", "budget_percent:", "events are compared one by one with the load's own"),
    ("agent/tests/root_stacks.rs", "budget_cpu_percent:", "all time off the CPU is compared with the load's own"),
    ("agent/tests/root_web.rs", "--web.max-requests", "the limit itself is tested"),
    ("agent/tests/root_workloads.rs", "workloads: {", "names come and go within seconds, not minutes"),
    ("agent/tests/support/agent.rs", "disable: [", "a test has the probes that it is about, and no others"),
    (
        "agent/tests/support/agent.rs",
        "budget_percent:",
        "counts are compared with a witness's exactly, on machines that may be slow; tests of budgets and loads leave it",
    ),
    ("agent/tests/support/pods.rs", "workloads: {", "names come and go within seconds, not minutes"),
    ("xtask/src/bench/agent.rs", "disable: [", "what one probe costs is measured beside what none costs"),
    (
        "xtask/src/bench/agent.rs",
        "budget_percent:",
        "a call that a probe of the bench leaves out has no cost; the default set has its own budget there",
    ),
    ("xtask/src/demo/mod.rs", "override: {", "shows labels of workloads, which no shipped probe has by default"),
    ("xtask/src/fleet/page.rs", "native_bucket_limit:", "names what a lower limit would save; no agent runs with it"),
];

/// Settings that are not listed, and listed ones that are gone.
pub fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| is_of_agents(path)) {
        for setting in SETTINGS {
            let listed = OVERRIDES.iter().any(|(file, of, _)| file == path && of == setting);
            let line = text.lines().position(|line| line.contains(setting));
            if let (Some(line), false) = (line, listed) {
                let message = format!(
                    "`{setting}` is not what users run: do without, or list it with its reason in {NOT_HERE}overrides.rs"
                );
                found.push(error(path, line + 1, message));
            }
        }
    }
    for (file, setting, _) in OVERRIDES {
        if !files.iter().any(|(path, text)| path == file && text.contains(setting)) {
            found.push(error(file, 1, format!("`{setting}` is no longer here: take it off the list of overrides")));
        }
    }
    found
}

fn is_of_agents(path: &str) -> bool {
    let extension = Path::new(path).extension().and_then(OsStr::to_str);
    let is_code = extension.is_some_and(|extension| ["rs", "sh", "yaml"].contains(&extension));
    is_code && PLACES.iter().any(|place| path.starts_with(place)) && !path.starts_with(NOT_HERE)
}

fn error(path: &str, line: usize, message: String) -> Finding {
    Finding { path: path.to_owned(), line, level: Level::Error, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_no_user_has_is_listed_or_an_error() {
        let listed = OVERRIDES.iter().map(|(file, setting, _)| ((*file).to_owned(), (*setting).to_owned()));
        let mut files: Vec<_> = listed.collect();
        assert!(check(&files).is_empty());
        files.push(("xtask/src/demo/mod.rs".into(), "\nlimits: { budget_percent: 50 }".into()));
        files.push(("docs/x.md".into(), "budget_cpu_percent: 50".into()));
        let found = check(&files);
        assert_eq!((found.len(), found[0].line), (1, 2));
        assert!(found[0].message.contains("not what users run"), "{found:?}");
        let gone = check(&files[1..]);
        assert!(gone.iter().any(|finding| finding.message.contains("no longer here")), "{gone:?}");
    }
}
