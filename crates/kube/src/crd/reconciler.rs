//! Reconciles the probes of an agent with the `Probe` objects, one object at a time, so that an invalid one affects no other.
//!
//! A reload of the agent accepts all probes or none, so each change is a reload of its own. A refused probe is retried every
//! `RETRY_INTERVAL`, since its error may depend on other probes. If a new generation is refused, the old text keeps running.

use super::probe::{NodeProbe, ProbeState, WantedProbe};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// Retry interval after a refusal; a changed object is tried at once.
const RETRY_INTERVAL: Duration = Duration::from_secs(300);

/// Applied and refused objects by uid.
#[derive(Clone, Debug, Default)]
pub struct Reconciler {
    applied: BTreeMap<String, Applied>,
    refused: BTreeMap<String, Refused>,
}

/// An object whose text the agent runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Applied {
    name: String,
    generation: i64,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    generation: i64,
    message: String,
    retry_at: Duration,
}

/// A change to the set of applied objects.
#[derive(Clone, Debug)]
pub enum Change {
    /// Apply this object, replacing its earlier text.
    Apply(WantedProbe),
    /// Remove the object with this uid.
    Remove(String),
}

/// Status of one probe in the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachStatus {
    /// Attach error; empty if attached.
    pub reason: String,
    /// Throttling by the overhead budget; empty if none.
    pub throttled: String,
}

impl Reconciler {
    /// Next change to try; `now` is the time since the start.
    pub fn next(&self, wanted: &[WantedProbe], now: Duration) -> Option<Change> {
        let is_wanted = |uid: &str| wanted.iter().any(|wanted| wanted.uid == uid);
        // Removals first: a new probe may reuse the name of a removed one.
        if let Some(uid) = self.applied.keys().find(|uid| !is_wanted(uid)) {
            return Some(Change::Remove(uid.clone()));
        }
        let is_new = |wanted: &&WantedProbe| {
            let runs = self.applied.get(&wanted.uid).is_some_and(|applied| applied.generation == wanted.generation);
            let waits = self
                .refused
                .get(&wanted.uid)
                .is_some_and(|refused| refused.generation == wanted.generation && refused.retry_at > now);
            !runs && !waits
        };
        wanted.iter().find(is_new).map(|wanted| Change::Apply(wanted.clone()))
    }

    /// Names and texts of all applied objects, with `change` applied.
    pub fn texts(&self, change: Option<&Change>) -> Vec<(String, String)> {
        let changes = |uid: &str| match change {
            Some(Change::Apply(wanted)) => wanted.uid == uid,
            Some(Change::Remove(ended)) => ended == uid,
            None => false,
        };
        let kept = self.applied.iter().filter(|(uid, _)| !changes(uid));
        let mut texts: Vec<_> = kept.map(|(_, applied)| (applied.name.clone(), applied.text.clone())).collect();
        if let Some(Change::Apply(WantedProbe { name, text: Ok(text), .. })) = change {
            texts.push((name.clone(), text.clone()));
        }
        texts.sort();
        texts
    }

    /// Records the result of a change; the status shows its error.
    pub fn finish(&mut self, change: Change, result: Result<(), impl Display>, now: Duration) {
        match (change, result) {
            (Change::Remove(uid), _) => {
                // If the reload fails, the probe runs until the next successful one; the object is gone, so there is no status to write.
                self.applied.remove(&uid);
                self.refused.remove(&uid);
            }
            (Change::Apply(WantedProbe { uid, name, generation, text: Ok(text) }), Ok(())) => {
                self.refused.remove(&uid);
                self.applied.insert(uid, Applied { name, generation, text });
            }
            (Change::Apply(WantedProbe { uid, generation, text, .. }), result) => {
                let error = text.err().map(|error| error.to_string());
                let message = error.or(result.err().map(|error| error.to_string())).unwrap_or_default();
                // The consequence comes first, because long messages are cut.
                let follows = if self.applied.contains_key(&uid) { "it runs on as it was before\n" } else { "" };
                let message = format!("{follows}{}", message.trim_end());
                self.refused.insert(uid, Refused { generation, message, retry_at: now.saturating_add(RETRY_INTERVAL) });
            }
        }
    }

    /// Status entry of each object by uid. `statuses` returns the statuses of the probes in a text.
    pub fn states(
        &mut self,
        wanted: &[WantedProbe],
        statuses: impl Fn(&str) -> Vec<AttachStatus>,
    ) -> BTreeMap<String, NodeProbe> {
        self.refused.retain(|uid, _| wanted.iter().any(|wanted| wanted.uid == *uid));
        let mut states = BTreeMap::new();
        for (uid, applied) in &self.applied {
            let (state, message) = state(&statuses(&applied.text));
            states.insert(uid.clone(), NodeProbe { state, message, observed_generation: applied.generation });
        }
        for (uid, refused) in &self.refused {
            let Refused { generation, message, .. } = refused;
            let message = Some(message.clone()).filter(|message| !message.is_empty());
            let entry = NodeProbe { state: ProbeState::Refused, message, observed_generation: *generation };
            states.insert(uid.clone(), entry);
        }
        states
    }
}

