//! `Capture` objects of the cluster: this node's part of them.
//!
//! What is to be done is decided by [`kstrobe_kube::custom::capture::steps`]; here it is done, and how it stands is written into
//! the objects' status. An agent that was started again knows nothing of what it had, and says so.

use crate::capture::asked;
use crate::capture::service::Service;
use crate::capture::store::{Id, State, Trigger};
use kstrobe_kube::custom::capture::{self, Capture, CaptureState, NodeCapture, Step};
use kstrobe_kube::custom::{self, CAPTURES, Me, Report, Reporter};
use kstrobe_kube::watch::backoff::Backoff;
use kstrobe_kube::watch::{Change, follow};
use kstrobe_kube::{Client, Counters, pods};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How often it is looked how captures stand.
const LOOK: Duration = Duration::from_secs(1);
/// Labels of a node change seldom.
const LABELS: Duration = Duration::from_secs(300);
/// After a status that could not be written.
const PAUSE: Duration = Duration::from_secs(30);
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
    labels: BTreeMap<String, String>,
    labels_until: Option<Instant>,
    reports: JoinSet<(String, bool)>,
    /// Objects whose status is being written, or is not to be written before then.
    quiet: BTreeMap<String, Option<Instant>>,
}

/// Does this node's part of all objects, for ever.
pub async fn run(objects: Objects) {
    let (tell, mut told) = mpsc::channel(WAITING);
    let watched = custom::watched(&CAPTURES, &objects.namespace);
    let following = follow(objects.client.clone(), watched, capture::read, objects.counters.clone(), tell);
    let working = async {
        let mut known = Known {
            objects: BTreeMap::new(),
            own: BTreeMap::new(),
            synced: false,
            labels: BTreeMap::new(),
            labels_until: None,
            reports: JoinSet::new(),
            quiet: BTreeMap::new(),
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

    /// What has come of reports.
    fn reported(&mut self, now: Instant) {
        while let Some(done) = self.reports.try_join_next() {
            // A report that panicked is quiet for ever: it would again.
            let Ok((name, written)) = done else { continue };
            if written {
                self.quiet.remove(&name)
            } else {
                self.quiet.insert(name, Some(now + PAUSE))
            };
        }
        self.quiet.retain(|_, until| until.is_none_or(|until| until > now));
    }
}

impl Objects {
    async fn step(&self, known: &mut Known) {
        let now = Instant::now();
        known.reported(now);
        let Some(service) = (self.captures)().filter(|_| known.synced) else { return };
        for own in known.own.values_mut() {
            look(own, &service);
        }
        let selects = |select: fn(&capture::CaptureSpec) -> bool| {
            let fresh = known.objects.iter().filter(|(uid, _)| !known.own.contains_key(*uid));
            fresh.flat_map(|(_, capture)| &capture.spec).any(select)
        };
        let (by_node, by_pod) =
            (selects(|spec| spec.node_selector.is_some()), selects(|spec| spec.pod_selector.is_some()));
        if by_node && known.labels_until.is_none_or(|until| until <= now) {
            match custom::node_labels(&self.client, &self.node).await {
                Ok(labels) => (known.labels, known.labels_until) = (labels, Some(now + LABELS)),
                Err(error) => {
                    self.counters.failure("node", &error);
                    tracing::warn!(%error, "the labels of the node are not known: captures that select by them wait");
                    return;
                }
            }
        }
        let mut own_pods = Vec::new();
        if by_pod {
            match self.client.pods(None, "", &format!("spec.nodeName={}", self.node)).await {
                Ok(found) => own_pods = found.iter().filter_map(pods::object::pod).collect(),
                Err(error) => {
                    self.counters.failure("pods", &error);
                    tracing::warn!(%error, "the pods of the node are not known: captures that select by them wait");
                    return;
                }
            }
        }
        let me = Me { node: &self.node, labels: &known.labels, pods: &own_pods };
        let objects: Vec<Capture> = known.objects.values().cloned().collect();
        let entry = |own: &Own| match own {
            Own::Has(_, entry) | Own::Ended(entry) => entry.clone(),
        };
        let has = known.own.iter().map(|(uid, own)| (uid.clone(), entry(own))).collect();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for step in capture::steps(&objects, &me, &has, i64::try_from(seconds).unwrap_or(i64::MAX)) {
            self.take(known, &service, step).await;
        }
    }

    async fn take(&self, known: &mut Known, service: &Arc<Service>, step: Step) {
        match step {
            Step::Start { uid, name, mut request, at } => {
                if let (Some(at), Some(map)) = (at, request.as_object_mut()) {
                    map.insert("start_at".into(), json!(at.saturating_mul(1_000_000_000)));
                }
                let service = service.clone();
                let begun = tokio::task::spawn_blocking(move || start(&service, &name, &request.to_string())).await;
                let begun = begun.unwrap_or_else(|error| Err(error.to_string()));
                let own = match begun {
                    Ok((id, entry)) => Own::Has(id, entry),
                    Err(reason) => Own::Ended(NodeCapture::ended(CaptureState::Refused, &reason)),
                };
                known.own.insert(uid, own);
            }
            Step::Cancel { uid } => {
                if let Some(Own::Has(id, _)) = known.own.get(&uid) {
                    // It may have ended meanwhile.
                    let _ = service.cancel(id);
                }
            }
            Step::Report(report) => self.report(known, report),
            Step::Forget { uid } => _ = known.own.remove(&uid),
        }
    }

    fn report(&self, known: &mut Known, report: Report) {
        if known.quiet.contains_key(&report.name) {
            return;
        }
        known.quiet.insert(report.name.clone(), None);
        let reporter =
            Reporter { client: self.client.clone(), counters: self.counters.clone(), backoff: Backoff::default() };
        known.reports.spawn(async move {
            let written = reporter.capture(&report).await;
            if let Err(error) = &written {
                tracing::warn!(capture = report.name, %error, "the status of a Capture cannot be written");
            }
            (report.name.clone(), written.is_ok())
        });
    }
}

/// Begins a capture, and says how it stands.
fn start(service: &Arc<Service>, name: &str, request: &str) -> Result<(Id, NodeCapture), String> {
    let request = asked::from_json(request.as_bytes(), &service.settings())?;
    let trigger = Trigger { kind: "kubernetes".into(), why: format!("Capture {name:.253}"), ..Trigger::default() };
    let id = service.start(request, trigger).map_err(|refusal| refusal.to_string())?;
    tracing::info!(audit = true, capture = %id, object = name, result = "started", "captures");
    let mut own = Own::Has(id.clone(), NodeCapture::default());
    look(&mut own, service);
    match own {
        Own::Has(_, entry) | Own::Ended(entry) => Ok((id, entry)),
    }
}

/// How a capture stands now. One that is no longer there stands as it last did.
fn look(own: &mut Own, service: &Service) {
    let Own::Has(id, entry) = own else { return };
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
