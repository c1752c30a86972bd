//! Where names of pods come from: the API server or the kubelet, asked by a task of the runtime that never ends by itself.

use std::sync::Arc;
use std::time::Duration;

use kstrobe_kube::config::Pem;
use kstrobe_kube::pods::{self, Kubelet, Source};
use kstrobe_kube::watch::Change;
use kstrobe_kube::{Counters, Error};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Asks, News};
use crate::kubernetes;
use crate::sources::{AgentConfig, PodSource};

/// Where the kubelet of this node listens.
const KUBELET: &str = "https://127.0.0.1:10250";
/// Between two attempts to find out where to ask.
const AGAIN: Duration = Duration::from_secs(30);
/// Changes that may wait for the thread that follows workloads.
const WAITING: usize = 256;

/// Who tells of pods, not yet asked: files of a service account may come later than the agent.
pub(super) struct Teller {
    agent: AgentConfig,
    node: String,
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
    pub fn of(agent: &AgentConfig, node: &str, counters: &Arc<Counters>, runtime: &Handle) -> Option<Teller> {
        let nobody = match agent.kubernetes.source {
            PodSource::None => true,
            PodSource::Auto => kubernetes::config(agent).is_err(),
            PodSource::Api | PodSource::Kubelet => false,
        };
        let (agent, node) = (agent.clone(), node.to_owned());
        (!nobody).then(|| Teller { agent, node, counters: counters.clone(), runtime: runtime.clone() })
    }

    /// Begins, and goes on trying until it can.
    pub fn start(self, asks: Asks) -> Telling {
        let Teller { agent, node, counters, runtime } = self;
        Telling(runtime.spawn(async move {
            let source = loop {
                match source(&agent, &node) {
                    Ok(source) => break source,
                    Err(error) => tracing::error!(%error, "pods cannot be asked for: their names are missing"),
                }
                tokio::time::sleep(AGAIN).await;
            };
            let from = if matches!(source, Source::Api { .. }) { "API server" } else { "kubelet" };
            tracing::info!(from, node, "following pods");
            let (tell, mut told) = mpsc::channel::<Change<pods::NodePod>>(WAITING);
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

fn source(agent: &AgentConfig, node: &str) -> Result<Source, Error> {
    match agent.kubernetes.source {
        PodSource::Kubelet => kubelet(agent),
        _ => Ok(Source::Api { client: kubernetes::client(kubernetes::config(agent)?)?, node: node.to_owned() }),
    }
}

/// The kubelet, shown the token that the API server would be shown, which is asked about owners.
fn kubelet(agent: &AgentConfig) -> Result<Source, Error> {
    let asked = &agent.kubernetes;
    let url = asked.kubelet_url.as_deref().unwrap_or(KUBELET);
    let server: hyper::Uri =
        url.parse().map_err(|_| Error::Config(format!("`kubernetes.kubelet_url`: `{url}` is no URL")))?;
    // A kubelet signs its own certificate unless somebody gave it another; nobody else listens on this machine's port.
    let local = matches!(server.host(), Some("127.0.0.1" | "localhost" | "[::1]"));
    let ca = asked.kubelet_ca.as_ref().map(|file| Pem::File(file.into()));
    let config = kubernetes::config(agent)?;
    let kubelet = kubernetes::client(config.clone().kubelet(server, ca.clone(), local && ca.is_none()))?;
    Ok(Source::Kubelet { kubelet: Kubelet::new(kubelet), api: Some(kubernetes::client(config)?) })
}

/// The name of this node; where nobody says it, the host's own.
pub(super) fn node(agent: &AgentConfig) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    kubernetes::node(agent).unwrap_or_else(host)
}
