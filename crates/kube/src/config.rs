//! API server address and credentials, from a pod's service account or kubeconfig files.

mod in_cluster;
mod kubeconfig;

use crate::error::{ConfigError, Error, FileError};
use http::Uri;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Settings of a [`crate::Client`].
#[derive(Clone, Debug)]
pub struct Config {
    /// `https://HOST:PORT`, optionally with a path prefix.
    pub server: Uri,
    /// Certificate authorities for the server; `None` uses those of the system.
    pub ca: Option<Pem>,
    /// Skips verification of the server certificate.
    pub insecure: bool,
    /// Expected name in the server certificate, if it differs from the host of the URL.
    pub server_name: Option<String>,
    /// Client certificate and key.
    pub identity: Option<(Pem, Pem)>,
    /// Credentials in the `Authorization` header.
    pub auth: Auth,
    /// `Impersonate-*` headers.
    pub impersonate: Impersonate,
    /// Default namespace.
    pub namespace: String,
    /// Time limit until the response header, connecting included.
    pub timeout: Duration,
}

/// Default of [`Config::timeout`]; the API server limits a request to one minute.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A PEM text. Files are read for each request, since certificates rotate.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// Inline PEM.
    Text(Vec<u8>),
    /// Path of a PEM file.
    File(PathBuf),
}

/// Credentials for the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// No `Authorization` header.
    None,
    /// A bearer token.
    Token(Secret),
    /// Path of a token file, read for each request: the kubelet rotates it hourly.
    TokenFile(PathBuf),
    /// User name and password.
    Basic(String, Secret),
    /// A credential plugin.
    Exec(Box<Exec>),
}

/// A credential plugin of a kubeconfig file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// `client.authentication.k8s.io/v1` or `/v1beta1`.
    pub api_version: String,
    /// The program; a path with a slash is relative to the kubeconfig file.
    pub command: PathBuf,
    /// Command-line arguments.
    pub args: Vec<String>,
    /// Environment variables added to those of this process.
    pub env: Vec<(String, String)>,
    /// `installHint`: shown if the program cannot be run.
    pub install_hint: String,
    /// `spec.cluster` for `KUBERNETES_EXEC_INFO`, as JSON.
    pub cluster: Option<String>,
}

/// User impersonation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonate {
    /// `Impersonate-User`.
    pub user: Option<String>,
    /// `Impersonate-Group`.
    pub groups: Vec<String>,
}

/// A secret; its `Debug` output is redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It may be a key.
            Pem::Text(_) => f.write_str("(PEM)"),
            Pem::File(path) => path.fmt(f),
        }
    }
}

/// Looks up an environment variable.
pub type Variable = Arc<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// Environment of the process; tests inject their own.
#[derive(Clone)]
pub struct Env {
    /// Environment lookup.
    pub variable: Variable,
    /// Directory of the mounted service account token.
    pub service_account: PathBuf,
}

impl Env {
    /// Environment of this process.
    pub fn own() -> Env {
        Env {
            variable: Arc::new(|name| std::env::var_os(name)),
            service_account: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)?.into_string().ok().filter(|text| !text.is_empty())
    }
}

/// Overrides of the kubeconfig, as the flags of kubectl.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
    pub namespace: Option<String>,
}

impl Config {
    /// Loads the configuration in this order: `wanted.kubeconfig`, the files of `KUBECONFIG`, the service account of the pod,
    /// `~/.kube/config`.
    pub fn find(wanted: &Wanted, env: &Env) -> Result<Config, Error> {
        let mut config = if let Some(file) = &wanted.kubeconfig {
            kubeconfig::config(std::slice::from_ref(file), true, wanted)?
        } else if let Some(list) = (env.variable)("KUBECONFIG").filter(|list| !list.is_empty()) {
            let files: Vec<PathBuf> =
                std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect();
            kubeconfig::config(&files, false, wanted)?
        } else if wanted.context.is_none() && in_cluster::is_there(env) {
            in_cluster::config(env)?
        } else {
            let home = env.text("HOME").ok_or(ConfigError::Nowhere)?;
            let file = Path::new(&home).join(".kube/config");
            if !file.exists() {
                return Err(ConfigError::Nowhere.into());
            }
            kubeconfig::config(&[file], true, wanted)?
        };
        if let Some(namespace) = &wanted.namespace {
            config.namespace.clone_from(namespace);
        }
        Ok(config)
    }

    /// Loads the service account of the pod.
    pub fn in_cluster(env: &Env) -> Result<Config, Error> {
        Ok(in_cluster::config(env)?)
    }

    /// Settings for the kubelet at this URL (`https://NODE:10250`), with the credentials for the API server. Kubelet certificates
    /// are often self-signed: set `ca` or `insecure`.
    pub fn kubelet(self, server: Uri, ca: Option<Pem>, insecure: bool) -> Config {
        Config { server, ca, insecure, server_name: None, impersonate: Impersonate::default(), ..self }
    }
}

/// Parses a server URL; `origin` says in errors where it is from.
fn server(url: &str, origin: impl fmt::Display) -> Result<Uri, ConfigError> {
    let (origin, url) = (origin.to_string(), url.to_owned());
    let Ok(uri) = url.parse::<Uri>() else { return Err(ConfigError::NotAUrl { origin, url }) };
    match uri.scheme_str() {
        Some("https" | "http") if uri.host().is_some() => Ok(uri),
        _ => Err(ConfigError::Scheme { origin, url }),
    }
}

/// Maximum size of a certificate, token or kubeconfig file.
pub(crate) const MAX_BYTES: u64 = 4 << 20;

/// Reads a file of at most [`MAX_BYTES`].
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, FileError> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|open| open.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| FileError::Read { file: file.to_owned(), error })?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(FileError::TooLarge(file.to_owned()));
    }
    Ok(bytes)
}

impl Pem {
    pub(crate) fn read(&self) -> Result<Vec<u8>, FileError> {
        match self {
            Pem::Text(text) => Ok(text.clone()),
            Pem::File(path) => read(path),
        }
    }
}
