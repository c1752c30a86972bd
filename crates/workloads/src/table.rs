//! All control groups of the node and what they are called.
//!
//! A group gets its names once, as soon as all of them are known, and keeps them until a while after its end: what it counted
//! last is read after it is gone. Until then it has no names, which is something else than empty ones: its series wait. They do
//! not wait for ever: after [`Settings::patience`] a group is called what is known by then, and by its full name once that comes.
//!
//! Ids are those of one hierarchy: ids of two hierarchies may be the same.

use crate::path::{Place, place};
use crate::pod::Pod;
use crate::selector::Selector;
use crate::workload::Workload;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for what.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of this node, for what is in no pod.
    pub node: Option<Arc<str>>,
    /// How long a group keeps its names after its end, and a pod that is gone can still name a group.
    pub grace: Duration,
    /// How long a group waits for its pod and container to become known; zero where nobody tells of pods, so that containers are
    /// named at once.
    pub patience: Duration,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Groups that were shown without the names of their pod, which nobody told of in time.
    pub unresolved: u64,
    /// Groups whose names came, or became more, after they had been shown without.
    pub late: u64,
    /// Ids that meant another group before.
    pub reused: u64,
    /// Groups that were forgotten some time after their end.
    pub expired: u64,
}

/// The decision of a condition: ids of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// Groups that meet it.
    pub passes: BTreeSet<u64>,
    /// Groups whose names are not known yet.
    pub undecided: BTreeSet<u64>,
}

/// A group, for who wants to see all of them.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Its id.
    pub id: u64,
    /// Its path in the hierarchy.
    pub path: &'a str,
    /// Its names, unless it waits for them.
    pub workload: Option<&'a Arc<Workload>>,
    /// Whether it is gone.
    pub ended: bool,
    /// Name of the main container of its pod.
    pub main: Option<&'a Arc<str>>,
}

/// Groups by id, pods by uid.
#[derive(Debug)]
pub struct Table {
    settings: Settings,
    groups: HashMap<u64, Entry>,
    /// Groups whose names are not final.
    waiting: BTreeSet<u64>,
    pods: HashMap<Arc<str>, Known>,
    /// What leads to the uid of a pod as well: a static pod's hash, ids of containers.
    leads: HashMap<Arc<str>, Arc<str>>,
    counts: Counts,
}

#[derive(Debug)]
struct Entry {
    path: Box<str>,
    place: Place,
    seen: Instant,
    ended: Option<Instant>,
    /// `None` while it waits.
    workload: Option<Arc<Workload>>,
}

#[derive(Debug)]
struct Known {
    pod: Pod,
    gone: Option<Instant>,
}

/// What is known about a group.
enum Names {
    /// Everything.
    Final(Workload),
    /// So much, and there may be more: its pod, or its container, was not heard of.
    Partial { workload: Workload, pod: bool },
}

