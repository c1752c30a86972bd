//! `kstrobe rescue`: writes what is left of a recording whose `kstrobe capture` was killed.

use super::capture::output::{Format, Target};
use super::capture::{say, unfinished};
use crate::capture::Error;
use crate::capture::unfinished::rescue;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the capture was to write (its -o): the pages are in FILE.unfinished, and the rest of them still in the kernel.
    #[arg(value_name = "FILE", default_value = "trace.dat")]
    file: PathBuf,
    /// How to write it; without it, as the name of the file says, else trace.dat.
    #[arg(long, value_enum)]
    format: Option<Format>,
}

pub fn run(args: &Args) -> ExitCode {
    match write(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(args: &Args) -> Result<(), Error> {
    let folder = unfinished(&args.file);
    let target = Target::open(&args.file, args.format)?;
    let recorded = rescue(&folder)?;
    target.write(&recorded.trace).map_err(|error| Error::Write { file: args.file.clone(), error })?;
    say(&recorded, &args.file);
    std::fs::remove_dir_all(&folder).map_err(|error| Error::Write { file: folder, error })
}
