//! Where names of pods come from: the API server or the kubelet, asked by a task of the runtime that never ends by itself.

use std::sync::Arc;
use std::time::Duration;

use kstrobe_kube::Counters;
use kstrobe_kube::pods::{self, Source};
use kstrobe_kube::watch::Change;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Asks, News};
use crate::config::files::{AgentConfig, PodSource};
use crate::kubernetes;

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
            PodSource::Auto => kubernetes::config(&agent.kubernetes).is_err(),
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
                match kubernetes::pods(&agent.kubernetes, &node) {
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
