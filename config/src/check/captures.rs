//! `captures:` and `rules:`.

use super::capture::{self, capture, in_range};
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Capture, Captures, Rule};
use crate::raw::{Entry, Node};
use crate::report::Report;
use crate::{names, quantity, schema, when};

const CAPTURES: Keys = Keys { of: "`captures`", known: &schema::names(&schema::CAPTURES), later: &[] };
const RULE: Keys = Keys { of: "a rule", known: &schema::names(&schema::RULE), later: &[] };

pub(super) const SECOND_NS: u64 = 1_000_000_000;
pub(super) const HOUR_NS: u64 = 3600 * SECOND_NS;
const YEAR_NS: u64 = 365 * 24 * HOUR_NS;
const MAX_BYTES: u64 = 1 << 40;
const MAX_CONCURRENT: u64 = 16;
const MAX_RULES: usize = 200;
const MIN_EVERY_NS: u64 = 100_000_000;
const MAX_EVERY_NS: u64 = 60 * SECOND_NS;

impl Default for Captures {
    fn default() -> Self {
        Self {
            dir: "/var/lib/kstrobe/captures".to_owned(),
            max_total_bytes: 1 << 30,
            ttl_ns: 24 * HOUR_NS,
            max_concurrent: 1,
            max_duration_ns: 60 * SECOND_NS,
            max_bytes: 256 << 20,
            token_file: None,
            alertmanager_default: None,
        }
    }
}

/// `captures:`, what is absent or wrong at its default.
pub(super) fn captures(entry: &Entry, report: &mut Report) -> Captures {
    let mut captures = Captures::default();
    if matches!(entry.value.kind, crate::raw::Kind::Nothing) {
        return captures;
    }
    let Some(fields) = Fields::read(&entry.value, &entry.key.at, &CAPTURES, report) else { return captures };
    if let Some(dir) = fields.get("dir").and_then(|node| fields::text(node, "a path", report)) {
        captures.dir = dir.value;
    }
    let bytes = |key: &str, report: &mut Report| {
        let text = fields.get(key)?;
        fields::parsed(text, "a size such as `64MiB`", report, |text| {
            in_range(text, quantity::size_bytes(text)?, 16 * capture::MIN_BYTES, MAX_BYTES, quantity::show_bytes)
        })
    };
    let (total, each) = (bytes("max_total_bytes", report), bytes("max_bytes", report));
    captures.max_total_bytes = total.as_ref().map_or(captures.max_total_bytes, |bytes| bytes.value);
    captures.max_bytes = each.as_ref().map_or(captures.max_bytes.min(captures.max_total_bytes), |bytes| bytes.value);
    if let Some(each) = each.filter(|each| each.value > captures.max_total_bytes) {
        let total = quantity::show_bytes(captures.max_total_bytes);
        report.push(Diagnostic::error(&each.at, format!("one capture may not have more than all together ({total})")));
    }
    captures.ttl_ns = fields.get("ttl").and_then(|node| ttl(node, report)).unwrap_or(captures.ttl_ns);
    captures.max_concurrent = fields
        .get("max_concurrent")
        .and_then(|node| fields::integer(node, 1..=MAX_CONCURRENT, report))
        .map_or(captures.max_concurrent, |n| n as u32);
    captures.max_duration_ns = fields
        .get("max_duration")
        .and_then(|node| duration(node, SECOND_NS, HOUR_NS, report))
        .unwrap_or(captures.max_duration_ns);
    captures.token_file = fields.get("token_file").and_then(|node| fields::text(node, "a path", report));
    captures.alertmanager_default =
        fields.entry("alertmanager_default").and_then(|entry| capture(&entry.value, &entry.key.at, report));
    if let Some(default) = &captures.alertmanager_default {
        limits(default, &captures, report);
    }
    captures
}

