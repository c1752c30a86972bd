//! Objects of the cluster that concern this node, where somebody asks for them.

use super::reload::{self, Ask};
use super::{App, Options};
use crate::config::files::AgentConfig;
use crate::kubernetes;
use crate::kubernetes::capture_controller::{self, Objects};
use crate::kubernetes::probe_controller::{self, Handed};
use kstrobe_kube::Error;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::runtime::Handle;

/// Follows them until the runtime ends. That there is no cluster is said, and takes nothing else down.
pub(super) fn start(app: &Arc<App>, options: &Options, agent: &AgentConfig, asks: &Sender<Ask>, runtime: &Handle) {
    if !options.custom_resources {
        return;
    }
    match follow(app, options, agent, asks, runtime) {
        Ok(()) => {}
        Err(error) => tracing::error!(%error, "--kubernetes.custom-resources: no objects of a cluster are followed"),
    }
}

fn follow(
    app: &Arc<App>,
    options: &Options,
    agent: &AgentConfig,
    asks: &Sender<Ask>,
    runtime: &Handle,
) -> Result<(), Error> {
    let client = kubernetes::client(kubernetes::config(&agent.kubernetes)?)?;
    let nobody = "neither `kubernetes.node` nor the variable NODE_NAME says which node this is";
    let node = kubernetes::node(&agent.kubernetes).ok_or_else(|| Error::Config(nobody.into()))?;
    let (standing, capturing, asks) = (app.clone(), app.clone(), asks.clone());
    let namespace = client.namespace().to_owned();
    let counters = app.kubernetes.clone();
    tracing::info!(server = %client.server(), namespace, node, "objects of the cluster are followed");
    let objects = Objects {
        client: client.clone(),
        namespace: namespace.clone(),
        node: node.clone(),
        captures: Box::new(move || capturing.rules()),
        counters: counters.clone(),
    };
    let handed = Handed {
        client,
        namespace,
        node,
        counters,
        files: options.handed.clone(),
        reload: Arc::new(move || reload::ask(&asks, "probes of the cluster have changed").map(|_| ())),
        standing: Arc::new(move || standing.status().probes),
    };
    runtime.spawn(capture_controller::run(objects));
    runtime.spawn(probe_controller::run(handed));
    Ok(())
}
