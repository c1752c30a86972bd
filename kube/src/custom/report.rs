//! Writing a node's entry into an object's status.
//!
//! Entries are members of one mapping, and a merge patch names its own member alone: a thousand nodes write into one object
//! without reading it first, and without conflicts. The sums that `kubectl get` shows are nobody's own. Whoever wrote an entry
//! looks later whether they are right, and else writes them, on the condition that nothing was written since; when that fails, whoever
//! was later has seen more and does it. Each write goes to every agent of the cluster: of entries that come together one node sums up.

use super::{CAPTURES, Head, PROBES, capture, probe};
use crate::client::Client;
use crate::counters::Counters;
use crate::error::Error;
use crate::path::Resource;
use crate::watch::backoff::{Backoff, random};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// After a status that could not be written.
const PAUSE: Duration = Duration::from_secs(30);
/// Attempts at one entry. One that fails is written again when the object is looked at next.
const ATTEMPTS: u32 = 6;

/// A node's entry of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    namespace: String,
    /// The object's name.
    pub name: String,
    uid: String,
    node: String,
    entry: Value,
}

impl Report {
    pub(super) fn of(head: &Head, node: &str, entry: &impl Serialize) -> Report {
        // What is absent is null here, which removes what was there before.
        let entry = serde_json::to_value(entry).unwrap_or_default();
        Report {
            namespace: head.namespace.clone(),
            name: head.name.clone(),
            uid: head.uid.clone(),
            node: node.to_owned(),
            entry,
        }
    }

    pub(super) fn none(head: &Head, node: &str) -> Report {
        Report::of(head, node, &Value::Null)
    }

    /// The merge patch. An object of the same name that was made since is another one: its uid says so.
    pub fn patch(&self) -> Value {
        let mut nodes = serde_json::Map::new();
        nodes.insert(self.node.clone(), self.entry.clone());
        json!({"metadata": {"uid": self.uid}, "status": {"nodes": nodes}})
    }
}

/// Whether the object is gone, or is another one by now: it has no entry to be written.
fn is_another(error: &Error) -> bool {
    error.is(404)
        || error.is(409) && error.status().is_some_and(|status| status.message.contains("UID in precondition"))
}

/// Objects of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Captures.
    Capture,
    /// Probes.
    Probe,
}

impl Kind {
    fn resource(self) -> &'static Resource {
        match self {
            Kind::Capture => &CAPTURES,
            Kind::Probe => &PROBES,
        }
    }

    /// The sums of an object's status as they should be.
    fn sums(self, object: &Value) -> Option<Value> {
        match self {
            Kind::Capture => Some(capture::summary(&capture::read(object)?.nodes)),
            Kind::Probe => Some(probe::summary(&probe::read(object)?.nodes)),
        }
    }
}

/// Writes entries.
#[derive(Clone)]
pub struct Reporter {
    /// The API server.
    pub client: Client,
    /// What fails is counted here.
    pub counters: Arc<Counters>,
    /// Of which objects.
    pub kind: Kind,
    /// Pauses between attempts.
    pub backoff: Backoff,
    /// From an entry to the look at the sums; up to twice as long. The entries of other nodes should be there by then.
    pub settle: Duration,
}

impl Reporter {
    /// Writes an entry, and the sums if they are wrong some time later.
    pub async fn write(&self, report: &Report) -> Result<(), Error> {
        let object = self.kind.resource().one(Some(&report.namespace), &report.name);
        let path = format!("{object}/status?fieldManager=kstrobe");
        let mut attempt = 1;
        loop {
            let error = match self.client.merge_patch::<Value>(&path, &report.patch()).await {
                Ok(_) => break,
                Err(error) => error,
            };
            self.counters.failure("status", &error);
            if is_another(&error) {
                return Ok(());
            }
            // A conflict may come of a thousand nodes at once: the server itself gives up after some attempts.
            let is_final = matches!(error.status().map(|status| status.code), Some(400 | 403 | 422));
            if is_final || attempt == ATTEMPTS {
                return Err(error);
            }
            let pause = self.backoff.pause(attempt, random());
            tokio::time::sleep(pause.max(error.retry_after().unwrap_or_default())).await;
            attempt += 1;
        }
        self.counters.event("status_entries");
        tokio::time::sleep(self.settle.mul_f64(1.0 + random())).await;
        let object: Value = match self.client.get(&object).await {
            Ok(object) => object,
            Err(error) if is_another(&error) => return Ok(()),
            Err(error) => {
                self.counters.failure("status", &error);
                return Err(error);
            }
        };
        let Some(sums) = self.kind.sums(&object) else { return Ok(()) };
        let is_so = |(key, value): (&String, &Value)| object["status"][key] == *value;
        if sums.as_object().into_iter().flatten().all(is_so) {
            return Ok(());
        }
        let patch = json!({"metadata": {"resourceVersion": object["metadata"]["resourceVersion"]}, "status": sums});
        match self.client.merge_patch::<Value>(&path, &patch).await {
            Ok(_) => self.counters.event("status_sums"),
            Err(error) if error.is(409) => self.counters.event("status_sums_left_to_others"),
            Err(error) => self.counters.failure("status", &error),
        }
        Ok(())
    }
}

/// Reports under way, one of each object.
pub struct Reports {
    reporter: Reporter,
    tasks: JoinSet<(String, bool)>,
    /// Objects whose status is being written, or is not to be written before then.
    quiet: BTreeMap<String, Option<Instant>>,
}

impl Reports {
    /// None yet.
    pub fn new(reporter: Reporter) -> Reports {
        Reports { reporter, tasks: JoinSet::new(), quiet: BTreeMap::new() }
    }

    /// Takes in what has come of them.
    pub fn settle(&mut self, now: Instant) {
        while let Some(done) = self.tasks.try_join_next() {
            // A report that panicked is quiet for ever: it would again.
            let Ok((name, written)) = done else { continue };
            if written {
                self.quiet.remove(&name)
            } else {
                self.quiet.insert(name, Some(now + PAUSE))
            };
        }
        self.quiet.retain(|_, until| until.is_none_or(|until| until > now));
    }

    /// Begins one, unless one of its object is under way or has just failed: then it is to be asked for again.
    pub fn begin(&mut self, report: Report) {
        if self.quiet.contains_key(&report.name) {
            return;
        }
        self.quiet.insert(report.name.clone(), None);
        let reporter = self.reporter.clone();
        self.tasks.spawn(async move {
            let written = reporter.write(&report).await;
            if let Err(error) = &written {
                tracing::warn!(kind = ?reporter.kind, object = report.name, %error, "the status cannot be written");
            }
            (report.name, written.is_ok())
        });
    }
}
