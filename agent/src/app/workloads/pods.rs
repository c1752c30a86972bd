//! Where names of pods come from: the API server or the kubelet, asked by a task of the runtime that never ends by itself.

use std::path::PathBuf;
use std::sync::Arc;

use kstrobe_kube::config::Pem;
use kstrobe_kube::pods::{self, Kubelet, Source};
use kstrobe_kube::watch::Change;
use kstrobe_kube::{Client, Config, Counters, Surroundings, Wanted};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Asks, News};
use crate::sources::{AgentConfig, PodSource};

/// Where the kubelet of this node listens.
const KUBELET: &str = "https://127.0.0.1:10250";
/// Changes that may wait for the thread that follows workloads.
const WAITING: usize = 256;

/// Who tells of pods, not yet asked.
pub(super) struct Teller {
    source: Source,
    counters: Arc<Counters>,
    runtime: Handle,
}

/// The task that tells. Dropped, it ends.
pub(super) struct Telling(JoinHandle<()>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Teller {
    /// By the configuration. Without Kubernetes here there is nobody, which is an error only where somebody is asked for.
    pub fn find(agent: &AgentConfig, node: &str, counters: &Arc<Counters>, runtime: &Handle) -> Option<Teller> {
        let asked = &agent.kubernetes;
        let found = match asked.source {
            PodSource::None => return None,
            PodSource::Auto | PodSource::Api => api(agent).map(|client| Source::Api { client, node: node.to_owned() }),
            PodSource::Kubelet => kubelet(agent),
        };
        match found {
            Ok(source) => Some(Teller { source, counters: counters.clone(), runtime: runtime.clone() }),
            Err(reason) if asked.source == PodSource::Auto => {
                tracing::info!(reason, "pods have no names here");
                None
            }
            Err(reason) => {
                tracing::error!(reason, "pods cannot be asked for: their names are missing");
                None
            }
        }
    }

    /// Begins.
    pub fn start(self, asks: Asks) -> Telling {
        let Teller { source, counters, runtime } = self;
        tracing::info!(from = if matches!(source, Source::Api { .. }) { "API server" } else { "kubelet" }, "following pods");
        Telling(runtime.spawn(async move {
            let (tell, mut told) = mpsc::channel(WAITING);
            let forward = async {
                while let Some(change) = told.recv().await {
                    match change {
                        Change::Seen(pod) => asks.tell(News::Pod(Box::new(pod.pod))),
                        Change::Gone(uid) => asks.tell(News::PodGone(uid.into())),
                        Change::Synced => {}
                    }
                }
            };
            tokio::join!(pods::run(source, counters, tell), forward);
        }))
    }
}

/// A client of the API server, found as kubectl does.
fn api(agent: &AgentConfig) -> Result<Client, String> {
    client(config(agent)?)
}

fn config(agent: &AgentConfig) -> Result<Config, String> {
    let kubeconfig = agent.kubernetes.kubeconfig.as_ref().map(PathBuf::from);
    let wanted = Wanted { kubeconfig, ..Wanted::default() };
    Config::find(&wanted, &Surroundings::own()).map_err(|error| error.to_string())
}

fn client(config: Config) -> Result<Client, String> {
    let name = concat!("kstrobe/", env!("CARGO_PKG_VERSION"));
    Client::new(config, name).map_err(|error| error.to_string())
}

/// The kubelet, shown the token that the API server would be shown, which is asked about owners.
fn kubelet(agent: &AgentConfig) -> Result<Source, String> {
    let asked = &agent.kubernetes;
    let url = asked.kubelet_url.as_deref().unwrap_or(KUBELET);
    let server: hyper::Uri = url.parse().map_err(|_| format!("`kubernetes.kubelet_url`: `{url}` is no URL"))?;
    // A kubelet signs its own certificate unless somebody gave it another; nobody else listens on this machine's port.
    let local = matches!(server.host(), Some("127.0.0.1" | "localhost" | "[::1]"));
    let ca = asked.kubelet_ca.as_ref().map(|file| Pem::File(file.into()));
    let config = config(agent)?;
    let kubelet = client(config.clone().kubelet(server, ca.clone(), local && ca.is_none()))?;
    Ok(Source::Kubelet { kubelet: Kubelet::new(kubelet), api: Some(client(config)?) })
}

/// The name of this node: what the configuration says, what the pod's environment does, or the host's own.
pub(super) fn node(agent: &AgentConfig) -> String {
    let variable = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    agent.kubernetes.node.clone().or_else(variable).unwrap_or_else(host)
}
