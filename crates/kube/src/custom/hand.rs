//! Which of the cluster's probes an agent runs: each is tried alone, so that a bad one takes no other down.
//!
//! The agent reads all of its probes at once, and takes all of them or nothing. What the cluster hands it is put to it one change
//! at a time. A probe that is refused stays out and is tried again now and then, since the reason may lie elsewhere; one that was
//! changed for the worse runs on as it was.

use super::probe::{NodeProbe, ProbeState, WantedProbe};
use std::collections::BTreeMap;
use std::time::Duration;

/// After a refusal, unless the object changes before.
const AGAIN: Duration = Duration::from_secs(300);

/// What runs and what does not.
#[derive(Clone, Debug, Default)]
pub struct Hand {
    taken: BTreeMap<String, Taken>,
    refused: BTreeMap<String, Refused>,
}

/// A probe that the agent has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    name: String,
    generation: i64,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    generation: i64,
    message: String,
    again: Duration,
}

/// One change of the probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Takes this one, in the place of an earlier text of the same object.
    Take(WantedProbe),
    /// Ends the one of this object.
    End(String),
}

/// How a probe stands in the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stand {
    /// Why it does not count, empty when it does.
    pub reason: String,
    /// What its overhead budget holds back, empty when nothing.
    pub throttled: String,
}

impl Hand {
    /// What is to be tried next, at this time since the start.
    pub fn next(&self, wanted: &[WantedProbe], now: Duration) -> Option<Change> {
        let is_wanted = |uid: &str| wanted.iter().any(|wanted| wanted.uid == uid);
        // First what ends: its name may be that of what comes.
        if let Some(uid) = self.taken.keys().find(|uid| !is_wanted(uid)) {
            return Some(Change::End(uid.clone()));
        }
        let is_new = |wanted: &&WantedProbe| {
            let runs = self.taken.get(&wanted.uid).is_some_and(|taken| taken.generation == wanted.generation);
            let waits = self
                .refused
                .get(&wanted.uid)
                .is_some_and(|refused| refused.generation == wanted.generation && refused.again > now);
            !runs && !waits
        };
        wanted.iter().find(is_new).map(|wanted| Change::Take(wanted.clone()))
    }

    /// Names and texts of all that run, with this change when there is one.
    pub fn texts(&self, change: Option<&Change>) -> Vec<(String, String)> {
        let changes = |uid: &str| match change {
            Some(Change::Take(wanted)) => wanted.uid == uid,
            Some(Change::End(ended)) => ended == uid,
            None => false,
        };
        let kept = self.taken.iter().filter(|(uid, _)| !changes(uid));
        let mut texts: Vec<_> = kept.map(|(_, taken)| (taken.name.clone(), taken.text.clone())).collect();
        if let Some(Change::Take(WantedProbe { name, text: Ok(text), .. })) = change {
            texts.push((name.clone(), text.clone()));
        }
        texts.sort();
        texts
    }

    /// What came of a change.
    pub fn done(&mut self, change: Change, result: Result<(), String>, now: Duration) {
        match (change, result) {
            (Change::End(uid), _) => {
                // Should the agent not read what is left, it runs on until it can; there is nothing to say it to.
                self.taken.remove(&uid);
                self.refused.remove(&uid);
            }
            (Change::Take(WantedProbe { uid, name, generation, text: Ok(text) }), Ok(())) => {
                self.refused.remove(&uid);
                self.taken.insert(uid, Taken { name, generation, text });
            }
            (Change::Take(WantedProbe { uid, generation, text, .. }), result) => {
                let message = text.err().or(result.err()).unwrap_or_default();
                // What follows comes first, as long messages are cut.
                let follows = if self.taken.contains_key(&uid) { "it runs on as it was before\n" } else { "" };
                let message = format!("{follows}{}", message.trim_end());
                self.refused.insert(uid, Refused { generation, message, again: now.saturating_add(AGAIN) });
            }
        }
    }

