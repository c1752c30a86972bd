//! The server that scrapes the agent and evaluates the project's rules.

use super::INTERVAL_SECONDS;
use crate::prometheus::Prometheus;
use anyhow::Result;
use std::path::Path;

/// Versions before 3.8 take native histograms by flag alone, later ones by the setting alone.
const FEATURES: &str = "--enable-feature=native-histograms,created-timestamp-zero-ingestion,exemplar-storage";

/// Starts it and waits until it is ready.
pub fn start(root: &Path, folder: &Path, agent: &str, address: &str) -> Result<Prometheus> {
    Prometheus::start(folder, address, &configuration(&root.join("dashboards/rules"), agent), &[FEATURES])
}

/// `job` is the name that the project's rules and dashboards expect.
fn configuration(rules: &Path, agent: &str) -> String {
    format!(
        "global:\n  scrape_interval: {INTERVAL_SECONDS}s\n  scrape_timeout: {INTERVAL_SECONDS}s\n  evaluation_interval: {INTERVAL_SECONDS}s\n\
         rule_files: ['{0}/kstrobe-alerts.yaml', '{0}/kstrobe-slo-native.yaml']\n\
         scrape_configs:\n  - job_name: kstrobe\n    scrape_protocols: [PrometheusProto, OpenMetricsText1.0.0, PrometheusText0.0.4]\n    \
         always_scrape_classic_histograms: true\n    static_configs: [{{targets: ['{agent}']}}]\n",
        rules.display()
    )
}
