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
    // What was handed on to us is ours, whatever its labels say.
    let neighbours = shared.endpoints.neighbours.as_deref().filter(|_| !headers.contains_key(FORWARDED));
    let mut results = vec![Value::Null; notification.alerts.len()];
    let (mut here, mut there) = (Vec::new(), BTreeMap::<String, (Pod, Vec<usize>)>::new());
    for (at, alert) in notification.alerts.iter().enumerate() {
        let route = match neighbours {
            // One that is over starts nothing anywhere.
            Some(neighbours) if alert.fires() => neighbours.route(&alert.labels).await,
            _ => Ok(Route::Here),
        };
        match route {
            Ok(Route::Here) => here.push(at),
            Ok(Route::There(pod)) => there.entry(pod.full_name()).or_insert_with(|| (pod, Vec::new())).1.push(at),
            Ok(Route::Nowhere(node)) => {
                let reason = format!("no agent runs on node `{node:.60}`");
                results[at] = lost(&desk, alert, &Outcome::UnknownNode, &reason);
            }
            Err(reason) => {
                let reason = format!("which agent it is for cannot be found out: {reason}");
                results[at] = lost(&desk, alert, &Outcome::Unreachable, &reason);
            }
        }
    }
    if let Some(neighbours) = neighbours {
        for (pod, of) in there.into_values() {
            hand_on(neighbours, &desk, &headers, (&pod, &of), (&notification, &texts), &mut results).await;
        }
    }
    let own = Notification { alerts: here.iter().map(|at| notification.alerts[*at].clone()).collect() };
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
    match asked.await {
        Ok(own) => here.into_iter().zip(own).for_each(|(at, result)| results[at] = result),
        Err(error) => return internal(&error),
    }
    (StatusCode::ACCEPTED, Json(json!({"results": results}))).into_response()
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

/// Hands alerts on to the agent of their node, and takes its results.
async fn hand_on(
    neighbours: &Neighbours,
    desk: &Desk,
    headers: &HeaderMap,
    (pod, of): (&Pod, &[usize]),
    (notification, texts): (&Notification, &[Value]),
    results: &mut [Value],
) {
    let alerts: Vec<&Value> = of.iter().filter_map(|at| texts.get(*at)).collect();
    let body = json!({"version": "4", "status": "firing", "alerts": alerts}).to_string();
    let answer = neighbours.hand_on(pod, headers, body.into()).await;
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
