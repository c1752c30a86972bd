//! HTTP client of an API server or a kubelet.

use crate::answer::{checked, whole};
use crate::config::{Auth, Config};
use crate::credentials::{Credentials, Material, Shown};
use crate::error::{ConfigError, Error};
use crate::tls;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum bytes of a buffered response body. A page of 500 pods has some 10 MB.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Time limit for a buffered body, from its first byte on.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(60);

type Http = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client; clones share connections and credentials.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    config: Config,
    credentials: Credentials,
    /// Connection pool, and the certificates it was built with.
    http: Mutex<Option<(Material, Http)>>,
    user_agent: HeaderValue,
    /// Whether requests carry credentials.
    shows: bool,
}

impl Client {
    /// Creates a client without connecting. `user_agent`, such as `kstrobe/1.0`, appears in the audit log of the server.
    pub fn new(config: Config, user_agent: &str) -> Result<Client, Error> {
        let user_agent =
            HeaderValue::from_str(user_agent).map_err(|_| ConfigError::UserAgent(user_agent.to_owned()))?;
        let shows = is_private(&config.server);
        if !shows && (config.auth != Auth::None || config.identity.is_some()) {
            tracing::warn!(server = %config.server, "credentials are withheld from a server without TLS: use https://");
        }
        let inner = Inner { config, credentials: Credentials::default(), http: Mutex::new(None), user_agent, shows };
        Ok(Client(Arc::new(inner)))
    }

    /// URL of the server.
    pub fn server(&self) -> &Uri {
        &self.0.config.server
    }

    /// Default namespace.
    pub fn namespace(&self) -> &str {
        &self.0.config.namespace
    }

    /// Gets an object or a list.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.exchange(Method::GET, path, HeaderMap::new(), Bytes::new()).await
    }

    /// Creates an object with POST.
    pub async fn create<T: DeserializeOwned>(&self, path: &str, object: &Value) -> Result<T, Error> {
        self.exchange(Method::POST, path, json(), object.to_string().into()).await
    }

    /// Applies a JSON merge patch (RFC 7386): named members are replaced, `null` removes.
    pub async fn merge_patch<T: DeserializeOwned>(&self, path: &str, change: &Value) -> Result<T, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/merge-patch+json"));
        self.exchange(Method::PATCH, path, headers, change.to_string().into()).await
    }

    /// Deletes an object.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        self.exchange::<Value>(Method::DELETE, path, HeaderMap::new(), Bytes::new()).await.map(|_| ())
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<T, Error> {
        let to = format!("{method} {path}");
        let answer = checked(self.send(method, path, headers, body).await?).await?;
        let late = || Error::Timeout { from: format!("{} to {to}", self.0.config.server), after: MAX_ANSWER_TIME };
        let bytes = tokio::time::timeout(MAX_ANSWER_TIME, whole(answer, MAX_ANSWER_BYTES, &to)).await;
        let bytes = bytes.map_err(|_| late())??;
        serde_json::from_slice(&bytes).map_err(|error| Error::Json { to, error })
    }

    /// Sends a request and returns the response once its header arrives, whatever its status. The caller reads the body, without
    /// a time limit. `path` may have a query. After a 401 the credentials are renewed once.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let answer = self.once(method.clone(), path, headers.clone(), body.clone()).await?;
        if answer.status() == 401 && self.0.credentials.refused(&self.0.config).await {
            return self.once(method, path, headers, body).await;
        }
        Ok(answer)
    }

    async fn once(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let config = &self.0.config;
        let Shown { material, headers: ours } = self.0.credentials.show(config).await?;
        let http = self.http(material)?;
        let mut request = Request::builder().method(method).uri(below(&config.server, path)?);
        if let Some(there) = request.headers_mut() {
            there.insert(USER_AGENT, self.0.user_agent.clone());
            there.insert(ACCEPT, HeaderValue::from_static("application/json"));
            there.extend(headers);
            if self.0.shows {
                there.extend(ours);
            }
        }
        let request = request.body(Full::new(body)).map_err(ConfigError::Http)?;
        let server = || config.server.to_string();
        match tokio::time::timeout(config.timeout, http.request(request)).await {
            Ok(answer) => answer.map_err(|error| Error::Request { server: server(), error }),
            Err(_) => Err(Error::Timeout { from: server(), after: config.timeout }),
        }
    }

    /// Returns the pool built with these certificates, or builds a new one.
    fn http(&self, material: Material) -> Result<Http, Error> {
        let mut held = self.0.http.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made_with, http)) = held.as_ref()
            && *made_with == material
        {
            return Ok(http.clone());
        }
        let http = connect(&self.0.config, &material)?;
        *held = Some((material, http.clone()));
        Ok(http)
    }
}

fn connect(config: &Config, material: &Material) -> Result<Http, ConfigError> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(config.timeout));
    // A watch is silent for minutes. Keepalive detects a vanished server in some 45 s.
    connector.set_keepalive(Some(Duration::from_secs(15)));
    connector.set_keepalive_interval(Some(Duration::from_secs(10)));
    connector.set_keepalive_retries(Some(3));
    let tls = tls::config(material, config.server.scheme_str() == Some("https"))?;
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.server_name {
        let name = ServerName::try_from(name.clone()).map_err(|_| ConfigError::ServerName(name.clone()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    // One connection per watch: over HTTP/2 one lost connection would break all watches.
    let connector = builder.enable_http1().wrap_connector(connector);
    Ok(legacy::Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector))
}

/// Whether the connection is encrypted or local.
fn is_private(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_here || server.scheme_str() == Some("https")
}

fn json() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}

/// Appends path and query to the URL of the server.
fn below(server: &Uri, path: &str) -> Result<Uri, ConfigError> {
    let mut parts = server.clone().into_parts();
    let path = format!("{}{path}", server.path().trim_end_matches('/'));
    let wrong = || ConfigError::Path(path.clone());
    parts.path_and_query = Some(path.parse().map_err(|_| wrong())?);
    Uri::from_parts(parts).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_sent_over_tls_or_loopback_only() {
        for (server, expected) in [
            ("https://10.0.0.1:10250", true),
            ("http://10.0.0.1:10255", false),
            ("http://127.0.0.1:8001", true),
            ("http://[::1]:8001", true),
            ("http://localhost:8001", true),
            ("http://localhost.example:8001", false),
        ] {
            assert_eq!(is_private(&server.parse().unwrap()), expected, "{server}");
        }
    }

    #[test]
    fn paths_go_below_the_server() {
        for (server, expected) in [
            ("https://h:6443", "https://h:6443/api/v1/pods?limit=1"),
            ("https://h/k8s/clusters/c-1/", "https://h/k8s/clusters/c-1/api/v1/pods?limit=1"),
            ("https://[fd00::1]:443", "https://[fd00::1]:443/api/v1/pods?limit=1"),
        ] {
            assert_eq!(below(&server.parse().unwrap(), "/api/v1/pods?limit=1").unwrap().to_string(), expected);
        }
        assert!(below(&"https://h".parse().unwrap(), "/a b").is_err());
    }
}
