//! `cargo xtask flood`: whether the shipped configuration counts system calls right, stays on its hooks and keeps its budget, at
//! rates from ordinary to absurd, with the rights of root, of the systemd unit and of the chart's pod.

mod calls;

pub use calls::load;

use crate::bench::agent::{Agent, value};
use crate::bench::hand_written::Pair;
use crate::bench::{self, machine, table};
use crate::container::DefaultPods;
use crate::mounts;
use anyhow::{Result, bail};
use calls::{Cost, Line, Load, PIECE, Piece, Took};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Options of the flood.
#[derive(clap::Args)]
pub struct Options {
    /// The agent; without it the release build is made and used
    #[arg(long)]
    agent: Option<PathBuf>,
    /// For how long each rate is kept
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=600))]
    seconds: u64,
    /// System calls a second
    #[arg(long, value_delimiter = ',', default_values_t = [40_000, 150_000, 400_000, 1_000_000])]
    rates: Vec<u32>,
    /// Whose rights the agent has
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Rights::Root, Rights::Unit, Rights::Pod])]
    rights: Vec<Rights>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Rights {
    /// All.
    Root,
    /// Of `packaging/kstrobe.service`.
    Unit,
    /// Of the chart's pod, in a container.
    Pod,
}

/// Share of the machine's CPUs that the agent's programs may take, by default.
const BUDGET: f64 = 0.02;
/// By how much a window's cost may be above.
const TOLERANCE: f64 = 1.2;
/// Any time of this length is judged.
const WINDOW: Duration = Duration::from_secs(10);
/// For how long the load runs without the agent, to compare with: before and after it, in turn with nothing attached and with an empty
/// pair of programs.
const BASELINE: Duration = Duration::from_secs(10);
/// From the start of an agent to the load: its budgets do not look before.
const STARTS: Duration = Duration::from_secs(3);

const COUNT: &str = "kstrobe_syscall_duration_seconds_count";

/// Runs all and prints the table; fails if something is out of its bounds.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let agent = match &options.agent {
        Some(path) => std::path::absolute(path)?,
        None => bench::build_agent(root)?,
    };
    println!("## Flood\n\n{}\n", machine::describe());
    mounts::private()?;
    let mut flood =
        Flood { root, agent, options, pair: bench::floor(root)?, pods: None, rows: Vec::new(), wrong: Vec::new() };
    for rights in &options.rights {
        for rate in &options.rates {
            // The rows of the others are minutes of measurements.
            if let Err(error) = flood.row(*rights, *rate) {
                flood.wrong.push(format!("{rights:?}, {rate}: {error:#}"));
            }
        }
    }
    let head = [
        "rights",
        "calls a second",
        "made",
        "counted",
        "off by, %",
        "may be, %",
        "sampled to 1 of",
        "longest off, s",
        "empty pair, ns",
        "added, ns",
        "worst 10 s / bound",
        "from, s",
    ];
    println!("{}", table::markdown(&head, flood.rows.into_iter()));
    if flood.wrong.is_empty() { Ok(()) } else { bail!("out of bounds:\n{}", flood.wrong.join("\n")) }
}

struct Flood<'a> {
    root: &'a Path,
    agent: PathBuf,
    options: &'a Options,
    /// The empty programs.
    pair: Pair,
    /// Made with the first row of them.
    pods: Option<DefaultPods>,
    rows: Vec<Vec<String>>,
    wrong: Vec<String>,
}

/// Calls at some rate without the agent, time by time.
#[derive(Default)]
struct Baseline {
    /// With nothing attached.
    bare: Vec<Took>,
    /// With an empty pair of programs.
    with_pair: Vec<Took>,
}

/// What was seen of the agent meanwhile.
struct Seen {
    /// The smallest sampling ratio of the probe that counts.
    ratio: f64,
    /// The longest time for which some probe was off its hooks, in seconds.
    off: f64,
}