impl Table {
    /// Without groups and pods.
    pub fn new(settings: Settings) -> Table {
        Table {
            settings,
            groups: HashMap::new(),
            waiting: BTreeSet::new(),
            pods: HashMap::new(),
            leads: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// There is a group. Told again, nothing changes, unless the id has another path: then it is another group.
    pub fn cgroup_seen(&mut self, id: u64, path: &str, at: Instant) {
        if let Some(entry) = self.groups.get_mut(&id) {
            if *entry.path == *path {
                entry.ended = None;
                return;
            }
            self.counts.reused += 1;
        }
        let entry = Entry { path: path.into(), place: place(path), seen: at, ended: None, workload: None };
        self.groups.insert(id, entry);
        self.waiting.insert(id);
        self.name(id, at);
    }

    /// A group is gone.
    pub fn cgroup_gone(&mut self, id: u64, at: Instant) {
        if let Some(entry) = self.groups.get_mut(&id) {
            entry.ended.get_or_insert(at);
        }
    }

    /// There is a pod, or it changed.
    pub fn pod_seen(&mut self, pod: Pod, at: Instant) {
        self.learn(pod);
        self.name_waiting(at);
    }

    /// A pod is gone. Its groups keep its names.
    pub fn pod_gone(&mut self, uid: &str, at: Instant) {
        if let Some(known) = self.pods.get_mut(&key(uid)) {
            known.gone.get_or_insert(at);
        }
    }

    /// These pods there are and no others.
    pub fn pods_are(&mut self, pods: Vec<Pod>, at: Instant) {
        let there: BTreeSet<Arc<str>> = pods.iter().map(|pod| key(&pod.uid)).collect();
        for (uid, known) in &mut self.pods {
            if !there.contains(uid) {
                known.gone.get_or_insert(at);
            }
        }
        for pod in pods {
            self.learn(pod);
        }
        self.name_waiting(at);
    }

    /// Time passes: who waited long enough is called what is known, who has been gone long enough is forgotten. Returns the ids
    /// that no longer mean anything.
    pub fn tick(&mut self, now: Instant) -> Vec<u64> {
        self.name_waiting(now);
        let grace = self.settings.grace;
        let over = |since: Instant| now.saturating_duration_since(since) >= grace;
        let ended = self.groups.iter().filter(|(_, entry)| entry.ended.is_some_and(over));
        let mut expired: Vec<u64> = ended.map(|(id, _)| *id).collect();
        expired.sort_unstable();
        for id in &expired {
            self.groups.remove(id);
            self.waiting.remove(id);
        }
        self.counts.expired += expired.len() as u64;
        self.forget_pods(over);
        expired
    }

    /// What a group is called; `None` while its names are not known, and for ids without a group.
    pub fn get(&self, id: u64) -> Option<&Arc<Workload>> {
        self.groups.get(&id)?.workload.as_ref()
    }

    /// Groups that meet a condition. A group that has ended has no tasks any more, and is none of them.
    pub fn decide(&self, selector: &Selector) -> Decided {
        let mut decided = Decided::default();
        for (id, entry) in self.groups.iter().filter(|(_, entry)| entry.ended.is_none()) {
            match self.meets(entry, selector) {
                Some(true) => _ = decided.passes.insert(*id),
                Some(false) => {}
                None => _ = decided.undecided.insert(*id),
            }
        }
        decided
    }

    /// Whether a group meets a condition, as far as that is known. Names of its pod are known before those of its container.
    fn meets(&self, entry: &Entry, selector: &Selector) -> Option<bool> {
        if let Some(workload) = &entry.workload {
            return Some(selector.matches(workload));
        }
        match self.names(&entry.place) {
            Names::Partial { workload, .. } if selector.is_of_pods() && workload.namespace.is_some() => {
                Some(selector.matches(&workload))
            }
            _ => None,
        }
    }

    /// Whether there is a group of this id, or was one until a while ago.
    pub fn knows(&self, id: u64) -> bool {
        self.groups.contains_key(&id)
    }

    /// All groups, in no order.
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        self.groups.iter().map(|(id, entry)| Group {
            id: *id,
            path: &entry.path,
            workload: entry.workload.as_ref(),
            ended: entry.ended.is_some(),
            main: self.pod_of(&entry.place).and_then(|known| known.pod.main.as_ref()),
        })
    }

    fn pod_of(&self, place: &Place) -> Option<&Known> {
        lead(place).and_then(|lead| self.pods.get(self.uid(&lead)))
    }

    /// How many groups wait for names.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().filter(|id| self.get(**id).is_none()).count()
    }

