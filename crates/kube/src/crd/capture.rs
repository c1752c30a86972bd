//! `Capture`: a recording on one or more nodes.

use super::condition::Condition;
use super::report::Report;
use super::{Head, LabelSelector, Me, SpecError, brief, from_text, is_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Seconds after creation or `startAt` within which an agent may start: longer than any list takes, short enough to skip stale
/// objects.
const START_WINDOW_SECONDS: i64 = 300;

/// Minimum lifetime in seconds of an object created for an alert: Alertmanager may post the alert to several agents within it,
/// and duplicates must find the object.
const MIN_ALERT_OBJECT_SECONDS: i64 = 600;

/// A `Capture` object.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Object metadata.
    pub head: Head,
    /// `spec`, or its parse error.
    pub spec: Result<CaptureSpec, SpecError>,
    /// `status.nodes` by node name.
    pub nodes: BTreeMap<String, NodeCapture>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaptureSpec {
    /// `spec.nodeName`
    pub node_name: Option<String>,
    /// `spec.nodeSelector`
    pub node_selector: Option<LabelSelector>,
    /// Selects nodes that run matching pods. Only these pods are recorded, unless `capture` sets a scope.
    pub pod_selector: Option<LabelSelector>,
    /// Namespace of the selected pods; `None` for all namespaces.
    pub pod_namespace: Option<String>,
    /// Common start time (RFC 3339); `None` starts at once.
    pub start_at: Option<String>,
    /// Body of `POST /api/v1/captures`; `None` if `alert` is set.
    #[serde(default)]
    pub capture: Option<Value>,
    /// Alert about the node, whose rules define the recording. Agents create these for one another.
    pub alert: Option<Alert>,
}

/// `spec.alert`: the fields of an alert that the rules of the node need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Alert {
    /// `alertname`
    pub name: String,
    /// Name of the rule; `None` if the alert names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Fingerprint by Alertmanager: equal for equal labels.
    pub fingerprint: String,
    /// `startsAt` as sent by Alertmanager.
    pub starts_at: String,
}

impl Alert {
    /// Object name, derived from the alert alone so that all agents create the same object.
    pub fn object_name(&self) -> String {
        // Kubernetes names: lower-case letters, digits and `-`, at most 253 characters.
        let word = |text: &str| -> String {
            text.chars().filter(char::is_ascii_alphanumeric).take(64).collect::<String>().to_ascii_lowercase()
        };
        let words = [word(&self.fingerprint), word(&self.starts_at)];
        let words = words.iter().filter(|word| !word.is_empty()).map(String::as_str);
        ["alert"].into_iter().chain(words).collect::<Vec<_>>().join("-")
    }
}

/// Builds the object that passes an alert to the agent of `node`. Its owner is the pod (name, uid) of that agent.
pub fn of_alert(alert: &Alert, namespace: &str, node: &str, owner: (&str, &str)) -> Value {
    json!({
        "apiVersion": "kstrobe.dev/v1alpha1",
        "kind": "Capture",
        "metadata": {
            "name": alert.object_name(),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "kstrobe", "app.kubernetes.io/managed-by": "kstrobe"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": owner.0, "uid": owner.1}],
        },
        "spec": {"nodeName": node, "alert": alert},
    })
}

/// `status.nodes.NAME`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCapture {
    /// State on this node.
    pub state: CaptureState,
    /// Capture id in the API of the agent, for downloads.
    pub id: Option<String>,
    /// Size of the recording in bytes.
    pub bytes: Option<u64>,
    /// Download formats: `dat`, `perfetto` and others.
    pub formats: Option<Vec<String>>,
    /// Human-readable reason.
    pub message: Option<String>,
    /// Start time (RFC 3339).
    pub started_at: Option<String>,
    /// End time (RFC 3339).
    pub finished_at: Option<String>,
}

/// State of a capture on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CaptureState {
    /// Not started yet.
    #[default]
    Pending,
    /// Recording.
    Running,
    /// Complete; its files can be downloaded.
    Done,
    /// Started, but produced no files.
    Failed,
    /// Rejected by the agent.
    Refused,
    /// Cancelled by a user; the partial recording is kept.
    Cancelled,
    /// A state of a newer agent.
    #[serde(other)]
    Unknown,
}

impl CaptureState {
    /// Whether the state is final.
    pub fn is_end(self) -> bool {
        !matches!(self, CaptureState::Pending | CaptureState::Running)
    }
}

impl NodeCapture {
    /// An entry queued on its node.
    pub fn queued(why: &str) -> NodeCapture {
        NodeCapture::ended(CaptureState::Pending, why)
    }

    /// Whether the capture is queued on its node.
    pub fn waits(&self) -> bool {
        self.state == CaptureState::Pending && self.id.is_none()
    }

    /// An entry in `state` with a message.
    pub fn ended(state: CaptureState, message: &str) -> NodeCapture {
        NodeCapture { state, message: Some(message.to_owned()), ..NodeCapture::default() }
    }
}

