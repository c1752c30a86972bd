//! Tables of probes and events over all nodes, built from API responses of the agents.

use crate::Error;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A text table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Column headers.
    pub header: Vec<&'static str>,
    /// Rows of cells.
    pub rows: Vec<Vec<String>>,
}

/// Node name, and its response or error.
pub type Answers = [(String, Result<Value, Error>)];

/// Maximum node names in a cell; more are counted.
const NAMED: usize = 5;
/// Maximum characters of the fields cell.
const MAX_FIELD_CHARACTERS: usize = 120;

/// Table of probes: number of attached nodes, and errors of the others.
pub fn probes(answers: &Answers) -> Table {
    #[derive(Default)]
    struct Probe<'a> {
        attached: usize,
        throttled: usize,
        /// Errors with their nodes.
        reasons: BTreeMap<&'a str, Vec<&'a str>>,
    }
    let mut probes: BTreeMap<&str, Probe<'_>> = BTreeMap::new();
    let answered = answers.iter().filter_map(|(node, answer)| Some((node.as_str(), answer.as_ref().ok()?)));
    for (node, answer) in answered.clone() {
        for probe in items(answer, "probes") {
            let entry = probes.entry(text(probe, "name")).or_default();
            entry.throttled += usize::from(!text(probe, "throttled").is_empty());
            if probe["attached"] == true {
                entry.attached += 1;
            } else {
                let reason = match text(probe, "reason") {
                    "" => "not attached",
                    reason => reason,
                };
                entry.reasons.entry(reason).or_default().push(node);
            }
        }
    }
    let nodes = answered.count();
    let rows = probes.into_iter().map(|(name, probe)| {
        let wanted = probe.attached + probe.reasons.values().map(Vec::len).sum::<usize>();
        let mut why: Vec<String> =
            probe.reasons.iter().map(|(reason, nodes)| format!("{}: {}", names(nodes), one_line(reason))).collect();
        if wanted < nodes {
            why.push(format!("{} nodes do not have it", nodes - wanted));
        }
        vec![name.to_owned(), format!("{}/{nodes}", probe.attached), probe.throttled.to_string(), why.join("; ")]
    });
    Table { header: vec!["PROBE", "ATTACHED", "THROTTLED", "WHY NOT"], rows: rows.collect() }
}

/// Latest events of all nodes sorted by time.
pub fn events(answers: &Answers, limit: usize) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for (node, answer) in answers {
        for event in answer.iter().flat_map(|answer| items(answer, "events")) {
            let mut event = event.clone();
            event["node"] = json!(node);
            all.push(event);
        }
    }
    // Times are UTC in one format, so they sort as text.
    all.sort_by(|a, b| text(a, "time").cmp(text(b, "time")));
    all.split_off(all.len().saturating_sub(limit))
}

pub fn event_table(events: &[Value]) -> Table {
    let row = |event: &Value| {
        let fields = event["fields"].as_object().into_iter().flatten();
        let fields: Vec<String> = fields.map(|(name, value)| format!("{name}={}", cell(value))).collect();
        let mut fields = fields.join(" ");
        if fields.chars().count() > MAX_FIELD_CHARACTERS {
            fields = fields.chars().take(MAX_FIELD_CHARACTERS - 1).chain(['…']).collect();
        }
        let pid = event["pid"].to_string();
        let plain = |key| one_line(text(event, key));
        vec![plain("time"), plain("node"), plain("probe"), pid, fields]
    };
    Table { header: vec!["TIME", "NODE", "PROBE", "PID", "FIELDS"], rows: events.iter().map(row).collect() }
}

/// JSON of all nodes, each with its response or error.
pub fn all(answers: &Answers) -> Value {
    let one = |(node, answer): &(String, Result<Value, Error>)| match answer {
        Ok(answer) => json!({"node": node, "answer": answer}),
        Err(error) => json!({"node": node, "error": error.to_string()}),
    };
    json!({"nodes": answers.iter().map(one).collect::<Vec<_>>()})
}

fn items<'a>(answer: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    answer[key].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Formats an event value; stacks by their first frames.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => one_line(text),
        Value::Array(items) => items.iter().take(3).map(cell).collect::<Vec<_>>().join("<"),
        other => other.to_string(),
    }
}

/// Replaces control characters, which could disturb a terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Lists some names and the number of the others.
pub fn names(all: &[&str]) -> String {
    let shown = all.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if all.len() > NAMED { format!("{shown} and {} more", all.len() - NAMED) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TransportError;

    fn answers(all: &[(&str, Value)]) -> Vec<(String, Result<Value, Error>)> {
        let one = |(node, answer): &(&str, Value)| match answer {
            Value::Null => ((*node).to_owned(), Err(TransportError::new("no answer").into())),
            answer => ((*node).to_owned(), Ok(answer.clone())),
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn probes_are_listed_once_with_the_nodes_that_lack_them() {
        let on = |name: &str| json!({"name": name, "attached": true});
        let off = json!({"name": "block", "attached": false, "reason": "no BTF\nat all"});
        let answers = answers(&[
            ("n1", json!({"probes": [on("recvfrom"), on("block")]})),
            ("n2", json!({"probes": [on("recvfrom"), off]})),
            ("n3", json!({"probes": [{"name": "recvfrom", "attached": true, "throttled": "1 in 4"}]})),
            ("n4", Value::Null),
        ]);
        let table = probes(&answers);
        assert_eq!(table.rows[0], ["block", "1/3", "0", "n2: no BTF at all; 1 nodes do not have it"]);
        assert_eq!(table.rows[1], ["recvfrom", "3/3", "1", ""]);
        assert_eq!(all(&answers)["nodes"][3], json!({"node": "n4", "error": "no answer"}));
    }

    #[test]
    fn events_of_all_nodes_by_time() {
        let event =
            |time: &str| json!({"time": time, "probe": "slow", "pid": 7, "fields": {"comm": "a\u{1b}[2J", "n": 3}});
        let answers = answers(&[
            ("n1", json!({"events": [event("2026-11-21T10:00:00.000001Z"), event("2026-11-21T10:00:02.000000Z")]})),
            ("n2", json!({"events": [event("2026-11-21T10:00:01.000000Z")]})),
            ("n3", Value::Null),
        ]);
        let found = events(&answers, 2);
        let nodes: Vec<_> = found.iter().map(|event| text(event, "node")).collect();
        assert_eq!(nodes, ["n2", "n1"]);
        let table = event_table(&found);
        assert_eq!(table.rows[0], ["2026-11-21T10:00:01.000000Z", "n2", "slow", "7", "comm=a [2J n=3"]);
        let many: Vec<String> = (0..9).map(|at| format!("n{at}")).collect();
        assert_eq!(names(&many.iter().map(String::as_str).collect::<Vec<_>>()), "n0, n1, n2, n3, n4 and 4 more");
    }
}
