//! `kstrobe history export`: which file, which range.

use super::openmetrics::OpenMetrics;
use super::parquet::Table;
use super::segments::Segments;
use super::{HistoryError, SourceArgs, moment};
use kstrobe_history::Past as _;
use kstrobe_history::disk::{Replayed, SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};
use thiserror::Error;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file to write: NAME.om (OpenMetrics, for `promtool tsdb create-blocks-from openmetrics`), NAME.parquet (a row for each
    /// change, for DuckDB or pandas) or NAME.kstrobe (for `kstrobe view`).
    #[arg(short, value_name = "FILE", value_parser = target)]
    output: Target,
    /// First second: Unix seconds, or -S for S seconds before the newest second [default: the oldest].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    from: Option<Time>,
    /// End of the last second, in the same way [default: the newest].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    to: Option<Time>,
    /// Seconds between two samples of OpenMetrics.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    step: u64,
    #[command(flatten)]
    source: SourceArgs,
}

/// A file by what is to be in it.
#[derive(Clone, Debug)]
struct Target {
    path: PathBuf,
    format: Format,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    OpenMetrics,
    Parquet,
    Segments,
}

#[derive(Clone, Copy, Debug)]
enum Time {
    At(u64),
    Ago(u64),
}

#[derive(Clone, Copy, Debug, Error)]
enum ArgumentError {
    #[error("the name ends in .om, .parquet or .kstrobe, by the format that is wanted")]
    Format,
    #[error("write Unix seconds, or -S for S seconds before the newest second")]
    Time,
}

fn target(text: &str) -> Result<Target, ArgumentError> {
    let path = PathBuf::from(text);
    let format = match path.extension().and_then(|extension| extension.to_str()) {
        Some("om") => Format::OpenMetrics,
        Some("parquet") => Format::Parquet,
        Some(SUFFIX) => Format::Segments,
        _ => return Err(ArgumentError::Format),
    };
    Ok(Target { path, format })
}

fn time(text: &str) -> Result<Time, ArgumentError> {
    let (digits, make): (_, fn(u64) -> Time) = match text.strip_prefix('-') {
        Some(ago) => (ago, Time::Ago),
        None => (text, Time::At),
    };
    digits.parse().map(make).map_err(|_| ArgumentError::Time)
}

/// Takes seconds in the order of time.
pub(super) trait Writer {
    fn second(&mut self, replayed: &Replayed) -> Result<(), HistoryError>;
    /// Returns what is left out, one line each.
    fn end(self: Box<Self>) -> Result<Vec<String>, HistoryError>;
}

pub(super) fn run(args: &Args) -> Result<(), HistoryError> {
    let archive = args.source.archive()?;
    let newest = archive.newest().unwrap_or(0);
    let at = |time: Option<Time>, default| match time {
        Some(Time::At(time)) => time,
        Some(Time::Ago(seconds)) => newest.saturating_sub(seconds),
        None => default,
    };
    let (from, to) = (at(args.from, 0), at(args.to, newest));
    let path = &args.output.path;
    // Under its name there is never half of a file.
    let aside = aside(path);
    let mut writer: Box<dyn Writer> = match args.output.format {
        Format::OpenMetrics => Box::new(OpenMetrics::create(&aside, args.step)?),
        Format::Parquet => Box::new(Table::create(&aside)?),
        Format::Segments => Box::new(Segments::create(&aside)?),
    };
    let mut seconds = 0;
    let written = archive.replay(from, to, |replayed| {
        seconds += replayed.second.seconds;
        writer.second(&replayed)
    });
    let done = written.and_then(|damaged| {
        if seconds == 0 {
            return Err(HistoryError::Empty { from: moment(from), to: moment(to) });
        }
        let left_out = writer.end()?;
        fs::rename(&aside, path).map_err(HistoryError::at(path))?;
        Ok((damaged, left_out))
    });
    let (damaged, left_out) = done.inspect_err(|_| _ = fs::remove_file(&aside))?;
    for part in damaged {
        eprintln!("warning: {}: {} bytes from byte {} on cannot be read", part.path.display(), part.unread, part.at);
    }
    left_out.iter().for_each(|line| eprintln!("warning: {line}"));
    let bytes = fs::metadata(path).map_err(HistoryError::at(path))?.len();
    println!("{}: {seconds} seconds, {}", path.display(), super::bytes(bytes));
    Ok(())
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}
