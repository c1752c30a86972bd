//! `Capture` objects of the cluster: this node's part of them.
//!
//! What is to be done is decided by [`kstrobe_kube::crd::capture::steps`]; here it is done, and how it stands is written into
//! the objects' status. An agent that was started again knows nothing of what it had, and says so.

use crate::capture::api;
use crate::capture::audit;
use crate::capture::rules::alerts::{Alert, Notification, RULE};
use crate::capture::rules::engine::{Outcome, RuleEngine};
use crate::capture::service::Service;
use crate::capture::store::{Id, State, Trigger};
use kstrobe_kube::crd::capture::{self, Capture, CaptureState, Needs, NodeCapture, Step, Work};
use kstrobe_kube::crd::{self, CAPTURES, Kind, Me, Reporter, Reports};
use kstrobe_kube::pods::{self, NodePod};
use kstrobe_kube::watch::backoff::Backoff;
use kstrobe_kube::watch::{Change, follow};
use kstrobe_kube::{Client, Counters, Error};
use serde_json::{Value, json};
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
pub type Captures = Box<dyn Fn() -> Option<Arc<RuleEngine>> + Send + Sync>;

/// Who follows the objects.
pub struct Objects {
    /// The API server.
    pub client: Client,
    /// Where the objects are: the agent's own namespace.
    pub namespace: String,
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
    /// It waits until the node has room for it; the next try is not before this time.
    Waits(NodeCapture, Instant),
    /// It has none.
    Ended(NodeCapture),
}

impl Own {
    fn entry(&self) -> &NodeCapture {
        match self {
            Own::Has(_, entry) | Own::Waits(entry, _) | Own::Ended(entry) => entry,
        }
    }
}

