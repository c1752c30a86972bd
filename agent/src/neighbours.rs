//! The other agents of the cluster: alerts about their nodes are handed on to them.

use crate::http::TOKEN_HEADER;
use crate::kubernetes::{self, variable};
use crate::sources::AgentConfig;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use kstrobe_fleet::course::Trouble;
use kstrobe_fleet::route::{self, FORWARDED, Me, Route};
use kstrobe_fleet::run::explain;
use kstrobe_fleet::target::{AGENTS, Pod};
use kstrobe_kube::config::{Auth, Impersonate};
use kstrobe_kube::{Client, Config};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long a list of agents is good for, and how long that there is none to be had.
const FRESH: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));
/// For another agent's answer: Alertmanager waits ten seconds for ours.
const LIMIT: Duration = Duration::from_secs(5);
/// An answer has a line for each alert.
const MOST_ANSWER_BYTES: usize = 1 << 20;

/// All agents, or why nobody knows them.
type Agents = Result<Arc<Vec<Pod>>, String>;

/// All agents, as the API server knows them.
pub struct Neighbours {
    client: Client,
    namespace: String,
    me: Me,
    port: u16,
    https: bool,
    known: Mutex<Option<(Instant, Agents)>>,
}

impl Neighbours {
    /// Those in the namespace of the agent's own pod, which listen on the same port and as it does. `None` outside of a cluster:
    /// where nobody says which node this is.
    pub fn find(agent: &AgentConfig, port: u16, https: bool) -> Option<Arc<Neighbours>> {
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
        Some(Arc::new(Neighbours::new(client, &namespace, me, port, https)))
    }

    /// Those in a namespace.
    pub fn new(client: Client, namespace: &str, me: Me, port: u16, https: bool) -> Neighbours {
        Neighbours { client, namespace: namespace.to_owned(), me, port, https, known: Mutex::new(None) }
    }

    /// Whether an alert with these labels belongs to this agent whatever others there are: it is named, or nobody is.
    pub fn is_mine(&self, labels: &BTreeMap<String, String>) -> bool {
        route::route(labels, &self.me, &[]) == Route::Here
    }

    /// Where an alert with these labels belongs; why nobody knows when the agents cannot be listed.
    pub async fn route(&self, labels: &BTreeMap<String, String>) -> Result<Route, String> {
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
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the API server does not answer".to_owned()),
        };
        *known = Some((Instant::now(), agents.clone()));
        agents
    }

    /// Posts alerts to another agent, with the credentials that they came with. It does not hand them on again.
    pub async fn hand_on(&self, to: &Pod, came_with: &HeaderMap, body: Bytes) -> Result<Value, String> {
        let address = to.addresses.iter().find_map(|text| text.parse::<IpAddr>().ok());
        let address = address.ok_or_else(|| format!("the agent {} has no address", to.full_name()))?;
        let mut headers = HeaderMap::new();
        for name in [header::AUTHORIZATION, HeaderName::from_static(TOKEN_HEADER)] {
            if let Some(value) = came_with.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        headers.insert(FORWARDED, HeaderValue::from_static("1"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let client = self.direct(SocketAddr::new(address, self.port))?;
        let asking = async {
            let answer = client.send(Method::POST, "/api/v1/captures/alertmanager", headers, body).await;
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status();
            let body =
                Limited::new(answer.into_body(), MOST_ANSWER_BYTES).collect().await.map_err(|e| e.to_string())?;
            read(status, &body.to_bytes())
        };
        tokio::time::timeout(LIMIT, asking).await.unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}")))
    }

    /// A client of one agent. Its certificate is not looked at, as the API server looks at none of a pod.
    fn direct(&self, address: SocketAddr) -> Result<Client, String> {
        let scheme = if self.https { "https" } else { "http" };
        let server: Uri = format!("{scheme}://{address}").parse().map_err(|_| format!("{address} is no address"))?;
        let config = Config {
            server,
            ca: None,
            insecure: true,
            server_name: None,
            identity: None,
            auth: Auth::None,
            impersonate: Impersonate::default(),
            namespace: String::new(),
            timeout: LIMIT,
        };
        kubernetes::client(config).map_err(|error| error.to_string())
    }
}

fn read(status: StatusCode, body: &[u8]) -> Result<Value, String> {
    if !status.is_success() {
        let Trouble { text, .. } = explain(status, body);
        return Err(text);
    }
    serde_json::from_slice(body).map_err(|error| format!("no answer of an agent: {error}"))
}
