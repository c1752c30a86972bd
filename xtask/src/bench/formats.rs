//! Cost of a scrape in each format, beside node_exporter on the same machine.

use super::agent::{self, Agent, Settings};
use super::{load, table};
use crate::programs;
use anyhow::Result;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Histograms, each 25 series of Prometheus with the default bounds of seconds: 50,000 in all.
const HISTOGRAMS: u32 = 2_000;
/// Calls under each name, so that several buckets of each are populated.
const ROUNDS: u32 = 10;
/// Scrapes per format; one before them warms caches.
const SCRAPES: u32 = 10;

/// Names and headers: what Prometheus sends, cut down to what is wanted.
const FORMATS: [(&str, &str); 3] = [
    ("text 0.0.4", "Accept: text/plain;version=0.0.4\r\n"),
    ("OpenMetrics 1.0", "Accept: application/openmetrics-text;version=1.0.0\r\n"),
    (
        "protobuf",
        "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n",
    ),
];
const GZIP: &str = "Accept-Encoding: gzip\r\n";

/// Measures all and returns the report.
pub fn run(sources: &Path, build: &Path, binary: &Path, cpu: usize) -> Result<String> {
    let config = agent::only(build, "bench_series", Some(&sources.join("series.yaml")))?;
    let agent = Agent::start(&Settings { binary: binary.to_owned(), config: Some(config) })?;
    for _ in 0..ROUNDS {
        load::call_under_names(cpu, (0..HISTOGRAMS).collect())?;
    }
    let series = series_of(&agent)?;
    let mut rows = Vec::new();
    for (name, accept) in FORMATS {
        for (coding, headers) in [("", accept.to_owned()), (", gzip", format!("{accept}{GZIP}"))] {
            rows.push(row(&agent, &format!("kstrobe, {name}{coding}"), series, &headers)?);
        }
    }
    agent.stop()?;
    let beside = match programs::unpack("prometheus-node-exporter") {
        Ok(exporter) => {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            let mut command = Command::new(exporter);
            command.arg(format!("--web.listen-address={address}"));
            let exporter = Agent::from_command(command, address)?;
            let series = series_of(&exporter)?;
            for (coding, headers) in [("", FORMATS[0].1.to_owned()), (", gzip", format!("{}{GZIP}", FORMATS[0].1))] {
                rows.push(row(&exporter, &format!("node_exporter, text 0.0.4{coding}"), series, &headers)?);
            }
            String::new()
        }
        Err(error) => format!("\nNot run: node_exporter ({error:#})\n"),
    };
    let head = [
        "scrape",
        "series",
        "CPU per scrape, ms",
        "CPU per 1,000 series, ms",
        "wall, ms",
        "answer, kB",
        "bytes per 1,000 series",
        "RSS, MiB",
    ];
    let text = format!(
        "### Formats\n\n{HISTOGRAMS} histograms; series as text 0.0.4 has them, also where protobuf has each histogram in one message, \
         classic and native. Mean of {SCRAPES} scrapes.\n\n"
    );
    Ok(text + &table::markdown(&head, rows.into_iter()) + &beside)
}

/// Series in the text format.
fn series_of(agent: &Agent) -> Result<usize> {
    Ok(agent.scrape()?.lines().filter(|line| !line.starts_with('#')).count())
}

fn row(agent: &Agent, name: &str, series: usize, headers: &str) -> Result<Vec<String>> {
    let bytes = agent.ask(headers)?.len();
    let (cpu_before, begin) = (agent.cpu_time()?, Instant::now());
    for _ in 0..SCRAPES {
        agent.ask(headers)?;
    }
    let wall = begin.elapsed() / SCRAPES;
    let used = agent.cpu_time()?.saturating_sub(cpu_before) / SCRAPES;
    let thousands = series as f64 / 1e3;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(vec![
        name.to_owned(),
        series.to_string(),
        format!("{:.2}", ms(used)),
        format!("{:.3}", ms(used) / thousands),
        format!("{:.2}", ms(wall)),
        format!("{:.1}", bytes as f64 / 1e3),
        format!("{:.0}", bytes as f64 / thousands),
        format!("{:.1}", super::scrapes::mib(agent.resident_bytes()?)),
    ])
}