struct Known {
    objects: BTreeMap<String, Capture>,
    own: BTreeMap<String, Own>,
    /// Before the first list is whole, what is missing is not gone.
    synced: bool,
    labels: Asked<BTreeMap<String, String>>,
    pods: Asked<Vec<NodePod>>,
    reports: Reports,
    /// Objects that could not be removed are not tried again before then.
    remove: Option<Instant>,
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
    let (tell, mut changes) = mpsc::channel(WAITING);
    let watched = crd::watched(&CAPTURES, &objects.namespace);
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
            remove: None,
        };
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = changes.recv() => match change {
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
        let rules = (self.captures)();
        for own in known.own.values_mut() {
            look(own, rules.as_ref().map(|rules| &**rules.service()));
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let needs = |uid: &String, capture: &Capture| match known.own.get(uid) {
            Some(Own::Has(..) | Own::Ended(_)) => Needs::default(),
            Some(Own::Waits(..)) | None => Needs::of(capture, &self.node, seconds),
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
        let has = known.own.iter().map(|(uid, own)| (uid.clone(), own.entry().clone())).collect();
        for step in capture::steps(&objects, &me, &has, seconds) {
            self.take(known, rules.as_ref(), step, now).await;
        }
        if known.remove.is_none_or(|until| until <= now) {
            known.remove = None;
            let stored = |id: &str| {
                let id = Id::parse(id).zip(rules.as_ref());
                id.is_some_and(|(id, rules)| rules.service().get(&id).is_some())
            };
            let over = objects.iter().filter(|capture| capture::is_over(capture, &self.node, seconds, stored));
            for Capture { head, .. } in over {
                if let Err(error) = self.client.delete(&CAPTURES.one(Some(&head.namespace), &head.name)).await {
                    self.counters.failure("captures", &error);
                    tracing::warn!(object = head.name, %error, "the object of an alert cannot be removed");
                    known.remove = Some(now + PAUSE);
                    break;
                }
            }
        }
    }

    /// Asks for the labels of the node, if they are not known; says whether they are.
    async fn labels(&self, labels: &mut Asked<BTreeMap<String, String>>, now: Instant) -> bool {
        if labels.is_old(now) {
            let answer = crd::node_labels(&self.client, &self.node).await;
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

    async fn take(&self, known: &mut Known, rules: Option<&Arc<RuleEngine>>, step: Step, now: Instant) {
        match step {
            Step::Start { uid, .. } if matches!(known.own.get(&uid), Some(Own::Waits(_, until)) if *until > now) => {}
            Step::Start { uid, name, mut work, at } => {
                if let (Some(at), Work::Request(Value::Object(map))) = (at, &mut work) {
                    map.insert("start_at".into(), json!(at.saturating_mul(1_000_000_000)));
                }
                let object = format!("Capture {}/{name:.253}", self.namespace);
                let own = match rules.cloned() {
                    None => Own::refused("captures are off on this node (`captures` of kstrobe.yaml)"),
                    Some(rules) => tokio::task::spawn_blocking(move || start(&rules, &object, work, now))
                        .await
                        .unwrap_or_else(|error| Own::refused(&error.to_string())),
                };
                known.own.insert(uid, own);
            }
            Step::Refuse { uid, entry } => _ = known.own.insert(uid, Own::Ended(entry)),
            Step::Cancel { uid } => match (rules, known.own.get(&uid)) {
                (Some(rules), Some(Own::Has(id, _))) => {
                    // It may have ended meanwhile.
                    let _ = rules.service().cancel(id);
                }
                (_, Some(Own::Waits(..))) => _ = known.own.remove(&uid),
                _ => {}
            },
            Step::Report(report) => known.reports.begin(report),
            Step::Forget { uid } => _ = known.own.remove(&uid),
        }
    }
}

impl Own {
    fn refused(why: &str) -> Own {
        Own::Ended(NodeCapture::ended(CaptureState::Refused, why))
    }

    /// In the queue. While captures run, a try costs nothing; after any other refusal tries are less frequent.
    fn queued(why: &str, again: Instant) -> Own {
        Own::Waits(NodeCapture::queued(&format!("queued: {why}")), again)
    }

    fn has(id: Id, service: &Service) -> Own {
        let mut own = Own::Has(id, NodeCapture::default());
        look(&mut own, Some(service));
        own
    }
}

/// Begins a capture for an object, unless the node is busy.
fn start(rules: &Arc<RuleEngine>, object: &str, work: Work, now: Instant) -> Own {
    let service = rules.service();
    if let Some(busy) = service.busy() {
        return Own::queued(&busy.to_string(), now);
    }
    let (request, own) = match work {
        Work::Alert(alert) => ("an alert's rule".to_owned(), by_alert(rules, object, &alert, now)),
        Work::Request(request) => (request.to_string(), by_request(service, object, &request.to_string(), now)),
    };
    let (id, result) = match &own {
        Own::Has(id, _) => (id.to_string(), "started"),
        Own::Waits(..) => (String::new(), "queued"),
        Own::Ended(_) => (String::new(), "refused"),
    };
    audit(object, &format!("start {request}"), &id, result);
    own
}

fn by_request(service: &Arc<Service>, object: &str, request: &str, now: Instant) -> Own {
    let request = match api::from_json(request.as_bytes(), &service.settings()) {
        Ok(request) => request,
        Err(error) => return Own::refused(&error.to_string()),
    };
    let trigger = Trigger { kind: "kubernetes".into(), client: object.to_owned(), ..Trigger::default() };
    match service.start(request, trigger) {
        Ok(id) => Own::has(id, service),
        Err(refusal) if refusal.is_temporary() => Own::queued(&refusal.to_string(), now + PAUSE),
        Err(refusal) => Own::refused(&refusal.to_string()),
    }
}

/// Applies this node's own rules to an alert that another agent got.
fn by_alert(rules: &Arc<RuleEngine>, object: &str, alert: &crd::Alert, now: Instant) -> Own {
    let rule = alert.rule.iter().map(|rule| (RULE.to_owned(), rule.clone()));
    let alert = Alert {
        status: "firing".into(),
        labels: rule.chain([("alertname".to_owned(), alert.name.clone())]).collect(),
        starts_at: alert.starts_at.clone(),
        fingerprint: alert.fingerprint.clone(),
        ..Alert::default()
    };
    match rules.alert(&Notification { alerts: vec![alert] }, object).pop() {
        Some(Outcome::Started(id)) => Own::has(id, rules.service()),
        Some(Outcome::Busy) => Own::queued("there is no room for another capture", now + PAUSE),
        other => Own::refused(&format!("the alert gets no capture: {}", other.map_or("failed", |o| o.name()))),
    }
}

/// How a capture stands now. One that is no longer there stands as it last did.
fn look(own: &mut Own, service: Option<&Service>) {
    let (Own::Has(id, entry), Some(service)) = (own, service) else { return };
    let Some(capture) = service.get(id) else { return };
    let ended = capture.state != State::Running;
    let time = |text: &str| crd::from_text(text).and_then(crd::to_text);
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
