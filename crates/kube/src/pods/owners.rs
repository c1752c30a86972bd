//! Cached lookups of the owners of ReplicaSets and Jobs whose names are ambiguous.

use super::object::controller;
use crate::client::Client;
use crate::counters::Counters;
use crate::path::Resource;
use crate::watch::backoff::{Backoff, random};
use kstrobe_workloads::Owner;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A controller: namespace, kind and name.
pub type Owned = (String, Owner);

/// Pause of all lookups after a 403.
const FORBIDDEN_INTERVAL: Duration = Duration::from_secs(600);

/// Bounded cache of owners.
#[derive(Debug)]
pub struct Owners {
    known: BTreeMap<Owned, Owner>,
    /// Insertion order, for eviction.
    order: VecDeque<Owned>,
    limit: usize,
    pending: Vec<Owned>,
    refused_until: Option<Duration>,
    dropped: u64,
}

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The owner of the controller, or the controller itself if it has none.
    Owner(Owner),
    /// 404: the object was deleted.
    Gone,
    /// 403: RBAC does not permit `get`.
    Refused,
    /// No usable response.
    Failed,
}

impl Owners {
    /// Creates a cache of at most `limit` owners.
    pub fn new(limit: usize) -> Owners {
        Owners {
            known: BTreeMap::new(),
            order: VecDeque::new(),
            limit: limit.max(1),
            pending: Vec::new(),
            refused_until: None,
            dropped: 0,
        }
    }

    /// Cached owner of this controller.
    pub fn get(&self, owned: &Owned) -> Option<&Owner> {
        self.known.get(owned)
    }

    /// Whether to look up this controller. If so, it is pending until [`Owners::record`].
    ///
    /// The `pod-template-hash` label proves the name of a Deployment; the name of a CronJob is only a guess.
    pub fn ask(&mut self, owned: &Owned, by_name: &Owner, now: Duration) -> bool {
        let unsure = match &*owned.1.kind {
            "Job" => true,
            "ReplicaSet" => *by_name == owned.1,
            _ => false,
        };
        let ask = unsure
            && !self.known.contains_key(owned)
            && !self.pending.contains(owned)
            && self.refused_until.is_none_or(|until| until <= now);
        if ask {
            self.pending.push(owned.clone());
        }
        ask
    }

    /// Records the result of a lookup.
    pub fn record(&mut self, owned: Owned, lookup: Lookup, by_name: &Owner, now: Duration) {
        self.pending.retain(|other| *other != owned);
        let owner = match lookup {
            Lookup::Owner(owner) => owner,
            Lookup::Gone => by_name.clone(),
            Lookup::Refused => {
                self.refused_until = Some(now.saturating_add(FORBIDDEN_INTERVAL));
                return;
            }
            Lookup::Failed => return,
        };
        if self.known.insert(owned.clone(), owner).is_none() {
            self.order.push_back(owned);
        }
        while self.order.len() > self.limit {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
                self.dropped += 1;
            }
        }
    }

    /// Takes the number of evictions since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// Looks up the owner at the API server, with retries.
pub(crate) async fn ask(client: &Client, owned: &Owned, counters: &Counters) -> Lookup {
    let (namespace, owner) = owned;
    let resource = match &*owner.kind {
        "ReplicaSet" => Resource { group: "apps", version: "v1", plural: "replicasets" },
        _ => Resource { group: "batch", version: "v1", plural: "jobs" },
    };
    let path = resource.one(Some(namespace), &owner.name);
    for failures in 1..=5 {
        counters.event("owner_requests");
        match client.get::<Value>(&path).await {
            Ok(object) => return Lookup::Owner(controller(&object).unwrap_or_else(|| owner.clone())),
            Err(error) => {
                counters.failure("owner", &error);
                if error.is(404) {
                    return Lookup::Gone;
                }
                if error.is(403) {
                    return Lookup::Refused;
                }
                let pause = Backoff::default().pause(failures, random());
                tokio::time::sleep(pause.max(error.retry_after().unwrap_or_default())).await;
            }
        }
    }
    Lookup::Failed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: &str, name: &str) -> Owner {
        Owner { kind: kind.into(), name: name.into() }
    }

    fn job(name: &str) -> (Owned, Owner) {
        let owner = owner("Job", name);
        let by_name = owner.by_name(|_| None);
        (("shop".into(), owner), by_name)
    }

    #[test]
    fn ambiguous_names_are_looked_up_once() {
        let mut owners = Owners::new(10);
        let zero = Duration::ZERO;
        let (backup, by_name) = job("backup-29384756");
        assert!(owners.ask(&backup, &by_name, zero));
        assert!(!owners.ask(&backup, &by_name, zero), "already pending");
        owners.record(backup.clone(), Lookup::Failed, &by_name, zero);
        assert!(owners.ask(&backup, &by_name, zero), "the lookup failed");
        owners.record(backup.clone(), Lookup::Owner(owner("CronJob", "backup")), &by_name, zero);
        assert!(!owners.ask(&backup, &by_name, zero));
        assert_eq!(owners.get(&backup), Some(&owner("CronJob", "backup")));
        let set = ("shop".to_owned(), owner("ReplicaSet", "web-5d8f"));
        assert!(!owners.ask(&set, &owner("Deployment", "web"), zero), "the hash tells");
        assert!(owners.ask(&set, &set.1, zero));
        assert!(!owners.ask(&("shop".into(), owner("StatefulSet", "db")), &owner("StatefulSet", "db"), zero));
    }

    #[test]
    fn lookups_pause_after_a_403() {
        let mut owners = Owners::new(10);
        let ((first, by_name), (second, second_name)) = (job("a-29384756"), job("b-29384756"));
        assert!(owners.ask(&first, &by_name, Duration::ZERO));
        owners.record(first.clone(), Lookup::Refused, &by_name, Duration::ZERO);
        assert!(!owners.ask(&second, &second_name, Duration::from_secs(599)));
        assert!(owners.ask(&second, &second_name, Duration::from_secs(600)));
        owners.record(second.clone(), Lookup::Gone, &second_name, Duration::from_secs(600));
        assert_eq!(owners.get(&second), Some(&owner("CronJob", "b")), "by its name, as it is gone");
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut owners = Owners::new(2);
        for name in ["a", "b", "c"] {
            let (owned, by_name) = job(name);
            owners.record(owned, Lookup::Owner(owner("CronJob", name)), &by_name, Duration::ZERO);
        }
        assert_eq!(owners.get(&job("a").0), None);
        assert!(owners.get(&job("b").0).is_some() && owners.get(&job("c").0).is_some());
        assert_eq!(owners.take_dropped(), 1);
    }
}
