//! The kubelet's list of its pods: asked again and again, for nodes that may not or cannot ask the API server.

use super::object::{NodePod, pod};
use crate::client::Client;
use crate::counters::Counters;
use crate::error::Error;
use crate::watch::backoff::{Backoff, random};
use crate::watch::{Change, Known, Object};
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A kubelet and how often it is asked.
#[derive(Clone)]
pub struct Kubelet {
    /// A client of the kubelet: [`crate::Config::kubelet`].
    pub client: Client,
    /// How often.
    pub every: Duration,
    /// Pauses after failures.
    pub backoff: Backoff,
}

impl Kubelet {
    /// Asks every ten seconds.
    pub fn new(client: Client) -> Kubelet {
        Kubelet { client, every: Duration::from_secs(10), backoff: Backoff::default() }
    }
}

/// Asks for as long as somebody takes the changes. A list that does not come leaves everything as it was.
pub(crate) async fn poll(kubelet: Kubelet, limit: usize, counters: Arc<Counters>, out: mpsc::Sender<Change<NodePod>>) {
    let mut known = Known::new(limit);
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
                for change in known.replace(objects) {
                    if out.send(change).await.is_err() {
                        return;
                    }
                }
                counters.events("objects_over_limit", known.take_over_limit());
                // Agents that were started at once do not stay in step.
                kubelet.every.mul_f64(0.9 + random() / 5.0)
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                counters.failure("kubelet", &error);
                if said != Some(error.reason()) {
                    tracing::warn!(reason = error.reason(), %error, "the kubelet does not tell its pods: tried again");
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

/// Asks once.
pub(crate) async fn list(client: &Client) -> Result<Vec<NodePod>, Error> {
    let list = client.get::<Value>("/pods").await?;
    Ok(items(&list)?.iter().filter_map(pod).collect())
}

fn items(list: &Value) -> Result<&Vec<Value>, Error> {
    list["items"].as_array().ok_or_else(|| Error::BadAnswer("the kubelet's pods without `items`".into()))
}

fn objects(list: &Value, counters: &Counters) -> Result<Vec<Object<NodePod>>, Error> {
    let items = items(list)?;
    let objects: Vec<_> = items.iter().filter_map(object).collect();
    counters.events("objects_unreadable", (items.len() - objects.len()) as u64);
    Ok(objects)
}

/// The kubelet changes a pod's status before the API server gives it another version, and static pods have none: all that we
/// read of it stands for its version.
fn object(item: &Value) -> Option<Object<NodePod>> {
    let value = pod(item)?;
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    Some(Object { uid: value.pod.uid.to_string(), version: hasher.finish().to_string(), value })
}
