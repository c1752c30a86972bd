//! `cargo xtask soak`: all shipped probes at once, beside a busy node, for ten minutes: what is lost, what they take, and what is
//! there when the agent has ended.

use crate::bench::agent::{self, Agent, Settings};
use crate::bench::{self, machine, table};
use crate::{demo, flood, mounts};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Options of the soak.
#[derive(clap::Args)]
pub struct Options {
    /// The agent; without it the release build is made and used
    #[arg(long)]
    agent: Option<PathBuf>,
    /// For how long
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(60..=86_400))]
    seconds: u64,
}

/// System calls a second, beside those of the shop.
const CALLS: u32 = 40_000;
const LOOK_EACH: Duration = Duration::from_secs(10);
/// The agent's buffers, tables of names and lists of labels settle in the first minute.
const SETTLED: Duration = Duration::from_secs(60);
/// Of resident memory after that: the ring of the history in memory, and the labels of what comes.
const MAX_GROWTH_MIB: f64 = 32.0 + 16.0;
/// By how much the mean cost may be above the budget.
const TOLERANCE: f64 = 1.2;
/// The kernel frees programs and maps after a grace period, and many of them one after another.
const FREED_WITHIN: Duration = Duration::from_secs(10);

/// What the kernel keeps of programs and tracing.
#[derive(Debug, Default, PartialEq, Eq)]
struct InKernel {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
    instances: BTreeSet<String>,
}

/// Seen of the agent at a moment.
struct Look {
    after: Duration,
    resident_mib: f64,
    /// Of the programs of each probe, in millionths of a CPU.
    costs_ppm: BTreeMap<String, f64>,
    /// Of the probes that have none of their own together.
    shared_ppm: f64,
    metrics: String,
}

/// Runs it and prints what was seen; fails if something is out of its bounds.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let binary = match &options.agent {
        Some(path) => std::path::absolute(path)?,
        None => bench::build_agent(root)?,
    };
    println!("## All shipped probes for {} s\n\n{}\n", options.seconds, machine::describe());
    mounts::private()?;
    let folder = root.join("target/soak");
    fs::create_dir_all(&folder)?;
    let before = in_kernel()?;
    let agent = Agent::start(&Settings { binary, config: Some(agent::all_shipped(&folder)?) })?;
    let kernel_mib = locked_mib(agent.id())?;
    let looks = beside_loads(&folder, Duration::from_secs(options.seconds), &agent)?;
    agent.stop()?;
    let mut wrong = judge(&looks);
    let left = left_behind(&before)?;
    if left != InKernel::default() {
        wrong.push(format!("left behind: {left:?}"));
    }
    print(&looks, kernel_mib);
    if wrong.is_empty() { Ok(()) } else { bail!("out of bounds:\n{}", wrong.join("\n")) }
}

fn beside_loads(folder: &Path, time: Duration, agent: &Agent) -> Result<Vec<Look>> {
    let stop = AtomicBool::new(false);
    let shop = demo::load::start(&folder.join("shop"), time)?;
    let looks = std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood::load(CALLS, time, &stop));
        let looks = watch(time, agent);
        stop.store(looks.is_err(), Ordering::Relaxed);
        flood.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))?;
        looks
    });
    shop.wait()?;
    looks
}

fn watch(time: Duration, agent: &Agent) -> Result<Vec<Look>> {
    let begin = Instant::now();
    let mut looks = Vec::new();
    while begin.elapsed() < time {
        std::thread::sleep(LOOK_EACH);
        let probes: Value = serde_json::from_slice(&agent.get("/api/v1/probes", "")?)?;
        let cost = |probe: &Value| Some((probe["name"].as_str()?.to_owned(), probe["cost_ppm"].as_f64()?));
        looks.push(Look {
            after: begin.elapsed(),
            resident_mib: mib(agent.resident_bytes()?),
            costs_ppm: probes["probes"].as_array().into_iter().flatten().filter_map(cost).collect(),
            shared_ppm: probes["node"]["budget_ppm"].as_f64().context("no budget in /api/v1/probes")?,
            metrics: agent.scrape()?,
        });
    }
    Ok(looks)
}

/// The budgets of a probe's own, in millionths of a CPU.
fn own_budgets() -> BTreeMap<String, f64> {
    let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
    probes.iter().filter_map(|probe| Some((probe.name().to_owned(), probe.budget_ppm? as f64))).collect()
}

/// What took how much of which budget, in millionths of a CPU.
struct Cost {
    what: String,
    mean_ppm: f64,
    budget_ppm: f64,
}

/// Means after the first minute.
fn costs(looks: &[Look]) -> Vec<Cost> {
    let own = own_budgets();
    let (mut shared, mut of_own) = (0.0, BTreeMap::new());
    let settled: Vec<&Look> = looks.iter().filter(|look| look.after >= SETTLED).collect();
    let share = 1.0 / f64::max(settled.len() as f64, 1.0);
    for (probe, ppm) in settled.iter().flat_map(|look| &look.costs_ppm) {
        match own.get(probe) {
            Some(_) => *of_own.entry(probe).or_insert(0.0) += ppm * share,
            None => shared += ppm * share,
        }
    }
    let budget_ppm = looks.last().map_or(0.0, |look| look.shared_ppm);
    let mut all = vec![Cost { what: "probes that share the agent's budget".to_owned(), mean_ppm: shared, budget_ppm }];
    all.extend(of_own.into_iter().map(|(probe, mean_ppm)| Cost {
        what: probe.clone(),
        mean_ppm,
        budget_ppm: own[probe],
    }));
    all
}

