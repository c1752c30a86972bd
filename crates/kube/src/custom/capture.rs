//! `Capture`: a recording on one node, on some or on all.

use super::condition::Condition;
use super::report::Report;
use super::{Head, LabelSelector, Me, brief, from_text, is_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How long after it was made, or was to start, an agent may begin with it, in seconds: longer than any list takes to come,
/// and too short for what is no longer wanted.
const PATIENCE: i64 = 300;

/// How long an object that was made of an alert is there at least, in seconds: within this time Alertmanager may post the alert to
/// several agents, and a repeated one finds its object.
const KEPT: i64 = 600;

/// The object, as far as agents need it.
#[derive(Clone, Debug, PartialEq)]
pub struct Capture {
    /// Names and times.
    pub head: Head,
    /// What is wanted, or why nobody can tell.
    pub spec: Result<CaptureSpec, String>,
    /// What nodes have said, by their names.
    pub nodes: BTreeMap<String, NodeCapture>,
}

/// `spec`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaptureSpec {
    /// This node.
    pub node_name: Option<String>,
    /// Nodes with these labels.
    pub node_selector: Option<LabelSelector>,
    /// Nodes with such pods; their work alone is recorded, unless `capture` says whose is.
    pub pod_selector: Option<LabelSelector>,
    /// Namespace of these pods; any when absent.
    pub pod_namespace: Option<String>,
    /// When to start, on all nodes at once; as soon as possible when absent.
    pub start_at: Option<String>,
    /// What `POST /api/v1/captures` takes; absent where an alert says what to record.
    #[serde(default)]
    pub capture: Option<Value>,
    /// An alert about the node, whose own rules say what to record. Agents write these for one another.
    pub alert: Option<Alert>,
}

/// `spec.alert`: as much of an alert as the agent of its node needs to decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Alert {
    /// `alertname`
    pub name: String,
    /// The rule that it names; none when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Alertmanager's fingerprint: the same for the same labels.
    pub fingerprint: String,
    /// When it began to fire, in Alertmanager's words.
    pub starts_at: String,
}

impl Alert {
    /// Name of the object: the same from whichever agent the alert comes, so that an alert has one object.
    pub fn object_name(&self) -> String {
        // A name takes small letters, digits, `-`, and 253 of them.
        let word = |text: &str| -> String {
            text.chars().filter(char::is_ascii_alphanumeric).take(64).collect::<String>().to_ascii_lowercase()
        };
        let words = [word(&self.fingerprint), word(&self.starts_at)];
        let words = words.iter().filter(|word| !word.is_empty()).map(String::as_str);
        ["alert"].into_iter().chain(words).collect::<Vec<_>>().join("-")
    }
}

/// An object by which the agent of `node` hears of an alert. It ends with `owner`, that agent's pod (name, uid).
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
    /// How it stands.
    pub state: CaptureState,
    /// Its id in the API of the agent, under which its files can be downloaded.
    pub id: Option<String>,
    /// Bytes of the recording.
    pub bytes: Option<u64>,
    /// Formats in which it can be had: `dat`, `perfetto` and others.
    pub formats: Option<Vec<String>>,
    /// Why it is so, for people.
    pub message: Option<String>,
    /// When it began, as Kubernetes writes times.
    pub started_at: Option<String>,
    /// When it ended.
    pub finished_at: Option<String>,
}

/// How a capture stands on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CaptureState {
    /// It is to start.
    #[default]
    Pending,
    /// It runs.
    Running,
    /// It has ended, and its files are there.
    Done,
    /// It was begun, and there is nothing.
    Failed,
    /// The agent does not take it.
    Refused,
    /// Somebody ended it; what was recorded until then is there.
    Cancelled,
    /// What a newer agent may say.
    #[serde(other)]
    Unknown,
}

impl CaptureState {
    /// Whether nothing more comes.
    pub fn is_end(self) -> bool {
        !matches!(self, CaptureState::Pending | CaptureState::Running)
    }
}

impl NodeCapture {
    /// One in the queue of its node.
    pub fn queued(why: &str) -> NodeCapture {
        NodeCapture::ended(CaptureState::Pending, why)
    }

    /// Whether it is in the queue of its node.
    pub fn waits(&self) -> bool {
        self.state == CaptureState::Pending && self.id.is_none()
    }

    /// One that ends with a message.
    pub fn ended(state: CaptureState, message: &str) -> NodeCapture {
        NodeCapture { state, message: Some(message.to_owned()), ..NodeCapture::default() }
    }
}

/// Reads an object; `None` when it is none that has a name.
pub fn read(object: &Value) -> Option<Capture> {
    let spec = CaptureSpec::deserialize(&object["spec"]).map_err(|error| format!("spec: {error}"));
    let nodes = object["status"]["nodes"].as_object().into_iter().flatten();
    let nodes = nodes.filter_map(|(node, value)| Some((node.clone(), NodeCapture::deserialize(value).ok()?)));
    Some(Capture { head: Head::read(object)?, spec, nodes: nodes.collect() })
}

/// What a capture records.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// What this body of `POST /api/v1/captures` says.
    Request(Value),
    /// What the node's own rules say about this alert.
    Alert(Alert),
}

