//! `cargo xtask demo`: a busy node, the agent, a real Prometheus, and what they answer. Everything ends by itself.

mod check;
pub mod load;
mod prometheus;
mod questions;

use crate::bench::build_agent;
use crate::prometheus::{Running, ending_with_us};
use anyhow::{Context, Result, bail};
use nix::unistd::geteuid;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Packs of probes, beside the default ones, that the load gives something to do.
const PACKS: &[&str] = &[
    "runqueue",
    "wakeups",
    "futex",
    "hardirqs",
    "block",
    "vfs",
    "filesystem",
    "page_cache",
    "page_faults",
    "tcp_connect",
    "tcp_sessions",
    "drops",
    "packet_sizes",
    "sockets",
    "tasks",
    "offcpu",
    "name_resolution",
    "slow_syscalls",
];
/// Between two scrapes, and two evaluations of the rules.
const INTERVAL_SECONDS: u32 = 2;
/// How long the shop goes on while questions are asked.
const CLOSING: Duration = Duration::from_secs(15);
/// An agent that is not ready by then is taken for broken.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Options of the demonstration.
#[derive(clap::Args)]
pub struct Options {
    /// How long the node is busy
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3600))]
    seconds: u64,
    /// The agent; without it the release build is made and used
    #[arg(long)]
    agent: Option<PathBuf>,
    /// Where the agent listens
    #[arg(long, default_value = "127.0.0.1:9779")]
    listen: String,
    /// Where Prometheus listens
    #[arg(long, default_value = "127.0.0.1:9790")]
    prometheus: String,
    /// Ask every query of the dashboards and rules instead, and fail when one has no data
    #[arg(long)]
    check: bool,
    /// Keep agent and Prometheus running until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Shows it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if !geteuid().is_root() {
        bail!("the agent needs root here: sudo --preserve-env=PATH cargo xtask demo");
    }
    let folder = root.join("target/demo");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let binary = match &options.agent {
        Some(path) => std::path::absolute(path)?,
        None => build_agent(root)?,
    };
    let agent = start_agent(&binary, &configuration(&folder), &options.listen, &folder)?;
    println!("agent       http://{}/metrics, its log in {}", options.listen, folder.join("agent.log").display());
    let prometheus = prometheus::start(root, &folder, &options.listen, &options.prometheus)?;
    println!("Prometheus  http://{}", options.prometheus);

    println!("a small shop is busy for {} s\n", options.seconds);
    let busy = Duration::from_secs(options.seconds);
    let shop = load::start(&folder.join("files"), busy + CLOSING)?;
    // While it is still busy: a gauge of what is open shows nothing afterwards.
    std::thread::sleep(busy);
    if options.check {
        check::run(&prometheus, PACKS)?;
    } else {
        questions::answer(&prometheus, options.seconds)?;
    }
    println!("the shop answered {} requests", shop.wait()?);
    if options.keep {
        println!("\nagent and Prometheus go on until Ctrl-C");
        loop {
            std::thread::park();
        }
    }
    drop(prometheus);
    drop(agent);
    Ok(())
}

/// What users run, with more probes, captures and a rule. Budgets are the shipped ones: a probe that exceeds its own is thinned out, and
/// says so.
fn configuration(folder: &Path) -> String {
    format!(
        "probes:\n  enable: [{}]\n  override: {{ wakeups: {{ labels: [unit] }} }}\ncaptures:\n  dir: {}\nrules:\n  - name: slow_answers\n    \
         when: p99(recv_wait_seconds{{comm=\"shop-web\"}}) > 20ms for 5s\n    \
         capture: {{ events: [sched], duration: 2s }}\n",
        PACKS.join(", "),
        folder.join("captures").display(),
    )
}

/// An agent with this configuration, once it is ready.
pub fn start_agent(binary: &Path, configuration: &str, listen: &str, folder: &Path) -> Result<Running> {
    let log = File::create(folder.join("agent.log"))?;
    let mut command = ending_with_us(binary);
    let config = folder.join("kstrobe.yaml");
    fs::write(&config, configuration)?;
    command.arg("run").arg("--config").arg(&config).args(["--web.listen-address", listen]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    // An agent that runs there already would answer in place of ours.
    TcpListener::bind(listen).with_context(|| format!("{listen} is taken: choose another address with --listen"))?;
    let mut agent = Running(command.spawn().with_context(|| format!("starting {}", binary.display()))?);
    let begin = Instant::now();
    let ready = format!("http://{listen}/healthz");
    while ureq::get(&ready).call().is_err() {
        if agent.0.try_wait()?.is_some() || begin.elapsed() > START_LIMIT {
            bail!("the agent does not run; its log: {}", fs::read_to_string(folder.join("agent.log"))?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(agent)
}
