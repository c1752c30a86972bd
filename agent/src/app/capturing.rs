//! Captures as the configuration wants them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kstrobe_web::Source;

use super::Captures;
use super::exports::Exports;
use crate::capture::access::{self, Access, Denied};
use crate::capture::engine::kernel;
use crate::capture::rules::configured;
use crate::capture::service::Engine;
use crate::config::files::AgentConfig;
use crate::config::plan::Draft;
use crate::kubernetes;

/// How long captures that run may take to put down what they have once there is no place for them any more.
const END: Duration = Duration::from_secs(10);

/// What captures need of the agent.
#[derive(Clone)]
pub(super) struct Around {
    /// Where the agent listens.
    pub addresses: Vec<SocketAddr>,
    /// Its doors, where clients may be asked who they are.
    pub source: Arc<Source>,
    /// Where captures are handed over that have ended.
    pub exports: Arc<Exports>,
}

impl Around {
    /// Of an agent that nobody can reach and that sends to nobody.
    pub fn nobody() -> Around {
        Around { addresses: Vec::new(), source: Arc::new(Source::plain(Arc::default())), exports: Arc::default() }
    }

    /// Records from this kernel.
    fn engine(&self, agent: &AgentConfig) -> Engine {
        let (exports, cluster) = (self.exports.clone(), agent.kubernetes.clone());
        let locate_pods = Box::new(move |request: &_| kubernetes::pods::located(request, &cluster));
        Engine {
            on_finished: Box::new(move |capture, folder, times| exports.captured(capture, folder, times)),
            ..kernel(locate_pods, kubernetes::node(&agent.kubernetes))
        }
    }

    /// Who may ask for captures.
    fn access(&self, agent: &AgentConfig) -> Access {
        let token_file = agent.captures.as_ref().and_then(|captures| captures.token_file.as_ref());
        Access::new(&self.addresses, token_file.map(|file| PathBuf::from(&file.value)))
    }

    /// Says what keeps everybody from them.
    fn offered(&self, captures: Captures) -> Captures {
        match &captures.access {
            // Who came through the door has said who they are, and may.
            Access::Nobody(_) if self.source.settings().asks_who() => {}
            Access::Nobody(reason) if captures.rules.is_ok() => tracing::warn!(reason, "the API of captures"),
            Access::Token(file) => {
                if let Err(reason) = access::token(file) {
                    tracing::error!(reason, "the token of captures cannot be read");
                }
            }
            Access::Nobody(_) | Access::Local => {}
        }
        captures
    }
}

/// Of an agent that starts. One that cannot store captures still measures.
pub(super) fn start(agent: &AgentConfig, drafts: &[Draft], around: &Around) -> Captures {
    let rules = match configured::open(agent, around.engine(agent), |name| known(drafts, name)) {
        Ok(rules) => rules.ok_or_else(Denied::off),
        Err(reason) => {
            tracing::error!(%reason, "captures cannot be stored: there will be none");
            Err(Denied::broken(&reason))
        }
    };
    around.offered(Captures { rules, access: around.access(agent) })
}

/// What another configuration makes of them. Nothing has changed until it is done.
pub(super) enum Change {
    /// The folder stays, and with it what is stored and what runs.
    Configure(Access),
    /// Others, or none.
    Replace(Captures),
}

/// Finds out what it makes of them, or why it cannot be done.
pub(super) fn prepare(
    now: &Captures,
    agent: &AgentConfig,
    drafts: &[Draft],
    around: &Around,
) -> Result<Change, String> {
    let access = around.access(agent);
    if let (Ok(rules), Some(wanted)) = (&now.rules, &agent.captures)
        && rules.service().settings().dir == wanted.dir
    {
        return Ok(Change::Configure(access));
    }
    let rules = configured::open(agent, around.engine(agent), |name| known(drafts, name));
    let rules = rules.map_err(|reason| format!("captures cannot be stored: {reason}"))?;
    Ok(Change::Replace(Captures { rules: rules.ok_or_else(Denied::off), access }))
}

impl Change {
    /// Does it. Gives what there is from now on.
    pub fn make(self, now: &Captures, agent: &AgentConfig, drafts: &[Draft], around: &Around) -> Captures {
        match self {
            Change::Replace(captures) => around.offered(captures),
            Change::Configure(access) => {
                if let (Ok(rules), Some(captures)) = (&now.rules, &agent.captures) {
                    configured::configure(rules, agent, captures, |name| known(drafts, name));
                }
                around.offered(Captures { rules: now.rules.clone(), access })
            }
        }
    }
}

/// Ends what runs, unless it is what runs from now on too.
pub(super) fn close(captures: &Captures, next: Option<&Captures>) {
    let Ok(rules) = &captures.rules else { return };
    let stays = next.and_then(|next| next.rules.as_ref().ok()).is_some_and(|next| Arc::ptr_eq(next, rules));
    if !stays {
        rules.service().close(END);
    }
}

fn known(drafts: &[Draft], name: &str) -> bool {
    drafts.iter().flat_map(|draft| draft.outline().metrics.iter()).any(|metric| metric.about.name == name)
}
