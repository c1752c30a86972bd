//! The loop that tells pods as they come, and once more when it turns out what they were made for.

use super::kubelet::{self, Kubelet};
use super::object::{NodePod, pod};
use super::owners::{self, Owned, Owners, Told};
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

/// More pods than any node runs.
const MOST_PODS: usize = 4096;
/// Owners that are remembered.
const MOST_OWNERS: usize = 4096;
/// Questions about owners at once; the others wait.
const MOST_QUESTIONS: usize = 4;

/// Who is asked for the pods.
#[derive(Clone)]
pub enum Source {
    /// The API server, for those of one node.
    Api {
        /// Its client.
        client: Client,
        /// The node; empty for all of the cluster.
        node: String,
    },
    /// The kubelet.
    Kubelet {
        /// The kubelet.
        kubelet: Kubelet,
        /// Who is asked about owners, if anybody.
        api: Option<Client>,
    },
}

impl Source {
    /// The client of the API server, if there is one.
    fn api(&self) -> Option<Client> {
        match self {
            Source::Api { client, .. } => Some(client.clone()),
            Source::Kubelet { api, .. } => api.clone(),
        }
    }

    /// The pods as they are now; owners by the name rules alone.
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
                let watched = Watched {
                    field_selector: of_node(&node),
                    limit: MOST_PODS,
                    ..Watched::new("pods", PODS.all(None))
                };
                watch::follow(client, watched, pod, counters, found).await;
            }
            Source::Kubelet { kubelet, .. } => kubelet::poll(kubelet, MOST_PODS, counters, found).await,
        }
    }
}

fn of_node(node: &str) -> String {
    if node.is_empty() { String::new() } else { format!("spec.nodeName={node}") }
}

/// Tells the pods for as long as somebody takes them: each as soon as it is known, with its owner by the name rules, and again
/// when the API server says otherwise. All failures are counted, and none ends it.
pub async fn run(source: Source, counters: Arc<Counters>, out: mpsc::Sender<Change<NodePod>>) {
    let (sender, found) = mpsc::channel(64);
    let telling = Telling {
        api: source.api(),
        counters: counters.clone(),
        out,
        owners: Owners::new(MOST_OWNERS),
        pods: BTreeMap::new(),
        questions: JoinSet::new(),
        waiting: VecDeque::new(),
        began: Instant::now(),
    };
    tokio::select! {
        () = source.find(counters, sender) => {}
        () = telling.run(found) => {}
    }
}

struct Telling {
    /// Who is asked about owners.
    api: Option<Client>,
    counters: Arc<Counters>,
    out: mpsc::Sender<Change<NodePod>>,
    owners: Owners,
    /// Pods as they were told last, by uid.
    pods: BTreeMap<String, NodePod>,
    questions: JoinSet<(Owned, Told)>,
    waiting: VecDeque<Owned>,
    began: Instant,
}

/// Nobody takes the changes any more.
struct Unwanted;

impl Telling {
    async fn run(mut self, mut found: mpsc::Receiver<Change<NodePod>>) {
        loop {
            let done = tokio::select! {
                change = found.recv() => match change {
                    Some(change) => self.change(change).await,
                    None => Err(Unwanted),
                },
                Some(answer) = self.questions.join_next() => match answer {
                    Ok((owned, told)) => self.told(owned, told).await,
                    // A question that panicked is one that was not asked.
                    Err(error) => {
                        tracing::error!(%error, "an owner was not looked up");
                        Ok(())
                    }
                },
                () = self.out.closed() => Err(Unwanted),
            };
            if done.is_err() {
                return;
            }
            self.ask_more();
        }
    }

    async fn change(&mut self, change: Change<NodePod>) -> Result<(), Unwanted> {
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
        self.out.send(change).await.map_err(|_| Unwanted)
    }

    /// Puts in what is known of its owner, or has it asked.
    fn own(&mut self, pod: &mut NodePod) {
        let Some((owned, by_name)) = owned(pod) else { return };
        if let Some(owner) = self.owners.get(&owned) {
            pod.pod.owner = Some(owner.clone());
        } else if self.api.is_some() && self.owners.ask(&owned, &by_name, self.began.elapsed()) {
            self.waiting.push_back(owned);
        }
    }

    fn ask_more(&mut self) {
        while self.questions.len() < MOST_QUESTIONS
            && let Some(owned) = self.waiting.pop_front()
            && let Some(client) = self.api.clone()
        {
            let counters = self.counters.clone();
            self.questions.spawn(async move {
                let told = owners::ask(&client, &owned, &counters).await;
                (owned, told)
            });
        }
    }

    async fn told(&mut self, asked: Owned, told: Told) -> Result<(), Unwanted> {
        let is_of = |pod: &&mut NodePod| owned(pod).is_some_and(|(owned, _)| owned == asked);
        let of: Vec<&mut NodePod> = self.pods.values_mut().filter(is_of).collect();
        // Without a pod of it there is no name to go by, and nobody who wants to know.
        let by_name = of.first().and_then(|pod| owned(pod)).map(|(_, by_name)| by_name);
        let told = if by_name.is_none() && told == Told::Gone { Told::Failed } else { told };
        self.owners.told(asked.clone(), told, by_name.as_ref().unwrap_or(&asked.1), self.began.elapsed());
        let Some(owner) = self.owners.get(&asked) else { return Ok(()) };
        let mut changed = Vec::new();
        for pod in of.into_iter().filter(|pod| pod.pod.owner.as_ref() != Some(owner)) {
            pod.pod.owner = Some(owner.clone());
            changed.push(pod.clone());
        }
        self.counters.events("owners_forgotten", self.owners.take_dropped());
        for pod in changed {
            self.out.send(Change::Seen(pod)).await.map_err(|_| Unwanted)?;
        }
        Ok(())
    }
}

/// What controls a pod, and what that was made for by the name rules.
fn owned(pod: &NodePod) -> Option<(Owned, Owner)> {
    let controller = pod.controller.clone()?;
    let by_name = controller.by_name(|label| pod.labels.get(label).map(String::as_str));
    Some(((pod.pod.namespace.to_string(), controller), by_name))
}
