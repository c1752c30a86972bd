//! An agent within the process of a command: its probes, its history and its API on a free port of 127.0.0.1 end with the command.

use super::events::{self, Reader, Sink};
use super::session::Alone;
use super::{
    Endpoints, Reload, ReloadRefused, budgets, history, housekeeping, iterate, kernel_log, limits, load_config, lock,
    rights, unwind,
};
use crate::config::compile;
use crate::config::plan::ProbePlan;
use crate::kubernetes;
use crate::metrics::events::tail::Tail;
use axum::Router;
use kstrobe_web::ConfigWatcher;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Probes with the shipped configuration and a server.
pub struct InProcess {
    alone: Alone,
    address: SocketAddr,
    /// `None` once it is closed.
    reader: Option<Reader>,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum InProcessError {
    /// Threads, signals and the socket.
    #[error("probes cannot be started: {0}")]
    Io(#[from] io::Error),
    /// The process lacks the rights for every probe.
    #[error("{0}")]
    Rights(String),
}

impl InProcess {
    /// Compiles and starts the probes, and serves until it is dropped. Fails when none runs for want of rights.
    pub fn start(
        plans: &[ProbePlan],
        btf: Option<&Path>,
        router: fn(Endpoints) -> Router,
    ) -> Result<InProcess, InProcessError> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let alone = Alone::start(&compile::look(plans, btf), plans, btf)?;
        let (app, agent) = (&alone.app, &alone.agent);
        if let Some(lacking) = rights::lacking(app).filter(|lacking| lacking.all) {
            return Err(InProcessError::Rights(lacking.text));
        }
        *lock(&app.node) = kubernetes::node_or_host(&agent.kubernetes);
        app.set_budget(agent);
        housekeeping::start(app.clone())?;
        budgets::start(app.clone(), budgets::Rest::Never)?;
        history::start(app.clone())?;
        iterate::start(app)?;
        unwind::start(app)?;
        kernel_log::start(app.history.clone())?;
        let tail = Arc::new(Tail::new(load_config::slow(plans), agent.kept_events));
        let reader = events::start(app.clone(), tail.clone(), Sink::None)?;
        let reload = Reload { open: false, ask: Box::new(|| Err(ReloadRefused(NO_RELOAD.to_owned()))) };
        let server = kstrobe_web::Server {
            listeners: vec![listener],
            router: router(super::endpoints(app, tail, reload, "/metrics")),
            config: Arc::new(ConfigWatcher::plain(app.web.clone())),
            limits: limits(),
            hosts: kstrobe_web::Hosts::of_machine(Vec::new()),
            own_credentials: None,
        };
        alone.runtime.spawn(server.run(std::future::pending()));
        Ok(InProcess { alone, address, reader: Some(reader) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether SIGINT or SIGTERM came.
    pub fn is_stopped(&self) -> bool {
        self.alone.stop.load(Relaxed)
    }
}

/// What a client gets that asks for a reload.
const NO_RELOAD: &str = "these probes end with the command that runs them, and have no files to read again";

impl Drop for InProcess {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.close();
        }
        // The kernel keeps these when the process ends.
        super::end_sessions(self.alone.app.clone());
    }
}
