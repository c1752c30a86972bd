//! Asks the agents what their courses want, all at once, and keeps what they send.

mod act;
mod together;

#[cfg(test)]
mod tests;

use crate::clock::{self, Agreement, Offset};
use crate::course::{Course, Heard, Limits, Next, Stage};
use crate::target::{Missing, Pod, Target};
use bytes::Bytes;
use http::{Method, Response};
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

/// Questions under way at once: an API server has other clients.
const MOST_AT_ONCE: usize = 32;
/// Downloads under way at once: each may fill the line.
const MOST_DOWNLOADS: usize = 4;
/// Least time from the last agent's answer to the common beginning: each has to set its kernel up.
const LEAD: Duration = Duration::from_secs(2);
/// What each node adds to it.
const LEAD_PER_NODE: Duration = Duration::from_millis(20);

/// An answer's body, as it comes; an error is for people.
pub type Body = UnsyncBoxBody<Bytes, String>;

/// How agents are reached.
pub trait Agents: Send + Sync + 'static {
    /// Asks one. The error is for people, and may be gone the next time.
    fn ask(
        &self,
        agent: &Pod,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> impl Future<Output = Result<Response<Body>, String>> + Send;
}

/// What is wanted of every node.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Record what this probe sees.
    pub probe: Option<String>,
    /// The request for the agents' API, but for `duration` and `start_at`.
    pub request: Value,
    /// How long.
    pub duration: Duration,
    /// Leave the captures with the agents, too.
    pub keep: bool,
    /// Record everything on a node, also where pods of it are the reason to ask.
    pub whole_nodes: bool,
}

/// Keys of a request that choose the recorded tasks.
pub const SCOPES: [&str; 4] = ["pods", "pids", "comms", "cgroups"];

/// One node of a run.
#[derive(Clone, Debug)]
struct Member {
    target: Target,
    /// What it delivers.
    file: PathBuf,
    course: Course,
    /// How far its wall clock is ahead of ours.
    offset: Option<Offset>,
    /// How far it is ahead of what the others agree on.
    ahead_ns: i64,
    /// What its probe adds to the request.
    of_probe: Value,
    /// When it is to begin by its own clock.
    start_at: i64,
    notes: Vec<String>,
}

/// How a node stands, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its name.
    pub node: String,
    /// How far it is.
    pub stage: Stage,
    /// Bytes of its files, once it has some.
    pub bytes: u64,
    /// Records, once it has some.
    pub records: u64,
    /// Why it failed.
    pub reason: String,
}

/// A capture of many nodes.
pub struct Run<A> {
    agents: A,
    wish: Wish,
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

/// The common beginning.
#[derive(Clone, Debug)]
struct Agreed {
    agreement: Agreement,
    /// By the clock that the nodes agree on.
    begin_unix_ns: i64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change leaves it whole.
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
    /// One that puts what it downloads into a folder, on the disk that the file is to be on. When `stop` becomes true, what was recorded until then is fetched.
    pub fn new(
        agents: A,
        (targets, missing): (Vec<Target>, Vec<Missing>),
        wish: Wish,
        limits: Limits,
        folder: &Path,
        stop: watch::Receiver<bool>,
    ) -> Arc<Run<A>> {
        let member = |(at, target): (usize, Target)| {
            let course = Course::new(limits, wish.duration, wish.keep);
            let file = folder.join(format!("{at}.dat"));
            let (offset, of_probe, notes) = (None, Value::Null, Vec::new());
            Mutex::new(Member { target, file, course, offset, ahead_ns: 0, of_probe, start_at: 0, notes })
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
            asks: Semaphore::new(MOST_AT_ONCE),
            downloads: Semaphore::new(MOST_DOWNLOADS),
            wish,
        })
    }

    /// How all nodes stand.
    pub fn look(&self) -> Vec<Seen> {
        let member = |member: &Mutex<Member>| {
            let member = lock(member);
            let standing = member.course.standing();
            Seen {
                node: member.target.node.clone(),
                stage: member.course.stage(),
                bytes: standing.bytes,
                records: standing.records,
                reason: member.course.reason().to_owned(),
            }
        };
        let missing = |missing: &Missing| Seen {
            node: missing.node.clone(),
            stage: Stage::Failed,
            bytes: 0,
            records: 0,
            reason: missing.reason.clone(),
        };
        self.members.iter().map(member).chain(self.missing.iter().map(missing)).collect()
    }

    /// Runs it to its end.
    pub async fn go(self: &Arc<Self>) {
        self.all().await;
        self.agree();
        self.all().await;
    }

    /// Each as far as it goes.
    async fn all(self: &Arc<Self>) {
        let mut tasks = JoinSet::new();
        for at in 0..self.members.len() {
            let run = self.clone();
            tasks.spawn(async move { run.drive(&run.members[at]).await });
        }
        // A task that panics leaves its node where it was, which is told as such.
        while tasks.join_next().await.is_some() {}
    }

    /// Sets the common beginning for those that have answered.
    fn agree(&self) {
        let ready: Vec<&Mutex<Member>> =
            self.members.iter().filter(|member| lock(member).course.stage() == Stage::Ready).collect();
        let offsets: Option<Vec<Offset>> = ready.iter().map(|member| lock(member).offset).collect();
        let Some(agreement) = offsets.as_deref().and_then(clock::agree) else { return };
        let lead = LEAD + LEAD_PER_NODE * u32::try_from(ready.len()).unwrap_or(u32::MAX);
        let begin = self.begun.elapsed() + lead;
        let begin_unix_ns = unix_ns().saturating_add(agreement.common.offset_ns).saturating_add(ns(lead));
        for (member, ahead_ns) in ready.iter().zip(&agreement.ahead_ns) {
            let mut member = lock(member);
            member.ahead_ns = *ahead_ns;
            member.start_at = begin_unix_ns.saturating_add(*ahead_ns);
            member.course.begin(begin);
        }
        *lock(&self.agreed) = Some(Agreed { agreement, begin_unix_ns });
    }

    async fn drive(&self, member: &Mutex<Member>) {
        let mut stop = self.stop.clone();
        loop {
            let next = {
                let mut member = lock(member);
                if *stop.borrow_and_update() {
                    member.course.stop();
                }
                member.course.next(self.begun.elapsed())
            };
            match next {
                Next::Do(action) => {
                    let heard = self.act(member, action).await.unwrap_or_else(Heard::Trouble);
                    lock(member).course.heard(self.begun.elapsed(), heard);
                }
                Next::Sleep(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(self.begun + until) => {}
                        // Who could tell is gone: nobody will.
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
