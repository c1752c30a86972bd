//! A client of a running agent's API, for the commands that show what an agent measures.

use crate::capture::access::{TOKEN_HEADER, TokenError, token};
use base64::Engine as _;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue, InvalidHeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// For a whole answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 32 << 20;
/// Bytes of a line of a stream.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Which agent, and what it asks of its clients.
#[derive(Clone, Debug, clap::Args)]
pub struct AgentArgs {
    /// Address of the agent, e.g. https://node-7:9779 [default: http://localhost:9779].
    #[arg(long, value_name = "URL", value_parser = url)]
    url: Option<Uri>,
    /// Authorities that an https agent's certificate must come from, in PEM form [default: those of the system].
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Accept any certificate of the agent.
    #[arg(long, conflicts_with = "ca_file")]
    insecure: bool,
    /// User name of the agent's web-config.yml.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// File with the user's password.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// File with the token of the agent's API (captures.token_file).
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl AgentArgs {
    /// The agent at this address, which asks its clients for nothing.
    pub fn at(address: SocketAddr) -> AgentArgs {
        let url = Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build().ok();
        AgentArgs { url, ca_file: None, insecure: false, user: None, password_file: None, token_file: None }
    }

    /// Whether the command line names an agent.
    pub fn is_named(&self) -> bool {
        self.url.is_some()
    }

    fn url(&self) -> Uri {
        self.url.clone().unwrap_or_else(|| Uri::from_static("http://localhost:9779"))
    }
}

/// Why an agent cannot be asked, or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {error}", file.display())]
    File {
        file: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("{}: {error}", file.display())]
    Token {
        file: PathBuf,
        #[source]
        error: TokenError,
    },
    #[error("the token or password cannot stand in a header of HTTP")]
    Header(#[from] InvalidHeaderValue),
    #[error(transparent)]
    Tls(#[from] kstrobe_tls::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Runtime(std::io::Error),
    #[error(
        "no agent answers at {url}: {}\nhint: start one with `sudo kstrobe run`, or name its address with --url",
        kstrobe_tls::chain(error)
    )]
    NoAgent {
        url: Box<Uri>,
        #[source]
        error: legacy::Error,
    },
    #[error("{url} has not answered within {} s", TIMEOUT.as_secs())]
    Timeout { url: Uri },
    #[error("{url}: the connection ended: {error}")]
    Broken {
        url: Uri,
        #[source]
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{message}{}", needed(*status))]
    Refused { status: StatusCode, message: String },
    #[error("{url} gives an answer that is not of this version's API: {error}")]
    Json {
        url: Uri,
        #[source]
        error: serde_json::Error,
    },
}

impl Error {
    /// The error without its hint.
    pub fn summary(&self) -> String {
        self.to_string().lines().next().unwrap_or_default().to_owned()
    }
}

/// What a refusal asks for.
fn needed(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "\nhint: --token-file FILE, or --user NAME --password-file FILE",
        _ => "",
    }
}

/// What the API says of a request that it refuses.
#[derive(Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    hint: String,
}

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("{0}")]
    NotAUrl(String),
    #[error("write http://HOST:PORT or https://HOST:PORT")]
    NoHost,
}

/// An address; without a scheme, http.
fn url(text: &str) -> Result<Uri, UrlError> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url: Uri = whole.parse().map_err(|error: http::uri::InvalidUri| UrlError::NotAUrl(error.to_string()))?;
    let is_http = url.scheme_str().is_some_and(|scheme| ["http", "https"].contains(&scheme));
    if is_http && url.host().is_some_and(|host| !host.is_empty()) { Ok(url) } else { Err(UrlError::NoHost) }
}

