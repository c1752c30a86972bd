//! Watches pods at the API server or the kubelet, in a task that runs until it is dropped.

use std::sync::Arc;
use std::time::Duration;

use kstrobe_kube::Counters;
use kstrobe_kube::pods::{self, Source};
use kstrobe_kube::watch::Change;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Event, EventSender};
use crate::config::files::{AgentConfig, PodSource};
use crate::kubernetes;

/// Retry interval of the connection's configuration.
const AGAIN: Duration = Duration::from_secs(30);
/// Changes that may wait for the thread that follows workloads.
const WAITING: usize = 256;

/// A watch of pods that is not started yet: files of a service account may come later than the agent.
pub(super) struct PodWatch {
    agent: AgentConfig,
    node: String,
    counters: Arc<Counters>,
    runtime: Handle,
}

/// The running task. Dropping it ends the task.
pub(super) struct PodWatchTask(JoinHandle<()>);

impl Drop for PodWatchTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PodWatch {
    /// `None` without Kubernetes, unless `kubernetes.source` requires it.
    pub fn of(agent: &AgentConfig, node: &str, counters: &Arc<Counters>, runtime: &Handle) -> Option<PodWatch> {
        let absent = match agent.kubernetes.source {
            PodSource::None => true,
            PodSource::Auto => kubernetes::config(&agent.kubernetes).is_err(),
            PodSource::Api | PodSource::Kubelet => false,
        };
        let (agent, node) = (agent.clone(), node.to_owned());
        (!absent).then(|| PodWatch { agent, node, counters: counters.clone(), runtime: runtime.clone() })
    }

    /// Starts the task, which retries until it has a connection.
    pub fn start(self, sender: EventSender) -> PodWatchTask {
        let PodWatch { agent, node, counters, runtime } = self;
        PodWatchTask(runtime.spawn(async move {
            let source = loop {
                match kubernetes::pods(&agent.kubernetes, &node) {
                    Ok(source) => break source,
                    Err(error) => tracing::error!(%error, "pods cannot be watched: their names are missing"),
                }
                tokio::time::sleep(AGAIN).await;
            };
            let from = if matches!(source, Source::Api { .. }) { "API server" } else { "kubelet" };
            tracing::info!(from, node, "following pods");
            let (changes, mut received) = mpsc::channel::<Change<pods::NodePod>>(WAITING);
            let forward = async {
                while let Some(change) = received.recv().await {
                    match change {
                        Change::Seen(pod) => sender.send(Event::Pod(Box::new(pod.pod))),
                        Change::Gone(uid) => sender.send(Event::PodGone(uid.into())),
                        Change::Synced => sender.send(Event::PodsListed),
                    }
                }
            };
            tokio::join!(pods::run(source, counters, changes), forward);
        }))
    }
}
