//! `Capture`: a recording on one node, on some or on all.

use super::report::Report;
use super::{Head, LabelSelector, Me, brief, from_text, is_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How long after it was made, or was to start, an agent may begin with it, in seconds: longer than any list takes to come,
/// and too short for what is no longer wanted.
const PATIENCE: i64 = 300;

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
    /// What `POST /api/v1/captures` takes.
    pub capture: Value,
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

/// What an agent has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Start it, and have it among what is known as [`CaptureState::Pending`] or [`CaptureState::Running`] from now on.
    Start {
        /// The object's uid.
        uid: String,
        /// The object's name.
        name: String,
        /// A body of `POST /api/v1/captures`.
        request: Value,
        /// When, in seconds since 1970; at once when absent.
        at: Option<i64>,
    },
    /// End it: its object is gone.
    Cancel {
        /// The object's uid.
        uid: String,
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
        let open = !capture.head.deleting && !capture.nodes.contains_key(node);
        let spec = capture.spec.as_ref().ok().filter(|spec| {
            let at = spec.start_at.as_deref().and_then(from_text);
            open && spec.node_name.as_deref().is_none_or(|name| name == node) && in_time(&capture.head, at, now)
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

/// What this node has to do, given all objects, what it has by their uids, and the time in seconds since 1970. The same once
/// more does no harm.
pub fn steps(captures: &[Capture], me: &Me<'_>, has: &BTreeMap<String, NodeCapture>, now: i64) -> Vec<Step> {
    let mut steps = Vec::new();
    let there = |uid: &str| captures.iter().any(|capture| capture.head.uid == uid && !capture.head.deleting);
    for (uid, own) in has.iter().filter(|(uid, _)| !there(uid)) {
        let uid = uid.clone();
        steps.push(if own.state.is_end() { Step::Forget { uid } } else { Step::Cancel { uid } });
    }
    for capture in captures.iter().filter(|capture| !capture.head.deleting) {
        steps.extend(step(capture, me, has.get(&capture.head.uid), now));
    }
    steps
}

fn step(capture: &Capture, me: &Me<'_>, own: Option<&NodeCapture>, now: i64) -> Option<Step> {
    let said = capture.nodes.get(me.node);
    let report = |entry: &NodeCapture| {
        let entry = NodeCapture { message: brief(entry.message.as_ref()), ..entry.clone() };
        (said != Some(&entry)).then(|| Step::Report(Report::of(&capture.head, me.node, &entry)))
    };
    if let Some(own) = own {
        return report(own);
    }
    match said {
        Some(said) if said.state.is_end() => return None,
        // It is this node's, and the agent knows nothing of it: it was started again.
        Some(said) => {
            let message = Some("interrupted: the agent was started again".to_owned());
            return report(&NodeCapture { state: CaptureState::Failed, message, ..said.clone() });
        }
        None => {}
    }
    let spec = match &capture.spec {
        Ok(spec) => spec,
        // Nobody can tell which nodes are meant: one entry would do, but all say so.
        Err(why) => return report(&NodeCapture::ended(CaptureState::Refused, why)),
    };
    if !is_for(me, spec.node_name.as_deref(), spec.node_selector.as_ref()) {
        return None;
    }
    let at = match spec.start_at.as_deref().map(|text| from_text(text).ok_or(text)) {
        None => None,
        Some(Ok(at)) => Some(at),
        Some(Err(text)) => {
            let why = format!("startAt: `{text:.40}` is no time such as 2026-11-20T08:15:32Z");
            return report(&NodeCapture::ended(CaptureState::Refused, &why));
        }
    };
    if !in_time(&capture.head, at, now) {
        return None;
    }
    let request = request(spec, me)?;
    let (uid, name) = (capture.head.uid.clone(), capture.head.name.clone());
    Some(Step::Start { uid, name, request, at: at.filter(|at| *at > now) })
}

/// The request with the node's selected pods put in; `None` when it has no such pod, now.
fn request(spec: &CaptureSpec, me: &Me<'_>) -> Option<Value> {
    let Some(selector) = &spec.pod_selector else { return Some(spec.capture.clone()) };
    let is_meant = |namespace: &str| spec.pod_namespace.as_deref().is_none_or(|wanted| wanted == namespace);
    let meant = me.pods.iter().filter(|pod| is_meant(&pod.pod.namespace) && selector.matches(&pod.labels));
    // What does not run has nothing to record.
    let running = meant.filter(|pod| pod.pod.containers.iter().any(|container| container.running));
    let pods: Vec<String> = running.map(|pod| format!("{}/{}", pod.pod.namespace, pod.pod.name)).collect();
    if pods.is_empty() {
        return None;
    }
    let mut request = spec.capture.clone();
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
        "failed": count(|state| state.is_end() && state != CaptureState::Done),
    })
}

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;
