//! `history:` of `kstrobe.yaml`.

use super::captures::{HOUR_NS, SECOND_NS, duration};
use super::size;
use crate::fields::{self, Fields, Keys};
use crate::model::History;
use crate::raw::Entry;
use crate::report::Report;
use crate::schema;

const HISTORY: Keys = Keys { of: "`history`", known: &schema::names(&schema::HISTORY), later: &[] };
const MINUTES_15_NS: u64 = 15 * 60 * SECOND_NS;
const MIB: u64 = 1 << 20;

impl Default for History {
    fn default() -> History {
        History { enabled: true, keep_ns: MINUTES_15_NS, max_memory: 32 * MIB }
    }
}

pub(super) fn history(entry: &Entry, report: &mut Report) -> History {
    let mut history = History::default();
    let Some(fields) = Fields::read(&entry.value, &entry.key.at, &HISTORY, report) else { return history };
    if let Some(enabled) = fields.get("enabled").and_then(|node| fields::boolean(node, report)) {
        history.enabled = enabled;
    }
    if let Some(keep) = fields.get("keep").and_then(|node| duration(node, 10 * SECOND_NS, 24 * HOUR_NS, report)) {
        history.keep_ns = keep;
    }
    if let Some(bytes) = fields.get("max_memory").and_then(|node| size(node, MIB..=1024 * MIB, report)) {
        history.max_memory = bytes;
    }
    history
}