/// Most of the probes that share the agent's budget.
const MAX_NAMED: usize = 12;

/// The most expensive probes of those that share the agent's budget: their mean, least and most in millionths of a CPU.
fn most_expensive(looks: &[Look]) -> Vec<(String, [f64; 3])> {
    let own = own_budgets();
    let mut all: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    let settled: Vec<&Look> = looks.iter().filter(|look| look.after >= SETTLED).collect();
    for (probe, ppm) in settled.iter().flat_map(|look| &look.costs_ppm).filter(|(probe, _)| !own.contains_key(*probe)) {
        all.entry(probe).or_default().push(*ppm);
    }
    let figures = |seen: &[f64]| {
        let mean = seen.iter().sum::<f64>() / f64::max(settled.len() as f64, 1.0);
        [mean, seen.iter().copied().fold(f64::INFINITY, f64::min), seen.iter().copied().fold(0.0, f64::max)]
    };
    let mut all: Vec<(String, [f64; 3])> =
        all.into_iter().map(|(probe, seen)| (probe.clone(), figures(&seen))).collect();
    all.sort_by(|(_, [one, ..]), (_, [other, ..])| other.total_cmp(one));
    all.truncate(MAX_NAMED);
    all
}

fn judge(looks: &[Look]) -> Vec<String> {
    let mut wrong = Vec::new();
    for Cost { what, mean_ppm, budget_ppm } in costs(looks) {
        if mean_ppm > TOLERANCE * budget_ppm {
            wrong.push(format!("{what}: {mean_ppm:.0} millionths of a CPU, where {budget_ppm:.0} are the budget"));
        }
    }
    let mut resident = looks.iter().filter(|look| look.after >= SETTLED).map(|look| look.resident_mib);
    let first = resident.next().unwrap_or_default();
    let growth = resident.fold(first, f64::max) - first;
    if growth > MAX_GROWTH_MIB {
        wrong.push(format!("resident memory grew by {growth:.1} MiB after its first minute"));
    }
    wrong
}

fn print(looks: &[Look], kernel_mib: f64) {
    let (Some(first), Some(last)) = (looks.iter().find(|look| look.after >= SETTLED), looks.last()) else { return };
    let sampled = values(&last.metrics, "kstrobe_probe_sampling_ratio").filter(|(_, ratio)| *ratio < 1.0).count();
    let attached = values(&last.metrics, "kstrobe_probe_attached");
    let (on, off): (Vec<f64>, Vec<f64>) = attached.map(|(_, on)| on).partition(|on| *on == 1.0);
    let rows = [
        ("probes attached", on.len().to_string()),
        ("not attached at the end", off.len().to_string()),
        ("sampled at the end", sampled.to_string()),
        ("kernel memory of maps and programs, MiB", format!("{kernel_mib:.1}")),
        ("resident after a minute, MiB", format!("{:.1}", first.resident_mib)),
        ("resident at the end, MiB", format!("{:.1}", last.resident_mib)),
    ];
    println!("{}", table::markdown(&["what", "value"], rows.into_iter().map(|(what, value)| vec![what.into(), value])));
    let percent = |ppm: f64| format!("{:.2}", ppm / 1e4);
    let rows = costs(looks).into_iter().map(|cost| vec![cost.what, percent(cost.mean_ppm), percent(cost.budget_ppm)]);
    println!("{}", table::markdown(&["programs of", "% of a CPU (mean)", "budget, %"], rows));
    let rows = most_expensive(looks).into_iter().map(|(probe, figures)| {
        let [mean, least, most] = figures.map(percent);
        vec![probe, mean, least, most]
    });
    let header = ["most expensive of those that share", "% of a CPU (mean)", "least", "most"];
    println!("{}", table::markdown(&header, rows));
    let mut lost: BTreeMap<String, f64> = BTreeMap::new();
    for (labels, count) in values(&last.metrics, "kstrobe_lost_total").filter(|(_, count)| *count > 0.0) {
        let reason = labels.split("reason=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        *lost.entry(reason.to_owned()).or_default() += count;
    }
    let rows = lost.into_iter().map(|(reason, count)| vec![reason, format!("{count:.0}")]);
    println!("{}", table::markdown(&["lost, by reason", "events"], rows));
}

/// The labels and the value of each series.
fn values<'a>(metrics: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    metrics.lines().filter_map(move |line| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
        Some((labels, value.parse().ok()?))
    })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Of the maps and programs that a process has open, each of which may have several descriptors: `memlock` in proc(5)'s fdinfo.
fn locked_mib(pid: u32) -> Result<f64> {
    let mut objects = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // Descriptors close meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        let id = field("map_id:").or(field("prog_id:"));
        if let (Some(id), Some(bytes)) = (id, field("memlock:")) {
            objects.insert((field("map_id:").is_some(), id), bytes);
        }
    }
    Ok(mib(objects.values().sum()))
}

/// What is there now and was not then.
fn left_behind(before: &InKernel) -> Result<InKernel> {
    let begin = Instant::now();
    loop {
        let now = in_kernel()?;
        let left = InKernel {
            programs: &now.programs - &before.programs,
            maps: &now.maps - &before.maps,
            instances: &now.instances - &before.instances,
        };
        if left == InKernel::default() || begin.elapsed() > FREED_WITHIN {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn in_kernel() -> Result<InKernel> {
    let (programs, maps) = machine::bpf_objects()?;
    let instances = match fs::read_dir("/sys/kernel/tracing/instances") {
        Ok(entries) => {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?
        }
        Err(_) => BTreeSet::new(),
    };
    Ok(InKernel { programs, maps, instances })
}
