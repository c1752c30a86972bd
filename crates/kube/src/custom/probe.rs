//! `Probe`: a probe that the cluster hands to its agents.

use super::condition::Condition;
use super::report::Report;
use super::{Head, LabelSelector, Me, brief, is_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The object, as far as agents need it.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Names and times.
    pub head: Head,
    /// What is wanted, or why nobody can tell.
    pub spec: Result<ProbeSpec, String>,
    /// What nodes have said, by their names.
    pub nodes: BTreeMap<String, NodeProbe>,
}

/// `spec`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProbeSpec {
    /// This node.
    pub node_name: Option<String>,
    /// Nodes with these labels.
    pub node_selector: Option<LabelSelector>,
    /// The probe as text, as its file would be.
    pub yaml: Option<String>,
    /// The probe as a mapping.
    pub probe: Option<Value>,
}

/// `status.nodes.NAME`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeProbe {
    /// How it stands.
    pub state: ProbeState,
    /// Why it is so, for people.
    pub message: Option<String>,
    /// The generation of the object that this is about.
    pub observed_generation: i64,
}

/// How a probe stands on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeState {
    /// It is to be attached.
    #[default]
    Pending,
    /// It counts.
    Attached,
    /// A part of it counts; the message says what does not.
    Partly,
    /// It is wrong, or this kernel cannot do it.
    Refused,
    /// Its overhead budget holds it back; the message says how much.
    Throttled,
    /// What a newer agent may say.
    #[serde(other)]
    Unknown,
}

/// Entries of an object that say that the probe counts, and entries that say otherwise, above which nodes without one add no more: each
/// write goes to every agent of the cluster, so that entries of all would take as many bytes as there are nodes, times the nodes, times the
/// nodes.
const ENOUGH: usize = 100;

/// Reads an object; `None` when it is none that has a name.
pub fn read(object: &Value) -> Option<Probe> {
    let spec = ProbeSpec::deserialize(&object["spec"]).map_err(|error| format!("spec: {error}"));
    let nodes = object["status"]["nodes"].as_object().into_iter().flatten();
    let nodes = nodes.filter_map(|(node, value)| Some((node.clone(), NodeProbe::deserialize(value).ok()?)));
    Some(Probe { head: Head::read(object)?, spec, nodes: nodes.collect() })
}

/// A probe that is to run on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedProbe {
    /// The object's uid.
    pub uid: String,
    /// The object's name, for messages: it is the name of the file, not of the probe in it.
    pub name: String,
    /// The object's generation.
    pub generation: i64,
    /// YAML, or why there is none.
    pub text: Result<String, String>,
}

/// The probes that this node has to run, by the age of their objects, then by name: when two are called the same, the first
/// that came has it.
pub fn wanted(probes: &[Probe], me: &Me<'_>) -> Vec<WantedProbe> {
    let mut meant: Vec<&Probe> = probes.iter().filter(|probe| is_meant(probe, me)).collect();
    meant.sort_by_key(|probe| (probe.head.created, &probe.head.name));
    let wanted = |probe: &Probe| WantedProbe {
        uid: probe.head.uid.clone(),
        name: probe.head.name.clone(),
        generation: probe.head.generation,
        text: text(probe),
    };
    meant.into_iter().map(wanted).collect()
}

fn is_meant(probe: &Probe, me: &Me<'_>) -> bool {
    let meant = |spec: &ProbeSpec| is_for(me, spec.node_name.as_deref(), spec.node_selector.as_ref());
    // One that nobody can read is refused by everybody.
    !probe.head.deleting && probe.spec.as_ref().map_or(true, meant)
}

fn text(probe: &Probe) -> Result<String, String> {
    match probe.spec.as_ref().map_err(Clone::clone)? {
        ProbeSpec { yaml: Some(text), probe: None, .. } => Ok(text.clone()),
        // JSON is YAML.
        ProbeSpec { yaml: None, probe: Some(probe), .. } if probe.is_object() => Ok(format!("{probe:#}\n")),
        ProbeSpec { yaml: None, probe: Some(_), .. } => Err("spec.probe: not a mapping".into()),
        _ => Err("spec: either `yaml` or `probe`, and not both".into()),
    }
}

/// What is to be written into the objects, given what the agent has by their uids. An entry of a probe that is no longer for
/// this node is removed.
pub fn reports(probes: &[Probe], me: &Me<'_>, has: &BTreeMap<String, NodeProbe>) -> Vec<Report> {
    let report = |probe: &Probe| {
        let said = probe.nodes.get(me.node);
        match has.get(&probe.head.uid) {
            _ if probe.head.deleting => None,
            _ if !is_meant(probe, me) => said.map(|_| Report::none(&probe.head, me.node)),
            Some(own) => {
                let entry = NodeProbe { message: brief(own.message.as_ref()), ..own.clone() };
                let counts = |node: &NodeProbe| node.state == ProbeState::Attached;
                let alike = || probe.nodes.values().filter(|other| counts(other) == counts(own)).count();
                let is_news = said.map_or_else(|| alike() < ENOUGH, |said| *said != entry);
                let turns = said.map(|said| said.state) != Some(entry.state);
                is_news.then(|| Report::of(&probe.head, me.node, &entry, turns))
            }
            None => None,
        }
    };
    probes.iter().filter_map(report).collect()
}

/// How many nodes stand how: `attached` and `failed` of a status.
pub fn summary(nodes: &BTreeMap<String, NodeProbe>) -> Value {
    let count = |is: fn(ProbeState) -> bool| nodes.values().filter(|node| is(node.state)).count();
    json!({
        "attached": count(|state| state == ProbeState::Attached),
        "failed": count(is_failure),
    })
}

