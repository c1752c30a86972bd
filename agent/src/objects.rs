//! `Capture` objects of the cluster: this node's part of them.
//!
//! What is to be done is decided by [`kstrobe_kube::custom::capture::steps`]; here it is done, and how it stands is written into
//! the objects' status. An agent that was started again knows nothing of what it had, and says so.

use crate::capture::asked;
use crate::capture::service::Service;
use crate::capture::store::{Id, State, Trigger};
use kstrobe_kube::custom::capture::{self, Capture, CaptureState, Needs, NodeCapture, Step};
use kstrobe_kube::custom::{self, CAPTURES, Kind, Me, Reporter, Reports};
use kstrobe_kube::pods::{self, NodePod};
use kstrobe_kube::watch::backoff::Backoff;
use kstrobe_kube::watch::{Change, follow};
use kstrobe_kube::{Client, Counters, Error};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// How often it is looked how captures stand.
const LOOK: Duration = Duration::from_secs(1);
/// Labels of a node change seldom.
const LABELS: Duration = Duration::from_secs(300);
/// Its pods do not.
const PODS: Duration = Duration::from_secs(5);
/// After a question without an answer.
const PAUSE: Duration = Duration::from_secs(30);
/// Nodes begin and end captures at the same time.
const SETTLE: Duration = Duration::from_secs(1);
/// Changes that wait.
const WAITING: usize = 64;

/// The captures of the agent, when it takes any.
pub type Captures = Box<dyn Fn() -> Option<Arc<Service>> + Send + Sync>;

/// Who follows the objects.
pub struct Objects {
    /// The API server.
    pub client: Client,
    /// Where the objects are: the agent's own namespace.
    pub namespace: String,
    /// This node.
    pub node: String,
    /// What runs here.
    pub captures: Captures,
    /// What fails is counted here.
    pub counters: Arc<Counters>,
}

/// What became of an object here.
enum Own {
    /// It has a capture, and stood like this when it was last seen.
    Has(Id, NodeCapture),
    /// It has none.
    Ended(NodeCapture),
}

/// What is known.
struct Known {
    objects: BTreeMap<String, Capture>,
    own: BTreeMap<String, Own>,
    /// Before the first list is whole, what is missing is not gone.
    synced: bool,
    labels: Asked<BTreeMap<String, String>>,
    pods: Asked<Vec<NodePod>>,
    reports: Reports,
}

/// What the API server said, and how long that is good for.
struct Asked<T> {
    /// Nothing when it did not answer.
    said: Option<T>,
    until: Option<Instant>,
}

impl<T> Asked<T> {
    const fn never() -> Asked<T> {
        Asked { said: None, until: None }
    }

    fn is_old(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    fn take(&mut self, answer: Option<T>, now: Instant, good_for: Duration) {
        let good_for = if answer.is_some() { good_for } else { PAUSE };
        (self.said, self.until) = (answer, Some(now + good_for));
    }
}

/// Does this node's part of all objects, for ever.
pub async fn run(objects: Objects) {
    let (tell, mut told) = mpsc::channel(WAITING);
    let watched = custom::watched(&CAPTURES, &objects.namespace);
    let following = follow(objects.client.clone(), watched, capture::read, objects.counters.clone(), tell);
    let working = async {
        let reporter = Reporter {
            client: objects.client.clone(),
            counters: objects.counters.clone(),
            kind: Kind::Capture,
            backoff: Backoff::default(),
            settle: SETTLE,
        };
        let mut known = Known {
            objects: BTreeMap::new(),
            own: BTreeMap::new(),
            synced: false,
            labels: Asked::never(),
            pods: Asked::never(),
            reports: Reports::new(reporter),
        };
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = told.recv() => match change {
                    Some(change) => known.hear(change),
                    None => return,
                },
                _ = tick.tick() => {}
            }
            objects.step(&mut known).await;
        }
    };
    tokio::join!(following, working);
}

impl Known {
    fn hear(&mut self, change: Change<Capture>) {
        match change {
            Change::Seen(capture) => _ = self.objects.insert(capture.head.uid.clone(), capture),
            Change::Gone(uid) => _ = self.objects.remove(&uid),
            Change::Synced => self.synced = true,
        }
    }
}

