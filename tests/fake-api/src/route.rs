//! From a request to its answer.

use crate::api::{Asked, State, USER, list_of};
use crate::faults::Fault;
use crate::proxy;
use crate::refusal::{conflict, not_found, refuse, too_many, too_old, unauthorized};
use crate::serve::{Answer, Answering, Certified, answer, answer_json, whole};
use crate::store::{Key, Page, Scope};
use crate::watch;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What a path means.
#[derive(Clone, Debug, Default)]
pub(crate) struct Target {
    /// `api/v1/pods`
    pub(crate) resource: String,
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    /// What comes after `proxy/`.
    pub(crate) rest: String,
}

impl Target {
    /// `/api/v1/namespaces/NS/pods/NAME/proxy/REST` and the like.
    fn parse(path: &str) -> Option<Target> {
        let mut parts = path.trim_start_matches('/').split('/');
        let (prefix, group) = match parts.next()? {
            "api" => (format!("api/{}", parts.next()?), String::new()),
            "apis" => {
                let (group, version) = (parts.next()?, parts.next()?);
                (format!("apis/{group}/{version}"), group.to_owned())
            }
            _ => return None,
        };
        let mut plural = parts.next()?;
        let mut namespace = String::new();
        if plural == "namespaces" {
            namespace = decode(parts.next()?);
            plural = parts.next()?;
        }
        let name = parts.next().map(decode).unwrap_or_default();
        let subresource = parts.next().unwrap_or_default().to_owned();
        let rest = parts.collect::<Vec<_>>().join("/");
        let resource = format!("{prefix}/{plural}");
        Some(Target { resource, group, plural: plural.to_owned(), namespace, name, subresource, rest })
    }

    fn key(&self) -> Key {
        Key { resource: self.resource.clone(), namespace: self.namespace.clone(), name: self.name.clone() }
    }

