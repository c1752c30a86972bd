//! `cargo xtask bench`: what an event, a scrape and a recorded trace cost, against other ways to get the same.

pub mod agent;
mod bpftrace;
mod buckets;
mod defaults;
mod events;
mod formats;
pub mod hand_written;
mod history;
mod hooks;
mod load;
pub mod machine;
mod maps;
mod readers;
mod scrapes;
mod sizes;
pub mod table;
mod tool;
mod trace;
mod variants;

use crate::{mounts, programs};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of the benchmark.
#[derive(clap::Args)]
pub struct Options {
    /// The agent to measure; without it the release build is made and used
    #[arg(long)]
    agent: Option<PathBuf>,
    /// Interleaved rounds, each with every variant
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..=50))]
    rounds: u8,
    /// System calls per variant and round
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(10_000..=2_000_000))]
    calls: u32,
    /// CPU for the load; the last one by default
    #[arg(long)]
    cpu: Option<usize>,
    /// Another agent, whose scrapes of many histograms are measured in turn with the first one's
    #[arg(long)]
    before: Option<PathBuf>,
    /// Scrapes of 200,000 histograms, too: their maps take 2 GiB
    #[arg(long)]
    large: bool,
    /// For how long the history is recorded
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(60..=86_400))]
    history_seconds: u64,
    /// Only this part
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// The parts of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Cost per event.
    Events,
    /// Cost of each kind of hook, of stacks and of slow events.
    Hooks,
    /// Probes that share a hook, and the default set under the loads of a user.
    Defaults,
    /// Scrapes, memory, start-up.
    Scrapes,
    /// Start-up, memory and idle CPU of the default set alone.
    Idle,
    /// Scrapes of many histograms alone.
    Sizes,
    /// Open pages.
    Readers,
    /// A day of the history on the disk.
    History,
    /// Reading a trace.dat; needs neither root nor the agent.
    Trace,
}

/// Runs the benchmark and prints the tables.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let build = root.join("target/bench");
    std::fs::create_dir_all(&build).with_context(|| format!("creating {}", build.display()))?;
    println!("## Benchmark\n\n{}\n", machine::describe());
    if options.only != Some(Part::Trace) {
        of_the_agent(root, &build, options)?;
    }
    if options.only.is_none_or(|only| only == Part::Trace) {
        println!("{}", trace::run(root, &build, options.rounds.into())?);
    }
    Ok(())
}

/// The parts that load eBPF programs.
fn of_the_agent(root: &Path, build: &Path, options: &Options) -> Result<()> {
    let agent = match &options.agent {
        Some(path) => std::path::absolute(path)?,
        None => build_agent(root)?,
    };
    if programs::cannot_install().is_none()
        && let Err(error) = programs::install()
    {
        eprintln!("warning: {error:#}; variants that need it are left out");
    }
    mounts::private()?;
    let sources = root.join("xtask/bench");
    let cpu = options.cpu.unwrap_or_else(machine::last_cpu);
    let wanted = |part| options.only.is_none_or(|only| only == part);
    // What is asked for is a whole number of the chunks that are timed.
    let calls = options.calls.next_multiple_of(load::CHUNK);
    let rounds = options.rounds.into();
    if wanted(Part::Events) {
        let (ready, skipped) = variants::prepare(&sources, build, &agent)?;
        println!("{}", events::run(ready, &skipped, cpu, rounds, calls)?);
    }
    if wanted(Part::Hooks) {
        println!("{}", hooks::run(&sources, build, &agent, cpu, rounds, calls)?);
    }
    if wanted(Part::Defaults) {
        let bench = defaults::Bench { sources: &sources, build, agent: &agent, cpu, rounds, calls };
        println!("{}", bench.run()?);
    }
    if wanted(Part::Scrapes) {
        match scrapes::series(&sources, build, &agent, cpu) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("Not run: scrapes ({error:#})"),
        }
    }
    if wanted(Part::Scrapes) || wanted(Part::Idle) {
        match scrapes::default_set(build, &agent) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("Not run: default probe set ({error:#})"),
        }
        match formats::run(&sources, build, &agent, cpu) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("Not run: formats ({error:#})"),
        }
    }
    if wanted(Part::Scrapes) || wanted(Part::Sizes) {
        match sizes::run(&sources, build, &agent, options.before.as_deref(), cpu, options.large) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("Not run: scrapes of many histograms ({error:#})"),
        }
    }
    if wanted(Part::Readers) {
        match readers::run(&sources, build, &agent, cpu) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("Not run: open pages ({error:#})"),
        }
    }
    if wanted(Part::History) {
        match history::run(build, &agent, options.history_seconds) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("Not run: the history on disk ({error:#})"),
        }
    }
    Ok(())
}

/// The rows of a round, each of which begins with another, so that none always follows the same neighbour.
fn in_turn(round: usize, rows: usize) -> impl Iterator<Item = usize> {
    (0..rows).map(move |step| (step + round) % rows)
}

/// A pair of programs that do nothing, at the entry and exit of system calls.
pub fn floor(root: &Path) -> Result<hand_written::Pair> {
    let build = root.join("target/bench");
    hand_written::write_headers(&build)?;
    let object = hand_written::compile(&root.join("xtask/bench/empty.bpf.c"), &build)?;
    let btf = aya::Btf::from_sys_fs().context("reading the kernel's BTF")?;
    hand_written::Pair::load(&object, hand_written::Hooks::Btf, hand_written::Counts::None, &btf)
}

/// Builds the agent as it is shipped.
pub fn build_agent(root: &Path) -> Result<PathBuf> {
    let built =
        Command::new("cargo").args(["build", "--quiet", "--release", "-p", "kstrobe"]).current_dir(root).status()?;
    if !built.success() {
        bail!("the release build of the agent failed");
    }
    Ok(root.join("target/release/kstrobe"))
}
