//! What cgroups belong to, as the thread that follows them last said. Makers of labels read it without blocking.

use kstrobe_ebpf::typed::CgroupName;
use kstrobe_workloads::{Field, Workload};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A name of the language in the words of the table of workloads.
pub fn field(name: CgroupName) -> Field {
    match name {
        CgroupName::Namespace => Field::Namespace,
        CgroupName::Pod => Field::Pod,
        CgroupName::Container => Field::Container,
        CgroupName::Workload => Field::Workload,
        CgroupName::Unit => Field::Unit,
        CgroupName::CgroupPath => Field::CgroupPath,
    }
}

/// The text of a name; an empty one where a cgroup has none.
pub fn text(workload: &Workload, name: CgroupName) -> &str {
    workload.get(field(name)).unwrap_or_default()
}

/// What is known of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Its names, which it keeps for a while after its end.
    Named(Arc<Workload>),
    /// It is there; what it belongs to is not known yet.
    Unnamed,
    /// It is not there, or was not when somebody last looked.
    Absent,
}

/// Cgroups by id.
#[derive(Debug)]
pub struct WorkloadNames {
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    known: HashMap<u64, Option<Arc<Workload>>>,
    /// When somebody last looked which cgroups there are.
    walked: Option<Instant>,
    timeouts: Timeouts,
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A series for the names of its cgroup, before it is shown without.
    pub wait: Duration,
    /// A key for its cgroup to be seen, before it is taken for that of one that has ended.
    pub grace: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { wait: Duration::from_secs(30), grace: Duration::from_secs(60) }
    }
}

impl Default for WorkloadNames {
    fn default() -> Self {
        WorkloadNames::new(Timeouts::default())
    }
}

impl WorkloadNames {
    /// Nothing known yet.
    pub fn new(timeouts: Timeouts) -> WorkloadNames {
        WorkloadNames { state: RwLock::new(State { known: HashMap::new(), walked: None, timeouts }) }
    }

    /// What is known of a cgroup.
    pub fn status(&self, id: u64) -> Status {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        match state.known.get(&id) {
            Some(Some(workload)) => Status::Named(workload.clone()),
            Some(None) => Status::Unnamed,
            None => Status::Absent,
        }
    }

    /// When somebody last looked which cgroups there are.
    pub fn walked(&self) -> Option<Instant> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).walked
    }

    /// How long to wait.
    pub fn timeouts(&self) -> Timeouts {
        self.state.read().unwrap_or_else(PoisonError::into_inner).timeouts
    }

    /// From now on so long.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.state.write().unwrap_or_else(PoisonError::into_inner).timeouts = timeouts;
    }

    /// What is known now, as of a look at `walked`.
    pub fn publish(&self, known: HashMap<u64, Option<Arc<Workload>>>, walked: Option<Instant>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut state.known, known);
        state.walked = walked;
        // Not while readers wait: a thousand texts are let go of.
        drop(state);
        drop(before);
    }
}
