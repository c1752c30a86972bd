//! `cargo xtask fleet`: what a fleet of agents is to a Prometheus. Simulated nodes go on from a recorded one; the server is a
//! real one, and measures itself.

mod measure;
mod model;
mod node;
mod page;
mod record;
mod serve;
mod size;

use crate::bench::{build_agent, machine};
use anyhow::{Context, Result, bail};
use measure::Pace;
use nix::unistd::geteuid;
use node::Recording;
use size::Form;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The recorded node, from the project's root.
const RECORDING: &str = "xtask/fleet/node.pb.gz";

/// What to simulate.
#[derive(clap::Args)]
pub struct Options {
    /// How many nodes, one run after the other
    #[arg(long, value_delimiter = ',', default_value = "10,100", value_parser = clap::value_parser!(u64).range(1..=2000))]
    nodes: Vec<u64>,
    /// How long each run measures
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(10..=7200))]
    seconds: u64,
    /// Seconds between two scrapes of a node
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=300))]
    interval: u64,
    /// Only this way to take histograms
    #[arg(long, value_enum)]
    form: Option<Form>,
    /// Put the tables into docs/scale.md
    #[arg(long)]
    write: bool,
    /// Record a node anew instead: the agent on this machine, kept busy for a minute (root)
    #[arg(long)]
    record: bool,
    /// The agent to record; without it the release build is made and used
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Records or measures.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let folder = root.join("target/fleet");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    if options.record {
        if !geteuid().is_root() {
            bail!("the agent needs root here: sudo --preserve-env=PATH cargo xtask fleet --record");
        }
        let agent = match &options.agent {
            Some(path) => std::path::absolute(path)?,
            None => build_agent(root)?,
        };
        return record::run(&agent, &folder, &root.join(RECORDING));
    }
    let packed = fs::read(root.join(RECORDING)).context("the recorded node; `--record` makes one")?;
    let machine = machine::describe();
    let pace = Pace { time: Duration::from_secs(options.seconds), interval: Duration::from_secs(options.interval) };
    // The server alone takes no time to settle.
    let alone = Pace { time: Duration::from_secs(10), ..pace };
    let mut measured = vec![measure::run(&folder, &packed, 0, None, alone)?];
    for &nodes in &options.nodes {
        for form in Form::ALL.into_iter().filter(|form| options.form.is_none_or(|only| only == *form)) {
            eprintln!("{nodes} nodes, {}", form.name());
            measured.push(measure::run(&folder, &packed, usize::try_from(nodes)?, Some(form), pace)?);
        }
    }
    let recording = Recording::read(&packed)?;
    let command = command(options);
    let results =
        page::Results { recording: &recording, measured: &measured, pace, machine: &machine, command: &command };
    let text = page::text(&results)?;
    println!("{text}");
    if options.write {
        let path = root.join("docs/scale.md");
        let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        fs::write(&path, page::with_results(&page, &text)?)?;
    }
    Ok(())
}

fn command(options: &Options) -> String {
    let nodes: Vec<String> = options.nodes.iter().map(u64::to_string).collect();
    format!(
        "cargo xtask fleet --nodes {} --seconds {} --interval {} --write",
        nodes.join(","),
        options.seconds,
        options.interval
    )
}
