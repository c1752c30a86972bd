//! Metrics of the history.

use super::{family, single};
use kstrobe_history::Usage;
use kstrobe_history::disk::DiskUsage;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;

pub(super) fn encode(out: &mut DescriptorEncoder, usage: &Usage) -> fmt::Result {
    let kept = ConstGauge::new(usage.seconds);
    single(out, "history_kept", "Time that the history of the metrics covers.", Some(Unit::Seconds), kept)?;
    let size = ConstGauge::new(usage.bytes as u64);
    single(out, "history_size", "Memory of the history, labels of its series included.", Some(Unit::Bytes), size)?;
    let help = "Seconds that the history does not have, by reason: late (no reading in time, its counts are in the next second), \
                memory (went before its time, as history.max_memory was reached).";
    let lost = [("late", usage.lost.late), ("memory", usage.lost.memory)];
    let lost = lost.into_iter().map(|(reason, seconds)| ([("reason", reason.to_owned())], ConstCounter::new(seconds)));
    family(out, "history_dropped_seconds", help, None, lost)?;
    let help = "Marks of the history that went before their time, as there were too many.";
    single(out, "history_dropped_marks", help, None, ConstCounter::new(usage.lost_marks))
}

pub(super) fn encode_disk(out: &mut DescriptorEncoder, usage: &DiskUsage) -> fmt::Result {
    let size = ConstGauge::new(usage.bytes);
    single(out, "history_disk_size", "Files of the history in history.dir.", Some(Unit::Bytes), size)?;
    let help = "1 while nothing is written to history.dir, as a write has failed; /readyz has the reason.";
    single(out, "history_disk_stopped", help, None, ConstGauge::new(u64::from(usage.is_stopped)))?;
    let help = "Seconds that are not in history.dir, by reason: failed (the disk is full, or a write failed), slow (the disk takes \
                too long), torn (not whole when the agent or the machine ended, and cut at the next start).";
    let lost = usage.lost;
    let lost = [("failed", lost.failed), ("slow", lost.slow), ("torn", lost.torn)];
    let lost = lost.into_iter().map(|(reason, seconds)| ([("reason", reason.to_owned())], ConstCounter::new(seconds)));
    family(out, "history_disk_dropped_seconds", help, None, lost)?;
    let help = "Marks of the history that are not in history.dir, as there were too many in a second.";
    single(out, "history_disk_dropped_marks", help, None, ConstCounter::new(usage.lost_marks))
}
