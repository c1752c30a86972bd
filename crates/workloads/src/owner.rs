//! Owners of pods.

use std::sync::Arc;

/// A controller, such as the `Deployment` `web`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// Object kind.
    pub kind: Arc<str>,
    /// Object name.
    pub name: Arc<str>,
}

/// Digits that the CronJob controller appends to job names: minutes since 1970; seconds before Kubernetes 1.21.
const MINUTES: usize = 8;
const SECONDS: usize = 10;

impl Owner {
    /// Derives the owner of this controller from the naming rules of Kubernetes, without the API server. `label` returns labels
    /// of the pod.
    ///
    /// A ReplicaSet is named `NAME-HASH`, with the hash as a label of its pods, which is unambiguous. A job of a CronJob is named
    /// `NAME-` and eight digits; a manual job with such a name (`backup-20260131`) is misread.
    pub fn by_name<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> Owner {
        let made = |kind: &str, name: &str| Owner { kind: kind.into(), name: name.into() };
        let without = |hash: &str| {
            let name = self.name.strip_suffix(label(hash)?)?.strip_suffix('-')?;
            (!name.is_empty()).then_some(name)
        };
        let found = match &*self.kind {
            // Argo Rollouts uses its own hash label.
            "ReplicaSet" => without("rollouts-pod-template-hash")
                .map(|name| made("Rollout", name))
                .or_else(|| without("pod-template-hash").map(|name| made("Deployment", name))),
            "Job" => self.name.rsplit_once('-').and_then(|(name, time)| {
                let digits = [MINUTES, SECONDS].contains(&time.len()) && time.bytes().all(|b| b.is_ascii_digit());
                (digits && !name.is_empty()).then(|| made("CronJob", name))
            }),
            _ => None,
        };
        found.unwrap_or_else(|| self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, name: &str, labels: &[(&str, &'static str)]) -> String {
        let owner = Owner { kind: kind.into(), name: name.into() };
        let label = |name: &str| labels.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let found = owner.by_name(label);
        format!("{} {}", found.kind, found.name)
    }

    #[test]
    fn owners_by_the_names_that_controllers_give() {
        let hash = [("pod-template-hash", "5d8f7c9b6d")];
        assert_eq!(of("ReplicaSet", "web-5d8f7c9b6d", &hash), "Deployment web");
        assert_eq!(of("ReplicaSet", "web-api-5d8f7c9b6d", &hash), "Deployment web-api");
        assert_eq!(of("ReplicaSet", "web-5d8f7c9b6d", &[]), "ReplicaSet web-5d8f7c9b6d");
        assert_eq!(of("ReplicaSet", "by-hand", &hash), "ReplicaSet by-hand");
        assert_eq!(of("ReplicaSet", "-5d8f7c9b6d", &hash), "ReplicaSet -5d8f7c9b6d");
        assert_eq!(of("ReplicaSet", "web5d8f7c9b6d", &hash), "ReplicaSet web5d8f7c9b6d");
        assert_eq!(of("ReplicaSet", "web-68", &[("rollouts-pod-template-hash", "68")]), "Rollout web");
        assert_eq!(of("Job", "backup-29384756", &[]), "CronJob backup");
        assert_eq!(of("Job", "backup-1700000000", &[]), "CronJob backup");
        assert_eq!(of("Job", "backup-7", &[]), "Job backup-7");
        assert_eq!(of("Job", "backup-2938475x", &[]), "Job backup-2938475x");
        assert_eq!(of("Job", "29384756", &[]), "Job 29384756");
        assert_eq!(of("StatefulSet", "db-29384756", &[]), "StatefulSet db-29384756");
    }
}
