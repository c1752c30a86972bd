//! `cargo xtask demo`: a busy node, the agent, a real Prometheus, and what they answer. Everything ends by itself.

mod load;
mod prometheus;
mod questions;

use crate::bench::build_agent;
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use prometheus::Prometheus;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Probes that the load gives something to do.
const PROBES: &str = "runqueue,wakeups,futex,hardirqs,block,vfs,filesystem,page_cache,page_faults,tcp_connect,tcp_sessions,drops,\
                      packet_sizes,sockets,tasks,offcpu";
/// Between two scrapes, and two evaluations of the rules.
const INTERVAL_SECONDS: u32 = 2;
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
    /// Keep agent and Prometheus running until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// A process that does not outlive us.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, or ends now.
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
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
    let agent = start_agent(&binary, options, &folder)?;
    println!("agent       http://{}/metrics, its log in {}", options.listen, folder.join("agent.log").display());
    let prometheus = Prometheus::start(root, &folder, &options.listen, &options.prometheus)?;
    println!("Prometheus  http://{}", options.prometheus);

    println!("a small shop is busy for {} s", options.seconds);
    let served = load::start(&folder.join("files"), Duration::from_secs(options.seconds))?.wait()?;
    println!("it answered {served} requests\n");
    // The last events have to be scraped.
    std::thread::sleep(Duration::from_secs(2 * u64::from(INTERVAL_SECONDS)));
    questions::answer(&prometheus, options.seconds)?;
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

fn start_agent(binary: &Path, options: &Options, folder: &Path) -> Result<Running> {
    let log = File::create(folder.join("agent.log"))?;
    let mut command = Command::new(binary);
    command.args(["run", "--enable", PROBES, "--web.listen-address", &options.listen]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut agent = Running(command.spawn().with_context(|| format!("starting {}", binary.display()))?);
    let begin = Instant::now();
    let ready = format!("http://{}/healthz", options.listen);
    while ureq::get(&ready).call().is_err() {
        if agent.0.try_wait()?.is_some() || begin.elapsed() > START_LIMIT {
            bail!("the agent does not run; its log: {}", fs::read_to_string(folder.join("agent.log"))?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(agent)
}
