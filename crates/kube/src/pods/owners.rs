//! What a ReplicaSet or a Job was made for, when its name does not tell for sure: asked once, kept for a while.

use super::object::controller;
use crate::client::Client;
use crate::counters::Counters;
use crate::path::Resource;
use crate::watch::backoff::{Backoff, random};
use kstrobe_workloads::Owner;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// An object that may be owned: namespace, kind and name.
pub type Owned = (String, Owner);

/// How long nothing is asked after RBAC refused.
const REFUSED: Duration = Duration::from_secs(600);

/// What is known of owners.
#[derive(Debug)]
pub struct Owners {
    known: BTreeMap<Owned, Owner>,
    /// In the order in which they came: the first goes first.
    order: VecDeque<Owned>,
    limit: usize,
    asked: Vec<Owned>,
    refused_until: Option<Duration>,
    dropped: u64,
}

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The owner's owner, or itself when nobody owns it.
    Owner(Owner),
    /// It is gone: nobody will tell any more.
    Gone,
    /// RBAC does not allow to ask.
    Refused,
    /// It could not be asked.
    Failed,
}

impl Owners {
    /// Keeps so many.
    pub fn new(limit: usize) -> Owners {
        Owners {
            known: BTreeMap::new(),
            order: VecDeque::new(),
            limit: limit.max(1),
            asked: Vec::new(),
            refused_until: None,
            dropped: 0,
        }
    }

    /// What a pod with this controller was made for, if it is known.
    pub fn get(&self, owned: &Owned) -> Option<&Owner> {
        self.known.get(owned)
    }

    /// Whether the API server should be asked about it. If so it counts as asked until [`Owners::told`].
    ///
    /// A ReplicaSet's name is told for sure by the hash in its pods' labels; that of a job only looks as if.
    pub fn ask(&mut self, owned: &Owned, by_name: &Owner, now: Duration) -> bool {
        let unsure = match &*owned.1.kind {
            "Job" => true,
            "ReplicaSet" => *by_name == owned.1,
            _ => false,
        };
        let ask = unsure
            && !self.known.contains_key(owned)
            && !self.asked.contains(owned)
            && self.refused_until.is_none_or(|until| until <= now);
        if ask {
            self.asked.push(owned.clone());
        }
        ask
    }

    /// What came of it.
    pub fn told(&mut self, owned: Owned, told: Told, by_name: &Owner, now: Duration) {
        self.asked.retain(|other| *other != owned);
        let owner = match told {
            Told::Owner(owner) => owner,
            Told::Gone => by_name.clone(),
            Told::Refused => {
                self.refused_until = Some(now.saturating_add(REFUSED));
                return;
            }
            Told::Failed => return,
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

    /// Those that were forgotten to keep the limit, since this was last asked.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// Asks the API server, several times when it does not answer.
pub(crate) async fn ask(client: &Client, owned: &Owned, counters: &Counters) -> Told {
    let (namespace, owner) = owned;
    let resource = match &*owner.kind {
        "ReplicaSet" => Resource { group: "apps", version: "v1", plural: "replicasets" },
        _ => Resource { group: "batch", version: "v1", plural: "jobs" },
    };
    let path = resource.one(Some(namespace), &owner.name);
    for failures in 1..=5 {
        counters.event("owner_requests");
        match client.get::<Value>(&path).await {
            Ok(object) => return Told::Owner(controller(&object).unwrap_or_else(|| owner.clone())),
            Err(error) => {
                counters.failure("owner", &error);
                if error.is(404) {
                    return Told::Gone;
                }
                if error.is(403) {
                    return Told::Refused;
                }
                let pause = Backoff::default().pause(failures, random());
                tokio::time::sleep(pause.max(error.retry_after().unwrap_or_default())).await;
            }
        }
    }
    Told::Failed
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
    fn only_what_is_unsure_is_asked_and_only_once() {
        let mut owners = Owners::new(10);
        let zero = Duration::ZERO;
        let (backup, by_name) = job("backup-29384756");
        assert!(owners.ask(&backup, &by_name, zero));
        assert!(!owners.ask(&backup, &by_name, zero), "asked already");
        owners.told(backup.clone(), Told::Failed, &by_name, zero);
        assert!(owners.ask(&backup, &by_name, zero), "nobody told");
        owners.told(backup.clone(), Told::Owner(owner("CronJob", "backup")), &by_name, zero);
        assert!(!owners.ask(&backup, &by_name, zero));
        assert_eq!(owners.get(&backup), Some(&owner("CronJob", "backup")));
        let set = ("shop".to_owned(), owner("ReplicaSet", "web-5d8f"));
        assert!(!owners.ask(&set, &owner("Deployment", "web"), zero), "the hash tells");
        assert!(owners.ask(&set, &set.1, zero));
        assert!(!owners.ask(&("shop".into(), owner("StatefulSet", "db")), &owner("StatefulSet", "db"), zero));
    }

    #[test]
    fn who_may_not_ask_does_not_for_a_while() {
        let mut owners = Owners::new(10);
        let ((first, by_name), (second, second_name)) = (job("a-29384756"), job("b-29384756"));
        assert!(owners.ask(&first, &by_name, Duration::ZERO));
        owners.told(first.clone(), Told::Refused, &by_name, Duration::ZERO);
        assert!(!owners.ask(&second, &second_name, Duration::from_secs(599)));
        assert!(owners.ask(&second, &second_name, Duration::from_secs(600)));
        owners.told(second.clone(), Told::Gone, &second_name, Duration::from_secs(600));
        assert_eq!(owners.get(&second), Some(&owner("CronJob", "b")), "by its name, as it is gone");
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut owners = Owners::new(2);
        for name in ["a", "b", "c"] {
            let (owned, by_name) = job(name);
            owners.told(owned, Told::Owner(owner("CronJob", name)), &by_name, Duration::ZERO);
        }
        assert_eq!(owners.get(&job("a").0), None);
        assert!(owners.get(&job("b").0).is_some() && owners.get(&job("c").0).is_some());
        assert_eq!(owners.take_dropped(), 1);
    }
}