    fn not_found(&self) -> Answer {
        not_found(&self.plural, &self.group, &self.name)
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match byte {
            b'%' => match (hex(rest.next()), hex(rest.next())) {
                (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
                _ => bytes.push(b'%'),
            },
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    fn parse(query: &str) -> Query {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub(crate) fn is(&self, key: &str) -> bool {
        ["true", "1"].contains(&self.get(key))
    }
}

pub(crate) fn answer_to(state: Arc<State>, request: Request<Incoming>) -> Answering {
    Box::pin(async move {
        let Some(target) = Target::parse(request.uri().path()) else {
            return Ok(answer(404, "text/plain", whole("404 page not found\n")));
        };
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let what = what(request.method(), &target, &query);
        let known = is_known(&state, &request);
        let uri = request.uri().to_string();
        let asked = Asked { method: request.method().to_string(), what: what.clone(), uri, known };
        state.asked.lock().expect("no panic").push(asked);
        match fault(&state, &what) {
            Some(Fault::Status(code, reason, message)) => return Ok(refuse(code, reason, message)),
            Some(Fault::TooMany(seconds)) => return Ok(too_many(seconds)),
            Some(Fault::Text(code, text)) => return Ok(answer(code, "text/plain", whole(text))),
            Some(Fault::Body(body)) => return Ok(answer_json(200, &body)),
            Some(Fault::Close) => return Err(io::Error::other("closed by the test")),
            Some(Fault::Late(time)) => tokio::time::sleep(time).await,
            None => {}
        }
        if !known {
            return Ok(unauthorized());
        }
        if state.forbidden.lock().expect("no panic").contains(&what) {
            let (verb, resource) = what.split_once(' ').unwrap_or((&what, ""));
            let place = match target.namespace.as_str() {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace \"{namespace}\""),
            };
            let group = &target.group;
            let plural = &target.plural;
            return Ok(refuse(
                403,
                "Forbidden",
                &format!(
                    "{plural} is forbidden: User \"{USER}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}"
                ),
            ));
        }
        if target.subresource == "proxy" {
            return proxy::forward(&state, &target, request).await;
        }
        let method = request.method().clone();
        let kind = request.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        Ok(match method {
            Method::GET if target.name.is_empty() && query.is("watch") => watch::open(state, &target, &query),
            Method::GET if target.name.is_empty() => list(&state, &target, &query).await,
            Method::GET => get(&state, &target),
            Method::POST => create(&state, &target, &body),
            Method::PUT | Method::PATCH => change(&state, &target, &method, &kind, &body),
            Method::DELETE => remove(&state, &target),
            _ => refuse(405, "MethodNotAllowed", "the server does not allow this method on the requested resource"),
        })
    })
}

/// Verb and resource, as RBAC has them.
fn what(method: &Method, target: &Target, query: &Query) -> String {
    let verb = match *method {
        Method::GET if target.name.is_empty() && query.is("watch") => "watch",
        Method::GET if target.name.is_empty() => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    };
    match target.subresource.as_str() {
        "" => format!("{verb} {}", target.plural),
        subresource => format!("{verb} {}/{subresource}", target.plural),
    }
}

fn is_known(state: &State, request: &Request<Incoming>) -> bool {
    if request.extensions().get::<Certified>().is_some_and(|certified| certified.0) {
        return true;
    }
    let expected = format!("Bearer {}", state.token.lock().expect("no panic"));
    request.headers().get("authorization").is_some_and(|value| value.as_bytes() == expected.as_bytes())
}

fn fault(state: &State, what: &str) -> Option<Fault> {
    let mut faults = state.faults.lock().expect("no panic");
    let at = faults.iter().position(|(of, _)| of == what)?;
    faults.remove(at).map(|(_, fault)| fault)
}

pub(crate) fn scope(target: &Target, query: &Query) -> Scope {
    Scope {
        resource: target.resource.clone(),
        namespace: target.namespace.clone(),
        labels: query.get("labelSelector").to_owned(),
        fields: query.get("fieldSelector").to_owned(),
    }
}

async fn list(state: &Arc<State>, target: &Target, query: &Query) -> Answer {
    let (token, version) = (query.get("continue"), query.get("resourceVersion"));
    if !token.is_empty() && !version.is_empty() {
        let message = "resourceVersion: Forbidden: specifying resource version is not allowed when using continue";
        return refuse(400, "BadRequest", message);
    }
    let scope = scope(target, query);
    if let Err(term) = crate::selector::selects(&scope.labels, &scope.fields, &Value::Null) {
        return refuse(400, "BadRequest", &format!("field label not supported: {term}"));
    }
    let limit = query.get("limit").parse().unwrap_or(0);
    let page = state.store.lock().expect("no panic").page(&scope, limit, token);
    let Page::Of { version, items, token, remaining } = page else {
        let message = "The provided continue parameter is too old to display a consistent list result.";
        return refuse(410, "Expired", message);
    };
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if let Some(token) = token {
        metadata["continue"] = json!(token);
        metadata["remainingItemCount"] = json!(remaining);
    }
    let text = list_of(items, &target.resource, metadata).to_string();
    let drip = state.knobs.lock().expect("no panic").drip;
    match drip {
        None => answer(200, "application/json", whole(text)),
        Some(drip) => answer(200, "application/json", watch::dripping(Bytes::from(text), drip)),
    }
}

fn get(state: &State, target: &Target) -> Answer {
    match state.store.lock().expect("no panic").get(&target.key()) {
        Some(object) => answer_json(200, object),
        None => target.not_found(),
    }
}

fn create(state: &State, target: &Target, body: &[u8]) -> Answer {
    let Ok(mut object) = serde_json::from_slice::<Value>(body) else {
        return refuse(400, "BadRequest", "the object provided is unrecognized");
    };
    let Some(name) = object["metadata"]["name"].as_str().map(str::to_owned) else {
        return refuse(422, "Invalid", "name or generateName is required");
    };
    let key = Key { name: name.clone(), ..target.key() };
    object["metadata"]["namespace"] = json!(target.namespace);
    let now = OffsetDateTime::from(SystemTime::now()).replace_nanosecond(0).ok();
    object["metadata"]["creationTimestamp"] = json!(now.and_then(|now| now.format(&Rfc3339).ok()));
    let mut store = state.store.lock().expect("no panic");
    if store.get(&key).is_some() {
        return refuse(409, "AlreadyExists", &format!("{} \"{name}\" already exists", target.plural));
    }
    let stored = store.put(key, object);
    drop(store);
    state.notify();
    answer_json(201, &stored)
}

/// PUT and PATCH, of an object or of its status: the one leaves the other as it is.
fn change(state: &State, target: &Target, method: &Method, kind: &str, body: &[u8]) -> Answer {
    let Ok(change) = serde_json::from_slice::<Value>(body) else {
        return refuse(400, "BadRequest", "the object provided is unrecognized");
    };
    if *method == Method::PATCH && kind != "application/merge-patch+json" {
        let message = format!("the body of the request was in an unknown format: {kind}");
        return refuse(415, "UnsupportedMediaType", &message);
    }
    let mut store = state.store.lock().expect("no panic");
    let Some(before) = store.get(&target.key()).cloned() else { return target.not_found() };
    let asked = change["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let uid = change["metadata"]["uid"].as_str().unwrap_or_default();
    let is_other = !uid.is_empty() && before["metadata"]["uid"] != uid;
    if is_other && *method == Method::PUT {
        let there = before["metadata"]["uid"].as_str().unwrap_or_default();
        let message = format!(
            "Operation cannot be fulfilled on {} \"{}\": StorageError: invalid object, Code: 4, AdditionalErrorMsg: Precondition \
             failed: UID in precondition: {uid}, UID in object meta: {there}",
            target.plural, target.name
        );
        return refuse(409, "Conflict", &message);
    }
    // A patch of `status` leaves the metadata as they are, and no uid is compared.
    if is_other && target.subresource != "status" {
        return refuse(422, "Invalid", &format!("metadata.uid: Invalid value: \"{uid}\": field is immutable"));
    }
    if !asked.is_empty() && before["metadata"]["resourceVersion"] != asked {
        return conflict(&target.plural, &target.group, &target.name);
    }
    let mut after = before.clone();
    if *method == Method::PATCH {
        merge(&mut after, &change);
    } else {
        after = change;
        after["metadata"]["uid"] = before["metadata"]["uid"].clone();
    }
    let (kept, changed) = if target.subresource == "status" { ("spec", "status") } else { ("status", "spec") };
    let mut result = before.clone();
    result[changed] = after[changed].clone();
    if changed == "spec" {
        result = after;
        result[kept] = before[kept].clone();
    }
    // What changes nothing makes no new version.
    if result == before {
        return answer_json(200, &before);
    }
    let stored = store.put(target.key(), result);
    drop(store);
    state.notify();
    answer_json(200, &stored)
}

/// RFC 7386.
fn merge(into: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *into = change.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in change {
        match (value, into.as_object_mut()) {
            (Value::Null, Some(object)) => {
                object.remove(key);
            }
            _ => merge(&mut into[key.as_str()], value),
        }
    }
}

fn remove(state: &State, target: &Target) -> Answer {
    let removed = state.store.lock().expect("no panic").remove(&target.key());
    state.notify();
    match removed {
        Some(_) => answer_json(200, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
        None => target.not_found(),
    }
}

/// 410 of a watch whose version is too old, by the status of HTTP.
pub(crate) fn gone(asked: &str, floor: u64) -> Answer {
    answer_json(410, &too_old(asked, floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_parts() {
        let target = Target::parse("/api/v1/namespaces/ops/pods/https:a:9779/proxy/api/v1/captures").unwrap();
        assert_eq!((target.resource.as_str(), target.namespace.as_str()), ("api/v1/pods", "ops"));
        assert_eq!((target.name.as_str(), target.subresource.as_str()), ("https:a:9779", "proxy"));
        assert_eq!(target.rest, "api/v1/captures");
        let target = Target::parse("/apis/kstrobe.dev/v1alpha1/namespaces/x/captures/a%2Fb/status").unwrap();
        assert_eq!((target.group.as_str(), target.name.as_str()), ("kstrobe.dev", "a/b"));
        assert_eq!(target.subresource, "status");
        assert!(Target::parse("/metrics").is_none());
    }

    #[test]
    fn patches_merge() {
        let mut value = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        merge(&mut value, &json!({"a": {"b": null, "e": {"f": 3, "g": null}}, "d": [2]}));
        assert_eq!(value, json!({"a": {"c": 2, "e": {"f": 3}}, "d": [2]}));
    }
}