impl Objects {
    async fn step(&self, known: &mut Known) {
        let now = Instant::now();
        known.reports.settle(now);
        if !known.synced {
            return;
        }
        let service = (self.captures)();
        for own in known.own.values_mut() {
            look(own, service.as_deref());
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let needs = |uid: &String, capture: &Capture| {
            if known.own.contains_key(uid) { Needs::default() } else { Needs::of(capture, &self.node, seconds) }
        };
        let all: Vec<Needs> = known.objects.iter().map(|(uid, capture)| needs(uid, capture)).collect();
        let labels_wait = all.iter().any(|needs| needs.labels) && !self.labels(&mut known.labels, now).await;
        if all.iter().any(|needs| needs.pods) {
            self.pods(&mut known.pods, now).await;
        }
        // Without an answer a selector of pods finds none, but one of labels may mean those that lack one.
        let decided = known.objects.values().zip(&all).filter(|(_, needs)| !(labels_wait && needs.labels));
        let objects: Vec<Capture> = decided.map(|(capture, _)| capture.clone()).collect();
        let none = BTreeMap::new();
        let me = Me {
            node: &self.node,
            labels: known.labels.said.as_ref().unwrap_or(&none),
            pods: known.pods.said.as_deref().unwrap_or_default(),
        };
        let entry = |own: &Own| match own {
            Own::Has(_, entry) | Own::Ended(entry) => entry.clone(),
        };
        let has = known.own.iter().map(|(uid, own)| (uid.clone(), entry(own))).collect();
        for step in capture::steps(&objects, &me, &has, seconds) {
            self.take(known, service.as_ref(), step).await;
        }
    }

    /// Asks for the labels of the node, if they are not known; says whether they are.
    async fn labels(&self, labels: &mut Asked<BTreeMap<String, String>>, now: Instant) -> bool {
        if labels.is_old(now) {
            let answer = custom::node_labels(&self.client, &self.node).await;
            labels.take(self.heard("node", answer, "the labels of the node"), now, LABELS);
        }
        labels.said.is_some()
    }

    /// Asks for the pods of the node, if they are not known.
    async fn pods(&self, pods: &mut Asked<Vec<NodePod>>, now: Instant) {
        if pods.is_old(now) {
            let source = pods::Source::Api { client: self.client.clone(), node: self.node.clone() };
            pods.take(self.heard("pods", source.list().await, "the pods of the node"), now, PODS);
        }
    }

    fn heard<T>(&self, of: &'static str, answer: Result<T, Error>, what: &str) -> Option<T> {
        answer
            .inspect_err(|error| {
                self.counters.failure(of, error);
                tracing::warn!(%error, "{what} are not known: captures that select by them wait");
            })
            .ok()
    }

    async fn take(&self, known: &mut Known, service: Option<&Arc<Service>>, step: Step) {
        match step {
            Step::Start { uid, name, mut request, at } => {
                if let (Some(at), Some(map)) = (at, request.as_object_mut()) {
                    map.insert("start_at".into(), json!(at.saturating_mul(1_000_000_000)));
                }
                let begun = match service.cloned() {
                    None => Err("captures are off on this node (`captures` of kstrobe.yaml)".to_owned()),
                    Some(service) => {
                        let start = move || start(&service, &name, &request.to_string());
                        tokio::task::spawn_blocking(start).await.unwrap_or_else(|error| Err(error.to_string()))
                    }
                };
                let own = match begun {
                    Ok((id, entry)) => Own::Has(id, entry),
                    Err(reason) => Own::Ended(NodeCapture::ended(CaptureState::Refused, &reason)),
                };
                known.own.insert(uid, own);
            }
            Step::Cancel { uid } => {
                if let (Some(service), Some(Own::Has(id, _))) = (service, known.own.get(&uid)) {
                    // It may have ended meanwhile.
                    let _ = service.cancel(id);
                }
            }
            Step::Report(report) => known.reports.begin(report),
            Step::Forget { uid } => _ = known.own.remove(&uid),
        }
    }
}

/// Begins a capture, and says how it stands.
fn start(service: &Arc<Service>, name: &str, request: &str) -> Result<(Id, NodeCapture), String> {
    let request = asked::from_json(request.as_bytes(), &service.settings())?;
    let trigger = Trigger { kind: "kubernetes".into(), why: format!("Capture {name:.253}"), ..Trigger::default() };
    let id = service.start(request, trigger).map_err(|refusal| refusal.to_string())?;
    tracing::info!(audit = true, capture = %id, object = name, result = "started", "captures");
    let mut own = Own::Has(id.clone(), NodeCapture::default());
    look(&mut own, Some(service));
    match own {
        Own::Has(_, entry) | Own::Ended(entry) => Ok((id, entry)),
    }
}

/// How a capture stands now. One that is no longer there stands as it last did.
fn look(own: &mut Own, service: Option<&Service>) {
    let (Own::Has(id, entry), Some(service)) = (own, service) else { return };
    let Some(capture) = service.get(id) else { return };
    let ended = capture.state != State::Running;
    let time = |text: &str| custom::from_text(text).and_then(custom::to_text);
    let message = if capture.error.is_empty() { capture.notes.join("; ") } else { capture.error.clone() };
    *entry = NodeCapture {
        state: match capture.state {
            State::Running => CaptureState::Running,
            State::Done => CaptureState::Done,
            State::Failed => CaptureState::Failed,
            State::Cancelled => CaptureState::Cancelled,
        },
        id: Some(capture.id),
        bytes: ended.then_some(capture.bytes),
        formats: ended.then(|| capture.files.into_iter().map(|file| file.format).collect()),
        message: (!message.is_empty()).then_some(message),
        started_at: time(&capture.started),
        finished_at: time(&capture.ended),
    };
}
