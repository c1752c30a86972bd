//! Drives the sessions of all nodes concurrently and stores their downloads.

mod act;
mod together;

#[cfg(test)]
mod tests;

use crate::TransportError;
use crate::clock::{self, Agreement, Offset};
use crate::node_session::{Limits, Next, NodeSession, Response, Stage};
use crate::target::{Missing, Pod, Target};
use bytes::Bytes;
use http::Method;
use http_body_util::combinators::UnsyncBoxBody;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use act::{explain, store, whole};
pub use together::Outcome;

/// Concurrent requests: the API server has other clients.
const MAX_AT_ONCE: usize = 32;
/// Concurrent downloads: each may saturate the network.
const MAX_DOWNLOADS: usize = 4;
/// Minimum time from the last hello to the common start: agents set up tracing meanwhile.
const LEAD: Duration = Duration::from_secs(2);
/// Added to [`LEAD`] per node.
const LEAD_PER_NODE: Duration = Duration::from_millis(20);

/// Streaming response body.
pub type Body = UnsyncBoxBody<Bytes, TransportError>;

/// Transport to the agents.
pub trait Agents: Send + Sync + 'static {
    /// Sends a request to an agent. Errors are transient.
    fn ask(
        &self,
        agent: &Pod,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> impl Future<Output = Result<http::Response<Body>, TransportError>> + Send;
}

/// Parameters of a capture on many nodes.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Record the hooks of this probe.
    pub probe: Option<String>,
    /// Request for the API of the agents, without `duration` and `start_at`.
    pub request: Value,
    /// Duration of the recording.
    pub duration: Duration,
    /// Keep the captures on the agents.
    pub keep: bool,
    /// Record all tasks of a node, also if it was selected by its pods.
    pub whole_nodes: bool,
}

/// Request keys that limit the recorded tasks.
pub const SCOPES: [&str; 4] = ["pods", "pids", "comms", "cgroups"];

/// A node of a run.
#[derive(Clone, Debug)]
struct Member {
    target: Target,
    /// Path of its download.
    file: PathBuf,
    session: NodeSession,
    /// Offset of its wall clock to ours.
    offset: Option<Offset>,
    /// Offset of its wall clock to the common clock, in nanoseconds.
    ahead_ns: i64,
    /// Request members added by the probe.
    of_probe: Value,
    /// Start time by its own clock, in nanoseconds since the Unix epoch.
    start_at: i64,
    notes: Vec<String>,
}

/// Progress of a node, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProgress {
    /// Node name.
    pub node: String,
    /// Current stage.
    pub stage: Stage,
    /// Size of its files, once known.
    pub bytes: u64,
    /// Number of records, once known.
    pub records: u64,
    /// Reason of a failure or retry.
    pub reason: String,
}

/// A capture on many nodes.
pub struct Run<A> {
    agents: A,
    spec: Spec,
    folder: PathBuf,
    limits: Limits,
    members: Vec<Mutex<Member>>,
    missing: Vec<Missing>,
    begun: Instant,
    agreed: Mutex<Option<Agreed>>,
    stop: watch::Receiver<bool>,
    asks: Semaphore,
    downloads: Semaphore,
}

