//! Where an API server is and who we are to it: in a pod, or by kubeconfig files.

mod in_cluster;
mod kubeconfig;

use crate::error::Error;
use http::Uri;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// All that a [`crate::Client`] needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// `https://HOST:PORT`, perhaps with a path that all others go below.
    pub server: Uri,
    /// Authorities that the server's certificate may be from; those of the system when absent.
    pub ca: Option<Pem>,
    /// Whether the server's certificate is not looked at.
    pub insecure: bool,
    /// The name that the server's certificate must have, when it is not the URL's.
    pub server_name: Option<String>,
    /// Our certificate and its key.
    pub identity: Option<(Pem, Pem)>,
    /// What we show besides.
    pub auth: Auth,
    /// Whom to act as.
    pub impersonate: Impersonate,
    /// The namespace that is meant when none is named.
    pub namespace: String,
    /// For an answer to begin, connecting included.
    pub timeout: Duration,
}

/// Limit for an answer to begin that suits an API server: its own for a request is a minute.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Something in PEM form; files are read anew for each request, since they are replaced while we run.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// The text itself.
    Text(Vec<u8>),
    /// A file.
    File(PathBuf),
}

/// What proves who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Nothing, or the certificate alone.
    None,
    /// A bearer token.
    Token(Secret),
    /// A file with one, read anew for each request: the kubelet replaces it hourly.
    TokenFile(PathBuf),
    /// A name and a password.
    Basic(String, Secret),
    /// A program that tells a token or a certificate.
    Exec(Box<Exec>),
}

/// A credential plugin of a kubeconfig file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// `client.authentication.k8s.io/v1` or `/v1beta1`.
    pub api_version: String,
    /// The program; with a slash in it below the folder of the kubeconfig file.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables that are added to our own.
    pub env: Vec<(String, String)>,
    /// How to get the program, when it is missing.
    pub install_hint: String,
    /// What it is told of the cluster, as JSON.
    pub cluster: Option<String>,
}

/// Whom to act as, when it is not ourselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonate {
    /// The user.
    pub user: Option<String>,
    /// Groups of that user.
    pub groups: Vec<String>,
}

/// Text that no message and no log shows.
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

/// Tells a variable of the environment.
pub type Variable = Arc<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// What a process finds around it. Tests have their own.
#[derive(Clone)]
pub struct Surroundings {
    /// Variables of the environment.
    pub variable: Variable,
    /// The folder in which the kubelet puts the token of a service account.
    pub service_account: PathBuf,
}

impl Surroundings {
    /// Those of this process.
    pub fn own() -> Surroundings {
        Surroundings {
            variable: Arc::new(|name| std::env::var_os(name)),
            service_account: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)?.into_string().ok().filter(|text| !text.is_empty())
    }
}

/// What somebody wants, as flags of kubectl have it.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// This file and no other.
    pub kubeconfig: Option<PathBuf>,
    /// This context and not the current one.
    pub context: Option<String>,
    /// This namespace and not the context's.
    pub namespace: Option<String>,
}

impl Config {
    /// Finds it where kubectl does: the file that is named, those of `KUBECONFIG`, the service account of a pod, and
    /// `~/.kube/config`. In a pod the service account comes before that file.
    pub fn find(wanted: &Wanted, around: &Surroundings) -> Result<Config, Error> {
        let mut config = if let Some(file) = &wanted.kubeconfig {
            kubeconfig::config(std::slice::from_ref(file), true, wanted)?
        } else if let Some(list) = (around.variable)("KUBECONFIG").filter(|list| !list.is_empty()) {
            let files: Vec<PathBuf> =
                std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect();
            kubeconfig::config(&files, false, wanted)?
        } else if wanted.context.is_none() && in_cluster::is_there(around) {
            in_cluster::config(around)?
        } else {
            let home = around.text("HOME").ok_or_else(nowhere)?;
            let file = Path::new(&home).join(".kube/config");
            if !file.exists() {
                return Err(nowhere());
            }
            kubeconfig::config(&[file], true, wanted)?
        };
        if let Some(namespace) = &wanted.namespace {
            config.namespace.clone_from(namespace);
        }
        Ok(config)
    }

    /// As a pod's service account.
    pub fn in_cluster(around: &Surroundings) -> Result<Config, Error> {
        in_cluster::config(around)
    }

    /// The kubelet of a node at this URL (`https://NODE:10250`), shown the token that the configuration of the API server has.
    /// Its certificate is often its own: `ca` names authorities, and without them it is only looked at when `insecure` is false.
    pub fn kubelet(self, server: Uri, ca: Option<Pem>, insecure: bool) -> Config {
        Config { server, ca, insecure, server_name: None, impersonate: Impersonate::default(), ..self }
    }
}

fn nowhere() -> Error {
    Error::Config(
        "no Kubernetes here: no service account of a pod, no KUBECONFIG and no ~/.kube/config; name a file with --kubeconfig"
            .into(),
    )
}

/// A URL of a server.
fn server(text: &str, from: &str) -> Result<Uri, Error> {
    let wrong = |why: &str| Error::Config(format!("{from}: the server `{text}` {why}"));
    let uri: Uri = text.parse().map_err(|_| wrong("is not a URL"))?;
    match uri.scheme_str() {
        Some("https" | "http") if uri.host().is_some() => Ok(uri),
        _ => Err(wrong("does not begin with https:// or http://")),
    }
}

/// More is no file of certificates, tokens or clusters.
const MOST_BYTES: u64 = 4 << 20;

/// Reads a small file. An error says which and why.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|open| open.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("{}: {error}", file.display()))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("{}: larger than 4 MiB", file.display()));
    }
    Ok(bytes)
}

impl Pem {
    pub(crate) fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Pem::Text(text) => Ok(text.clone()),
            Pem::File(path) => read(path),
        }
    }
}
