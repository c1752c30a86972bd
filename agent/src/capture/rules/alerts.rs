//! What Alertmanager posts (webhook version 4), and alerts that were seen before.

use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet, VecDeque};

/// Label or annotation that names a rule.
pub const RULE: &str = "kstrobe_rule";
/// Limit of remembered alerts; the oldest are forgotten.
const MAX_SEEN: usize = 4096;

/// A notification. What it has more is of no use here, and newer versions add to it.
#[derive(Clone, Debug, Deserialize)]
pub struct Notification {
    pub alerts: Vec<Alert>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// `firing` or `resolved`.
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// When it began to fire.
    #[serde(default)]
    pub starts_at: String,
    /// The same for the same labels.
    #[serde(default)]
    pub fingerprint: String,
}

impl Alert {
    /// The rule it names.
    pub fn rule(&self) -> Option<&str> {
        let name = self.labels.get(RULE).or_else(|| self.annotations.get(RULE));
        name.map(String::as_str).filter(|name| !name.is_empty())
    }

    /// `alertname`
    pub fn name(&self) -> &str {
        self.labels.get("alertname").map_or("", String::as_str)
    }

    /// Its fingerprint, or a hash of its labels without one: other senders than Alertmanager and Grafana may leave it out.
    pub fn identity(&self) -> Cow<'_, str> {
        if !self.fingerprint.is_empty() {
            return Cow::Borrowed(&self.fingerprint);
        }
        let mut hash = Sha256::new();
        for (name, value) in &self.labels {
            // No label has a byte of zero in its name; the length keeps a value apart from the next name.
            hash.update(format!("{name}\0{}\0{value}", value.len()));
        }
        let first = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
        Cow::Owned(first)
    }

    /// Whether its status is `firing`.
    pub fn is_firing(&self) -> bool {
        self.status == "firing"
    }
}

/// Alerts that have had their capture: they are posted again and again while they fire.
#[derive(Debug, Default)]
pub struct Seen {
    known: HashSet<(String, String)>,
    order: VecDeque<(String, String)>,
}

impl Seen {
    /// Whether it was seen.
    pub fn has(&self, alert: &Alert) -> bool {
        self.known.contains(&key(alert))
    }

    /// Remembers it.
    pub fn add(&mut self, alert: &Alert) {
        let key = key(alert);
        if self.known.insert(key.clone()) {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_SEEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

fn key(alert: &Alert) -> (String, String) {
    (alert.identity().into_owned(), alert.starts_at.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_without_fingerprints_are_known_by_their_labels() {
        let alert = |labels: &[(&str, &str)]| Alert {
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..Alert::default()
        };
        let (one, other) =
            (alert(&[("alertname", "Slow"), ("node", "a")]), alert(&[("alertname", "Slow"), ("node", "b")]));
        let mut seen = Seen::default();
        seen.add(&one);
        assert!(seen.has(&one.clone()) && !seen.has(&other));
        assert_eq!(one.identity().len(), 16);
        assert_eq!(Alert { fingerprint: "f00".into(), ..one }.identity(), "f00");
    }
}
