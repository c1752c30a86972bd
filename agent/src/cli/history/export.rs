//! `kstrobe history export`: which file, which range.

use super::openmetrics::OpenMetrics;
use super::parquet::Table;
use super::range::RangeArgs;
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
    #[command(flatten)]
    range: RangeArgs,
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

#[derive(Clone, Copy, Debug, Error)]
#[error("the name ends in .om, .parquet or .kstrobe, by the format that is wanted")]
struct FormatError;

fn target(text: &str) -> Result<Target, FormatError> {
    let path = PathBuf::from(text);
    let format = match path.extension().and_then(|extension| extension.to_str()) {
        Some("om") => Format::OpenMetrics,
        Some("parquet") => Format::Parquet,
        Some(SUFFIX) => Format::Segments,
        _ => return Err(FormatError),
    };
    Ok(Target { path, format })
}

/// Takes seconds in the order of time.
pub(super) trait Writer {
    fn second(&mut self, replayed: &Replayed) -> Result<(), HistoryError>;
    /// Returns what is left out, one line each.
    fn end(self: Box<Self>) -> Result<Vec<String>, HistoryError>;
}

pub(super) fn run(args: &Args) -> Result<(), HistoryError> {
    let archive = args.source.archive()?;
    let (from, to) = args.range.seconds(archive.newest().unwrap_or(0));
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
