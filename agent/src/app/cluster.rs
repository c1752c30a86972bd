//! Objects of the cluster that concern this node, where somebody asks for them.

use super::reload::{self, Ask};
use super::{App, Options};
use crate::handed::{self, Handed};
use crate::objects::{self, Objects};
use kstrobe_kube::{Client, Config, Counters, Error, Surroundings, Wanted};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::runtime::Handle;

/// Follows them until the runtime ends. That there is no cluster is said, and takes nothing else down.
pub(super) fn start(app: &Arc<App>, options: &Options, asks: &Sender<Ask>, runtime: &Handle) {
    if !options.custom_resources {
        return;
    }
    match follow(app, options, asks, runtime) {
        Ok(()) => {}
        Err(error) => tracing::error!(%error, "--kubernetes.custom-resources: no objects of a cluster are followed"),
    }
}

fn follow(app: &Arc<App>, options: &Options, asks: &Sender<Ask>, runtime: &Handle) -> Result<(), Error> {
    let config = Config::find(&Wanted::default(), &Surroundings::own())?;
    let client = Client::new(config, crate::USER_AGENT)?;
    let node = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    let node = node.ok_or_else(|| Error::Config("the variable NODE_NAME does not say which node this is".into()))?;
    let (standing, capturing, asks) = (app.clone(), app.clone(), asks.clone());
    let namespace = client.namespace().to_owned();
    let counters = Arc::new(Counters::default());
    tracing::info!(server = %client.server(), namespace, node, "objects of the cluster are followed");
    let objects = Objects {
        client: client.clone(),
        namespace: namespace.clone(),
        node: node.clone(),
        captures: Box::new(move || capturing.desk().map(|desk| desk.service().clone())),
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
    runtime.spawn(objects::run(objects));
    runtime.spawn(handed::run(handed));
    Ok(())
}
