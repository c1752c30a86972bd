//! Writing a node's entry into an object's status.
//!
//! Entries are members of one mapping, and a merge patch names its own member alone: a thousand nodes write into one object
//! without reading it first, and without conflicts. The sums that `kubectl get` shows are nobody's own. Whoever wrote an entry
//! writes them, on the condition that nothing was written since; when that fails, whoever was later has seen more and does it.

use super::{CAPTURES, Head, PROBES, capture, probe};
use crate::client::Client;
use crate::counters::Counters;
use crate::error::Error;
use crate::path::Resource;
use crate::watch::backoff::{Backoff, random};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

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

/// Writes entries.
#[derive(Clone)]
pub struct Reporter {
    /// The API server.
    pub client: Client,
    /// What fails is counted here.
    pub counters: Arc<Counters>,
    /// Pauses between attempts.
    pub backoff: Backoff,
}

impl Reporter {
    /// Of a capture.
    pub async fn capture(&self, report: &Report) -> Result<(), Error> {
        let summary = |object: &Value| Some(capture::summary(&capture::read(object)?.nodes));
        self.write(&CAPTURES, report, summary).await
    }

    /// Of a probe.
    pub async fn probe(&self, report: &Report) -> Result<(), Error> {
        let summary = |object: &Value| Some(probe::summary(&probe::read(object)?.nodes));
        self.write(&PROBES, report, summary).await
    }

    async fn write(
        &self,
        resource: &Resource,
        report: &Report,
        summary: impl Fn(&Value) -> Option<Value>,
    ) -> Result<(), Error> {
        let path = format!("{}/status?fieldManager=kstrobe", resource.one(Some(&report.namespace), &report.name));
        let mut attempt = 1;
        let object: Value = loop {
            let error = match self.client.merge_patch(&path, &report.patch()).await {
                Ok(object) => break object,
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
        };
        self.counters.event("status_entries");
        let Some(sums) = summary(&object) else { return Ok(()) };
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
