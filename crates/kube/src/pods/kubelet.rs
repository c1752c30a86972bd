//! Polls the pod list of the kubelet, for nodes without access to the API server.

use super::object::{NodePod, pod};
use crate::client::Client;
use crate::counters::Counters;
use crate::error::Error;
use crate::watch::backoff::{Backoff, random};
use crate::watch::{Change, Object, Store};
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A kubelet and its polling interval.
#[derive(Clone)]
pub struct Kubelet {
    /// Client of the kubelet: [`crate::Config::kubelet`].
    pub client: Client,
    /// Polling interval.
    pub every: Duration,
    /// Backoff after failures.
    pub backoff: Backoff,
}

impl Kubelet {
    /// Polls every ten seconds.
    pub fn new(client: Client) -> Kubelet {
        Kubelet { client, every: Duration::from_secs(10), backoff: Backoff::default() }
    }
}

/// Polls until the receiver is closed. A failed request changes nothing.
pub(crate) async fn poll(kubelet: Kubelet, limit: usize, counters: Arc<Counters>, out: mpsc::Sender<Change<NodePod>>) {
    let mut store = Store::new(limit);
    let mut failures = 0u32;
    let mut said = None;
    loop {
        counters.event("list_requests");
        let objects = kubelet.client.get::<Value>("/pods").await.and_then(|list| objects(&list, &counters));
        let pause = match objects {
            Ok(objects) => {
                failures = 0;
                counters.event("lists");
                if said.take().is_some() {
                    tracing::info!("the kubelet answers again");
                }
                for change in store.replace(objects) {
                    if out.send(change).await.is_err() {
                        return;
                    }
                }
                counters.events("objects_over_limit", store.take_over_limit());
                // Jitter spreads agents that were started at once.
                kubelet.every.mul_f64(0.9 + random() / 5.0)
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                counters.failure("kubelet", &error);
                if said != Some(error.reason()) {
                    tracing::warn!(reason = error.reason(), %error, "the pod list of the kubelet failed, retrying");
                    said = Some(error.reason());
                }
                kubelet.backoff.pause(failures, random()).max(error.retry_after().unwrap_or_default())
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = out.closed() => return,
        }
    }
}

/// Lists the pods once.
pub(crate) async fn list(client: &Client) -> Result<Vec<NodePod>, Error> {
    let list = client.get::<Value>("/pods").await?;
    Ok(items(&list)?.iter().filter_map(pod).collect())
}

fn items(list: &Value) -> Result<&Vec<Value>, Error> {
    let missing = || Error::Incomplete { list: "the kubelet's pods".to_owned(), member: "items" };
    list["items"].as_array().ok_or_else(missing)
}

fn objects(list: &Value, counters: &Counters) -> Result<Vec<Object<NodePod>>, Error> {
    let items = items(list)?;
    let objects: Vec<_> = items.iter().filter_map(object).collect();
    counters.events("objects_unreadable", (items.len() - objects.len()) as u64);
    Ok(objects)
}

/// Builds the version from all fields we read: the kubelet changes the status before `resourceVersion`, and static pods have
/// none.
fn object(item: &Value) -> Option<Object<NodePod>> {
    let value = pod(item)?;
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    Some(Object { uid: value.pod.uid.to_string(), version: hasher.finish().to_string(), value })
}