/// Sends requests to one agent.
#[derive(Clone, Debug)]
pub struct Client {
    url: Uri,
    headers: HeaderMap,
    client: legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

impl Client {
    /// Reads the files that the arguments name. To be called within a runtime.
    pub fn new(args: &AgentArgs) -> Result<Client, Error> {
        let read = |file: &PathBuf| std::fs::read(file).map_err(|error| Error::File { file: file.clone(), error });
        let ca = args.ca_file.as_ref().map(read).transpose()?;
        let tls = kstrobe_tls::Client { ca: ca.as_deref(), ..kstrobe_tls::Client::default() };
        let url = args.url();
        let tls = match (url.scheme_str(), args.insecure) {
            (Some("https"), true) => tls.config_for_any_server()?,
            (Some("https"), false) => tls.config()?,
            _ => kstrobe_tls::without_authorities()?,
        };
        let mut headers = HeaderMap::new();
        if let Some(file) = &args.token_file {
            let token = token(file).map_err(|error| Error::Token { file: file.clone(), error })?;
            headers.insert(TOKEN_HEADER, HeaderValue::try_from(token)?);
        }
        if let (Some(user), Some(file)) = (&args.user, &args.password_file) {
            let password = String::from_utf8_lossy(&read(file)?).trim_end_matches(['\r', '\n']).to_owned();
            let basic = base64::prelude::BASE64_STANDARD.encode(format!("{user}:{password}"));
            headers.insert(AUTHORIZATION, HeaderValue::try_from(format!("Basic {basic}"))?);
        }
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        Ok(Client { url, headers, client: legacy::Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// The answer to a request for this path and query.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.read(path, |body| serde_json::from_slice(body)).await
    }

    /// What `read` makes of the answer.
    pub async fn read<T>(
        &self,
        path: &str,
        read: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<T, Error> {
        let body = tokio::time::timeout(TIMEOUT, async {
            let response = self.send(path)?.await.map_err(|error| self.no_agent(error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| Error::Broken { url: self.url.clone(), error })?.to_bytes();
            if head.status == StatusCode::OK { Ok(body) } else { Err(refusal(head.status, &body)) }
        });
        let body = body.await.map_err(|_| Error::Timeout { url: self.url.clone() })??;
        read(&body).map_err(|error| Error::Json { url: self.url.clone(), error })
    }

    /// Calls `each` with each line of an endless answer.
    pub async fn follow(&self, path: &str, mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        let response = tokio::time::timeout(TIMEOUT, self.send(path)?).await;
        let response =
            response.map_err(|_| Error::Timeout { url: self.url.clone() })?.map_err(|error| self.no_agent(error))?;
        let (head, mut body) = response.into_parts();
        if head.status != StatusCode::OK {
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            return Err(refusal(head.status, &body.map(|body| body.to_bytes()).unwrap_or_default()));
        }
        let mut line = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Error::Broken { url: self.url.clone(), error: error.into() })?;
            let Ok(data) = frame.into_data() else { continue };
            for part in data.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(part);
                if part.ends_with(b"\n") || line.len() > MAX_LINE_BYTES {
                    each(line.trim_ascii_end());
                    line.clear();
                }
            }
        }
        Ok(())
    }

    fn send(&self, path: &str) -> Result<ResponseFuture, Error> {
        let below = format!("{}{path}", self.url.path().trim_end_matches('/'));
        let mut parts = self.url.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(below).map_err(http::Error::from)?);
        let mut request = Request::get(Uri::from_parts(parts).map_err(http::Error::from)?).body(Empty::new())?;
        *request.headers_mut() = self.headers.clone();
        Ok(self.client.request(request))
    }

    fn no_agent(&self, error: legacy::Error) -> Error {
        Error::NoAgent { url: Box::new(self.url.clone()), error }
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> Error {
    let message = match serde_json::from_slice::<Refusal>(body) {
        Ok(Refusal { error, hint }) if hint.is_empty() => error,
        Ok(Refusal { error, hint }) => format!("{error}\nhint: {hint}"),
        Err(_) => match String::from_utf8_lossy(body).trim() {
            "" => format!("the agent answers {status}"),
            text => text.to_owned(),
        },
    };
    Error::Refused { status, message }
}

/// A runtime of the calling thread.
pub fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_a_host_and_no_scheme() {
        assert_eq!(url("node-7:9779").unwrap().to_string(), "http://node-7:9779/");
        assert_eq!(url("https://node-7/kstrobe").unwrap().path(), "/kstrobe");
        for wrong in ["", "ftp://node", "http://", "http://a b"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn refusals_say_what_the_agent_said() {
        let refused = |status, body: &str| refusal(status, body.as_bytes()).to_string();
        let json = r#"{"error": "no metric `x`", "hint": "see /api/v1/history"}"#;
        assert_eq!(refused(StatusCode::BAD_REQUEST, json), "no metric `x`\nhint: see /api/v1/history");
        assert_eq!(refused(StatusCode::NOT_FOUND, ""), "the agent answers 404 Not Found");
        assert!(refused(StatusCode::UNAUTHORIZED, "a token is needed\n").contains("--token-file"));
    }
}
