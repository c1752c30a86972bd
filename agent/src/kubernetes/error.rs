//! Errors of the cluster that this node is part of.

use crate::config::files::diag::{self, Diagnostic};
use kstrobe_kube::crd::SpecError;
use kstrobe_workloads::cgroups;
use std::io;
use std::time::Duration;
use tokio::task::JoinError;

/// The error of a room above, such as a refused reload.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why something cannot be had of the cluster, or is not done for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kstrobe_kube::Error),
    #[error("the API server does not answer within {0:?}")]
    ApiTimeout(Duration),
    #[error("neither `kubernetes.node` nor the variable NODE_NAME says which node this is")]
    NoNode,
    #[error("`kubernetes.source` is `none`")]
    NoSource,
    #[error("`kubernetes.kubelet_url`: `{0}` is no URL")]
    KubeletUrl(String),
    #[error("the pods of this node are not known: {0}")]
    Pods(#[source] Box<Error>),
    #[error("no answer within {0:?}")]
    PodsTimeout(Duration),
    #[error(transparent)]
    Runtime(#[from] io::Error),
    #[error(transparent)]
    Cgroups(#[from] cgroups::Error),
    #[error("no control groups that pods are in are mounted")]
    NoHierarchy,
    #[error("pod `{0}` is not on this node")]
    NoPod(String),
    #[error("pod `{0}` has no control group: it does not run")]
    NotRunning(String),
    #[error("agents hear of one another's alerts by `Capture` objects, which are off (`customResources.enabled`)")]
    ObjectsOff,
    #[error("the cluster has no `Capture` objects, by which agents hear of one another's alerts: {0}")]
    NoObjects(#[source] kstrobe_kube::Error),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("{}", diag::render(.0))]
    Diagnostics(Vec<Diagnostic>),
    #[error(transparent)]
    Reload(BoxError),
    #[error("the reload failed: {0}")]
    Task(#[from] JoinError),
}
