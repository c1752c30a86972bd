//! The cluster that this node is part of, as the configuration says, or as a pod finds it around itself.

use crate::sources::AgentConfig;
use kstrobe_kube::{Client, Config, Error, Surroundings, Wanted};
use std::path::PathBuf;

/// Where the API server is and who we are to it: by `kubernetes.kubeconfig`, else as kubectl finds it.
pub fn config(agent: &AgentConfig) -> Result<Config, Error> {
    let kubeconfig = agent.kubernetes.kubeconfig.as_ref().map(PathBuf::from);
    Config::find(&Wanted { kubeconfig, ..Wanted::default() }, &Surroundings::own())
}

/// A client that says who asks.
pub fn client(config: Config) -> Result<Client, Error> {
    Client::new(config, crate::USER_AGENT)
}

/// The name of this node, where somebody says it: `kubernetes.node` or the pod's environment.
pub fn node(agent: &AgentConfig) -> Option<String> {
    agent.kubernetes.node.clone().or_else(|| variable("NODE_NAME"))
}

/// What the pod's environment says.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}
