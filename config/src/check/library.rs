//! `replaces:` and `cost:`, which say for people what a probe is good for and what it takes.

use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Cost, CostClass};
use crate::names;
use crate::raw::{Entry, Kind, Node};
use crate::report::Report;

pub(crate) const COST: Keys = Keys { of: "`cost`", known: &["class", "per"], later: &[] };
pub(crate) const CLASSES: [&str; 3] = ["low", "medium", "high"];

/// Names of tools, one or a list.
pub(super) fn replaces(node: &Node, report: &mut Report) -> Vec<String> {
    let mut tools: Vec<String> = Vec::new();
    for node in fields::one_or_many(node, "tool", report) {
        let Some(tool) = fields::parsed(node, "the name of a tool such as `runqlat`", report, names::tool) else {
            continue;
        };
        if tools.contains(&tool.value) {
            report.push(Diagnostic::error(&tool.at, format!("`{}` is in the list twice", tool.value)));
        } else {
            tools.push(tool.value);
        }
    }
    tools
}

/// `{ class: low, per: accepted connection }`
pub(super) fn cost(entry: &Entry, report: &mut Report) -> Option<Cost> {
    if let Kind::Scalar { text, .. } = &entry.value.kind {
        let class = CLASSES.iter().find(|class| **class == text.trim()).unwrap_or(&"low");
        let diagnostic = Diagnostic::error(&entry.value.at, "`cost` is a class and the event that it is paid for");
        report.push(diagnostic.hint(format!("write `cost: {{ class: {class}, per: context switch }}`")));
        return None;
    }
    let fields = Fields::read(&entry.value, &entry.key.at, &COST, report)?;
    let class = fields
        .need("class", "`cost`", report)
        .and_then(|node| fields::choice(node, "`low`, `medium` or `high`", &CLASSES, &[], report));
    let per = fields.need("per", "`cost`", report).and_then(|node| fields::text(node, "an event", report));
    let class = match class? {
        "low" => CostClass::Low,
        "medium" => CostClass::Medium,
        _ => CostClass::High,
    };
    Some(Cost { class, per: super::one_line(&per?.value) })
}
