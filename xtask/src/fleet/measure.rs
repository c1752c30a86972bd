//! One run: so many nodes, one Prometheus, and what that tells of itself.

use super::node::Recording;
use super::serve::{Answered, Nodes};
use super::size::Form;
use crate::prometheus::Prometheus;
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the nodes are scraped, and how often.
#[derive(Clone, Copy)]
pub struct Pace {
    /// Of the measurement, after every node was scraped once.
    pub time: Duration,
    /// Between two scrapes of a node.
    pub interval: Duration,
}

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Simulated nodes.
    pub nodes: u64,
    /// `None` for a server without targets.
    pub form: Option<Form>,
    /// In the head.
    pub series: f64,
    /// Samples a second, floats and histograms.
    pub samples: f64,
    /// Bytes of an answer as they came over the wire.
    pub bytes_a_scrape: f64,
    /// Of a scrape, as Prometheus sees it: mean and longest of the last ones.
    pub scrape_seconds: (f64, f64),
    /// Bytes that the collector of garbage left of Prometheus's heap.
    pub live_heap: f64,
    /// Bytes of its memory.
    pub resident: f64,
    /// CPUs that it used.
    pub cpus: f64,
    pub log_bytes_a_sample: f64,
}

/// Counters of a moment.
struct Moment {
    at: Instant,
    own: String,
    answered: Answered,
    log_bytes: u64,
}

pub fn run(folder: &Path, packed: &[u8], nodes: usize, form: Option<Form>, pace: Pace) -> Result<Measured> {
    let served = Nodes::start(Recording::read(packed)?, nodes)?;
    let targets = folder.join("targets.json");
    fs::write(&targets, targets_of(&served, nodes).to_string())?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let flags: &[&str] =
        if form.is_some_and(|form| form != Form::Classic) { &["--enable-feature=native-histograms"] } else { &[] };
    let server = Prometheus::start(folder, &address, &configuration(&targets, form, pace), flags)?;
    // The first process to run out of memory is the guest.
    fs::write(format!("/proc/{}/oom_score_adj", server.pid()), "1000")
        .context("offering Prometheus to the OOM killer")?;
    let begin = Instant::now();
    while served.answered().scrapes < nodes as u64 {
        if begin.elapsed() > pace.interval * 4 + Duration::from_secs(30) {
            bail!("of {nodes} nodes only {} were scraped", served.answered().scrapes);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let before = moment(&server, &served)?;
    std::thread::sleep(pace.time);
    server.collect_garbage()?;
    let after = moment(&server, &served)?;
    let up = value(&server, "sum(up) or vector(0)")?;
    ensure!(up == nodes as f64, "of {nodes} nodes {up} are up: the machine is too slow for this interval");
    let seconds = (after.at - before.at).as_secs_f64();
    let own = |moment: &Moment, name: &str| number(&moment.own, name);
    let gone = |name: &str| Ok::<f64, anyhow::Error>(own(&after, name)? - own(&before, name)?);
    // A counter that has counted nothing is not there.
    let appended = |moment: &Moment, kind: &str| {
        own(moment, &format!("prometheus_tsdb_head_samples_appended_total{{type=\"{kind}\"}}")).unwrap_or(0.0)
    };
    let samples: f64 = ["float", "histogram"].map(|kind| appended(&after, kind) - appended(&before, kind)).iter().sum();
    let scrapes = (after.answered.scrapes - before.answered.scrapes) as f64;
    // What is left after a collection, and half as much or more on top, is when the next one begins.
    let percent = own(&after, "go_gc_gogc_percent").unwrap_or(75.0);
    Ok(Measured {
        nodes: nodes as u64,
        form,
        series: own(&after, "prometheus_tsdb_head_series")?,
        samples: samples / seconds,
        bytes_a_scrape: (after.answered.bytes - before.answered.bytes) as f64 / scrapes,
        scrape_seconds: (
            value(&server, "avg(scrape_duration_seconds) or vector(0)")?,
            value(&server, "max(scrape_duration_seconds) or vector(0)")?,
        ),
        live_heap: own(&after, "go_memstats_next_gc_bytes")? / (1.0 + percent / 100.0),
        resident: own(&after, "process_resident_memory_bytes")?,
        cpus: gone("process_cpu_seconds_total")? / seconds,
        log_bytes_a_sample: (after.log_bytes - before.log_bytes) as f64 / samples,
    })
}

fn targets_of(served: &Nodes, nodes: usize) -> serde_json::Value {
    let target = |node: usize| {
        json!({
            "targets": [served.address.to_string()],
            "labels": {"__metrics_path__": format!("/nodes/{node}/metrics"), "instance": format!("node-{node:04}")},
        })
    };
    (0..nodes).map(target).collect()
}

fn configuration(targets: &Path, form: Option<Form>, pace: Pace) -> String {
    let protocol = match form {
        None | Some(Form::Classic) => "PrometheusText0.0.4",
        Some(_) => "PrometheusProto",
    };
    let (interval, both) = (pace.interval.as_secs().max(1), form == Some(Form::Both));
    format!(
        "global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s}}\nscrape_configs:\n  - job_name: kstrobe\n    \
         scrape_protocols: [{protocol}]\n    always_scrape_classic_histograms: {both}\n    \
         file_sd_configs: [{{files: ['{}']}}]\n",
        targets.display()
    )
}

fn moment(server: &Prometheus, served: &Nodes) -> Result<Moment> {
    let own = server.own_metrics()?;
    let mut log_bytes = 0;
    for segment in fs::read_dir(server.data.join("wal"))?.flatten() {
        log_bytes += segment.metadata()?.len();
    }
    Ok(Moment { at: Instant::now(), own, answered: served.answered(), log_bytes })
}

fn value(server: &Prometheus, expression: &str) -> Result<f64> {
    server.query(expression)?.first().map(|sample| sample.value).with_context(|| format!("nothing for {expression}"))
}

fn number(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.with_context(|| format!("Prometheus does not tell {name}"))?;
    value.parse().with_context(|| format!("{name} is {value}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_number_of_the_whole_name() {
        let text = "# HELP a b\na_total{type=\"float\"} 12\na_total_more 4\na 1.5e+06\n";
        assert_eq!(super::number(text, "a").unwrap(), 1.5e6);
        assert_eq!(super::number(text, "a_total{type=\"float\"}").unwrap(), 12.0);
        assert!(super::number(text, "a_total").is_err());
    }
}
