//! `Status` objects, worded as Kubernetes words them.

use crate::serve::{Answer, answer_json};
use http::HeaderValue;
use serde_json::{Value, json};

/// A `Status` that says no.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

pub(crate) fn refuse(code: u16, reason: &str, message: &str) -> Answer {
    answer_json(code, &status(code, reason, message))
}

pub(crate) fn unauthorized() -> Answer {
    refuse(401, "Unauthorized", "Unauthorized")
}

pub(crate) fn too_many(seconds: u64) -> Answer {
    let mut body = status(429, "TooManyRequests", "Too many requests, please try again later.");
    body["details"] = json!({"retryAfterSeconds": seconds});
    let mut answer = answer_json(429, &body);
    answer.headers_mut().insert("retry-after", HeaderValue::from(seconds));
    answer
}

pub(crate) fn too_old(asked: &str, floor: u64) -> Value {
    status(410, "Expired", &format!("too old resource version: {asked} ({floor})"))
}

pub(crate) fn not_found(plural: &str, group: &str, name: &str) -> Answer {
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    refuse(404, "NotFound", &format!("{plural}{group} \"{name}\" not found"))
}

pub(crate) fn conflict(plural: &str, group: &str, name: &str) -> Answer {
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let message = format!(
        "Operation cannot be fulfilled on {plural}{group} \"{name}\": the object has been modified; please apply your changes \
         to the latest version and try again"
    );
    refuse(409, "Conflict", &message)
}
