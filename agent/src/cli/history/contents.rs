//! What an archive holds.

use kstrobe_export::snapshot::Kind;
use kstrobe_history::Labels;
use kstrobe_history::disk::{Archive, DiskError, Replayed};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

/// The API's word for it.
pub fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

/// All of an archive.
#[derive(Debug, Default, Serialize)]
pub struct Contents {
    /// Unix time of the beginning of the oldest second.
    pub oldest: Option<u64>,
    /// Unix time of the end of the newest second.
    pub newest: Option<u64>,
    /// That are there.
    pub seconds: u64,
    pub segments: usize,
    pub bytes: u64,
    pub marks: u64,
    pub gaps: Vec<Gap>,
    pub damaged: Vec<Unread>,
    pub metrics: BTreeMap<String, Metric>,
    #[serde(skip)]
    series: HashMap<String, HashSet<Labels>>,
}

/// Time without a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
}

impl Gap {
    pub fn seconds(&self) -> u64 {
        self.to - self.from
    }
}

/// Bytes that are damaged, or were not written whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unread {
    pub path: PathBuf,
    pub at: u64,
    pub unread: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Metric {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub series: usize,
    /// Of all series, in all seconds.
    pub changes: u64,
}

impl Contents {
    /// Of the seconds in a range; segments and bytes are those of the whole archive.
    pub fn of(archive: &Archive, (from, to): (u64, u64)) -> Result<Contents, DiskError> {
        let segments = archive.segments()?;
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        let mut contents = Contents { segments: segments.len(), bytes, ..Contents::default() };
        let damaged = archive.replay(from, to, |replayed| {
            contents.add(&replayed);
            Ok::<(), DiskError>(())
        })?;
        contents.damaged =
            damaged.into_iter().map(|part| Unread { path: part.path, at: part.at, unread: part.unread }).collect();
        for (name, metric) in &mut contents.metrics {
            metric.series = contents.series.get(name).map_or(0, HashSet::len);
        }
        Ok(contents)
    }

    fn add(&mut self, replayed: &Replayed) {
        let second = replayed.second;
        let (from, to) = (second.start + 1 - second.seconds, second.start + 1);
        if let Some(end) = self.newest.filter(|end| *end < from) {
            self.gaps.push(Gap { from: end, to: from });
        }
        self.oldest = self.oldest.or(Some(from));
        self.newest = self.newest.max(Some(to));
        self.seconds += second.seconds;
        self.marks += replayed.marks.len() as u64;
        for changes in replayed.probes.iter().flat_map(|probe| &probe.metrics) {
            let name = &changes.about.name;
            if !self.metrics.contains_key(name) {
                let metric = Metric { kind: kind(changes.about.kind), series: 0, changes: 0 };
                self.metrics.insert(name.clone(), metric);
                self.series.insert(name.clone(), HashSet::new());
            }
            if let (Some(metric), Some(series)) = (self.metrics.get_mut(name), self.series.get_mut(name)) {
                metric.changes += changes.rows.len() as u64;
                for row in changes.rows.iter().filter(|row| !series.contains(&row.labels)).collect::<Vec<_>>() {
                    series.insert(row.labels.clone());
                }
            }
        }
    }
}
