//! Project chores: `cargo xtask test | tidy | bench`.

mod bench;
mod programs;
mod test;
mod tidy;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Chores of the kstrobe project
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check everything a change has to pass; as root also against the kernel
    Test,
    /// Check file sizes, the arrows between rooms, names and words
    Tidy,
    /// Measure cost per event and per scrape against other ways to get the same numbers (root)
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let root = root();
    let done = match Cli::parse().chore {
        Chore::Test => test::run(&root),
        Chore::Tidy => tidy::run(&root),
        Chore::Bench(options) => bench::run(&root, &options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder: the parent of this crate's.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_owned)
}
