//! `POST /api/v1/captures/alertmanager`: alerts start captures, on the node that they are about.

use super::super::access::client;
use super::super::routes::{Shared, internal};
use super::{Denial, audit};
use crate::neighbours::Neighbours;
use crate::rules::alerts::{Alert, Notification};
use crate::rules::desk::{Desk, Outcome};
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use kstrobe_fleet::route::{FORWARDED, Route};
use kstrobe_fleet::target::Pod;
use kstrobe_web::Peer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Answers 202 whatever came of it: anything else would be posted again at once.
pub(super) async fn alertmanager(
    State(shared): State<Arc<Shared>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let peer = client(peer.as_deref());
    let desk = match (shared.endpoints.captures)().desk {
        Ok(desk) => desk,
        Err(denied) => return (denied.status, format!("{}\n", denied.message)).into_response(),
    };
    let (notification, texts) = match read(&body) {
        Ok(read) => read,
        Err((status, message)) => return (status, message + "\n").into_response(),
    };
    // What was handed on to us is ours, whatever its labels say; one that is over starts nothing anywhere.
    let neighbours = shared.endpoints.neighbours.as_ref().filter(|_| !headers.contains_key(FORWARDED));
    let others = |at: &usize| {
        let alert = &notification.alerts[*at];
        neighbours.is_some_and(|neighbours| alert.fires() && !neighbours.is_mine(&alert.labels))
    };
    let (others, here): (Vec<usize>, Vec<usize>) = (0..notification.alerts.len()).partition(others);
    let mut results = vec![Value::Null; notification.alerts.len()];
    // What is slow here is slow now: other nodes are not waited for.
    if let Err(error) = start(&desk, &peer, &notification, &here, &mut results).await {
        return error;
    }
    if let Some(neighbours) = neighbours {
        let (here, there) = sort(neighbours, &desk, &notification, others, &mut results).await;
        if let Err(error) = start(&desk, &peer, &notification, &here, &mut results).await {
            return error;
        }
        hand_on(neighbours, &desk, &headers, (&notification, &texts), there, &mut results).await;
    }
    (StatusCode::ACCEPTED, Json(json!({"results": results}))).into_response()
}

/// Agents of other nodes by their full names, and the alerts that are for them.
type Others = BTreeMap<String, (Pod, Vec<usize>)>;

/// Sorts alerts by their nodes: those of this one, by an address that only the API server knows, and those of others. Those of no
/// node have their results.
async fn sort(
    neighbours: &Neighbours,
    desk: &Desk,
    notification: &Notification,
    alerts: Vec<usize>,
    results: &mut [Value],
) -> (Vec<usize>, Others) {
    let (mut here, mut there) = (Vec::new(), Others::new());
    for at in alerts {
        let alert = &notification.alerts[at];
        match neighbours.route(&alert.labels).await {
            Ok(Route::Here) => here.push(at),
            Ok(Route::There(pod)) => there.entry(pod.full_name()).or_insert_with(|| (pod, Vec::new())).1.push(at),
            Ok(Route::Nowhere(node)) => {
                let reason = format!("no agent runs on node `{node:.60}`");
                results[at] = lost(desk, alert, &Outcome::UnknownNode, &reason);
            }
            Err(reason) => {
                let reason = format!("which agent it is for cannot be found out: {reason}");
                results[at] = lost(desk, alert, &Outcome::Unreachable, &reason);
            }
        }
    }
    (here, there)
}

/// Hands alerts on to the agents of their nodes, all at once, and takes their results.
async fn hand_on(
    neighbours: &Arc<Neighbours>,
    desk: &Desk,
    headers: &HeaderMap,
    (notification, texts): (&Notification, &[Value]),
    there: Others,
    results: &mut [Value],
) {
    let asking = there.into_values().map(|(pod, of)| {
        let alerts: Vec<&Value> = of.iter().filter_map(|at| texts.get(*at)).collect();
        let body = json!({"version": "4", "status": "firing", "alerts": alerts}).to_string();
        let (neighbours, headers) = (neighbours.clone(), headers.clone());
        async move {
            let answer = neighbours.hand_on(&pod, &headers, body.into()).await;
            (pod, of, answer)
        }
    });
    for (pod, of, answer) in asking.collect::<JoinSet<_>>().join_all().await {
        take(desk, notification, &pod, &of, &answer, results);
    }
}

/// Starts what these alerts ask for on this node.
async fn start(
    desk: &Arc<Desk>,
    peer: &str,
    notification: &Notification,
    of: &[usize],
    results: &mut [Value],
) -> Result<(), Response> {
    let own = Notification { alerts: of.iter().map(|at| notification.alerts[*at].clone()).collect() };
    let (desk, peer) = (desk.clone(), peer.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let outcomes = desk.alert(&own, &peer);
        let result = |(alert, outcome): (&Alert, &Outcome)| {
            let mut result = json!({"fingerprint": alert.fingerprint, "result": outcome.name()});
            if let Outcome::Started(id) = outcome {
                audit(&peer, "start by alert", &id.to_string(), "started");
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

/// The alerts, and each as it came.
fn read(body: &Bytes) -> Result<(Notification, Vec<Value>), Denial> {
    let wrong = |error: serde_json::Error| {
        let text = format!("this is no notification of Alertmanager (webhook version 4): {error}");
        (StatusCode::BAD_REQUEST, text)
    };
    let notification: Notification = serde_json::from_slice(body).map_err(wrong)?;
    let mut whole: Value = serde_json::from_slice(body).map_err(wrong)?;
    let Value::Array(texts) = whole["alerts"].take() else { return Ok((notification, Vec::new())) };
    Ok((notification, texts))
}

fn lost(desk: &Desk, alert: &Alert, outcome: &Outcome, reason: &str) -> Value {
    desk.lose(alert, outcome, reason);
    json!({"fingerprint": alert.fingerprint, "result": outcome.name(), "reason": reason})
}

/// Takes the results of the agent that alerts were handed on to.
fn take(
    desk: &Desk,
    notification: &Notification,
    pod: &Pod,
    of: &[usize],
    answer: &Result<Value, String>,
    results: &mut [Value],
) {
    let theirs = answer.as_ref().map(|answer| answer["results"].as_array().map_or(&[][..], Vec::as_slice));
    for (number, at) in of.iter().enumerate() {
        results[*at] = match theirs {
            Ok(theirs) if theirs.len() == of.len() => {
                let mut result = theirs[number].clone();
                result["node"] = json!(pod.node);
                result
            }
            Ok(_) => lost(desk, &notification.alerts[*at], &Outcome::Unreachable, "its agent answered something else"),
            Err(reason) => {
                let reason = format!("the agent of node `{}`: {reason}", pod.node);
                lost(desk, &notification.alerts[*at], &Outcome::Unreachable, &reason)
            }
        };
    }
}