/// `rules:`; those that are wrong are reported and left out.
pub(super) fn rules(node: &Node, captures: &Captures, report: &mut Report) -> Vec<Rule> {
    let items = fields::list(node, "`rules`", report).unwrap_or_default();
    if items.len() > MAX_RULES {
        report.push(Diagnostic::error(&node.at, format!("{} rules, and at most {MAX_RULES} are taken", items.len())));
        return Vec::new();
    }
    let rules: Vec<Rule> = items.iter().filter_map(|item| rule(item, captures, report)).collect();
    for (position, rule) in rules.iter().enumerate() {
        if let Some(first) = rules[..position].iter().find(|first| first.name.value == rule.name.value) {
            let diagnostic = Diagnostic::error(&rule.name.at, format!("rule `{}` is defined twice", rule.name.value));
            report.push(diagnostic.hint(format!("the first is in line {}", first.name.at.line)));
        }
    }
    rules
}

fn rule(node: &Node, captures: &Captures, report: &mut Report) -> Option<Rule> {
    let fields = Fields::read(node, &node.at, &RULE, report)?;
    let name = fields.need("name", "a rule", report).and_then(|node| fields::text(node, "a rule's name", report));
    if let Some(name) = &name {
        report.accept(&name.at, &name.value, names::identifier(&name.value, "rule name"));
    }
    let at = name.as_ref().map_or(fields.at, |name| &name.at);
    let fields = fields.blaming(at);
    let when = fields.get("when").map(|node| {
        let text = fields::text(node, "a condition", report)?;
        report.accept(&text.at, &text.value, when::parse(&text.value, &text.at))
    });
    let block = fields.need("capture", "a rule", report);
    let block = block.and_then(|_| fields.entry("capture"));
    let capture = block.and_then(|entry| capture(&entry.value, &entry.key.at, report));
    if let Some(capture) = &capture {
        limits(capture, captures, report);
    }
    let every = fields.get("every").map_or(Some(SECOND_NS), |node| duration(node, MIN_EVERY_NS, MAX_EVERY_NS, report));
    let cooldown = fields.get("cooldown").map_or(Some(600 * SECOND_NS), |node| duration(node, 0, YEAR_NS, report));
    let most = fields.get("max_per_hour").map_or(Some(3), |node| fields::integer(node, 1..=3600, report));
    let when = match when {
        Some(when) => Some(when?),
        None => None,
    };
    Some(Rule {
        name: name?,
        when,
        capture: capture?,
        every_ns: every?,
        cooldown_ns: cooldown?,
        max_per_hour: most? as u32,
    })
}

/// What is asked for must be allowed.
fn limits(capture: &Capture, captures: &Captures, report: &mut Report) {
    for diagnostic in beyond(capture, captures) {
        report.push(diagnostic);
    }
}

/// What a capture asks for beyond the limits of `captures:`.
pub(crate) fn beyond(capture: &Capture, captures: &Captures) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if let Some(duration) = capture.duration_ns.as_ref().filter(|d| d.value > captures.max_duration_ns) {
        let most = quantity::show_ns(captures.max_duration_ns);
        let diagnostic = Diagnostic::error(&duration.at, format!("a capture lasts at most {most} here"));
        found.push(diagnostic.hint("`captures.max_duration` says so"));
    }
    if let Some(bytes) = capture.max_bytes.as_ref().filter(|b| b.value > captures.max_bytes) {
        let most = quantity::show_bytes(captures.max_bytes);
        let diagnostic = Diagnostic::error(&bytes.at, format!("a capture has at most {most} here"));
        found.push(diagnostic.hint("`captures.max_bytes` says so"));
    }
    found
}

/// A duration, or plain `0` for never.
fn ttl(node: &Node, report: &mut Report) -> Option<u64> {
    let ttl = fields::parsed(node, "a duration such as `24h`", report, |text| match text {
        "0" => Ok(0),
        _ => in_range(text, quantity::duration_ns(text)?, SECOND_NS, YEAR_NS, quantity::show_ns),
    });
    ttl.map(|t| t.value)
}

pub(super) fn duration(node: &Node, least_ns: u64, most_ns: u64, report: &mut Report) -> Option<u64> {
    let duration = fields::parsed(node, "a duration such as `10s`", report, |text| {
        in_range(text, quantity::duration_ns(text)?, least_ns, most_ns, quantity::show_ns)
    });
    duration.map(|d| d.value)
}
