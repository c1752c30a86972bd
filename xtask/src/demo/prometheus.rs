//! A Prometheus of its own.

use super::{INTERVAL_SECONDS, Running, START_LIMIT};
use crate::programs;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Versions before 3.8 take native histograms by flag alone, later ones by the setting alone.
const FEATURES: &str = "--enable-feature=native-histograms,created-timestamp-zero-ingestion,exemplar-storage";

/// A server that scrapes the agent and evaluates the project's rules.
pub struct Prometheus {
    address: String,
    _process: Running,
}

/// One series of an answer.
pub struct Sample {
    /// Its labels, the name apart, as `a="x", b="y"`.
    pub labels: String,
    /// Its value.
    pub value: f64,
}

impl Prometheus {
    /// Starts it and waits until it is ready.
    pub fn start(root: &Path, folder: &Path, agent: &str, address: &str) -> Result<Prometheus> {
        let binary = programs::unpack("prometheus")?;
        let data = folder.join("prometheus-data");
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let config = folder.join("prometheus.yml");
        fs::write(&config, configuration(&root.join("rules"), agent))?;
        let log = folder.join("prometheus.log");
        let mut command = Command::new(&binary);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={address}"))
            .arg(FEATURES)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?);
        let mut process = Running(command.spawn().with_context(|| format!("starting {}", binary.display()))?);
        let begin = Instant::now();
        while ureq::get(&format!("http://{address}/-/ready")).call().is_err() {
            if process.0.try_wait()?.is_some() || begin.elapsed() > START_LIMIT {
                bail!("Prometheus does not run; its log: {}", fs::read_to_string(&log)?);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Prometheus { address: address.to_owned(), _process: process })
    }

    /// The series that an expression gives now, in the server's order.
    pub fn query(&self, expression: &str) -> Result<Vec<Sample>> {
        let url = format!("http://{}/api/v1/query", self.address);
        let answer: Value = ureq::get(&url)
            .query("query", expression)
            .call()
            .with_context(|| format!("asking for {expression}"))?
            .body_mut()
            .read_json()?;
        let series = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        Ok(series.iter().filter_map(sample).collect())
    }
}

fn sample(series: &Value) -> Option<Sample> {
    let labels = series["metric"].as_object()?;
    let shown = labels.iter().filter(|(name, _)| !["__name__", "job", "instance"].contains(&name.as_str()));
    let labels = shown.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ");
    let value = series["value"][1].as_str()?.parse().ok()?;
    Some(Sample { labels, value })
}

/// `job` is the name that the project's rules and dashboards expect.
fn configuration(rules: &Path, agent: &str) -> String {
    format!(
        "global:\n  scrape_interval: {INTERVAL_SECONDS}s\n  scrape_timeout: {INTERVAL_SECONDS}s\n  evaluation_interval: {INTERVAL_SECONDS}s\n\
         rule_files: ['{}/*.yaml']\n\
         scrape_configs:\n  - job_name: kstrobe\n    scrape_protocols: [PrometheusProto, OpenMetricsText1.0.0, PrometheusText0.0.4]\n    \
         always_scrape_classic_histograms: true\n    static_configs: [{{targets: ['{agent}']}}]\n",
        rules.display()
    )
}
