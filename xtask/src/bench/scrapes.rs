//! Cost of the agent itself: scrapes at growing numbers of series, memory, idle CPU, start-up.

use super::agent::{self, Agent, Settings};
use super::{load, maps, table, tool};
use anyhow::{Context, Result, anyhow};
use nix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::time::{Duration, Instant};

/// Histogram series at which scrapes are measured.
const SERIES: [u32; 3] = [100, 1_000, 10_000];
/// Scrapes per size; the first only warms label caches.
const SCRAPES: u32 = 10;
/// Time over which the agent is watched after the last scrape. It rests 90 s after that, or later where the machine is not quiet.
const UNREAD: Duration = Duration::from_secs(60);
/// From then on until it rests.
const UNTIL_REST: Duration = Duration::from_secs(45);
/// Time over which it is watched at rest.
const IDLE: Duration = Duration::from_secs(240);
/// Starts of which the median is taken.
const STARTS: usize = 5;

/// Scrapes at growing numbers of series.
pub fn series(sources: &Path, build: &Path, binary: &Path, cpu: usize) -> Result<String> {
    let config = agent::only(build, "bench_series", Some(&sources.join("series.yaml")))?;
    let agent = Agent::start(&Settings { binary: binary.to_owned(), config: Some(config) })?;
    let mut rows = Vec::new();
    let mut made = 0;
    for wanted in SERIES {
        load::call_under_names(cpu, (made..wanted).collect())?;
        made = wanted;
        let body = agent.scrape()?;
        let found = body.lines().filter(|l| l.starts_with("kstrobe_bench_series_seconds_count{")).count();
        let (cpu_before, begin) = (agent.cpu_time()?, Instant::now());
        for _ in 0..SCRAPES {
            agent.scrape()?;
        }
        let wall = begin.elapsed() / SCRAPES;
        let used = agent.cpu_time()?.saturating_sub(cpu_before) / SCRAPES;
        rows.push(vec![
            wanted.to_string(),
            found.to_string(),
            format!("{:.2}", used.as_secs_f64() * 1e6 / f64::from(wanted)),
            format!("{:.1}", used.as_secs_f64() * 1e3),
            format!("{:.1}", wall.as_secs_f64() * 1e3),
            format!("{:.2}", body.len() as f64 / 1e6),
            format!("{:.1}", mib(agent.resident_bytes()?)),
        ]);
    }
    agent.stop()?;
    let head = [
        "histogram series",
        "in the answer",
        "agent CPU per series, us",
        "agent CPU per scrape, ms",
        "wall per scrape, ms",
        "answer, MB",
        "RSS, MiB",
    ];
    let text = format!("### Scrapes\n\nText format without compression, mean of {SCRAPES} scrapes.\n\n");
    Ok(text + &table::markdown(&head, rows.into_iter()))
}

/// The median of several starts, in milliseconds.
fn start_ms(settings: &Settings) -> Result<String> {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let agent = Agent::start(settings)?;
        starts.push(agent.first_scrape);
        agent.stop()?;
    }
    starts.sort();
    Ok(format!("{:.0}", starts[STARTS / 2].as_secs_f64() * 1e3))
}

/// The default probes: start, memory and CPU while nothing reads them.
pub fn default_set(build: &Path, binary: &Path) -> Result<String> {
    let settings = Settings { binary: binary.to_owned(), config: None };
    let all = Settings { binary: binary.to_owned(), config: Some(agent::all_shipped(build)?) };
    let [of_default, of_all] = [start_ms(&settings)?, start_ms(&all)?];
    let agent = Agent::start(&settings)?;
    for _ in 0..5 {
        agent.scrape()?;
    }
    // Not scraped any more.
    let unread = cpu_percent(&agent, UNREAD)?;
    std::thread::sleep(UNTIL_REST);
    let waker = std::thread::spawn(idle_waker);
    let idle = cpu_percent(&agent, IDLE)?;
    let floor = waker.join().map_err(|_| anyhow!("the idle thread panicked"))??;
    let resident = agent.resident_bytes()?;
    agent.stop().context("stopping the default set")?;
    let bars = tool::first_bars(binary)?;
    let maps = maps::of_default_set(binary)?;
    let rows = [
        vec!["start to first scrape (median), ms".to_owned(), of_default],
        vec!["the same with all shipped probes, ms".to_owned(), of_all],
        vec![
            "`kstrobe runqlat -d 5s` on a terminal to its first bars, nothing cached, ms".to_owned(),
            format!("{:.0}", bars.as_secs_f64() * 1e3),
        ],
        vec!["RSS after 6 scrapes, MiB".to_owned(), format!("{:.1}", mib(resident))],
        vec![format!("maps of its probes at {} CPUs, MiB, computed", maps.cpus), format!("{:.1}", mib(maps.bytes))],
        vec!["the same at 256 CPUs".to_owned(), format!("{:.1}", mib(maps.bytes_at_256_cpus))],
        vec![format!("CPU in {} s after the last scrape, % of one CPU", UNREAD.as_secs()), format!("{unread:.3}")],
        vec![format!("the same at rest, in {} s", IDLE.as_secs()), format!("{idle:.3}")],
        vec!["a thread that wakes once a second for nothing, meanwhile".to_owned(), format!("{floor:.3}")],
    ];
    Ok("### Default probe set\n\n".to_owned() + &table::markdown(&["what", "value"], rows.into_iter()))
}

/// CPU of an agent that is left alone, in percent of one CPU.
fn cpu_percent(agent: &Agent, time: Duration) -> Result<f64> {
    let (before, begin) = (agent.cpu_time()?, Instant::now());
    std::thread::sleep(time);
    Ok(percent(agent.cpu_time()?.saturating_sub(before), begin.elapsed()))
}

/// What one wake a second takes: what comes after a pause finds nothing in the caches, and virtual machines add what it takes to run
/// their CPU again.
fn idle_waker() -> Result<f64> {
    let (before, begin) = (thread_cpu()?, Instant::now());
    while begin.elapsed() < IDLE {
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(percent(thread_cpu()?.saturating_sub(before), begin.elapsed()))
}

fn thread_cpu() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("reading the thread's CPU time")?.into())
}

fn percent(cpu: Duration, wall: Duration) -> f64 {
    cpu.as_secs_f64() / wall.as_secs_f64() * 100.0
}

/// For tables.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