    /// How many pods can name groups.
    pub fn pods(&self) -> usize {
        self.pods.len()
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn learn(&mut self, pod: Pod) {
        let uid = key(&pod.uid);
        self.forget(&uid);
        self.leads.extend(leads(&pod).map(|lead| (lead, uid.clone())));
        self.pods.insert(uid, Known { pod, gone: None });
    }

    /// A group may wait for a pod by any of its names; few wait at all.
    fn name_waiting(&mut self, now: Instant) {
        for id in self.waiting.clone() {
            self.name(id, now);
        }
    }

    /// Gives a group its names if they are known, or if it has waited for them long enough.
    fn name(&mut self, id: u64, now: Instant) {
        let Some(entry) = self.groups.get(&id) else { return };
        let (workload, pod, last) = match self.names(&entry.place) {
            Names::Final(workload) => (workload, true, true),
            Names::Partial { workload, pod } => (workload, pod, false),
        };
        let impatient = now.saturating_duration_since(entry.seen) >= self.settings.patience;
        if last {
            self.waiting.remove(&id);
        } else if !impatient {
            return;
        }
        let Some(entry) = self.groups.get_mut(&id) else { return };
        match &entry.workload {
            Some(shown) if **shown == workload => return,
            Some(_) => self.counts.late += 1,
            None if !pod => self.counts.unresolved += 1,
            None => {}
        }
        entry.workload = Some(Arc::new(workload));
    }

    /// Names by what is known now.
    fn names(&self, place: &Place) -> Names {
        let node = self.settings.node.clone();
        let Some(known) = self.pod_of(place) else {
            let container = place.container_id.as_deref().filter(|_| place.pod_uid.is_none()).map(short);
            let unit = place.unit.as_deref().map(Arc::from);
            let workload = Workload { container, unit, node, ..Workload::default() };
            return match (&place.pod_uid, &place.container_id) {
                (Some(_), _) => Names::Partial { workload, pod: false },
                (None, Some(id)) if is_id(id) => Names::Partial { workload, pod: true },
                (None, _) => Names::Final(workload),
            };
        };
        let pod = &known.pod;
        let owner = pod.workload();
        let mut workload = Workload {
            namespace: Some(pod.namespace.clone()),
            pod: Some(pod.name.clone()),
            container: None,
            workload: Some(owner.name),
            workload_kind: Some(owner.kind),
            unit: None,
            node: pod.node.clone().or(node),
        };
        match &place.container_id {
            None => Names::Final(workload),
            Some(id) => match pod.container(id) {
                Some(name) => {
                    workload.container = Some(name.clone());
                    Names::Final(workload)
                }
                // The sandbox, which no API lists, or a container so new that its id is not in the status yet.
                None => Names::Partial { workload, pod: true },
            },
        }
    }

    /// Forgets pods that have been gone for long, but none that still has groups here: a pod that was deleted by force runs on.
    fn forget_pods(&mut self, over: impl Fn(Instant) -> bool) {
        let gone = self.pods.iter().filter(|(_, known)| known.gone.is_some_and(&over));
        let mut gone: BTreeSet<Arc<str>> = gone.map(|(uid, _)| uid.clone()).collect();
        if gone.is_empty() {
            return;
        }
        for entry in self.groups.values() {
            if let Some(lead) = lead(&entry.place) {
                gone.remove(self.uid(&lead));
            }
        }
        for uid in gone {
            self.forget(&uid);
        }
    }

    /// The uid of the pod that this uid, hash or container leads to.
    fn uid<'a>(&'a self, lead: &'a Arc<str>) -> &'a Arc<str> {
        self.leads.get(lead).unwrap_or(lead)
    }

    /// Forgets a pod and what leads to it, unless that leads to another one by now.
    fn forget(&mut self, uid: &Arc<str>) {
        let Some(known) = self.pods.remove(uid) else { return };
        for lead in leads(&known.pod) {
            if self.leads.get(&lead) == Some(uid) {
                self.leads.remove(&lead);
            }
        }
    }
}

/// What may lead to a group's pod. Where the kubelet makes no groups for pods (`cgroupsPerQOS: false`), that is the container
/// alone.
fn lead(place: &Place) -> Option<Arc<str>> {
    let container = || place.container_id.as_deref().filter(|id| is_id(id));
    place.pod_uid.as_deref().or_else(container).map(key)
}

/// What leads to a pod besides its uid.
fn leads(pod: &Pod) -> impl Iterator<Item = Arc<str>> {
    let containers = pod.containers.iter().map(|container| key(&container.id));
    pod.config_hash.as_deref().map(key).into_iter().chain(containers)
}

/// Paths of the systemd driver do not tell `-` and `_` of a uid apart.
fn key(uid: &str) -> Arc<str> {
    uid.replace('_', "-").into()
}

/// A container's id as `docker ps` and `podman ps` show it.
fn short(id: &str) -> Arc<str> {
    if is_id(id) { id[..12].into() } else { id.into() }
}

/// Not a machine's name.
fn is_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())
}
