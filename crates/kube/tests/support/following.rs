//! Collects the pods that a loop sends.

use kstrobe_fake_api::FakeApi;
use kstrobe_kube::pods::{NodePod, Source, pod, run};
use kstrobe_kube::watch::Change;
use kstrobe_kube::{Client, Counters};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A running loop and the pods it has sent.
pub struct Following {
    seen: Arc<Mutex<Seen>>,
    pub counters: Arc<Counters>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct Seen {
    pods: BTreeMap<String, NodePod>,
    synced: u64,
    changes: u64,
}

impl Following {
    /// Pods of `node-a` by the API server.
    pub fn api(client: Client) -> Following {
        Following::start(Source::Api { client, node: "node-a".into() })
    }

    pub fn start(source: Source) -> Following {
        let (counters, seen) = (Arc::new(Counters::default()), Arc::new(Mutex::new(Seen::default())));
        let (sender, mut changes) = mpsc::channel::<Change<NodePod>>(8);
        let into = seen.clone();
        let taking = tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                let mut seen = into.lock().unwrap();
                seen.changes += 1;
                match change {
                    Change::Seen(pod) => drop(seen.pods.insert(pod.pod.uid.to_string(), pod)),
                    Change::Gone(uid) => assert!(seen.pods.remove(&uid).is_some(), "{uid} was never sent"),
                    Change::Synced => seen.synced += 1,
                }
            }
        });
        let running = tokio::spawn(run(source, counters.clone(), sender));
        Following { seen, counters, tasks: [taking, running] }
    }

    pub fn pods(&self) -> BTreeMap<String, NodePod> {
        self.seen.lock().unwrap().pods.clone()
    }

    pub fn synced(&self) -> u64 {
        self.seen.lock().unwrap().synced
    }

    pub fn changes(&self) -> u64 {
        self.seen.lock().unwrap().changes
    }

    /// The workload of a pod by its name.
    pub fn workload(&self, name: &str) -> Option<String> {
        let pods = self.pods();
        let pod = pods.values().find(|pod| &*pod.pod.name == name)?;
        let workload = pod.pod.workload();
        Some(format!("{} {}", workload.kind, workload.name))
    }

    /// Waits until the sent pods match the server.
    pub async fn agrees(&self, api: &FakeApi) {
        let expected = || -> BTreeMap<String, NodePod> {
            let objects = api.all("api/v1/pods");
            let here = objects.iter().filter(|object| object["spec"]["nodeName"] == "node-a").filter_map(pod);
            here.map(|pod| (pod.pod.uid.to_string(), pod)).collect()
        };
        super::until("the same pods", || self.synced() > 0 && self.pods() == expected()).await;
    }

    /// Failures of this kind.
    pub fn failed(&self, of: &str, reason: &str) -> u64 {
        self.counters.counts().failure(of, reason)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