/// Aggregates the statuses of the probes of one object.
fn state(statuses: &[AttachStatus]) -> (ProbeState, Option<String>) {
    let reasons = |of: fn(&AttachStatus) -> &str| {
        let said: Vec<&str> = statuses.iter().map(of).filter(|text| !text.is_empty()).collect();
        (said.len(), (!said.is_empty()).then(|| said.join("; ")))
    };
    let (off, why_off) = reasons(|status| &status.reason);
    let (held, why_held) = reasons(|status| &status.throttled);
    match off {
        _ if statuses.is_empty() => (ProbeState::Pending, Some("no probe of it is enabled".into())),
        0 if held > 0 => (ProbeState::Throttled, why_held),
        0 => (ProbeState::Attached, None),
        _ if off == statuses.len() => (ProbeState::Refused, why_off),
        _ => (ProbeState::Partly, why_off),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn wanted(uid: &str, generation: i64, text: &str) -> WantedProbe {
        WantedProbe { uid: uid.into(), name: format!("n-{uid}"), generation, text: Ok(text.into()) }
    }

    /// Runs all changes; texts that contain `bad` are refused.
    fn settle(reconciler: &mut Reconciler, wanted: &[WantedProbe], now: Duration) -> Vec<String> {
        let mut tried = Vec::new();
        while let Some(change) = reconciler.next(wanted, now) {
            let texts = reconciler.texts(Some(&change));
            tried.push(texts.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(" "));
            let bad = texts.iter().any(|(_, text)| text.contains("bad"));
            reconciler.finish(change, if bad { Err("it is bad\n") } else { Ok(()) }, now);
            assert!(tried.len() < 20, "it has no end: {tried:?}");
        }
        tried
    }

    fn states(reconciler: &mut Reconciler, wanted: &[WantedProbe]) -> Vec<String> {
        let said = reconciler.states(wanted, |_| vec![AttachStatus::default()]);
        let line = |(uid, said): (&String, &NodeProbe)| {
            let message = said.message.as_deref().unwrap_or("-").replace('\n', ", ");
            format!("{uid} {:?} {} {message}", said.state, said.observed_generation)
        };
        said.iter().map(line).collect()
    }

    #[test]
    fn a_bad_probe_takes_no_other_down() {
        let mut reconciler = Reconciler::default();
        let all = [wanted("a", 1, "one"), wanted("b", 1, "bad"), wanted("c", 1, "three")];
        assert_eq!(settle(&mut reconciler, &all, SECOND), ["one", "one bad", "one three"]);
        assert_eq!(states(&mut reconciler, &all), ["a Attached 1 -", "b Refused 1 it is bad", "c Attached 1 -"]);
        assert_eq!(settle(&mut reconciler, &all, 2 * SECOND), [""; 0], "it is not tried again at once");
        assert_eq!(settle(&mut reconciler, &all, 400 * SECOND), ["one bad three"]);
    }

    #[test]
    fn changes_for_the_worse_and_for_the_better() {
        let mut reconciler = Reconciler::default();
        settle(&mut reconciler, &[wanted("a", 1, "one")], SECOND);
        let worse = [wanted("a", 2, "bad")];
        assert_eq!(settle(&mut reconciler, &worse, SECOND), ["bad"]);
        assert_eq!(reconciler.texts(None), [("n-a".to_owned(), "one".to_owned())]);
        assert_eq!(states(&mut reconciler, &worse), ["a Refused 2 it runs on as it was before, it is bad"]);
        let better = [wanted("a", 3, "good")];
        assert_eq!(settle(&mut reconciler, &better, SECOND), ["good"]);
        assert_eq!(states(&mut reconciler, &better), ["a Attached 3 -"]);
    }

    #[test]
    fn removals_come_before_new_probes() {
        let mut reconciler = Reconciler::default();
        settle(&mut reconciler, &[wanted("a", 1, "one"), wanted("b", 1, "bad")], SECOND);
        let other = [wanted("c", 1, "one")];
        assert_eq!(settle(&mut reconciler, &other, SECOND), ["", "one"]);
        assert_eq!(states(&mut reconciler, &other), ["c Attached 1 -"], "a removed object has no status");
        let wrong = <serde_json::Error as serde::de::Error>::custom("wrong");
        let unreadable = [WantedProbe { text: Err(wrong.into()), ..wanted("d", 1, "") }];
        assert_eq!(settle(&mut reconciler, &unreadable, SECOND), ["", ""]);
        assert_eq!(states(&mut reconciler, &unreadable), ["d Refused 1 spec: wrong"]);
    }

    #[test]
    fn states_of_several_probes() {
        let off = AttachStatus { reason: "no such hook".into(), ..AttachStatus::default() };
        let held = AttachStatus { throttled: "1 in 8".into(), ..AttachStatus::default() };
        let runs = AttachStatus::default();
        assert_eq!(state(&[runs.clone(), runs.clone()]).0, ProbeState::Attached);
        assert_eq!(state(&[runs.clone(), off.clone()]), (ProbeState::Partly, Some("no such hook".into())));
        assert_eq!(state(&[off.clone(), off]), (ProbeState::Refused, Some("no such hook; no such hook".into())));
        assert_eq!(state(&[runs, held]), (ProbeState::Throttled, Some("1 in 8".into())));
        assert_eq!(state(&[]).0, ProbeState::Pending);
    }
}
