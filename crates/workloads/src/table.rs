//! Maps the cgroups of a node to workload names.
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

/// Time limits of the table.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Node name for groups outside of pods.
    pub node: Option<Arc<str>>,
    /// Time for which removed groups keep their names and deleted pods can name groups.
    pub grace: Duration,
    /// Time limit for the pod and container of a group to become known; zero without a source of pods, so that containers are
    /// named at once.
    pub patience: Duration,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Groups named without their pod after [`Settings::patience`].
    pub unresolved: u64,
    /// Groups whose names were completed after [`Settings::patience`].
    pub late: u64,
    /// Reused ids.
    pub reused: u64,
    /// Groups removed from the table after [`Settings::grace`].
    pub expired: u64,
}

/// Group ids by the result of a selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// Matching groups.
    pub passes: BTreeSet<u64>,
    /// Groups without names yet.
    pub undecided: BTreeSet<u64>,
}

/// A group of the table.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Cgroup id.
    pub id: u64,
    /// Path in the hierarchy.
    pub path: &'a str,
    /// Names; `None` while they are pending.
    pub workload: Option<&'a Arc<Workload>>,
    /// Whether the group was removed.
    pub ended: bool,
    /// Default container of its pod.
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
    /// Further keys of a pod uid: the hash of a static pod, container ids.
    leads: HashMap<Arc<str>, Arc<str>>,
    counts: Counts,
}

#[derive(Debug)]
struct Entry {
    path: Arc<str>,
    place: Place,
    seen: Instant,
    ended: Option<Instant>,
    /// `None` while pending.
    workload: Option<Arc<Workload>>,
}

#[derive(Debug)]
struct Known {
    pod: Pod,
    gone: Option<Instant>,
}

/// Names of a group known so far.
enum Names {
    /// Complete.
    Final(Workload),
    /// Partial: the pod or container of the group is unknown.
    Partial { workload: Workload, pod: bool },
}

impl Table {
    /// Creates an empty table.
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

    /// Adds a group. Idempotent, unless the id has another path: then it is another group.
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

    /// Marks a group as removed.
    pub fn cgroup_gone(&mut self, id: u64, at: Instant) {
        if let Some(entry) = self.groups.get_mut(&id) {
            entry.ended.get_or_insert(at);
        }
    }

    /// Adds or updates a pod.
    pub fn pod_seen(&mut self, pod: Pod, at: Instant) {
        self.learn(pod);
        self.name_waiting(at);
    }

    /// Marks a pod as deleted. Its groups keep their names.
    pub fn pod_gone(&mut self, uid: &str, at: Instant) {
        if let Some(known) = self.pods.get_mut(&key(uid)) {
            known.gone.get_or_insert(at);
        }
    }

    /// Replaces the pod list.
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

    /// Applies the time limits: names groups that waited for [`Settings::patience`], drops groups and pods after
    /// [`Settings::grace`]. Returns the ids of dropped groups.
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

    /// Names of a group; `None` while pending, and for unknown ids.
    pub fn get(&self, id: u64) -> Option<&Arc<Workload>> {
        self.groups.get(&id)?.workload.as_ref()
    }

    /// Evaluates a selector on all existing groups; removed groups have no tasks and are excluded.
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

    /// Evaluates a selector on one group; `None` while undecided. The pod is known before its containers.
    fn meets(&self, entry: &Entry, selector: &Selector) -> Option<bool> {
        if let Some(workload) = &entry.workload {
            return Some(selector.matches(workload));
        }
        match self.names(entry) {
            Names::Partial { workload, .. } if selector.is_of_pods() && workload.namespace.is_some() => {
                Some(selector.matches(&workload))
            }
            _ => None,
        }
    }

    /// Whether the table has a group with this id.
    pub fn knows(&self, id: u64) -> bool {
        self.groups.contains_key(&id)
    }

    /// All groups, unordered.
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

    /// Number of groups with pending names.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().filter(|id| self.get(**id).is_none()).count()
    }

    /// Number of pods.
    pub fn pods(&self) -> usize {
        self.pods.len()
    }

    /// Counters since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn learn(&mut self, pod: Pod) {
        let uid = key(&pod.uid);
        self.forget(&uid);
        self.leads.extend(leads(&pod).map(|lead| (lead, uid.clone())));
        self.pods.insert(uid, Known { pod, gone: None });
    }

    /// Names pending groups. A group may wait for a pod by any of its keys, so all are tried; few are pending.
    fn name_waiting(&mut self, now: Instant) {
        for id in self.waiting.clone() {
            self.name(id, now);
        }
    }

    /// Names a group if its names are complete, or after [`Settings::patience`].
    fn name(&mut self, id: u64, now: Instant) {
        let Some(entry) = self.groups.get(&id) else { return };
        let (workload, pod, last) = match self.names(entry) {
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

    /// Names known now.
    fn names(&self, Entry { place, path, .. }: &Entry) -> Names {
        let node = self.settings.node.clone();
        let cgroup_path = Some(path.clone());
        let Some(known) = self.pod_of(place) else {
            let container = place.container_id.as_deref().filter(|_| place.pod_uid.is_none()).map(short);
            let unit = place.unit.as_deref().map(Arc::from);
            let workload = Workload { container, unit, cgroup_path, node, ..Workload::default() };
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
            cgroup_path,
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

    /// Drops deleted pods after [`Settings::grace`], unless they still have groups: a force-deleted pod keeps running.
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

    /// Drops a pod and its keys, except keys that now belong to another pod.
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
