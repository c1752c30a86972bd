//! `state:` and `steps:`.

use super::{DEFAULT_MAX_OPEN, MAX_ENTRIES, expression, expressions, hook, metric, one_or_more};
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Spanned, SpannedStr, Step, Steps};
use crate::names;
use crate::raw::Node;
use crate::report::Report;

pub(crate) const STATE: Keys = Keys { of: "`state`", known: &["by", "fields", "max_entries"], later: &[] };
pub(crate) const STEP: Keys =
    Keys { of: "a step", known: &["at", "by", "where", "set", "observe", "delete"], later: &[] };

/// Both together; `node` is that of `steps`, whose steps observe `metrics`.
pub(super) fn steps(
    fields: &Fields<'_>,
    key: &Spanned<String>,
    node: &Node,
    metrics: &[metric::Read],
    report: &mut Report,
) -> Option<Steps> {
    let Some(state) = fields.entry("state") else {
        let diagnostic = Diagnostic::error(&key.at, "steps need a state to work on");
        report.push(diagnostic.hint("add `state: { by: KEY, fields: { NAME: u64 } }`"));
        return None;
    };
    let all = fields::list(node, "`steps`", report)?;
    if all.is_empty() {
        report.push(Diagnostic::error(&key.at, "an empty list, where at least one step is needed"));
    }
    let steps: Vec<Option<(Step, Vec<SpannedStr>)>> = all.iter().map(|node| step(node, report)).collect();
    let state = Fields::read(&state.value, &state.key.at, &STATE, report)?;
    let by = state.need("by", "a state", report).map(|node| one_or_more(node, report));
    let named = |name: &str| names::identifier(name, "name of a field");
    let kept = state.get("fields").map(|node| expressions(node, "`fields`", report, named)).unwrap_or_default();
    let most = state.get("max_entries");
    let max_entries = most.map_or(Some(DEFAULT_MAX_OPEN), |node| fields::integer(node, 1..=MAX_ENTRIES, report));
    let steps: Option<Vec<_>> = steps.into_iter().collect();
    let (by, max_entries, steps) = (by?, max_entries?, steps?);
    let steps = with_observed(steps, metrics, report);
    Some(Steps { by, fields: kept, max_entries: max_entries as u32, steps })
}

/// A step without the metrics that it observes, and their names.
fn step(node: &Node, report: &mut Report) -> Option<(Step, Vec<SpannedStr>)> {
    let fields = Fields::read(node, &node.at, &STEP, report)?;
    let hooks = fields.need("at", "a step", report).map(|node| hook::hooks(node, report));
    let by = fields.get("by").map(|node| one_or_more(node, report)).unwrap_or_default();
    let filter = fields.get("where").and_then(|node| expression(node, report));
    let named = |name: &str| names::identifier(name, "name of a field");
    let set = fields.get("set").map(|node| expressions(node, "`set`", report, named)).unwrap_or_default();
    let observe = fields.get("observe").map(|node| {
        let names = fields::one_or_many(node, "metric", report);
        names.iter().filter_map(|node| fields::text(node, "a metric's name", report)).collect::<Vec<_>>()
    });
    let delete = fields.get("delete").map_or(Some(false), |node| fields::boolean(node, report));
    let (observe, delete) = (observe.unwrap_or_default(), delete?);
    if delete && let Some(entry) = fields.entry("set") {
        let diagnostic = Diagnostic::error(&entry.key.at, "what is set here is deleted at once");
        report.push(diagnostic.hint("leave out `set`, or `delete`"));
    }
    for (i, name) in observe.iter().enumerate() {
        if observe[..i].iter().any(|before| before.value == name.value) {
            report.push(Diagnostic::error(&name.at, format!("`{}` is in the list twice", name.value)));
        }
    }
    if set.is_empty() && observe.is_empty() && !delete && fields.get("set").is_none() {
        let diagnostic = Diagnostic::error(&node.at, "this step does nothing");
        report.push(diagnostic.hint("give it `set`, `observe` or `delete: true`"));
    }
    Some((Step { hooks: hooks?, filter, by, set, observe: Vec::new(), delete }, observe))
}

/// Every name under `observe` is a metric, and every metric is observed.
fn with_observed(steps: Vec<(Step, Vec<SpannedStr>)>, metrics: &[metric::Read], report: &mut Report) -> Vec<Step> {
    let known: Vec<&str> = metrics.iter().map(|read| read.metric.name.value.as_str()).collect();
    let mut index = |name: &SpannedStr| {
        let found = known.iter().position(|known| *known == name.value);
        if found.is_none() {
            let diagnostic = Diagnostic::error(&name.at, format!("the probe has no metric `{}`", name.value));
            report.push(diagnostic.hint(names::suggestion(&name.value, &known)));
        }
        found.map(|index| index as u32)
    };
    let with = |(step, names): (Step, Vec<SpannedStr>)| Step {
        observe: names.iter().filter_map(&mut index).collect(),
        ..step
    };
    let steps: Vec<Step> = steps.into_iter().map(with).collect();
    for (i, metric::Read { metric, .. }) in metrics.iter().enumerate() {
        if steps.iter().all(|step| !step.observe.contains(&(i as u32))) {
            let message = format!("no step observes metric `{}`", metric.name.value);
            let hint = format!("add `observe: [{}]` to the step that measures it", metric.name.value);
            report.push(Diagnostic::error(&metric.name.at, message).hint(hint));
        }
    }
    steps
}
