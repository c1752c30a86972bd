//! `kstrobe history`: what there is of the past, and files of it for other programs.

mod contents;
mod export;
mod openmetrics;
mod parquet;
mod range;
mod segments;

use super::client::{self, AgentArgs, Client, runtime};
use super::draw::figures::bytes;
use super::draw::quantity::grouped;
use super::{Output, fail, table};
use contents::{Contents, Gap};
use kstrobe_history::Past as _;
use kstrobe_history::disk::{Archive, DiskError};
use range::RangeArgs;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Gaps that are printed.
const MAX_GAPS: usize = 20;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// How to print it.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write a range to a file: OpenMetrics (.om), a table in Parquet (.parquet), or kstrobe's own format (.kstrobe).
    Export(export::Args),
}

/// Where the history is.
#[derive(Debug, clap::Args)]
struct SourceArgs {
    /// The folder of `history.dir`, or a file that `kstrobe history export` wrote. Without it, a running agent is asked.
    #[arg(long, value_name = "DIR|FILE")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Debug, Error)]
enum HistoryError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error(
        "the agent writes no history to disk\nhint: set `history: {{ dir: /var/lib/kstrobe/history }}` in kstrobe.yaml, or name a folder with --dir"
    )]
    NoDirectory,
    #[error("{} of the agent cannot be read here: {error}\nhint: run this on the agent's node, or name a folder with --dir", dir.display())]
    Elsewhere {
        dir: PathBuf,
        #[source]
        error: DiskError,
    },
    #[error("there is no second from {from} to {to}")]
    Empty { from: String, to: String },
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("{}: {error}", path.display())]
    Parquet {
        path: PathBuf,
        #[source]
        error: ::parquet::errors::ParquetError,
    },
}

impl HistoryError {
    fn at(path: &Path) -> impl FnOnce(std::io::Error) -> HistoryError {
        move |error| HistoryError::Io { path: path.to_owned(), error }
    }
}

/// What an agent says of its history.
#[derive(Debug, Deserialize, Serialize)]
struct Overview {
    oldest: Option<u64>,
    newest: Option<u64>,
    bytes: u64,
    max_bytes: u64,
    lost_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskOverview>,
    metrics: Vec<Metric>,
}

#[derive(Debug, Deserialize, Serialize)]
struct DiskOverview {
    dir: PathBuf,
    bytes: u64,
    max_bytes: u64,
    segments: u64,
    stopped: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Metric {
    metric: String,
    #[serde(rename = "type")]
    kind: String,
    series: u64,
}

pub fn run(args: &Args) -> ExitCode {
    let done = match &args.command {
        Some(Command::Export(args)) => export::run(args),
        None => show(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

fn show(args: &Args) -> Result<(), HistoryError> {
    // Of a range, what its seconds have is read from files.
    if args.source.dir.is_some() || args.range.is_given() {
        let archive = args.source.archive()?;
        let (from, to) = args.range.seconds(archive.newest().unwrap_or(0));
        let contents = Contents::of(&archive, (from, to))?;
        match args.output {
            Output::Json => json(&contents),
            Output::Text => show_contents(archive.path(), &contents),
        }
        return Ok(());
    }
    let overview = ask(&args.source.agent)?;
    match args.output {
        Output::Json => json(&overview),
        Output::Text => show_overview(&overview),
    }
    Ok(())
}

fn json(value: &impl Serialize) {
    // Keys are texts: nothing of it cannot be written.
    println!("{}", serde_json::to_string_pretty(value).unwrap_or_default());
}

fn ask(args: &AgentArgs) -> Result<Overview, client::Error> {
    runtime()?.block_on(async { Client::new(args)?.get("/api/v1/history").await })
}

impl SourceArgs {
    /// What can be read: the folder that is named, or that of the agent.
    fn archive(&self) -> Result<Archive, HistoryError> {
        if let Some(dir) = &self.dir {
            return Ok(Archive::open(dir)?);
        }
        let dir = ask(&self.agent)?.disk.ok_or(HistoryError::NoDirectory)?.dir;
        Archive::open(&dir).map_err(|error| HistoryError::Elsewhere { dir, error })
    }
}

/// A moment in Unix seconds.
fn moment(at: u64) -> String {
    let at = i64::try_from(at).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

fn range(oldest: Option<u64>, newest: Option<u64>) -> String {
    match (oldest, newest) {
        (Some(oldest), Some(newest)) => {
            let seconds = newest.saturating_sub(oldest);
            let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            format!("{} to {} ({hours}h {minutes:02}m {seconds:02}s)", moment(oldest), moment(newest))
        }
        _ => "no second yet".to_owned(),
    }
}

fn show_overview(overview: &Overview) {
    println!("{}", range(overview.oldest, overview.newest));
    println!("memory: {} of {}", bytes(overview.bytes), bytes(overview.max_bytes));
    match &overview.disk {
        Some(disk) => {
            let (used, max) = (bytes(disk.bytes), bytes(disk.max_bytes));
            println!("{}: {used} of {max} in {} files", disk.dir.display(), disk.segments);
            disk.stopped.iter().for_each(|reason| println!("nothing is written: {reason}"));
        }
        None => println!("on disk: nothing (`history.dir` is not set)"),
    }
    println!("lost: {} s", overview.lost_seconds);
    println!();
    let row = |metric: &Metric| vec![metric.metric.clone(), metric.kind.clone(), grouped(metric.series)];
    table(&["METRIC", "TYPE", "SERIES"], &overview.metrics.iter().map(row).collect::<Vec<_>>());
}

fn show_contents(dir: &Path, contents: &Contents) {
    println!("{}: {}", dir.display(), range(contents.oldest, contents.newest));
    println!(
        "{} seconds, {} segments, {}, {} marks",
        grouped(contents.seconds),
        contents.segments,
        bytes(contents.bytes),
        grouped(contents.marks)
    );
    match &contents.gaps[..] {
        [] => println!("gaps: none"),
        gaps => println!("gaps: {}, {} s", gaps.len(), gaps.iter().map(Gap::seconds).sum::<u64>()),
    }
    for gap in contents.gaps.iter().take(MAX_GAPS) {
        println!("  {} to {} ({} s)", moment(gap.from), moment(gap.to), gap.seconds());
    }
    if contents.gaps.len() > MAX_GAPS {
        println!("  and {} more (--output json)", contents.gaps.len() - MAX_GAPS);
    }
    for damage in &contents.damaged {
        println!("{}: {} bytes from byte {} on cannot be read", damage.path.display(), damage.unread, damage.at);
    }
    println!();
    let row = |(name, metric): (&String, &contents::Metric)| {
        vec![name.clone(), metric.kind.to_owned(), grouped(metric.series as u64), grouped(metric.changes)]
    };
    table(&["METRIC", "TYPE", "SERIES", "CHANGES"], &contents.metrics.iter().map(row).collect::<Vec<_>>());
}
