//! Errors of `kstrobe fleet`.

use crate::capture::access::TokenError;
use kstrobe_fleet::target::Missing;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("say what to record: --probe NAME, --event EVENT or --graph-root FUNCTION")]
    NothingToRecord,
    #[error("say which nodes: -l SELECTOR, --node NAME or --all-nodes")]
    NoNodes,
    #[error("{} is no name of a file", .0.display())]
    FileName(PathBuf),
    #[error("{}: {error}", file.display())]
    File {
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}: {error}", file.display())]
    Token {
        file: PathBuf,
        #[source]
        error: TokenError,
    },
    #[error("the token cannot stand in a header of HTTP")]
    TokenHeader(#[from] http::header::InvalidHeaderValue),
    #[error(transparent)]
    Kubernetes(#[from] kstrobe_kube::Error),
    /// 403 for all namespaces.
    #[error("{error}; where a Role allows those of one namespace, name it: {option}")]
    AllNamespaces {
        #[source]
        error: kstrobe_kube::Error,
        option: &'static str,
    },
    #[error(
        "no agents: no pods with the labels {selector} in {}; name others with --agent-selector and --agent-namespace",
        place(namespace.as_deref())
    )]
    NoAgents { selector: String, namespace: Option<String> },
    #[error("no agent to ask: {}", reasons(.0))]
    NoTargets(Vec<Missing>),
    #[error("no pods have the labels {0}")]
    NoPods(String),
    #[error("none of the {pods} pods with the labels {selector} runs")]
    NotRunning { pods: usize, selector: String },
    #[error("`{0}` is no Capture")]
    NotACapture(String),
    #[error("there is no Capture `{name}` where the agents are ({namespaces}): kubectl get captures -A lists all")]
    NoCapture { name: String, namespaces: String },
    #[error("no node says anything about `{0}` yet")]
    NoStatus(String),
    #[error(transparent)]
    Agent(#[from] kstrobe_fleet::Error),
    /// `state` and `message` of the node in the Capture's status.
    #[error("{state}: {message}")]
    NoFile { state: String, message: String },
    #[error("it still runs")]
    StillRuns,
    #[error("no whole file within {} s", .0.as_secs())]
    FileTimeout(Duration),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

fn place(namespace: Option<&str>) -> String {
    namespace.map_or("any namespace".to_owned(), |name| format!("namespace `{name}`"))
}

fn reasons(missing: &[Missing]) -> String {
    missing.iter().map(|m| format!("{}: {}", m.node, m.reason)).collect::<Vec<_>>().join("; ")
}
