//! Scrapes of many histograms: time to the first byte, CPU and memory, of series that change and of series that do not.

use super::agent::{self, Agent, Settings};
use super::scrapes::mib;
use super::{load, table};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Scrapes of each row, the median of which is shown.
const SCRAPES: usize = 7;
/// Scrapes before them: one learns new series, and the others show what does not change.
const WARM_UP: usize = 4;
/// Between two scrapes: a series that changed less long ago is read again.
const PAUSE: Duration = Duration::from_millis(150);

const GZIP: &str = "Accept-Encoding: gzip\r\n";
const TEXT: &str = "Accept: text/plain;version=0.0.4\r\n";
const PROTOBUF: &str =
    "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n";

/// Which series are called between two scrapes.
#[derive(Clone, Copy)]
enum Active {
    All,
    /// The first ones.
    AllBut(u32),
    /// Those whose number is no multiple of this.
    AllButEvery(u32),
    None,
}

impl Active {
    fn is_active(self, number: u32) -> bool {
        match self {
            Active::All => true,
            Active::AllBut(idle) => number >= idle,
            Active::AllButEvery(nth) => !number.is_multiple_of(nth),
            Active::None => false,
        }
    }

    fn text(self) -> String {
        match self {
            Active::All => "all".into(),
            Active::AllBut(idle) => format!("all but the first {idle}"),
            Active::AllButEvery(nth) => format!("all but each {nth}th"),
            Active::None => "none".into(),
        }
    }
}

/// One row, of each agent.
struct Row {
    histograms: u32,
    active: Active,
    form: (&'static str, &'static str, &'static str),
}

fn rows(large: bool) -> Vec<Row> {
    let forms = [
        ("text, gzip", TEXT, GZIP),
        ("protobuf, gzip", PROTOBUF, GZIP),
        ("text", TEXT, ""),
        ("protobuf", PROTOBUF, ""),
    ];
    let mut rows = Vec::new();
    let sizes = [1_000, 10_000, 50_000].into_iter().chain(large.then_some(200_000));
    for histograms in sizes {
        for form in forms {
            let mut states = vec![Active::All, Active::None];
            if histograms == 50_000 && !form.2.is_empty() {
                states.extend([Active::AllBut(10_000), Active::AllButEvery(5)]);
            }
            rows.extend(states.into_iter().map(|active| Row { histograms, active, form }));
        }
    }
    rows
}

/// Measures all and returns the report. `before` is another agent, which is measured in turn with the first.
pub fn run(
    sources: &Path,
    build: &Path,
    binary: &Path,
    before: Option<&Path>,
    cpu: usize,
    large: bool,
) -> Result<String> {
    let text = fs::read_to_string(sources.join("series.yaml"))?;
    let slots = if large { "262144" } else { "65536" };
    let text = text.replace("16384", slots).replace("256MiB", if large { "2GiB" } else { "512MiB" });
    let folder = build.join("sizes");
    fs::create_dir_all(&folder)?;
    let probe = folder.join("series.yaml");
    fs::write(&probe, text).with_context(|| format!("writing {}", probe.display()))?;
    let config = agent::only(build, "bench_series", Some(&probe))?;
    let start = |binary: &Path| Agent::start(&Settings { binary: binary.to_owned(), config: Some(config.clone()) });
    let mut agents = vec![("now", start(binary)?)];
    if let Some(before) = before {
        agents.insert(0, ("before", start(before)?));
    }
    let mut made = 0;
    let mut table = Vec::new();
    for row in rows(large) {
        // Several values each, so that several buckets are populated.
        for _ in 0..if made < row.histograms { 5 } else { 0 } {
            load::call_under_names(cpu, (made..row.histograms).collect())?;
        }
        made = row.histograms;
        table.extend(measure(&agents, &row, cpu)?);
    }
    agents.into_iter().try_for_each(|(_, agent)| agent.stop())?;
    let head = [
        "agent",
        "histograms",
        "active between scrapes",
        "form",
        "CPU, ms",
        "CPU per histogram, us",
        "first byte, ms",
        "whole, ms",
        "answer, MB",
        "peak above rest, MiB",
        "rest, MiB",
    ];
    let text =
        format!("### Scrapes of many histograms\n\nMedian of {SCRAPES} scrapes. Rest is RSS before the scrape.\n\n");
    Ok(text + &table::markdown(&head, table.into_iter()))
}

/// One scrape.
#[derive(Clone, Copy, Default)]
struct Cost {
    cpu: Duration,
    first: Duration,
    whole: Duration,
    bytes: usize,
    above: u64,
    rest: u64,
}

fn measure(agents: &[(&str, Agent)], row: &Row, cpu: usize) -> Result<Vec<Vec<String>>> {
    let called: Vec<u32> = (0..row.histograms).filter(|number| row.active.is_active(*number)).collect();
    let headers = [row.form.1, row.form.2].concat();
    let mut costs = vec![Vec::new(); agents.len()];
    for number in 0..WARM_UP + SCRAPES {
        load::call_under_names(cpu, called.clone())?;
        std::thread::sleep(PAUSE);
        for ((_, agent), costs) in agents.iter().zip(&mut costs) {
            agent.forget_peak()?;
            let (rest, cpu) = (agent.resident_bytes()?, agent.cpu_time()?);
            let (first, whole, bytes) = agent.time(&headers)?;
            let cpu = agent.cpu_time()?.saturating_sub(cpu);
            let above = agent.peak_bytes()?.saturating_sub(rest);
            if number >= WARM_UP {
                costs.push(Cost { cpu, first, whole, bytes, above, rest });
            }
        }
    }
    let cells = |(name, costs): (&str, &Vec<Cost>)| {
        let ms = |part: fn(&Cost) -> Duration| median(costs, part).as_secs_f64() * 1e3;
        let cpu = ms(|cost| cost.cpu);
        vec![
            name.to_owned(),
            row.histograms.to_string(),
            row.active.text(),
            row.form.0.to_owned(),
            format!("{cpu:.1}"),
            format!("{:.2}", cpu * 1e3 / f64::from(row.histograms)),
            format!("{:.1}", ms(|cost| cost.first)),
            format!("{:.1}", ms(|cost| cost.whole)),
            format!("{:.2}", median(costs, |cost| cost.bytes) as f64 / 1e6),
            // Not the median: no scrape may be above it.
            format!("{:.1}", mib(costs.iter().map(|cost| cost.above).max().unwrap_or(0))),
            format!("{:.1}", mib(median(costs, |cost| cost.rest))),
        ]
    };
    Ok(agents.iter().map(|(name, _)| *name).zip(&costs).map(cells).collect())
}

fn median<T: Ord + Copy>(costs: &[Cost], part: fn(&Cost) -> T) -> T {
    let mut parts: Vec<T> = costs.iter().map(part).collect();
    parts.sort_unstable();
    parts[parts.len() / 2]
}
