//! Writing a node's entry into an object's status.
//!
//! Entries are members of one mapping, and a merge patch names its own member alone: a thousand nodes write into one object
//! without reading it first, and without conflicts. The sums that `kubectl get` shows are nobody's own. Whoever wrote an entry
//! looks later whether they are right, and else writes them, on the condition that nothing was written since; when that fails, whoever
//! was later has seen more and does it. Each write goes to every agent of the cluster: of entries that come together one node sums up.

use super::{CAPTURES, EVENTS, Head, PROBES, capture, condition, probe, to_text};
use crate::client::Client;
use crate::counters::Counters;
use crate::error::Error;
use crate::path::Resource;
use crate::watch::backoff::{Backoff, random};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
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
    /// Whether the state is another than before, which is an event.
    turns: bool,
}

impl Report {
    pub(super) fn of(head: &Head, node: &str, entry: &impl Serialize, turns: bool) -> Report {
        // What is absent is null here, which removes what was there before.
        let entry = serde_json::to_value(entry).unwrap_or_default();
        Report {
            namespace: head.namespace.clone(),
            name: head.name.clone(),
            uid: head.uid.clone(),
            node: node.to_owned(),
            entry,
            turns,
        }
    }

    pub(super) fn none(head: &Head, node: &str) -> Report {
        Report::of(head, node, &Value::Null, false)
    }

    /// The merge patch. An object of the same name that was made since is another one: its uid says so.
    pub fn patch(&self) -> Value {
        let mut nodes = serde_json::Map::new();
        nodes.insert(self.node.clone(), self.entry.clone());
        json!({"metadata": {"uid": self.uid}, "status": {"nodes": nodes}})
    }
}

impl Report {
    /// The event of a new state, at a time, under a name of its own.
    fn event(&self, kind: Kind, now: &str, number: u64) -> Value {
        let state = self.entry["state"].as_str().unwrap_or("Unknown");
        let is_bad = ["Failed", "Refused", "Partly", "Throttled"].contains(&state);
        let message = match self.entry["message"].as_str() {
            Some(message) => format!("node {}: {message}", self.node),
            None => format!("node {}", self.node),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": format!("{:.230}.{number:016x}", self.name), "namespace": self.namespace},
            "involvedObject": {
                "apiVersion": "kstrobe.dev/v1alpha1",
                "kind": format!("{kind:?}"),
                "namespace": self.namespace,
                "name": self.name,
                "uid": self.uid,
            },
            "type": if is_bad { "Warning" } else { "Normal" },
            "reason": state,
            "message": message,
            "source": {"component": "kstrobe", "host": self.node},
            "reportingComponent": "kstrobe.dev/agent",
            "reportingInstance": self.node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        })
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

    /// The sums and conditions of an object's status as they should be at a time.
    fn sums(self, object: &Value, now: &str) -> Option<Value> {
        let (mut sums, conditions) = match self {
            Kind::Capture => {
                let nodes = capture::read(object)?.nodes;
                (capture::summary(&nodes), capture::conditions(&nodes))
            }
            Kind::Probe => {
                let nodes = probe::read(object)?.nodes;
                (probe::summary(&nodes), probe::conditions(&nodes))
            }
        };
        let generation = &object["metadata"]["generation"];
        sums["conditions"] = condition::written(&conditions, &object["status"]["conditions"], generation, now);
        Some(sums)
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
        if report.turns {
            self.tell(report).await;
        }
        tokio::time::sleep(self.settle.mul_f64(1.0 + random())).await;
        let object: Value = match self.client.get(&object).await {
            Ok(object) => object,
            Err(error) if is_another(&error) => return Ok(()),
            Err(error) => {
                self.counters.failure("status", &error);
                return Err(error);
            }
        };
        let Some(sums) = self.kind.sums(&object, &now()) else { return Ok(()) };
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

impl Reporter {
    /// Makes an event of a new state. The status says the same and stays: an event that cannot be made is not tried again.
    async fn tell(&self, report: &Report) {
        let event = report.event(self.kind, &now(), (random() * u64::MAX as f64) as u64);
        match self.client.create::<Value>(&EVENTS.all(Some(&report.namespace)), &event).await {
            Ok(_) => self.counters.event("events"),
            Err(error) => {
                self.counters.failure("events", &error);
                tracing::debug!(object = report.name, %error, "the event cannot be made");
            }
        }
    }
}

/// The time, as Kubernetes writes it.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    to_text(i64::try_from(seconds).unwrap_or(i64::MAX)).unwrap_or_default()
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
