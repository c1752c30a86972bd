//! `Capture` and `Probe` objects of the cluster (`--kubernetes.custom-resources`).

use super::reload::{self, CommandSender};
use super::{App, Options};
use crate::config::files::AgentConfig;
use crate::kubernetes::capture_controller::{self, Objects};
use crate::kubernetes::probe_controller::{self, Context};
use crate::kubernetes::{self, Error};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Watches the objects until the runtime ends. Without a cluster it logs an error, and the rest of the agent runs.
pub(super) fn start(
    app: &Arc<App>,
    options: &Options,
    agent: &AgentConfig,
    commands: &CommandSender,
    runtime: &Handle,
) {
    if !options.custom_resources {
        return;
    }
    match follow(app, options, agent, commands, runtime) {
        Ok(()) => {}
        Err(error) => tracing::error!(%error, "--kubernetes.custom-resources: no objects of a cluster are followed"),
    }
}

fn follow(
    app: &Arc<App>,
    options: &Options,
    agent: &AgentConfig,
    commands: &CommandSender,
    runtime: &Handle,
) -> Result<(), Error> {
    let client = kubernetes::client(kubernetes::config(&agent.kubernetes)?)?;
    let node = kubernetes::node(&agent.kubernetes).ok_or(Error::NoNode)?;
    let (standing, captured, commands) = (app.clone(), app.clone(), commands.clone());
    let namespace = client.namespace().to_owned();
    let counters = app.kubernetes.clone();
    tracing::info!(server = %client.server(), namespace, node, "objects of the cluster are followed");
    let objects = Objects {
        client: client.clone(),
        namespace: namespace.clone(),
        node: node.clone(),
        captures: Box::new(move || captured.rules()),
        counters: counters.clone(),
    };
    let context = Context {
        client,
        namespace,
        node,
        counters,
        files: options.handed.clone(),
        reload: Arc::new(move || {
            reload::request(&commands, "probes of the cluster have changed").map(drop).map_err(Into::into)
        }),
        statuses: Arc::new(move || standing.status().probes),
    };
    runtime.spawn(capture_controller::run(objects));
    runtime.spawn(probe_controller::run(context));
    Ok(())
}
