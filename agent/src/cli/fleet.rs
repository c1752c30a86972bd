//! `kstrobe fleet`, and `kubectl kstrobe`: the agents of many nodes, through the API server.

mod ask;
mod capture;
mod door;
mod error;
mod get;
mod nodes;
mod progress;
mod standing;
mod tables;
mod top;

use super::fail;
use crate::capture::access::token;
use clap::{Parser, Subcommand};
use door::Door;
use error::Error;
use kstrobe_fleet::target::{AGENTS, Missing, Pod, Target, Wanted, choose};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// What the binary is called as a plugin of kubectl.
const PLUGIN: &str = "kubectl-kstrobe";

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record the same time on several nodes, and write one file of all.
    Capture(Box<capture::Args>),
    /// Fetch the files of a Capture object from all nodes that have some.
    Get(get::Args),
    /// Show what the agents measure, of all nodes together and of each: rates, quantiles, heat maps, slow events.
    Top(Box<top::Args>),
    /// Show on how many nodes each probe is attached, and why not on the others.
    Probes(tables::ProbesArgs),
    /// Show the last slow events of all nodes.
    Events(tables::EventsArgs),
}

/// Kernel traces and latencies of the nodes of a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(name = PLUGIN, bin_name = "kubectl kstrobe", version, propagate_version = true, subcommand_required = true)]
struct Plugin {
    #[command(flatten)]
    args: Args,
}

/// The command line, when kubectl runs us.
pub fn as_plugin() -> Option<Args> {
    let called = std::env::args_os().next().map(PathBuf::from)?;
    (called.file_stem()? == PLUGIN).then(|| Plugin::parse().args)
}

/// Which agents, and how they are reached.
#[derive(Clone, Debug, clap::Args)]
struct Reach {
    /// Kubeconfig file [default: KUBECONFIG, the pod's service account, ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Namespace of the pods that -l selects [default: all].
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// The nodes on which pods with these labels run, e.g. app=mysql.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// These nodes.
    #[arg(long = "node", value_name = "NAME", value_delimiter = ',', conflicts_with = "selector")]
    nodes: Vec<String>,
    /// All nodes that have an agent.
    #[arg(long, conflicts_with_all = ["selector", "nodes"])]
    all_nodes: bool,
    /// Namespace of the agents [default: all].
    #[arg(long, value_name = "NAME")]
    agent_namespace: Option<String>,
    /// Labels of the agents' pods.
    #[arg(long, value_name = "SELECTOR", default_value = AGENTS)]
    agent_selector: String,
    /// Port of the agents, a number.
    #[arg(long, value_name = "PORT", default_value = "9779")]
    port: String,
    /// The agents speak TLS (web-config.yml).
    #[arg(long)]
    agent_tls: bool,
    /// File with the token of the agents' API of captures (captures.token_file).
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

pub fn run(args: Args) -> ExitCode {
    match args.command {
        Command::Capture(args) => to_end(capture::run(*args)),
        Command::Get(args) => to_end(get::run(args)),
        Command::Top(args) => top::run(&args),
        Command::Probes(args) => to_end(tables::probes(args)),
        Command::Events(args) => to_end(tables::events(args)),
    }
}

fn to_end(work: impl Future<Output = Result<ExitCode, Error>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done.unwrap_or_else(|error| fail(&error))
}

impl Reach {
    fn door(&self) -> Result<Door, Error> {
        let read = |file: &PathBuf| token(file).map_err(|error| Error::Token { file: file.clone(), error });
        let token = self.token_file.as_ref().map(read);
        let kubeconfig = kstrobe_kube::Wanted {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            namespace: None,
        };
        Door::open(&kubeconfig, &self.port, self.agent_tls, token.transpose()?.as_deref())
    }

    /// The pods of all agents; there is one at least.
    async fn agents(&self, door: &Door) -> Result<Vec<Pod>, Error> {
        let agents = door.pods(self.agent_namespace.as_deref(), "--agent-namespace", &self.agent_selector).await?;
        if agents.is_empty() {
            let (selector, namespace) = (self.agent_selector.clone(), self.agent_namespace.clone());
            return Err(Error::NoAgents { selector, namespace });
        }
        Ok(agents)
    }

    /// The agents that take part, and the nodes that have none. Without a choice, all of them when `all` says so.
    async fn targets(&self, door: &Door, all: bool) -> Result<(Vec<Target>, Vec<Missing>), Error> {
        let agents = self.agents(door).await?;
        let wanted = match &self.selector {
            Some(selector) => {
                let pods = door.pods(self.namespace.as_deref(), "--namespace", selector).await?;
                running(pods, selector)?
            }
            None if !self.nodes.is_empty() => Wanted::Nodes(self.nodes.iter().cloned().collect::<BTreeSet<_>>()),
            None if self.all_nodes || all => Wanted::All,
            None => return Err(Error::NoNodes),
        };
        let (targets, missing) = choose(&agents, &wanted);
        if targets.is_empty() {
            return Err(Error::NoTargets(missing));
        }
        Ok((targets, missing))
    }
}

fn running(pods: Vec<Pod>, selector: &str) -> Result<Wanted, Error> {
    if pods.iter().any(|pod| pod.runs) {
        return Ok(Wanted::Of(pods));
    }
    Err(match pods.len() {
        0 => Error::NoPods(selector.to_owned()),
        pods => Error::NotRunning { pods, selector: selector.to_owned() },
    })
}
