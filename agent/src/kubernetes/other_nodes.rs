//! The other agents of the cluster: alerts about their nodes are handed on to them.

use crate::capture::rules::alerts::Alert;
use crate::config::files::AgentConfig;
use crate::kubernetes::{self, Error, variable};
use kstrobe_fleet::route::{self, Me, Route};
use kstrobe_fleet::target::{AGENTS, Pod};
use kstrobe_kube::Client;
use kstrobe_kube::crd::capture::of_alert;
use kstrobe_kube::crd::{self, CAPTURES};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long a list of agents is good for, and how long that there is none to be had.
const FRESH: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));
/// For the API server's answer: Alertmanager waits ten seconds for ours.
const LIMIT: Duration = Duration::from_secs(5);
/// Characters of a name or a fingerprint that an object takes.
const MAX_TEXT: usize = 253;

/// All agents, or why they are unknown.
type Agents = Result<Arc<Vec<Pod>>, Arc<Error>>;

/// All agents, as the API server knows them.
pub struct OtherNodes {
    client: Client,
    namespace: String,
    me: Me,
    /// Whether agents follow `Capture` objects.
    objects: bool,
    known: Mutex<Option<(Instant, Agents)>>,
}

impl OtherNodes {
    /// Those in the namespace of the agent's own pod. `objects` says whether this agent follows `Capture` objects, as all of a
    /// DaemonSet do or none. `None` outside of a cluster: where nothing says which node this is.
    pub fn find(agent: &AgentConfig, objects: bool) -> Option<Arc<OtherNodes>> {
        let node = kubernetes::node(&agent.kubernetes)?;
        let config = kubernetes::config(&agent.kubernetes);
        let config =
            config.inspect_err(|error| tracing::info!(%error, "alerts are not handed on to other agents")).ok()?;
        let namespace = variable("POD_NAMESPACE").unwrap_or_else(|| config.namespace.clone());
        let client = kubernetes::client(config);
        let client =
            client.inspect_err(|error| tracing::warn!(%error, "alerts are not handed on to other agents")).ok()?;
        let me = Me {
            node,
            names: variable("POD_NAME").into_iter().collect(),
            addresses: [variable("POD_IP"), variable("NODE_IP")].into_iter().flatten().collect(),
        };
        Some(Arc::new(OtherNodes::new(client, &namespace, me, objects)))
    }

    /// Those in a namespace.
    pub fn new(client: Client, namespace: &str, me: Me, objects: bool) -> OtherNodes {
        OtherNodes { client, namespace: namespace.to_owned(), me, objects, known: Mutex::new(None) }
    }

    /// Whether an alert with these labels belongs to this agent whatever others there are: it is named, or no agent is.
    pub fn is_mine(&self, labels: &BTreeMap<String, String>) -> bool {
        route::route(labels, &self.me, &[]) == Route::Here
    }

    /// Where an alert with these labels belongs; an error when the agents cannot be listed.
    pub async fn route(&self, labels: &BTreeMap<String, String>) -> Result<Route, Arc<Error>> {
        Ok(route::route(labels, &self.me, &self.agents().await?))
    }

    async fn agents(&self) -> Agents {
        let mut known = self.known.lock().await;
        if let Some((since, agents)) = known.as_ref()
            && since.elapsed() < if agents.is_ok() { FRESH.0 } else { FRESH.1 }
        {
            return agents.clone();
        }
        let asking = self.client.pods(Some(&self.namespace), AGENTS, "");
        let agents = match tokio::time::timeout(LIMIT, asking).await {
            Ok(Ok(objects)) => Ok(Arc::new(objects.iter().filter_map(Pod::from_object).collect())),
            Ok(Err(error)) => Err(Arc::new(error.into())),
            Err(_) => Err(Arc::new(Error::ApiTimeout(LIMIT))),
        };
        *known = Some((Instant::now(), agents.clone()));
        agents
    }

    /// Passes an alert to the agent of a node by an object that only the API server and that agent see: no credential of
    /// the alert's sender leaves this process.
    pub async fn hand_on(&self, to: &Pod, alert: &Alert) -> Result<Handed, Error> {
        let text = |text: &str| text.chars().take(MAX_TEXT).collect::<String>();
        let alert = crd::Alert {
            name: text(alert.name()),
            rule: alert.rule().map(text),
            fingerprint: text(&alert.identity()),
            starts_at: text(&alert.starts_at),
        };
        if !self.objects {
            return Err(Error::ObjectsOff);
        }
        let object = of_alert(&alert, &self.namespace, &to.node, (&to.name, &to.uid));
        let path = CAPTURES.all(Some(&self.namespace));
        let making = tokio::time::timeout(LIMIT, self.client.create::<Value>(&path, &object));
        let name = format!("{}/{}", self.namespace, alert.object_name());
        match making.await {
            Ok(Ok(_)) => Ok(Handed::New(name)),
            // Alertmanager posts an alert repeatedly, to different agents: there is one object of it.
            Ok(Err(error)) if error.is(409) => Ok(Handed::Before(name)),
            Ok(Err(error)) if error.is(404) => Err(Error::NoObjects(error)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Error::ApiTimeout(LIMIT)),
        }
    }
}

/// The object by which another agent gets an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handed {
    /// It was made now; its namespace and name.
    New(String),
    /// It was there.
    Before(String),
}
