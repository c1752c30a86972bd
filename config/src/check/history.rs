//! `history:` of `kstrobe.yaml`.

use super::captures::{HOUR_NS, SECOND_NS, duration};
use super::size;
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::History;
use crate::raw::Entry;
use crate::report::Report;
use crate::schema;

const HISTORY: Keys = Keys { of: "`history`", known: &schema::names(&schema::HISTORY), later: &[] };
const MINUTES_15_NS: u64 = 15 * 60 * SECOND_NS;
const MIB: u64 = 1 << 20;
const MAX_BYTES: u64 = 1 << 40;

impl Default for History {
    fn default() -> History {
        History { enabled: true, keep_ns: MINUTES_15_NS, dir: None, max_bytes: 512 * MIB, max_memory: 32 * MIB }
    }
}

impl History {
    /// Nanoseconds that are kept in memory: with files, the time that is looked at most.
    pub fn keep_in_memory_ns(&self) -> u64 {
        if self.dir.is_some() { self.keep_ns.min(MINUTES_15_NS) } else { self.keep_ns }
    }
}

pub(super) fn history(entry: &Entry, report: &mut Report) -> History {
    let mut history = History::default();
    let Some(fields) = Fields::read(&entry.value, &entry.key.at, &HISTORY, report) else { return history };
    if let Some(enabled) = fields.get("enabled").and_then(|node| fields::boolean(node, report)) {
        history.enabled = enabled;
    }
    if let Some(dir) = fields.get("dir").and_then(|node| fields::text(node, "a path", report)) {
        history.dir = Some(dir.value);
        history.keep_ns = 24 * HOUR_NS;
    }
    if let Some(keep) = fields.get("keep").and_then(|node| duration(node, 10 * SECOND_NS, 720 * HOUR_NS, report)) {
        history.keep_ns = keep;
    }
    if let Some(node) = fields.get("max_bytes") {
        history.max_bytes = size(node, MIB..=MAX_BYTES, report).unwrap_or(history.max_bytes);
        if fields.get("dir").is_none() {
            let problem = "`max_bytes` limits files, and there is no `dir` for any".to_owned();
            report.push(Diagnostic::error(&node.at, problem).hint("name a folder in `dir`, or leave `max_bytes` out"));
        }
    }
    if let Some(bytes) = fields.get("max_memory").and_then(|node| size(node, MIB..=1024 * MIB, report)) {
        history.max_memory = bytes;
    }
    history
}
