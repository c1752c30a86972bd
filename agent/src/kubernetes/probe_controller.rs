//! `Probe` objects of the cluster: this node's part of them.
//!
//! Their texts are loaded together with the probe files. [`kstrobe_kube::crd::reconciler`] decides which of them to apply and
//! which status to write; this module executes it.

use crate::config::files::diag::Diagnostic;
use crate::config::files::{CLUSTER_STEM, SourceFile};
use crate::kubernetes::{BoxError, Error};
use crate::probe::status::ProbeStatus;
use kstrobe_kube::crd::probe::{self, Probe, WantedProbe};
use kstrobe_kube::crd::reconciler::{AttachStatus, Change, Reconciler};
use kstrobe_kube::crd::{self, Kind, Me, PROBES, Reporter, Reports};
use kstrobe_kube::watch::backoff::{Backoff, random};
use kstrobe_kube::watch::{self, follow};
use kstrobe_kube::{Client, Counters};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How often it is looked how probes stand.
const LOOK: Duration = Duration::from_secs(2);
/// Labels of a node change seldom.
const LABELS: Duration = Duration::from_secs(300);
/// All nodes hear of an object at once. Over this time they say what came of it, so that late ones see that enough have.
const SPREAD: Duration = Duration::from_secs(5);
/// Changes that wait.
const WAITING: usize = 64;

/// Texts of the applied probes of the cluster, shared with the configuration loader.
#[derive(Clone, Debug, Default)]
pub struct Files(Arc<Mutex<Vec<Arc<SourceFile>>>>);

impl Files {
    /// Those that are to run now.
    pub fn get(&self) -> Vec<Arc<SourceFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, texts: Vec<(String, String)>) {
        let files = texts.iter().map(|(name, text)| file(name, text)).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = files;
    }
}

/// Its name is no built-in file's: those cannot be replaced from outside of the node's own configuration.
fn file(name: &str, text: &str) -> Arc<SourceFile> {
    Arc::new(SourceFile { name: format!("{name}{CLUSTER_STEM}.yaml"), text: text.to_owned() })
}

/// Reads all probes anew and says why not, if it cannot. It may block.
pub type Reload = Arc<dyn Fn() -> Result<(), BoxError> + Send + Sync>;
/// Returns the status of all running probes.
pub type StatusReader = Arc<dyn Fn() -> Vec<ProbeStatus> + Send + Sync>;

/// What the reconciler reads and calls.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Where the objects are: the agent's own namespace.
    pub namespace: String,
    pub node: String,
    /// What fails is counted here.
    pub counters: Arc<Counters>,
    /// Where their texts go.
    pub files: Files,
    /// Has the texts read.
    pub reload: Reload,
    /// Status of the running probes.
    pub statuses: StatusReader,
}

/// Does this node's part of all objects, for ever.
pub async fn run(context: Context) {
    let (tell, mut changes) = mpsc::channel(WAITING);
    let watched = crd::watched(&PROBES, &context.namespace);
    let following = follow(context.client.clone(), watched, probe::read, context.counters.clone(), tell);
    let working = async {
        let reporter = Reporter {
            client: context.client.clone(),
            counters: context.counters.clone(),
            kind: Kind::Probe,
            backoff: Backoff::default(),
            settle: SPREAD,
        };
        let mut work = Work {
            context,
            reports: Reports::new(reporter),
            began: Instant::now(),
            reconciler: Reconciler::default(),
            objects: BTreeMap::new(),
            synced: false,
            quiet_until: Duration::ZERO,
        };
        let mut labels = Labels::default();
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Some(change) => work.hear(change),
                    None => return,
                },
                _ = tick.tick() => {}
            }
            // What was heard meanwhile counts, too: entries that are there are not written again.
            while let Ok(change) = changes.try_recv() {
                work.hear(change);
            }
            // Before the first list is whole, what is missing is not gone.
            if !work.synced {
                continue;
            }
            let labels = labels.of(&work.context, work.began.elapsed()).await;
            let me = Me { node: &work.context.node.clone(), labels, pods: &[] };
            if work.try_all(&me).await {
                work.quiet_until = work.began.elapsed() + SPREAD.mul_f64(random());
            }
            if work.began.elapsed() >= work.quiet_until {
                work.report(&me).await;
            }
        }
    };
    tokio::join!(following, working);
}

/// Labels of the node, for selectors.
#[derive(Default)]
struct Labels {
    found: BTreeMap<String, String>,
    until: Option<Duration>,
}