/// Reads an object; `None` without a namespace, name or uid.
pub fn read(object: &Value) -> Option<Capture> {
    let spec = CaptureSpec::deserialize(&object["spec"]).map_err(SpecError::from);
    let nodes = object["status"]["nodes"].as_object().into_iter().flatten();
    let nodes = nodes.filter_map(|(node, value)| Some((node.clone(), NodeCapture::deserialize(value).ok()?)));
    Some(Capture { head: Head::read(object)?, spec, nodes: nodes.collect() })
}

/// Source of a capture's request.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Body of `POST /api/v1/captures`.
    Request(Value),
    /// The rules of the node decide for this alert.
    Alert(Alert),
}

/// A step for the agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Start the capture and track it as [`CaptureState::Running`]. On a busy node, track it as [`CaptureState::Pending`] without
    /// an id: the step is then repeated.
    Start {
        /// Object uid.
        uid: String,
        /// Object name.
        name: String,
        /// Recording request.
        work: Work,
        /// Start time in seconds since 1970; `None` starts at once.
        at: Option<i64>,
    },
    /// Stop the capture: its object was deleted.
    Cancel {
        /// Object uid.
        uid: String,
    },
    /// Drop a queued capture that can no longer start.
    Refuse {
        /// Object uid.
        uid: String,
        /// Its entry from now on.
        entry: NodeCapture,
    },
    /// Write this entry into the status of the object.
    Report(Report),
    /// Drop the finished capture: its object was deleted.
    Forget {
        /// Object uid.
        uid: String,
    },
}

/// Node data that [`steps`] needs for an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Node labels.
    pub labels: bool,
    /// Pods on the node.
    pub pods: bool,
}

impl Needs {
    /// Needs of one object that this agent does not track yet.
    pub fn of(capture: &Capture, node: &str, now: i64) -> Needs {
        let said = capture.nodes.get(node);
        let waits = said.is_some_and(NodeCapture::waits);
        let open = !capture.head.deleting && (said.is_none() || waits);
        let spec = capture.spec.as_ref().ok().filter(|spec| {
            let at = spec.start_at.as_deref().and_then(from_text);
            let in_time = waits || in_time(&capture.head, at, now);
            open && spec.node_name.as_deref().is_none_or(|name| name == node) && in_time
        });
        spec.map_or(Needs::default(), |spec| Needs {
            labels: spec.node_selector.is_some(),
            pods: spec.pod_selector.is_some(),
        })
    }
}

/// Whether the start window is open. Nodes that join later report nothing, else old objects would fill up with node names.
fn in_time(head: &Head, at: Option<i64>, now: i64) -> bool {
    now - at.unwrap_or(head.created).max(head.created) <= START_WINDOW_SECONDS
}

/// Whether an object created for an alert can be deleted: once the files of its capture are gone, or without files after
/// `MIN_ALERT_OBJECT_SECONDS`, so that an alert that still fires can request another capture.
pub fn is_over(capture: &Capture, node: &str, now: i64, is_stored: impl Fn(&str) -> bool) -> bool {
    let Ok(CaptureSpec { alert: Some(_), node_name: Some(meant), .. }) = &capture.spec else { return false };
    let ended = capture.nodes.get(node).filter(|said| said.state.is_end());
    let is_gone = ended.is_some_and(|said| said.id.as_deref().is_none_or(|id| !is_stored(id)));
    meant == node && is_gone && !capture.head.deleting && now - capture.head.created >= MIN_ALERT_OBJECT_SECONDS
}

/// Computes the steps of this node from all objects, its captures by uid, and `now` in seconds since 1970. Idempotent. Queued
/// captures get a start step on each call, the oldest object first.
pub fn steps(captures: &[Capture], me: &Me<'_>, has: &BTreeMap<String, NodeCapture>, now: i64) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut there: Vec<&Capture> = captures.iter().filter(|capture| !capture.head.deleting).collect();
    for (uid, own) in has.iter().filter(|(uid, _)| !there.iter().any(|capture| capture.head.uid == **uid)) {
        let uid = uid.clone();
        steps.push(if own.state.is_end() { Step::Forget { uid } } else { Step::Cancel { uid } });
    }
    there.sort_by_key(|capture| (capture.head.created, &capture.head.name));
    for capture in there {
        steps.extend(step(capture, me, has.get(&capture.head.uid), now));
    }
    steps
}

