//! Errors of the configuration, of credentials, and of requests to an API server.

use crate::answer::Status;
use crate::config::MAX_BYTES;
use crate::exec::PLUGIN_TIMEOUT;
use hyper_util::client::legacy;
use kstrobe_tls::chain;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// A request error; [`Error::reason`] is its metric label.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// TCP connect or TLS handshake failed, or the connection broke before the response.
    #[error("{server}: {}", chain(error))]
    Request {
        server: String,
        #[source]
        error: legacy::Error,
    },
    #[error("the answer to {to} was cut off: {}", chain(error.as_ref()))]
    Body {
        /// Method and path of the request.
        to: String,
        #[source]
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the watch broke: {}", chain(.0))]
    Watch(#[source] hyper::Error),
    #[error("the watch ended in the middle of a line")]
    PartialLine,
    /// No response in time.
    #[error("no answer from {from} within {after:?}")]
    Timeout {
        /// The server.
        from: String,
        /// The time limit.
        after: Duration,
    },
    /// A response with an error status.
    #[error("{0}")]
    Status(Box<Status>),
    /// The response body exceeds the limit.
    #[error("an answer of more than {limit} bytes to {to}")]
    TooLarge {
        /// Method and path of the request.
        to: String,
        /// The limit in bytes.
        limit: usize,
    },
    #[error("the answer to {to}: {error}")]
    Json {
        /// Method and path of the request.
        to: String,
        #[source]
        error: serde_json::Error,
    },
    #[error("{list} without `{member}`")]
    Incomplete { list: String, member: &'static str },
    #[error("a watch of {0} has a line that is no event")]
    NoEvent(&'static str),
}

impl Error {
    /// Label value for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Config(_) => "config",
            Error::Credentials(_) => "credentials",
            Error::Request { error, .. } if error.is_connect() => "connect",
            Error::Request { .. } | Error::Body { .. } | Error::Watch(_) | Error::PartialLine => "connection",
            Error::Timeout { .. } => "timeout",
            Error::Status(status) => status.word(),
            Error::TooLarge { .. } => "too_large",
            Error::Json { .. } | Error::Incomplete { .. } | Error::NoEvent(_) => "bad_answer",
        }
    }

    /// The Kubernetes status of an error response.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Error::Status(status) => Some(status),
            _ => None,
        }
    }

    /// Whether this is an error response with this HTTP status code.
    pub fn is(&self, code: u16) -> bool {
        self.status().is_some_and(|status| status.code == code)
    }

    /// `Retry-After` of the response.
    pub fn retry_after(&self) -> Option<Duration> {
        self.status().and_then(|status| status.retry_after)
    }
}

/// What is wrong with the configuration of a client, or with a file that it names.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "no Kubernetes here: no service account of a pod, no KUBECONFIG and no ~/.kube/config; name a file with --kubeconfig"
    )]
    Nowhere,
    #[error("not in a pod: the variable {0} is not set")]
    NoVariable(&'static str),
    #[error(
        "there is no token in {}: the pod needs a service account and `automountServiceAccountToken: true`", .0.display()
    )]
    NoServiceAccount(PathBuf),
    #[error("none of the kubeconfig files is there: {}", listed(.0))]
    NoKubeconfig(Vec<PathBuf>),
    #[error("no current context in {}: name one, or `kubectl config use-context NAME`", listed(.0))]
    NoCurrentContext(Vec<PathBuf>),
    #[error("there is no context `{name}` in {}", listed(files))]
    NoContext { name: String, files: Vec<PathBuf> },
    /// `kind` is `cluster` or `user`.
    #[error("the context `{context}` names the {kind} `{name}`, which is not in {}", listed(files))]
    Undefined { context: String, kind: &'static str, name: String, files: Vec<PathBuf> },
    #[error("{}: {error}", file.display())]
    Kubeconfig {
        file: PathBuf,
        #[source]
        error: KubeconfigError,
    },
    #[error(transparent)]
    File(#[from] FileError),
    /// `origin` is a file, or the variables that were read.
    #[error("{origin}: the server `{url}` is not a URL")]
    NotAUrl { origin: String, url: String },
    #[error("{origin}: the server `{url}` does not begin with https:// or http://")]
    Scheme { origin: String, url: String },
    #[error("`{0}` is not a server's name")]
    ServerName(String),
    #[error("TLS to Kubernetes: {0}")]
    Tls(#[from] kstrobe_tls::Error),
    #[error("`as` has characters that no name has")]
    Impersonate,
    #[error("`{0}` cannot be the name of a client")]
    UserAgent(String),
    #[error("`{0:.200}` is not a path")]
    Path(String),
    #[error(transparent)]
    Http(#[from] http::Error),
}

fn listed(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// What is wrong in a kubeconfig file.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("not text")]
    NotText,
    /// Without the parser's error, which may quote a token.
    #[error("not a kubeconfig file{}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Syntax { line: Option<u64> },
    #[error("the cluster is behind the proxy `{0}`, and proxies are not supported")]
    Proxy(String),
    #[error("the cluster `{0}` has no `server`")]
    NoServer(String),
    #[error("the auth-provider `{0}` is not supported (kubectl has dropped it too): use `exec`")]
    AuthProvider(String),
    #[error("a client certificate without its key")]
    NoKey,
    #[error("a client key without its certificate")]
    NoCertificate,
    #[error("`{0}` is not base64")]
    NotBase64(&'static str),
    #[error("`exec` speaks `{found}`, and we know {}", known.join(" and "))]
    ExecVersion { found: String, known: &'static [&'static str] },
    #[error("`exec` has no `command`")]
    NoCommand,
}

/// Why a file of a certificate, a token or a kubeconfig cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: {error}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}: larger than {} MiB", .0.display(), MAX_BYTES >> 20)]
    TooLarge(PathBuf),
}

/// Why no token or certificate can be obtained.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the client's key is not in PEM form")]
    NotPem,
    #[error("{}: there is no token in it", .0.display())]
    NoToken(PathBuf),
    /// `origin` is a file, or says which token it is.
    #[error("{origin} has characters that no token has")]
    Characters { origin: String },
    #[error("the credential plugin {} {error}", plugin.display())]
    Plugin {
        plugin: PathBuf,
        #[source]
        error: PluginError,
    },
}

/// Why a credential plugin gives no credentials. Its output is not quoted, since it holds secrets.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error("does not run: {error}{}{hint}", if hint.is_empty() { "" } else { "\n" })]
    Start {
        #[source]
        error: io::Error,
        /// `installHint`
        hint: String,
    },
    #[error("printed nothing within {PLUGIN_TIMEOUT:?}")]
    Timeout,
    #[error("ended with {0}")]
    Exit(ExitStatus),
    #[error("printed no ExecCredential")]
    NoExecCredential,
    #[error("speaks {found:.60} instead of {expected}")]
    Version { found: String, expected: String },
    #[error("printed no credentials")]
    NoStatus,
    #[error("printed a certificate or a key without the other")]
    Identity,
    #[error("printed neither token nor certificate")]
    Empty,
}