impl Flood<'_> {
    fn row(&mut self, rights: Rights, rate: u32) -> Result<()> {
        eprintln!("{rights:?}: {rate} calls a second");
        let mut baseline = Baseline::default();
        self.compare(rate, &mut baseline)?;
        let measured = self.measure(rights, rate)?;
        self.compare(rate, &mut baseline)?;
        self.judge(&format!("{rights:?}").to_lowercase(), rate, &measured, &baseline);
        Ok(())
    }

    /// Measures calls without the agent.
    fn compare(&mut self, rate: u32, baseline: &mut Baseline) -> Result<()> {
        let second = Duration::from_secs(1);
        let pieces = || load(rate, second, &AtomicBool::new(false)).pieces;
        let took = || pieces().iter().filter_map(Piece::took).collect::<Vec<_>>();
        for _ in 0..BASELINE.as_secs() / 2 {
            baseline.bare.extend(took());
            let links = self.pair.attach()?;
            baseline.with_pair.extend(took());
            self.pair.detach(links)?;
        }
        Ok(())
    }

    /// Measures calls beside an agent that has just started.
    fn measure(&mut self, rights: Rights, rate: u32) -> Result<Measured> {
        match rights {
            Rights::Pod => {
                let pods = match self.pods.take() {
                    Some(pods) => pods,
                    None => DefaultPods::of(self.root, &self.agent)?,
                };
                let measured = pods.with_one(|pod| self.beside(rate, &|| pod.get("/metrics").map(|(_, text)| text)));
                self.pods = Some(pods);
                measured
            }
            Rights::Root | Rights::Unit => {
                let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
                let mut command = if rights == Rights::Unit {
                    let words = kstrobe_testing::unit::rights(&self.root.join("packaging/kstrobe.service"));
                    let mut command = Command::new(&words[0]);
                    command.args(&words[1..]).arg(&self.agent);
                    command
                } else {
                    Command::new(&self.agent)
                };
                command.args(["run", "--web.listen-address", &address.to_string()]);
                let agent = Agent::from_command(command, address)?;
                let measured = self.beside(rate, &|| agent.scrape())?;
                agent.stop()?;
                Ok(measured)
            }
        }
    }

    fn beside(&self, rate: u32, scrape: &dyn Fn() -> Result<String>) -> Result<Measured> {
        std::thread::sleep(STARTS);
        let before = counted(&scrape()?);
        let (load, seen) = beside(rate, Duration::from_secs(self.options.seconds), scrape)?;
        Ok(Measured { counted: counted(&scrape()?) - before, load, seen })
    }

    fn judge(&mut self, rights: &str, rate: u32, measured: &Measured, baseline: &Baseline) {
        let Measured { load, seen, counted } = measured;
        let (bare, with_pair) = (Line::through(&baseline.bare), Line::through(&baseline.with_pair));
        let made = load.calls as f64;
        let off_by = (counted - made) / made;
        // Each event that is taken stands for 1 / ratio: five standard deviations of their sum.
        let bound = f64::max(0.02, 5.0 * ((1.0 / seen.ratio - 1.0) / made).sqrt());
        // Of the machine's CPUs, in a window.
        let budget_ns = BUDGET * machine::cpus() as f64 * WINDOW.as_secs_f64() * 1e9;
        let costs: Vec<Cost> = load.pieces.iter().map(|piece| piece.cost(&bare, &with_pair)).collect();
        let windows = costs.windows(WINDOW.div_duration_f64(PIECE) as usize).map(|window| window.iter().sum::<Cost>());
        let over = |cost: &Cost| cost.added_ns / (TOLERANCE * f64::max(budget_ns, cost.pair_ns));
        let windows = windows.map(|cost| (over(&cost), cost.added_ns / cost.calls, cost.pair_ns / cost.calls));
        let from = (0u32..).map(|piece| (PIECE * piece).as_secs_f64());
        let worst = windows.zip(from).max_by(|(a, _), (b, _)| a.0.total_cmp(&b.0));
        let ((worst, added, floor), from) = worst.unwrap_or_default();
        if off_by.abs() > bound {
            self.wrong.push(format!("{rights}, {rate}: {counted} of {made} calls counted"));
        }
        if seen.off > 1.5 {
            self.wrong.push(format!("{rights}, {rate}: a probe was off for {:.1} s", seen.off));
        }
        if worst > 1.0 {
            self.wrong.push(format!(
                "{rights}, {rate}: {added:.0} ns a call in the ten seconds from {from:.1} s on, where an empty pair takes {floor:.0}"
            ));
        }
        self.rows.push(vec![
            rights.to_owned(),
            rate.to_string(),
            load.calls.to_string(),
            format!("{counted:.0}"),
            format!("{:.2}", off_by * 100.0),
            format!("{:.2}", bound * 100.0),
            format!("{:.0}", 1.0 / seen.ratio),
            format!("{:.1}", seen.off),
            format!("{floor:.0}"),
            format!("{added:.0}"),
            format!("{worst:.2}"),
            format!("{from:.1}"),
        ]);
    }
}

/// What one agent gave.
struct Measured {
    load: Load,
    seen: Seen,
    /// Calls, by the probe.
    counted: f64,
}

/// Runs the load for so long, and looks at the agent four times a second.
fn beside(rate: u32, time: Duration, scrape: &dyn Fn() -> Result<String>) -> Result<(Load, Seen)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = std::thread::Builder::new().name("kst-flood".to_owned());
        let flood = flood.spawn_scoped(scope, || load(rate, time, &stop))?;
        let seen = watch(time, scrape);
        // Where the agent has ended, so does the load.
        stop.store(seen.is_err(), Ordering::Relaxed);
        let load = flood.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))?;
        Ok((load, seen?))
    })
}

fn watch(time: Duration, scrape: &dyn Fn() -> Result<String>) -> Result<Seen> {
    let mut seen = Seen { ratio: 1.0, off: 0.0 };
    let begin = Instant::now();
    let mut on = begin;
    while begin.elapsed() < time {
        std::thread::sleep(Duration::from_millis(250));
        let metrics = scrape()?;
        seen.ratio =
            seen.ratio.min(value(&metrics, "kstrobe_probe_sampling_ratio", "probe=\"syscalls\"").unwrap_or(1.0));
        let now = Instant::now();
        if metrics.lines().any(|line| line.starts_with("kstrobe_probe_attached{") && line.ends_with(" 0")) {
            seen.off = seen.off.max((now - on).as_secs_f64());
        } else {
            on = now;
        }
    }
    Ok(seen)
}

fn counted(metrics: &str) -> f64 {
    value(metrics, COUNT, "syscall=\"getppid\"").unwrap_or(0.0)
}