fn step(capture: &Capture, me: &Me<'_>, own: Option<&NodeCapture>, now: i64) -> Vec<Step> {
    let said = capture.nodes.get(me.node);
    let report = |entry: &NodeCapture| {
        let entry = NodeCapture { message: brief(entry.message.as_ref()), ..entry.clone() };
        let turns = said.map(|said| said.state) != Some(entry.state);
        (said != Some(&entry)).then(|| Step::Report(Report::of(&capture.head, me.node, &entry, turns)))
    };
    // A capture queued before an agent restart stays queued: its recording has not begun.
    match own.or(said.filter(|said| said.waits())) {
        Some(own) if own.waits() => {
            let start = start(capture, me, true, now)
                .unwrap_or_else(|error| Some(Step::Refuse { uid: capture.head.uid.clone(), entry: refused(&error) }));
            return report(own).into_iter().chain(start).collect();
        }
        Some(own) => return report(own).into_iter().collect(),
        None => {}
    }
    match said {
        Some(said) if said.state.is_end() => Vec::new(),
        // The status has an entry of this node that the agent does not track: the agent restarted.
        Some(said) => {
            let message = Some("interrupted: the agent was started again".to_owned());
            report(&NodeCapture { state: CaptureState::Failed, message, ..said.clone() }).into_iter().collect()
        }
        None => match start(capture, me, false, now) {
            Ok(start) => start.into_iter().collect(),
            Err(error) => report(&refused(&error)).into_iter().collect(),
        },
    }
}

fn refused(error: &SpecError) -> NodeCapture {
    NodeCapture::ended(CaptureState::Refused, &error.to_string())
}

/// Start step of a new or queued capture. `None` if the object does not select this node.
fn start(capture: &Capture, me: &Me<'_>, waits: bool, now: i64) -> Result<Option<Step>, SpecError> {
    // An unreadable spec has no selector to evaluate, so every node reports the error.
    let spec = capture.spec.as_ref().map_err(Clone::clone)?;
    if !is_for(me, spec.node_name.as_deref(), spec.node_selector.as_ref()) {
        return Ok(None);
    }
    let time = |text: &String| from_text(text).ok_or_else(|| SpecError::StartAt(text.clone()));
    let at = spec.start_at.as_ref().map(time).transpose()?;
    if !waits && !in_time(&capture.head, at, now) {
        return Ok(None);
    }
    let work = match (&spec.capture, &spec.alert) {
        (Some(body), None) => request(spec, body, me).map(Work::Request),
        (None, Some(alert)) => Some(Work::Alert(alert.clone())),
        _ => return Err(SpecError::NotOneOf("capture", "alert")),
    };
    let Some(work) = work else {
        return if waits { Err(SpecError::NoPods) } else { Ok(None) };
    };
    let (uid, name) = (capture.head.uid.clone(), capture.head.name.clone());
    Ok(Some(Step::Start { uid, name, work, at: at.filter(|at| *at > now) }))
}

/// Adds the selected pods of the node to the request; `None` if none of them runs.
fn request(spec: &CaptureSpec, body: &Value, me: &Me<'_>) -> Option<Value> {
    let Some(selector) = &spec.pod_selector else { return Some(body.clone()) };
    let is_meant = |namespace: &str| spec.pod_namespace.as_deref().is_none_or(|wanted| wanted == namespace);
    let meant = me.pods.iter().filter(|pod| is_meant(&pod.pod.namespace) && selector.matches(&pod.labels));
    // Pods without a running container have no tasks to record.
    let running = meant.filter(|pod| pod.pod.containers.iter().any(|container| container.running));
    let pods: Vec<String> = running.map(|pod| format!("{}/{}", pod.pod.namespace, pod.pod.name)).collect();
    if pods.is_empty() {
        return None;
    }
    let mut request = body.clone();
    if let Some(map) = request.as_object_mut() {
        let says = ["pods", "pids", "comms", "cgroups"].iter().any(|key| map.contains_key(*key));
        if !says {
            map.insert("pods".into(), json!(pods));
        }
    }
    Some(request)
}

/// `running`, `done` and `failed` node counts of a status.
pub fn summary(nodes: &BTreeMap<String, NodeCapture>) -> Value {
    let count = |is: fn(CaptureState) -> bool| nodes.values().filter(|node| is(node.state)).count();
    json!({
        "running": count(|state| !state.is_end()),
        "done": count(|state| state == CaptureState::Done),
        "failed": count(is_failure),
    })
}

fn is_failure(state: CaptureState) -> bool {
    state.is_end() && state != CaptureState::Done
}

/// `Complete`, for `kubectl wait`, and `Failed`, which names the first failed node.
pub(super) fn conditions(nodes: &BTreeMap<String, NodeCapture>) -> Vec<Condition> {
    let has = |state| nodes.values().any(|node| node.state == state);
    let ended = nodes.values().filter(|node| node.state.is_end()).count();
    let reason = match () {
        () if ended == nodes.len() => "Ended",
        () if has(CaptureState::Running) => "Running",
        () => "Pending",
    };
    let message = format!("{ended} of {} nodes have ended", nodes.len());
    let failed = nodes.iter().find(|(_, node)| is_failure(node.state));
    let failed = failed.map(|(name, node)| (name.as_str(), format!("{:?}", node.state), node.message.as_deref()));
    vec![Condition::new("Complete", ended == nodes.len(), reason, message), Condition::failed(failed)]
}

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;