fn is_failure(state: ProbeState) -> bool {
    !matches!(state, ProbeState::Attached | ProbeState::Pending)
}

/// `Attached`, when it counts on all nodes that say how it stands, and `Failed`, which names the first where it does not.
pub(super) fn conditions(nodes: &BTreeMap<String, NodeProbe>) -> Vec<Condition> {
    let attached = nodes.values().filter(|node| node.state == ProbeState::Attached).count();
    let (holds, some_fail) = (attached == nodes.len(), nodes.values().any(|node| is_failure(node.state)));
    let reason = if holds {
        "Attached"
    } else if some_fail {
        "Failed"
    } else {
        "Pending"
    };
    let failed = nodes.iter().find(|(_, node)| is_failure(node.state));
    let failed = failed.map(|(name, node)| (name.as_str(), format!("{:?}", node.state), node.message.as_deref()));
    let message = format!("attached on {attached} of {} nodes that say how it stands", nodes.len());
    vec![Condition::new("Attached", holds, reason, message), Condition::failed(failed)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, created: i64, spec: Value) -> Probe {
        let created = super::super::to_text(created).unwrap();
        let metadata =
            json!({"name": name, "namespace": "kstrobe", "uid": name, "generation": 3, "creationTimestamp": created});
        read(&json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn me<R>(then: impl FnOnce(&Me<'_>) -> R) -> R {
        then(&Me { node: "node-a", labels: &BTreeMap::new(), pods: &[] })
    }

    #[test]
    fn text_and_mappings_are_probes() {
        let probes = [
            object("b", 20, json!({"yaml": "name: x\n"})),
            object("a", 20, json!({"probe": {"name": "y"}})),
            object("first", 10, json!({"yaml": "name: x\n", "probe": {}})),
            object("elsewhere", 10, json!({"nodeName": "node-b", "yaml": ""})),
            object("wrong", 30, json!({"yml": ""})),
        ];
        let found = me(|me| wanted(&probes, me));
        let names: Vec<_> = found.iter().map(|wanted| wanted.name.as_str()).collect();
        assert_eq!(names, ["first", "a", "b", "wrong"]);
        assert_eq!(found[0].text, Err("spec: either `yaml` or `probe`, and not both".into()));
        assert_eq!(found[1].text, Ok("{\n  \"name\": \"y\"\n}\n".into()));
        assert_eq!((&found[2].text, found[2].generation), (&Ok("name: x\n".into()), 3));
        assert!(found[3].text.as_ref().unwrap_err().contains("unknown field `yml`"));
    }

    #[test]
    fn entries_follow_the_agent_and_go_with_the_selection() {
        let mut probe = object("a", 1, json!({"yaml": "x"}));
        let own = NodeProbe { state: ProbeState::Attached, message: None, observed_generation: 3 };
        let has = BTreeMap::from([("a".to_owned(), own.clone())]);
        let patch = |probe: &Probe, has: &BTreeMap<String, NodeProbe>| {
            let reports = me(|me| reports(std::slice::from_ref(probe), me, has));
            reports.first().map(|report| report.patch()["status"]["nodes"].clone())
        };
        let expected = json!({"node-a": {"state": "Attached", "message": null, "observedGeneration": 3}});
        assert_eq!(patch(&probe, &has), Some(expected));
        assert_eq!(patch(&probe, &BTreeMap::new()), None);
        probe.nodes.insert("node-a".into(), own);
        assert_eq!(patch(&probe, &has), None);
        assert_eq!(summary(&probe.nodes), json!({"attached": 1, "failed": 0}));
        // A message is cut once, and then the same.
        let long =
            NodeProbe { state: ProbeState::Refused, message: Some("\u{e9}".repeat(999)), observed_generation: 3 };
        let has_long = BTreeMap::from([("a".to_owned(), long.clone())]);
        let said = patch(&probe, &has_long).unwrap()["node-a"]["message"].as_str().unwrap().to_owned();
        assert_eq!(said, "\u{e9}".repeat(300) + "...");
        let mut told = probe.clone();
        told.nodes.insert("node-a".into(), NodeProbe { message: Some(said), ..long });
        assert_eq!(patch(&told, &has_long), None);
        probe.spec.as_mut().unwrap().node_name = Some("node-b".into());
        assert_eq!(patch(&probe, &has), Some(json!({"node-a": null})));
    }

    #[test]
    fn an_object_does_not_fill_up_with_the_nodes_of_a_large_cluster() {
        let own = |state| NodeProbe { state, message: None, observed_generation: 3 };
        let probe = |attached: usize, refused: usize| {
            let mut probe = object("a", 1, json!({"yaml": "x"}));
            let state = |number| if number < attached { ProbeState::Attached } else { ProbeState::Refused };
            let entry = |number| (format!("node-{number}"), own(state(number)));
            probe.nodes = (0..attached + refused).map(entry).collect();
            probe
        };
        let says = |probe: &Probe, state| {
            let has = BTreeMap::from([("a".to_owned(), own(state))]);
            me(|me| reports(std::slice::from_ref(probe), me, &has).len()) == 1
        };
        for (entries, attached, refused) in
            [((99, 0), true, true), ((100, 0), false, true), ((99, 99), true, true), ((99, 100), true, false)]
        {
            let probe = probe(entries.0, entries.1);
            assert_eq!(says(&probe, ProbeState::Attached), attached, "{entries:?}");
            assert_eq!(says(&probe, ProbeState::Throttled), refused, "{entries:?}");
        }
        // Who has an entry keeps it true.
        let mut full = probe(200, 200);
        full.nodes.insert("node-a".into(), own(ProbeState::Attached));
        assert!(!says(&full, ProbeState::Attached) && says(&full, ProbeState::Throttled));
    }
}