    /// What is to be said of each object, by uid. `stands` tells how the probes of a text stand.
    pub fn states(
        &mut self,
        wanted: &[WantedProbe],
        stands: impl Fn(&str) -> Vec<Stand>,
    ) -> BTreeMap<String, NodeProbe> {
        self.refused.retain(|uid, _| wanted.iter().any(|wanted| wanted.uid == *uid));
        let mut states = BTreeMap::new();
        for (uid, taken) in &self.taken {
            let (state, message) = state(&stands(&taken.text));
            states.insert(uid.clone(), NodeProbe { state, message, observed_generation: taken.generation });
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

/// How an object stands whose probes stand like this.
fn state(stands: &[Stand]) -> (ProbeState, Option<String>) {
    let reasons = |of: fn(&Stand) -> &str| {
        let said: Vec<&str> = stands.iter().map(of).filter(|text| !text.is_empty()).collect();
        (said.len(), (!said.is_empty()).then(|| said.join("; ")))
    };
    let (off, why_off) = reasons(|stand| &stand.reason);
    let (held, why_held) = reasons(|stand| &stand.throttled);
    match off {
        _ if stands.is_empty() => (ProbeState::Pending, Some("no probe of it is enabled".into())),
        0 if held > 0 => (ProbeState::Throttled, why_held),
        0 => (ProbeState::Attached, None),
        _ if off == stands.len() => (ProbeState::Refused, why_off),
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

    /// Does what is to be done; texts with `bad` in them are refused.
    fn settle(hand: &mut Hand, wanted: &[WantedProbe], now: Duration) -> Vec<String> {
        let mut tried = Vec::new();
        while let Some(change) = hand.next(wanted, now) {
            let texts = hand.texts(Some(&change));
            tried.push(texts.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(" "));
            let bad = texts.iter().any(|(_, text)| text.contains("bad"));
            hand.done(change, if bad { Err("it is bad\n".into()) } else { Ok(()) }, now);
            assert!(tried.len() < 20, "it has no end: {tried:?}");
        }
        tried
    }

    fn states(hand: &mut Hand, wanted: &[WantedProbe]) -> Vec<String> {
        let said = hand.states(wanted, |_| vec![Stand::default()]);
        let line = |(uid, said): (&String, &NodeProbe)| {
            let message = said.message.as_deref().unwrap_or("-").replace('\n', ", ");
            format!("{uid} {:?} {} {message}", said.state, said.observed_generation)
        };
        said.iter().map(line).collect()
    }

    #[test]
    fn a_bad_probe_takes_no_other_down() {
        let mut hand = Hand::default();
        let all = [wanted("a", 1, "one"), wanted("b", 1, "bad"), wanted("c", 1, "three")];
        assert_eq!(settle(&mut hand, &all, SECOND), ["one", "one bad", "one three"]);
        assert_eq!(states(&mut hand, &all), ["a Attached 1 -", "b Refused 1 it is bad", "c Attached 1 -"]);
        assert_eq!(settle(&mut hand, &all, 2 * SECOND), [""; 0], "it is not tried again at once");
        assert_eq!(settle(&mut hand, &all, 400 * SECOND), ["one bad three"]);
    }

    #[test]
    fn changes_for_the_worse_and_for_the_better() {
        let mut hand = Hand::default();
        settle(&mut hand, &[wanted("a", 1, "one")], SECOND);
        let worse = [wanted("a", 2, "bad")];
        assert_eq!(settle(&mut hand, &worse, SECOND), ["bad"]);
        assert_eq!(hand.texts(None), [("n-a".to_owned(), "one".to_owned())]);
        assert_eq!(states(&mut hand, &worse), ["a Refused 2 it runs on as it was before, it is bad"]);
        let better = [wanted("a", 3, "good")];
        assert_eq!(settle(&mut hand, &better, SECOND), ["good"]);
        assert_eq!(states(&mut hand, &better), ["a Attached 3 -"]);
    }

    #[test]
    fn what_is_no_longer_wanted_ends_before_what_comes() {
        let mut hand = Hand::default();
        settle(&mut hand, &[wanted("a", 1, "one"), wanted("b", 1, "bad")], SECOND);
        let other = [wanted("c", 1, "one")];
        assert_eq!(settle(&mut hand, &other, SECOND), ["", "one"]);
        assert_eq!(states(&mut hand, &other), ["c Attached 1 -"], "what is gone has nothing to say");
        let unreadable = [WantedProbe { text: Err("spec: wrong".into()), ..wanted("d", 1, "") }];
        assert_eq!(settle(&mut hand, &unreadable, SECOND), ["", ""]);
        assert_eq!(states(&mut hand, &unreadable), ["d Refused 1 spec: wrong"]);
    }

    #[test]
    fn states_of_several_probes() {
        let off = Stand { reason: "no such hook".into(), ..Stand::default() };
        let held = Stand { throttled: "1 in 8".into(), ..Stand::default() };
        let runs = Stand::default();
        assert_eq!(state(&[runs.clone(), runs.clone()]).0, ProbeState::Attached);
        assert_eq!(state(&[runs.clone(), off.clone()]), (ProbeState::Partly, Some("no such hook".into())));
        assert_eq!(state(&[off.clone(), off]), (ProbeState::Refused, Some("no such hook; no such hook".into())));
        assert_eq!(state(&[runs, held]), (ProbeState::Throttled, Some("1 in 8".into())));
        assert_eq!(state(&[]).0, ProbeState::Pending);
    }
}
