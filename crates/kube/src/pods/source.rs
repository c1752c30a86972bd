//! Streams pods as they change, and again when a lookup corrects their owner.

use super::kubelet::{self, Kubelet};
use super::object::{NodePod, pod};
use super::owners::{self, Lookup, Owned, Owners};
use crate::client::Client;
use crate::counters::Counters;
use crate::error::Error;
use crate::path::PODS;
use crate::watch::{self, Change, Watched};
use kstrobe_workloads::Owner;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Maximum pods of a node; more than any node runs.
const MAX_PODS: usize = 4096;
/// Capacity of the owner cache.
const MAX_OWNERS: usize = 4096;
/// Concurrent owner lookups.
const MAX_LOOKUPS: usize = 4;

/// Source of the pods of a node.
#[derive(Clone)]
pub enum Source {
    /// Watches the API server.
    Api {
        /// Client of the API server.
        client: Client,
        /// Node name; empty for the whole cluster.
        node: String,
    },
    /// Polls the kubelet.
    Kubelet {
        kubelet: Kubelet,
        /// Client of the API server for owner lookups.
        api: Option<Client>,
    },
}

impl Source {
    /// Client of the API server, if configured.
    fn api(&self) -> Option<Client> {
        match self {
            Source::Api { client, .. } => Some(client.clone()),
            Source::Kubelet { api, .. } => api.clone(),
        }
    }

    /// Lists the current pods, with owners derived from names alone.
    pub async fn list(&self) -> Result<Vec<NodePod>, Error> {
        match self {
            Source::Api { client, node } => {
                let pods = client.pods(None, "", &of_node(node)).await?;
                Ok(pods.iter().filter_map(pod).collect())
            }
            Source::Kubelet { kubelet, .. } => kubelet::list(&kubelet.client).await,
        }
    }

    async fn find(self, counters: Arc<Counters>, found: mpsc::Sender<Change<NodePod>>) {
        match self {
            Source::Api { client, node } => {
                let watched =
                    Watched { field_selector: of_node(&node), limit: MAX_PODS, ..Watched::new("pods", PODS.all(None)) };
                watch::follow(client, watched, pod, counters, found).await;
            }
            Source::Kubelet { kubelet, .. } => kubelet::poll(kubelet, MAX_PODS, counters, found).await,
        }
    }
}

fn of_node(node: &str) -> String {
    if node.is_empty() { String::new() } else { format!("spec.nodeName={node}") }
}

/// Streams pod changes until the receiver is closed: first with the owner derived from the name, and again if the API server
/// reports another owner. Failures are counted and retried.
pub async fn run(source: Source, counters: Arc<Counters>, out: mpsc::Sender<Change<NodePod>>) {
    let (sender, found) = mpsc::channel(64);
    let resolver = Resolver {
        api: source.api(),
        counters: counters.clone(),
        out,
        owners: Owners::new(MAX_OWNERS),
        pods: BTreeMap::new(),
        lookups: JoinSet::new(),
        waiting: VecDeque::new(),
        began: Instant::now(),
    };
    tokio::select! {
        () = source.find(counters, sender) => {}
        () = resolver.run(found) => {}
    }
}

struct Resolver {
    /// Client for owner lookups.
    api: Option<Client>,
    counters: Arc<Counters>,
    out: mpsc::Sender<Change<NodePod>>,
    owners: Owners,
    /// Pods as last sent, by uid.
    pods: BTreeMap<String, NodePod>,
    lookups: JoinSet<(Owned, Lookup)>,
    waiting: VecDeque<Owned>,
    began: Instant,
}

/// The receiver was closed.
struct Closed;

impl Resolver {
    async fn run(mut self, mut found: mpsc::Receiver<Change<NodePod>>) {
        loop {
            let done = tokio::select! {
                change = found.recv() => match change {
                    Some(change) => self.change(change).await,
                    None => Err(Closed),
                },
                Some(answer) = self.lookups.join_next() => match answer {
                    Ok((owned, lookup)) => self.resolved(owned, lookup).await,
                    // A panicked lookup has no result; the controller stays pending.
                    Err(error) => {
                        tracing::error!(%error, "an owner was not looked up");
                        Ok(())
                    }
                },
                () = self.out.closed() => Err(Closed),
            };
            if done.is_err() {
                return;
            }
            self.ask_more();
        }
    }

    async fn change(&mut self, change: Change<NodePod>) -> Result<(), Closed> {
        let change = match change {
            Change::Seen(mut pod) => {
                self.own(&mut pod);
                self.pods.insert(pod.pod.uid.to_string(), pod.clone());
                Change::Seen(pod)
            }
            Change::Gone(uid) => {
                self.pods.remove(&uid);
                Change::Gone(uid)
            }
            Change::Synced => Change::Synced,
        };
        self.out.send(change).await.map_err(|_| Closed)
    }

    /// Sets the cached owner, or queues a lookup.
    fn own(&mut self, pod: &mut NodePod) {
        let Some((owned, by_name)) = owned(pod) else { return };
        if let Some(owner) = self.owners.get(&owned) {
            pod.pod.owner = Some(owner.clone());
        } else if self.api.is_some() && self.owners.ask(&owned, &by_name, self.began.elapsed()) {
            self.waiting.push_back(owned);
        }
    }

    fn ask_more(&mut self) {
        while self.lookups.len() < MAX_LOOKUPS
            && let Some(owned) = self.waiting.pop_front()
            && let Some(client) = self.api.clone()
        {
            let counters = self.counters.clone();
            self.lookups.spawn(async move {
                let lookup = owners::ask(&client, &owned, &counters).await;
                (owned, lookup)
            });
        }
    }

    async fn resolved(&mut self, pending: Owned, lookup: Lookup) -> Result<(), Closed> {
        let is_of = |pod: &&mut NodePod| owned(pod).is_some_and(|(owned, _)| owned == pending);
        let of: Vec<&mut NodePod> = self.pods.values_mut().filter(is_of).collect();
        // Without a pod there are no labels to derive a name from, and no change to send.
        let by_name = of.first().and_then(|pod| owned(pod)).map(|(_, by_name)| by_name);
        let lookup = if by_name.is_none() && lookup == Lookup::Gone { Lookup::Failed } else { lookup };
        self.owners.record(pending.clone(), lookup, by_name.as_ref().unwrap_or(&pending.1), self.began.elapsed());
        let Some(owner) = self.owners.get(&pending) else { return Ok(()) };
        let mut changed = Vec::new();
        for pod in of.into_iter().filter(|pod| pod.pod.owner.as_ref() != Some(owner)) {
            pod.pod.owner = Some(owner.clone());
            changed.push(pod.clone());
        }
        self.counters.events("owners_forgotten", self.owners.take_dropped());
        for pod in changed {
            self.out.send(Change::Seen(pod)).await.map_err(|_| Closed)?;
        }
        Ok(())
    }
}

/// Controller of a pod, and its owner derived from the name.
fn owned(pod: &NodePod) -> Option<(Owned, Owner)> {
    let controller = pod.controller.clone()?;
    let by_name = controller.by_name(|label| pod.labels.get(label).map(String::as_str));
    Some(((pod.pod.namespace.to_string(), controller), by_name))
}