impl Labels {
    async fn of(&mut self, context: &Context, now: Duration) -> &BTreeMap<String, String> {
        if self.until.is_none_or(|until| until <= now) {
            match crd::node_labels(&context.client, &context.node).await {
                Ok(labels) => self.found = labels,
                Err(error) => {
                    context.counters.failure("node", &error);
                    tracing::warn!(node = context.node, %error, "labels of the node are not known: selectors of nodes do not fit it");
                }
            }
            self.until = Some(now + LABELS);
        }
        &self.found
    }
}

struct Work {
    context: Context,
    reports: Reports,
    began: Instant,
    reconciler: Reconciler,
    objects: BTreeMap<String, Probe>,
    synced: bool,
    /// Nothing is said before then.
    quiet_until: Duration,
}

impl Work {
    fn hear(&mut self, change: watch::Change<Probe>) {
        match change {
            watch::Change::Seen(probe) => _ = self.objects.insert(probe.head.uid.clone(), probe),
            watch::Change::Gone(uid) => _ = self.objects.remove(&uid),
            watch::Change::Synced => self.synced = true,
        }
    }

    fn wanted(&self, me: &Me<'_>) -> Vec<WantedProbe> {
        probe::wanted(&self.objects.values().cloned().collect::<Vec<_>>(), me)
    }

    /// Puts the changes to the agent, one after another; says whether there were any.
    async fn try_all(&mut self, me: &Me<'_>) -> bool {
        let wanted = self.wanted(me);
        let mut any = false;
        while let Some(change) = self.reconciler.next(&wanted, self.began.elapsed()) {
            let result = self.put(&change).await;
            match (&change, &result) {
                (Change::Apply(WantedProbe { name, .. }), Ok(())) => {
                    tracing::info!(object = name, "a probe of the cluster was taken");
                }
                (Change::Apply(WantedProbe { name, .. }), Err(error)) => {
                    tracing::warn!(
                        object = name,
                        reason = error.to_string().trim_end(),
                        "a probe of the cluster is refused"
                    );
                }
                (Change::Remove(uid), _) => tracing::info!(uid, "a probe of the cluster has ended"),
            }
            self.reconciler.finish(change, result, self.began.elapsed());
            any = true;
        }
        any
    }

    /// Has the agent read its probes with this change, or without it when it does not take it.
    async fn put(&self, change: &Change) -> Result<(), Error> {
        // A text that cannot be parsed is not reloaded.
        if let Change::Apply(WantedProbe { name, text, .. }) = change {
            check(name, text.as_ref().map_err(Clone::clone)?)?;
        }
        self.context.files.set(self.reconciler.texts(Some(change)));
        let result = self.reload().await;
        if result.is_err() && matches!(change, Change::Apply(_)) {
            self.context.files.set(self.reconciler.texts(None));
            // Otherwise the configuration would seem wrong.
            if let Err(error) = self.reload().await {
                tracing::warn!(
                    reason = error.to_string().trim_end(),
                    "the configuration is not taken without it either"
                );
            }
        }
        result
    }

    async fn reload(&self) -> Result<(), Error> {
        let reload = self.context.reload.clone();
        tokio::task::spawn_blocking(move || reload()).await?.map_err(Error::Reload)
    }

    /// Says how they stand.
    async fn report(&mut self, me: &Me<'_>) {
        self.reports.settle(Instant::now());
        let statuses = self.context.statuses.clone();
        let Ok(statuses) = tokio::task::spawn_blocking(move || statuses()).await else { return };
        let wanted = self.wanted(me);
        let has = self.reconciler.states(&wanted, |text| attach_statuses(text, &statuses));
        let objects: Vec<Probe> = self.objects.values().cloned().collect();
        probe::reports(&objects, me, &has).into_iter().for_each(|report| self.reports.begin(report));
    }
}

/// Whether a text is right by itself.
fn check(name: &str, text: &str) -> Result<(), Error> {
    let (_, diagnostics) = kstrobe_config::probes(&[file(name, text)]);
    if diagnostics.iter().any(Diagnostic::is_error) { Err(Error::Diagnostics(diagnostics)) } else { Ok(()) }
}

/// Statuses of the probes of a text, out of all.
fn attach_statuses(text: &str, all: &[ProbeStatus]) -> Vec<AttachStatus> {
    let (probes, _) = kstrobe_config::probes(&[file("", text)]);
    let of = |name: &str| all.iter().find(|status| status.name == name);
    let found = probes.iter().filter_map(|probe| of(probe.name()));
    found.map(|status| AttachStatus { reason: status.reason.clone(), throttled: status.throttled.clone() }).collect()
}
