//! The part of the agent that takes captures: built from the configuration, replaced by a reload.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use kstrobe_history::MarkKind;
use kstrobe_web::ConfigWatcher;

use super::Captures;
use super::exports::Exports;
use super::history::HistoryStore;
use crate::capture::Error;
use crate::capture::access::{self, Access, Denied};
use crate::capture::engine::kernel;
use crate::capture::rules::configured;
use crate::capture::service::Engine;
use crate::config::files::{AgentConfig, HistoryConfig};
use crate::config::plan::ProbePlan;
use crate::kubernetes;

/// Time for running captures to write their files when captures are closed.
const END: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct CaptureDeps {
    pub addresses: Vec<SocketAddr>,
    /// The web configuration: it may require passwords or client certificates.
    pub source: Arc<ConfigWatcher>,
    /// Gets captures that have ended.
    pub exports: Arc<Exports>,
    /// Gets a mark for each of them.
    pub history: Arc<HistoryStore>,
}

impl CaptureDeps {
    /// For an agent without listeners and exporters.
    pub fn offline() -> CaptureDeps {
        CaptureDeps {
            addresses: Vec::new(),
            source: Arc::new(ConfigWatcher::plain(Arc::default())),
            exports: Arc::default(),
            history: Arc::new(HistoryStore::new(&HistoryConfig::default())),
        }
    }

    fn engine(&self, agent: &AgentConfig) -> Engine {
        let (exports, history) = (self.exports.clone(), self.history.clone());
        let cluster = agent.kubernetes.clone();
        let locate_pods = Box::new(move |request: &_| {
            kubernetes::pods::located(request, &cluster).map_err(|error| Error::Pods(error.into()))
        });
        Engine {
            on_finished: Box::new(move |capture, folder, times| {
                let (text, link) = (format!("capture {}", capture.id), format!("/api/v1/captures/{}", capture.id));
                let started = UNIX_EPOCH + Duration::from_millis(capture.started_unix_ms);
                history.mark(MarkKind::Capture, started, text, Some(link));
                exports.captured(capture, folder, times);
            }),
            ..kernel(locate_pods, kubernetes::node(&agent.kubernetes))
        }
    }

    fn access(&self, agent: &AgentConfig) -> Access {
        let token_file = agent.captures.as_ref().and_then(|captures| captures.token_file.as_ref());
        Access::new(&self.addresses, token_file.map(|file| PathBuf::from(&file.value)))
    }

    /// Logs why no client may request captures.
    fn offered(&self, captures: Captures) -> Captures {
        match &captures.access {
            // The server authenticates clients: that is enough.
            Access::Off(_) if self.source.settings().requires_identity() => {}
            Access::Off(reason) if captures.rules.is_ok() => tracing::warn!(reason, "the API of captures"),
            Access::Token(file) => {
                if let Err(error) = access::token(file) {
                    tracing::error!(reason = %error, "the token of captures cannot be read");
                }
            }
            Access::Off(_) | Access::Local => {}
        }
        captures
    }
}

/// A folder that cannot be opened is logged, and turns captures off: probes run without them.
pub(super) fn start(agent: &AgentConfig, plans: &[ProbePlan], deps: &CaptureDeps) -> Captures {
    let rules = match configured::open(agent, deps.engine(agent), |name| known(plans, name)) {
        Ok(rules) => rules.ok_or_else(Denied::off),
        Err(reason) => {
            tracing::error!(%reason, "captures cannot be stored: there will be none");
            Err(Denied::broken(&reason))
        }
    };
    deps.offered(Captures { rules, access: deps.access(agent) })
}

/// A change of captures by a reload. `make` applies it.
pub(super) enum Change {
    /// The folder is the same: stored and running captures stay.
    Configure(Access),
    /// Another folder, or none.
    Replace(Captures),
}

/// Opens the folder of the new configuration if it is another one.
pub(super) fn prepare(
    now: &Captures,
    agent: &AgentConfig,
    plans: &[ProbePlan],
    deps: &CaptureDeps,
) -> io::Result<Change> {
    let access = deps.access(agent);
    if let (Ok(rules), Some(wanted)) = (&now.rules, &agent.captures)
        && rules.service().settings().dir == wanted.dir
    {
        return Ok(Change::Configure(access));
    }
    let rules = configured::open(agent, deps.engine(agent), |name| known(plans, name))?;
    Ok(Change::Replace(Captures { rules: rules.ok_or_else(Denied::off), access }))
}

impl Change {
    /// Applies the change and returns the captures that are in force then.
    pub fn make(self, now: &Captures, agent: &AgentConfig, plans: &[ProbePlan], deps: &CaptureDeps) -> Captures {
        match self {
            Change::Replace(captures) => deps.offered(captures),
            Change::Configure(access) => {
                if let (Ok(rules), Some(captures)) = (&now.rules, &agent.captures) {
                    configured::configure(rules, agent, captures, |name| known(plans, name));
                }
                deps.offered(Captures { rules: now.rules.clone(), access })
            }
        }
    }
}

/// Ends running captures, unless `next` has the same folder.
pub(super) fn close(captures: &Captures, next: Option<&Captures>) {
    let Ok(rules) = &captures.rules else { return };
    let stays = next.and_then(|next| next.rules.as_ref().ok()).is_some_and(|next| Arc::ptr_eq(next, rules));
    if !stays {
        rules.service().close(END);
    }
}

fn known(plans: &[ProbePlan], name: &str) -> bool {
    plans.iter().flat_map(|plan| plan.meta().metrics.iter()).any(|metric| metric.about.name == name)
}