/// What an agent has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Start it, and have it among what is known as [`CaptureState::Running`] from now on; as [`CaptureState::Pending`] without an id
    /// when the node is busy: then this step comes again.
    Start {
        /// The object's uid.
        uid: String,
        /// The object's name.
        name: String,
        /// What to record.
        work: Work,
        /// When, in seconds since 1970; at once when absent.
        at: Option<i64>,
    },
    /// End it: its object is gone.
    Cancel {
        /// The object's uid.
        uid: String,
    },
    /// What waited cannot be started any more.
    Refuse {
        /// The object's uid.
        uid: String,
        /// Why.
        why: String,
    },
    /// Write this into the object's status.
    Report(Report),
    /// Forget it: its object is gone, and nothing runs.
    Forget {
        /// The object's uid.
        uid: String,
    },
}

/// What must be known of a node before it can be decided what it has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Its labels.
    pub labels: bool,
    /// Its pods.
    pub pods: bool,
}

impl Needs {
    /// Of one object that nothing is known of here.
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

/// A node that comes later was not meant, and says nothing: objects that lie about would else fill up with names of nodes.
fn in_time(head: &Head, at: Option<i64>, now: i64) -> bool {
    now - at.unwrap_or(head.created).max(head.created) <= PATIENCE
}

/// Whether an object that an agent made of an alert has served: it goes with the files of its capture, and what never had any after
/// a while, so that an alert that still fires then can ask once more.
pub fn is_over(capture: &Capture, node: &str, now: i64, is_stored: impl Fn(&str) -> bool) -> bool {
    let Ok(CaptureSpec { alert: Some(_), node_name: Some(meant), .. }) = &capture.spec else { return false };
    let ended = capture.nodes.get(node).filter(|said| said.state.is_end());
    let is_gone = ended.is_some_and(|said| said.id.as_deref().is_none_or(|id| !is_stored(id)));
    meant == node && is_gone && !capture.head.deleting && now - capture.head.created >= KEPT
}

/// What this node has to do, given all objects, what it has by their uids, and the time in seconds since 1970. The same once
/// more does no harm. What waits for its turn is to be started again and again, the oldest object first.
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
    // What waited when the agent was started again waits on: nothing of it is lost.
    match own.or(said.filter(|said| said.waits())) {
        Some(own) if own.waits() => {
            let start = start(capture, me, true, now)
                .unwrap_or_else(|why| Some(Step::Refuse { uid: capture.head.uid.clone(), why }));
            return report(own).into_iter().chain(start).collect();
        }
        Some(own) => return report(own).into_iter().collect(),
        None => {}
    }
    match said {
        Some(said) if said.state.is_end() => Vec::new(),
        // It is this node's, and the agent knows nothing of it: it was started again.
        Some(said) => {
            let message = Some("interrupted: the agent was started again".to_owned());
            report(&NodeCapture { state: CaptureState::Failed, message, ..said.clone() }).into_iter().collect()
        }
        None => match start(capture, me, false, now) {
            Ok(start) => start.into_iter().collect(),
            Err(why) => report(&NodeCapture::ended(CaptureState::Refused, &why)).into_iter().collect(),
        },
    }
}

/// The start of a capture that is new here, or that waits. `None` when the object does not select this node; an error is the
/// reason of a refusal.
fn start(capture: &Capture, me: &Me<'_>, waits: bool, now: i64) -> Result<Option<Step>, String> {
    // When the specification cannot be read, no node knows whether it is meant: one entry would do, but all say so.
    let spec = capture.spec.as_ref().map_err(Clone::clone)?;
    if !is_for(me, spec.node_name.as_deref(), spec.node_selector.as_ref()) {
        return Ok(None);
    }
    let at = match spec.start_at.as_deref().map(|text| from_text(text).ok_or(text)) {
        None => None,
        Some(Ok(at)) => Some(at),
        Some(Err(text)) => return Err(format!("startAt: `{text:.40}` is no time such as 2026-11-20T08:15:32Z")),
    };
    if !waits && !in_time(&capture.head, at, now) {
        return Ok(None);
    }
    let work = match (&spec.capture, &spec.alert) {
        (Some(asked), None) => request(spec, asked, me).map(Work::Request),
        (None, Some(alert)) => Some(Work::Alert(alert.clone())),
        _ => return Err("spec: either `capture` or `alert`, and not both".to_owned()),
    };
    let Some(work) = work else {
        return if waits { Err("the pods that it selects no longer run here".to_owned()) } else { Ok(None) };
    };
    let (uid, name) = (capture.head.uid.clone(), capture.head.name.clone());
    Ok(Some(Step::Start { uid, name, work, at: at.filter(|at| *at > now) }))
}

/// The request with the node's selected pods put in; `None` when it has no such pod, now.
fn request(spec: &CaptureSpec, asked: &Value, me: &Me<'_>) -> Option<Value> {
    let Some(selector) = &spec.pod_selector else { return Some(asked.clone()) };
    let is_meant = |namespace: &str| spec.pod_namespace.as_deref().is_none_or(|wanted| wanted == namespace);
    let meant = me.pods.iter().filter(|pod| is_meant(&pod.pod.namespace) && selector.matches(&pod.labels));
    // What does not run has nothing to record.
    let running = meant.filter(|pod| pod.pod.containers.iter().any(|container| container.running));
    let pods: Vec<String> = running.map(|pod| format!("{}/{}", pod.pod.namespace, pod.pod.name)).collect();
    if pods.is_empty() {
        return None;
    }
    let mut request = asked.clone();
    if let Some(map) = request.as_object_mut() {
        let says = ["pods", "pids", "comms", "cgroups"].iter().any(|key| map.contains_key(*key));
        if !says {
            map.insert("pods".into(), json!(pods));
        }
    }
    Some(request)
}

/// How many nodes stand how: `running`, `done` and `failed` of a status.
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

/// `Complete`, for `kubectl wait`, and `Failed`, which names the first node that has nothing.
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