/// Common start of a run.
#[derive(Clone, Debug)]
struct Agreed {
    agreement: Agreement,
    /// Start time by the common clock.
    begin_unix_ns: i64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update leaves the value consistent, so a poisoned lock is usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Our wall clock, in nanoseconds since the Unix epoch.
fn unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl<A: Agents> Run<A> {
    /// Creates a run that downloads into `folder`, on the file system of the archive. When `stop` becomes true, the recordings end
    /// early and are downloaded.
    pub fn new(
        agents: A,
        (targets, missing): (Vec<Target>, Vec<Missing>),
        spec: Spec,
        limits: Limits,
        folder: &Path,
        stop: watch::Receiver<bool>,
    ) -> Arc<Run<A>> {
        let member = |(at, target): (usize, Target)| {
            let session = NodeSession::new(limits, spec.duration, spec.keep);
            let file = folder.join(format!("{at}.dat"));
            let (offset, of_probe, notes) = (None, Value::Null, Vec::new());
            Mutex::new(Member { target, file, session, offset, ahead_ns: 0, of_probe, start_at: 0, notes })
        };
        Arc::new(Run {
            agents,
            folder: folder.to_owned(),
            limits,
            members: targets.into_iter().enumerate().map(member).collect(),
            missing,
            begun: Instant::now(),
            agreed: Mutex::new(None),
            stop,
            asks: Semaphore::new(MAX_AT_ONCE),
            downloads: Semaphore::new(MAX_DOWNLOADS),
            spec,
        })
    }

    /// Progress of all nodes.
    pub fn look(&self) -> Vec<NodeProgress> {
        let member = |member: &Mutex<Member>| {
            let member = lock(member);
            let status = member.session.status();
            NodeProgress {
                node: member.target.node.clone(),
                stage: member.session.stage(),
                bytes: status.bytes,
                records: status.records,
                reason: member.session.reason().to_owned(),
            }
        };
        let missing = |missing: &Missing| NodeProgress {
            node: missing.node.clone(),
            stage: Stage::Failed,
            bytes: 0,
            records: 0,
            reason: missing.reason.to_string(),
        };
        self.members.iter().map(member).chain(self.missing.iter().map(missing)).collect()
    }

    /// Runs all sessions to their end.
    pub async fn go(self: &Arc<Self>) {
        self.all().await;
        self.agree();
        self.all().await;
    }

    /// Drives each session until it holds or ends.
    async fn all(self: &Arc<Self>) {
        let mut tasks = JoinSet::new();
        for at in 0..self.members.len() {
            let run = self.clone();
            tasks.spawn(async move { run.drive(&run.members[at]).await });
        }
        // A panicked task leaves its session in its stage, which counts as not delivered.
        while tasks.join_next().await.is_some() {}
    }

    /// Sets the common start time of all ready nodes.
    fn agree(&self) {
        let ready: Vec<&Mutex<Member>> =
            self.members.iter().filter(|member| lock(member).session.stage() == Stage::Ready).collect();
        let offsets: Option<Vec<Offset>> = ready.iter().map(|member| lock(member).offset).collect();
        let Some(agreement) = offsets.as_deref().and_then(clock::agree) else { return };
        let lead = LEAD + LEAD_PER_NODE * u32::try_from(ready.len()).unwrap_or(u32::MAX);
        let begin = self.begun.elapsed() + lead;
        let begin_unix_ns = unix_ns().saturating_add(agreement.common.offset_ns).saturating_add(ns(lead));
        for (member, ahead_ns) in ready.iter().zip(&agreement.ahead_ns) {
            let mut member = lock(member);
            member.ahead_ns = *ahead_ns;
            member.start_at = begin_unix_ns.saturating_add(*ahead_ns);
            member.session.begin(begin);
        }
        *lock(&self.agreed) = Some(Agreed { agreement, begin_unix_ns });
    }

    async fn drive(&self, member: &Mutex<Member>) {
        let mut stop = self.stop.clone();
        loop {
            let next = {
                let mut member = lock(member);
                if *stop.borrow_and_update() {
                    member.session.stop();
                }
                member.session.next(self.begun.elapsed())
            };
            match next {
                Next::Do(action) => {
                    let response = self.act(member, action).await.unwrap_or_else(Response::Failed);
                    lock(member).session.on_response(self.begun.elapsed(), response);
                }
                Next::Sleep(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(self.begun + until) => {}
                        // The sender of `stop` was dropped: no stop request can come.
                        changed = stop.changed() => if changed.is_err() {
                            tokio::time::sleep_until(self.begun + until).await;
                        },
                    }
                }
                Next::Hold | Next::End => return,
            }
        }
    }
}
