//! `kstrobe fleet top`: the screen of `kstrobe top` over many nodes.

use super::Reach;
use super::error::Error;
use super::nodes::{Nodes, NodesError};
use crate::cli::client::{self, runtime};
use crate::cli::fail;
use crate::cli::top::source::Failure;
use crate::cli::top::{TopError, View, show};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    view: View,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, thiserror::Error)]
enum FleetTopError {
    #[error(transparent)]
    Runtime(#[from] client::Error),
    #[error(transparent)]
    Reach(#[from] Error),
    #[error(transparent)]
    Screen(#[from] TopError<NodesError>),
}

/// 1 when a node has no part in what is printed.
pub fn run(args: &Args) -> ExitCode {
    match shown(args) {
        Ok(failed) => {
            failed.iter().for_each(|Failure { node, error }| eprintln!("{node}: {error}"));
            ExitCode::from(u8::from(!failed.is_empty()))
        }
        Err(error) => fail(error),
    }
}

fn shown(args: &Args) -> Result<Vec<Failure>, FleetTopError> {
    let runtime = runtime()?;
    let nodes = runtime.block_on(Nodes::find(&args.reach))?;
    Ok(show(&args.view, nodes, &runtime, false)?)
}
