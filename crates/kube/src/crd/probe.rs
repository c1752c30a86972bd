//! `Probe`: a probe that agents load from the cluster.

use super::condition::Condition;
use super::report::Report;
use super::{Head, LabelSelector, Me, SpecError, brief, is_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A `Probe` object.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Object metadata.
    pub head: Head,
    /// `spec`, or its parse error.
    pub spec: Result<ProbeSpec, SpecError>,
    /// `status.nodes` by node name.
    pub nodes: BTreeMap<String, NodeProbe>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProbeSpec {
    /// `spec.nodeName`
    pub node_name: Option<String>,
    /// `spec.nodeSelector`
    pub node_selector: Option<LabelSelector>,
    /// `spec.yaml`: the text of a probe file.
    pub yaml: Option<String>,
    /// `spec.probe`: the same as a mapping.
    pub probe: Option<Value>,
}

/// `status.nodes.NAME`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeProbe {
    /// State on this node.
    pub state: ProbeState,
    /// Human-readable reason.
    pub message: Option<String>,
    /// `metadata.generation` that this entry describes.
    pub observed_generation: i64,
}

/// State of a probe on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeState {
    /// Not attached yet.
    #[default]
    Pending,
    /// Attached to all of its hooks.
    Attached,
    /// Partly attached; the message lists the failed hooks.
    Partly,
    /// Invalid, or not supported by this kernel.
    Refused,
    /// Throttled by its overhead budget; the message has the ratio.
    Throttled,
    /// A state of a newer agent.
    #[serde(other)]
    Unknown,
}

/// Maximum entries of attached nodes, and of other nodes, after which nodes without an entry add none. Each write reaches
/// every agent of the cluster, so that entries of all N nodes would cost O(N^3) bytes.
const ENOUGH: usize = 100;

/// Reads an object; `None` without a namespace, name or uid.
pub fn read(object: &Value) -> Option<Probe> {
    let spec = ProbeSpec::deserialize(&object["spec"]).map_err(SpecError::from);
    let nodes = object["status"]["nodes"].as_object().into_iter().flatten();
    let nodes = nodes.filter_map(|(node, value)| Some((node.clone(), NodeProbe::deserialize(value).ok()?)));
    Some(Probe { head: Head::read(object)?, spec, nodes: nodes.collect() })
}

/// A probe for this node.
#[derive(Clone, Debug)]
pub struct WantedProbe {
    /// Object uid.
    pub uid: String,
    /// Object name, used as file name in messages; not the name of the probe.
    pub name: String,
    /// `metadata.generation`
    pub generation: i64,
    /// YAML text, or the error in `spec`.
    pub text: Result<String, SpecError>,
}

/// Probes that select this node, sorted by creation time, then by name: of two with the same probe name the older one wins.
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
    // An unreadable spec has no selector to evaluate, so every node refuses it.
    !probe.head.deleting && probe.spec.as_ref().map_or(true, meant)
}

fn text(probe: &Probe) -> Result<String, SpecError> {
    match probe.spec.as_ref().map_err(Clone::clone)? {
        ProbeSpec { yaml: Some(text), probe: None, .. } => Ok(text.clone()),
        // JSON is valid YAML.
        ProbeSpec { yaml: None, probe: Some(probe), .. } if probe.is_object() => Ok(format!("{probe:#}\n")),
        ProbeSpec { yaml: None, probe: Some(_), .. } => Err(SpecError::NotAMapping),
        _ => Err(SpecError::NotOneOf("yaml", "probe")),
    }
}

/// Status entries to write, from the states by uid. The entry of a probe that no longer selects this node is removed.
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

/// `attached` and `failed` node counts of a status.
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

/// `Attached` if attached on all reporting nodes, and `Failed`, which names the first other node.
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
        let texts: Vec<_> = found.iter().map(|wanted| wanted.text.as_ref().map_err(SpecError::to_string)).collect();
        assert_eq!(texts[0], Err("spec: either `yaml` or `probe`, and not both".to_owned()));
        assert_eq!(texts[1], Ok(&"{\n  \"name\": \"y\"\n}\n".to_owned()));
        assert_eq!((&texts[2], found[2].generation), (&Ok(&"name: x\n".to_owned()), 3));
        assert!(texts[3].as_ref().unwrap_err().contains("unknown field `yml`"));
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
        // Cutting a message is idempotent.
        let long =
            NodeProbe { state: ProbeState::Refused, message: Some("\u{e9}".repeat(999)), observed_generation: 3 };
        let has_long = BTreeMap::from([("a".to_owned(), long.clone())]);
        let said = patch(&probe, &has_long).unwrap()["node-a"]["message"].as_str().unwrap().to_owned();
        assert_eq!(said, "\u{e9}".repeat(300) + "...");
        let mut reported = probe.clone();
        reported.nodes.insert("node-a".into(), NodeProbe { message: Some(said), ..long });
        assert_eq!(patch(&reported, &has_long), None);
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
        // A node with an entry keeps it up to date.
        let mut full = probe(200, 200);
        full.nodes.insert("node-a".into(), own(ProbeState::Attached));
        assert!(!says(&full, ProbeState::Attached) && says(&full, ProbeState::Throttled));
    }
}
