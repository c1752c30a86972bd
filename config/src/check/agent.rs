//! `kstrobe.yaml`.

use super::{captures, exporters, history, workloads};
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Agent, History, Kubernetes, Spanned, Workloads};
use crate::raw::{Kind, Node};
use crate::report::{Problem, Report};
use crate::schema;
use std::net::SocketAddr;

const AGENT: Keys = Keys { of: "the configuration", known: &schema::names(&schema::AGENT), later: &[] };
const PROBES: Keys = Keys { of: "`probes`", known: &schema::names(&schema::PROBES), later: &[] };
const LOG: Keys = Keys { of: "`log`", known: &schema::names(&schema::LOG), later: &[] };
const LIMITS: Keys = Keys { of: "`limits`", known: &schema::names(&schema::LIMITS), later: &[] };
/// As many as OpenTelemetry's SDKs keep: 20 octaves at schema 3.
pub(crate) const DEFAULT_NATIVE_BUCKETS: usize = 160;
/// Most buckets of a histogram in the kernel.
pub(crate) const MAX_NATIVE_BUCKETS: usize = 1024;
/// Some hundred bytes each.
pub(crate) const DEFAULT_KEPT_EVENTS: usize = 1024;
pub(crate) const MAX_KEPT_EVENTS: usize = 65_536;
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

impl Default for Agent {
    fn default() -> Self {
        Self {
            listen: vec!["127.0.0.1:9779".to_owned()],
            enable: Vec::new(),
            disable: Vec::new(),
            probes_directory: None,
            overrides: Vec::new(),
            kubernetes: Kubernetes::default(),
            workloads: Workloads::default(),
            budget_ppm: super::DEFAULT_BUDGET_PPM,
            native_bucket_limit: DEFAULT_NATIVE_BUCKETS,
            kept_events: DEFAULT_KEPT_EVENTS,
            history: History::default(),
            events: "none".to_owned(),
            captures: None,
            rules: Vec::new(),
            exporters: Vec::new(),
            log_level: "info".to_owned(),
            log_json: false,
        }
    }
}

/// Whether a document that should be a probe has keys of the configuration and none of a probe.
pub(crate) fn is_configuration(node: &Node) -> bool {
    let Kind::Mapping(entries) = &node.kind else { return false };
    let any = |keys: &Keys| entries.iter().any(|entry| keys.known.contains(&entry.key.value.as_str()));
    any(&AGENT) && !any(&super::PROBE)
}

/// The configuration, with what is absent or wrong at its default.
pub(crate) fn agent(node: &Node, report: &mut Report) -> Agent {
    let mut agent = Agent::default();
    if matches!(node.kind, Kind::Nothing) {
        return agent;
    }
    let Some(fields) = Fields::read(node, &node.at, &AGENT, report) else { return agent };
    if let Some(node) = fields.get("listen") {
        let items = fields::one_or_many(node, "address", report).iter();
        let addresses =
            items.filter_map(|item| fields::parsed(item, "an address such as `127.0.0.1:9779`", report, address));
        agent.listen = addresses.map(|a| a.value).collect();
    }
    if let Some(entry) = fields.entry("probes")
        && let Some(fields) = Fields::read(&entry.value, &entry.key.at, &PROBES, report)
    {
        agent.enable = fields.get("enable").map(|node| selection(node, report)).unwrap_or_default();
        agent.disable = fields.get("disable").map(|node| selection(node, report)).unwrap_or_default();
        agent.probes_directory = fields.get("directory").and_then(|node| fields::text(node, "a path", report));
        agent.overrides = fields.get("override").map(|node| workloads::overrides(node, report)).unwrap_or_default();
        contradictions(&agent, report);
    }
    if let Some(entry) = fields.entry("kubernetes") {
        agent.kubernetes = workloads::kubernetes(entry, report);
    }
    if let Some(entry) = fields.entry("workloads") {
        agent.workloads = workloads::workloads(entry, report);
    }
    if let Some(entry) = fields.entry("limits")
        && let Some(fields) = Fields::read(&entry.value, &entry.key.at, &LIMITS, report)
    {
        if let Some(ppm) = fields.get("budget_percent").and_then(|node| super::budget(node, report)) {
            agent.budget_ppm = ppm;
        }
        if let Some(node) = fields.get("native_bucket_limit")
            && let Some(limit) = fields::integer(node, 0..=MAX_NATIVE_BUCKETS as u64, report)
        {
            agent.native_bucket_limit = limit as usize;
        }
        if let Some(node) = fields.get("kept_events")
            && let Some(limit) = fields::integer(node, 1..=MAX_KEPT_EVENTS as u64, report)
        {
            agent.kept_events = limit as usize;
        }
    }
    if let Some(entry) = fields.entry("history") {
        agent.history = history::history(entry, report);
    }
    if let Some(to) = fields.get("events").and_then(|node| fields::text(node, "`stderr`, `none` or a path", report)) {
        agent.events = to.value;
    }
    agent.captures = fields.entry("captures").map(|entry| captures::captures(entry, report));
    if let Some(node) = fields.get("rules") {
        // Rules need a place for what they record.
        let captures = agent.captures.get_or_insert_default();
        agent.rules = captures::rules(node, captures, report);
    }
    agent.exporters = fields.entry("exporters").map(|entry| exporters::exporters(entry, report)).unwrap_or_default();
    if let Some(entry) = fields.entry("log")
        && let Some(fields) = Fields::read(&entry.value, &entry.key.at, &LOG, report)
    {
        if let Some(node) = fields.get("level")
            && let Some(level) = fields::choice(node, "a log level", &LEVELS, &[], report)
        {
            agent.log_level = level.to_owned();
        }
        if let Some(node) = fields.get("format") {
            let format = fields::choice(node, "a log format", &["logfmt", "json"], &[], report);
            agent.log_json = format == Some("json");
        }
    }
    agent
}

/// Names of probes or packs: one or a list, which may be empty.
fn selection(node: &Node, report: &mut Report) -> Vec<Spanned<String>> {
    let items = match &node.kind {
        Kind::Sequence(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    items.iter().filter_map(|item| fields::text(item, "the name of a probe or of its file", report)).collect()
}

fn contradictions(agent: &Agent, report: &mut Report) {
    for name in &agent.disable {
        if agent.enable.iter().any(|e| e.value == name.value) {
            report.push(Diagnostic::error(&name.at, format!("`{}` is both enabled and disabled", name.value)));
        }
    }
}

/// `ADDRESS:PORT`, `[V6]:PORT`, `localhost:PORT` or `:PORT` (every address).
fn address(text: &str) -> Result<String, Problem> {
    let bad = |message: String| Problem::new(message).hint("write `127.0.0.1:9779`, `[::1]:9779` or `:9779`");
    if text.parse::<SocketAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(bad(format!("`{text}` has no port")));
    };
    if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) || port.parse::<u16>().is_err() {
        let here = text.len() - port.len()..text.len();
        return Err(bad(format!("`{port}` is not a port from 0 to 65535")).at(here));
    }
    let is_name = host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
    let is_number = host.chars().all(|c| c.is_ascii_digit() || c == '.');
    if !is_name || (is_number && !host.is_empty()) {
        return Err(bad(format!("`{host}` is not an address")).at(0..host.len()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn addresses() {
        for good in ["127.0.0.1:9779", "[::1]:0", ":9779", "localhost:80", "node-1.example:65535", "0.0.0.0:1"] {
            assert_eq!(address(good).as_deref(), Ok(good));
        }
        for bad in ["9779", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "::1:80", "256.1.1.1:80", "a b:1", "x:+1", ""]
        {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
