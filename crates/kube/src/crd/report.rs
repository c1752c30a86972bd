//! Writes the entry of a node into the status of an object.
//!
//! `status.nodes` is a mapping, and a merge patch contains only the member of its node: a thousand nodes write to one object
//! without reading it first and without conflicts. The sums that `kubectl get` shows belong to no node. After its entry, a node
//! reads the object later and corrects the sums with a `resourceVersion` precondition; on a conflict a later writer has newer
//! data. Each write reaches every agent, so that of concurrent entries one node writes the sums.

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

/// Pause after a failed status write.
const PAUSE: Duration = Duration::from_secs(30);
/// Attempts per entry. A failed entry is written again at the next reconciliation of its object.
const ATTEMPTS: u32 = 6;

/// Status entry of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    namespace: String,
    /// Object name.
    pub name: String,
    uid: String,
    node: String,
    entry: Value,
    /// Whether the state changed, which creates an event.
    turns: bool,
}

impl Report {
    pub(super) fn of(head: &Head, node: &str, entry: &impl Serialize, turns: bool) -> Report {
        // Absent fields serialise as null, which removes them in a merge patch.
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

    /// The merge patch.
    pub fn patch(&self) -> Value {
        json!({"status": {"nodes": {&self.node: self.entry}}})
    }
}

impl Report {
    /// Event of a state change, with a unique name.
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

/// Kind of a custom resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Capture,
    Probe,
}

impl Kind {
    fn resource(self) -> &'static Resource {
        match self {
            Kind::Capture => &CAPTURES,
            Kind::Probe => &PROBES,
        }
    }

    /// Sums and conditions computed from the entries of an object.
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

/// Writes status entries, sums and events.
#[derive(Clone)]
pub struct Reporter {
    /// Client of the API server.
    pub client: Client,
    /// Failure counters.
    pub counters: Arc<Counters>,
    /// Kind of the objects.
    pub kind: Kind,
    /// Backoff between attempts.
    pub backoff: Backoff,
    /// Delay between an entry and the check of the sums, randomly up to twice as long, to include entries of other nodes.
    pub settle: Duration,
}

impl Reporter {
    /// Writes an entry, and later the sums if they are outdated.
    pub async fn write(&self, report: &Report) -> Result<(), Error> {
        let object = self.kind.resource().one(Some(&report.namespace), &report.name);
        let path = format!("{object}/status?fieldManager=kstrobe");
        let Some(uid) = self.patch(&path, report).await? else { return Ok(()) };
        if uid != report.uid {
            // The API server compares no uids in a patch of `status`: this is another object of the same name.
            self.patch(&path, &Report { entry: Value::Null, ..report.clone() }).await?;
            return Ok(());
        }
        self.counters.event("status_entries");
        if report.turns {
            self.tell(report).await;
        }
        tokio::time::sleep(self.settle.mul_f64(1.0 + random())).await;
        let object: Value = match self.client.get(&object).await {
            Ok(object) => object,
            Err(error) if error.is(404) => return Ok(()),
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
    /// Writes an entry and returns the uid of the object that has it now; `None` if the object was deleted.
    async fn patch(&self, path: &str, report: &Report) -> Result<Option<Value>, Error> {
        let mut attempt = 1;
        loop {
            let error = match self.client.merge_patch::<Value>(path, &report.patch()).await {
                Ok(mut object) => return Ok(Some(object["metadata"]["uid"].take())),
                Err(error) => error,
            };
            self.counters.failure("status", &error);
            if error.is(404) {
                return Ok(None);
            }
            // The API server retries a patch a few times itself and returns a conflict under a thousand concurrent writers.
            let is_final = matches!(error.status().map(|status| status.code), Some(400 | 403 | 422));
            if is_final || attempt == ATTEMPTS {
                return Err(error);
            }
            let pause = self.backoff.pause(attempt, random());
            tokio::time::sleep(pause.max(error.retry_after().unwrap_or_default())).await;
            attempt += 1;
        }
    }

    /// Creates the event of a state change, without retries: the status has the same information.
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

/// Current time (RFC 3339).
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    to_text(i64::try_from(seconds).unwrap_or(i64::MAX)).unwrap_or_default()
}

/// Running report tasks, at most one per object.
pub struct Reports {
    reporter: Reporter,
    tasks: JoinSet<(String, bool)>,
    /// Objects with a running write (`None`) or a retry time.
    quiet: BTreeMap<String, Option<Instant>>,
}

impl Reports {
    /// Creates an empty set.
    pub fn new(reporter: Reporter) -> Reports {
        Reports { reporter, tasks: JoinSet::new(), quiet: BTreeMap::new() }
    }

    /// Collects finished tasks.
    pub fn settle(&mut self, now: Instant) {
        while let Some(done) = self.tasks.try_join_next() {
            // A panicked report is not retried: it would panic again.
            let Ok((name, written)) = done else { continue };
            if written {
                self.quiet.remove(&name)
            } else {
                self.quiet.insert(name, Some(now + PAUSE))
            };
        }
        self.quiet.retain(|_, until| until.is_none_or(|until| until > now));
    }

    /// Starts a report, unless one of the same object is running or failed recently; the caller then repeats the request.
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
