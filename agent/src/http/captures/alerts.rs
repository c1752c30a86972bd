//! `POST /api/v1/captures/alertmanager`: alerts start captures, on the node that they are about.

use super::super::access::Asker;
use super::super::routes::{Shared, internal};
use super::Denial;
use crate::capture::audit;
use crate::capture::rules::alerts::{Alert, Notification};
use crate::capture::rules::engine::{Outcome, RuleEngine};
use crate::kubernetes::Error;
use crate::kubernetes::other_nodes::{Handed, OtherNodes};
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use kstrobe_fleet::route::Route;
use kstrobe_fleet::target::Pod;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Answers 202 whatever came of it: anything else would be posted again at once.
pub(super) async fn alertmanager(
    State(shared): State<Arc<Shared>>,
    Extension(Asker(asker)): Extension<Asker>,
    body: Bytes,
) -> Response {
    let rules = match (shared.endpoints.captures)().rules {
        Ok(rules) => rules,
        Err(denied) => return (denied.status, format!("{}\n", denied.message)).into_response(),
    };
    let notification = match read(&body) {
        Ok(read) => read,
        Err((status, message)) => return (status, message + "\n").into_response(),
    };
    // A resolved alert starts no capture on any node.
    let other_nodes = shared.endpoints.other_nodes.as_ref();
    let others = |at: &usize| {
        let alert = &notification.alerts[*at];
        other_nodes.is_some_and(|other_nodes| alert.is_firing() && !other_nodes.is_mine(&alert.labels))
    };
    let (others, here): (Vec<usize>, Vec<usize>) = (0..notification.alerts.len()).partition(others);
    let mut results = vec![Value::Null; notification.alerts.len()];
    // What is slow here is slow now: other nodes are not waited for.
    if let Err(error) = start(&rules, &asker, &notification, &here, &mut results).await {
        return error;
    }
    if let Some(other_nodes) = other_nodes {
        let (here, there) = sort(other_nodes, &rules, &notification, others, &mut results).await;
        if let Err(error) = start(&rules, &asker, &notification, &here, &mut results).await {
            return error;
        }
        hand_on(other_nodes, &rules, &asker, &notification, there, &mut results).await;
    }
    (StatusCode::ACCEPTED, Json(json!({"results": results}))).into_response()
}

/// Alerts with the agents that they are for.
type Others = Vec<(usize, Pod)>;

/// Sorts alerts by their nodes: those of this one, by an address that only the API server knows, and those of others. Those of no
/// node have their results.
async fn sort(
    other_nodes: &OtherNodes,
    rules: &RuleEngine,
    notification: &Notification,
    alerts: Vec<usize>,
    results: &mut [Value],
) -> (Vec<usize>, Others) {
    let (mut here, mut there) = (Vec::new(), Others::new());
    for at in alerts {
        let alert = &notification.alerts[at];
        match other_nodes.route(&alert.labels).await {
            Ok(Route::Here) => here.push(at),
            Ok(Route::There(pod)) => there.push((at, pod)),
            Ok(Route::Nowhere(node)) => {
                let reason = format!("no agent runs on node `{node:.60}`");
                results[at] = other(rules, alert, &Outcome::UnknownNode, &reason);
            }
            Err(reason) => {
                let reason = format!("which agent it is for cannot be found out: {reason}");
                results[at] = other(rules, alert, &Outcome::Unreachable, &reason);
            }
        }
    }
    (here, there)
}

/// Creates the objects for alerts about other nodes, all at once.
async fn hand_on(
    other_nodes: &Arc<OtherNodes>,
    rules: &RuleEngine,
    asker: &str,
    notification: &Notification,
    there: Others,
    results: &mut [Value],
) {
    let asking = there.into_iter().map(|(at, pod)| {
        let (other_nodes, alert) = (other_nodes.clone(), notification.alerts[at].clone());
        async move {
            let handed = other_nodes.hand_on(&pod, &alert).await;
            (at, pod, handed)
        }
    });
    for (at, pod, handed) in asking.collect::<JoinSet<_>>().join_all().await {
        let alert = &notification.alerts[at];
        let (outcome, object, reason) = match handed {
            Ok(Handed::New(object)) => {
                audit(asker, &format!("hand alert to {}", pod.node), "", &object);
                (Outcome::HandedOn, Some(object), String::new())
            }
            Ok(Handed::Before(object)) => (Outcome::Duplicate, Some(object), String::new()),
            Err(error) => {
                let outcome = match error {
                    Error::ObjectsOff | Error::NoObjects(_) => Outcome::UnknownNode,
                    _ => Outcome::Unreachable,
                };
                (outcome, None, format!("node `{}`: {error}", pod.node))
            }
        };
        results[at] = other(rules, alert, &outcome, &reason);
        results[at]["node"] = json!(pod.node);
        if let Some(object) = object {
            results[at]["capture"] = json!(object);
        }
    }
}

/// Starts what these alerts ask for on this node.
async fn start(
    rules: &Arc<RuleEngine>,
    asker: &str,
    notification: &Notification,
    of: &[usize],
    results: &mut [Value],
) -> Result<(), Response> {
    let own = Notification { alerts: of.iter().map(|at| notification.alerts[*at].clone()).collect() };
    let (rules, asker) = (rules.clone(), asker.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let outcomes = rules.alert(&own, &asker);
        let result = |(alert, outcome): (&Alert, &Outcome)| {
            let mut result = json!({"fingerprint": alert.fingerprint, "result": outcome.name()});
            if let Outcome::Started(id) = outcome {
                audit(&asker, "start by alert", &id.to_string(), "started");
                result["capture_id"] = id.to_string().into();
            }
            result
        };
        own.alerts.iter().zip(&outcomes).map(result).collect::<Vec<_>>()
    });
    let own = asked.await.map_err(|error| internal(&error))?;
    of.iter().zip(own).for_each(|(at, result)| results[*at] = result);
    Ok(())
}

fn read(body: &Bytes) -> Result<Notification, Denial> {
    serde_json::from_slice(body).map_err(|error| {
        let text = format!("this is no notification of Alertmanager (webhook version 4): {error}");
        (StatusCode::BAD_REQUEST, text)
    })
}

/// The result of an alert about another node.
fn other(rules: &RuleEngine, alert: &Alert, outcome: &Outcome, reason: &str) -> Value {
    rules.elsewhere(alert, outcome, reason);
    let mut result = json!({"fingerprint": alert.fingerprint, "result": outcome.name()});
    if !reason.is_empty() {
        result["reason"] = json!(reason);
    }
    result
}
