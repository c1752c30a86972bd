//! Probes that `kstrobe top` runs itself, for as long as it is there.

use super::answers::History;
use super::request::Request;
use crate::app::{InProcess, InProcessError};
use crate::cli::client::{Client, Error};
use crate::config::SourceArgs;
use crate::config::diagnostics::print_diagnostics;
use crate::config::files::{self, AgentConfig, Choice};
use crate::config::plan;
use crate::http;
use std::time::Duration;

/// Seconds that are measured before a screen is printed once.
const BEFORE_PRINT: u64 = 3;
const POLL: Duration = Duration::from_millis(100);

/// Which probes this command runs itself, beside any agent.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Probes that this command runs itself, also beside an agent")]
pub struct ProbeArgs {
    /// Probes or packs besides the default ones.
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = ["url", "only"])]
    enable: Vec<String>,
    /// These probes or packs and no others.
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "url")]
    only: Vec<String>,
    #[command(flatten)]
    source: SourceArgs,
}

impl ProbeArgs {
    pub fn is_given(&self) -> bool {
        let SourceArgs { probes, btf } = &self.source;
        !self.enable.is_empty() || !self.only.is_empty() || probes.is_some() || btf.is_some()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OwnAgentError {
    /// The diagnostics were printed.
    #[error("no probe was started")]
    Choice,
    #[error(transparent)]
    Start(#[from] InProcessError),
}

pub fn start(args: &ProbeArgs) -> Result<InProcess, OwnAgentError> {
    let choice = Choice { enable: args.enable.clone(), only: args.only.clone(), disable: Vec::new() };
    let (chosen, diagnostics) = files::chosen(&AgentConfig::default(), args.source.probes.as_deref(), &choice);
    print_diagnostics(&diagnostics);
    let plans: Vec<_> = chosen.ok_or(OwnAgentError::Choice)?.into_iter().map(plan::plan).collect();
    Ok(InProcess::start(&plans, args.source.btf.as_deref(), http::router)?)
}

/// Waits until a few seconds are measured, or a signal comes.
pub async fn measured(client: &Client, own: &InProcess) -> Result<(), Error> {
    let mut first = None;
    while !own.is_stopped() {
        let History { newest, .. } = client.get(&Request::History.path()).await?;
        first = first.or(newest);
        if newest.zip(first).is_some_and(|(newest, first)| newest >= first + BEFORE_PRINT - 1) {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
