//! Snapshots for tests.

use crate::snapshot::{Descriptor, Family, Histograms, Kind, LabelTexts, Number, Series, Snapshot, Values};
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// So many seconds after a round moment.
pub(crate) fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

pub(crate) fn descriptor(name: &str, kind: Kind, unit: &str, labels: &[&str]) -> Arc<Descriptor> {
    Arc::new(Descriptor {
        name: name.into(),
        help: format!("Help of {name}."),
        kind,
        unit: unit.into(),
        raw_per_unit: if unit == "seconds" { SECOND_NS } else { 1 },
        label_names: labels.iter().map(|&name| name.into()).collect(),
    })
}

/// A partition of seconds from 1 us to 16 s, whose classic bounds lie between native ones.
pub(crate) fn scheme(schema: u8) -> Arc<Scheme> {
    let classic = ["0.000001", "0.0025", "1", "10"].map(String::from).to_vec();
    let spec = BucketSpec { schema, raw_per_unit: SECOND_NS, min: 1000, max: 16 * SECOND_NS, classic };
    Arc::new(Scheme::new(&spec).unwrap())
}

fn series(label: &str, created: Option<SystemTime>) -> Series {
    let labels: LabelTexts = Arc::from([Arc::from(label)]);
    Series { labels, created }
}

fn family(about: Arc<Descriptor>, series: Vec<Series>, values: Values) -> Family {
    let columns = (0..about.label_names.len() as u32).collect();
    Family { about, columns, series, values }
}

/// Rows of label, creation, value.
pub(crate) fn counters(name: &str, unit: &str, rows: &[(&str, Option<SystemTime>, u64)]) -> Family {
    let values = Values::Counters(rows.iter().map(|row| row.2).collect());
    let series = rows.iter().map(|(label, created, _)| series(label, *created)).collect();
    family(descriptor(name, Kind::Counter, unit, &["l"]), series, values)
}

/// Rows of label, value.
pub(crate) fn gauges(name: &str, unit: &str, rows: &[(&str, Number)]) -> Family {
    let values = Values::Gauges(rows.iter().map(|row| row.1).collect());
    let series = rows.iter().map(|(label, _)| series(label, None)).collect();
    family(descriptor(name, Kind::Gauge, unit, &["l"]), series, values)
}

/// Rows of label, creation, observations in nanoseconds.
pub(crate) fn histograms(name: &str, scheme: &Arc<Scheme>, rows: &[(&str, Option<SystemTime>, &[u64])]) -> Family {
    let (mut counts, mut sums) = (Vec::new(), Vec::new());
    for (_, _, observations) in rows {
        let mut row = vec![0; scheme.buckets()];
        for value in *observations {
            row[scheme.index(*value)] += 1;
        }
        counts.extend(row);
        sums.push(observations.iter().sum());
    }
    let values = Values::Histograms(Histograms { scheme: scheme.clone(), sums, counts });
    let series = rows.iter().map(|(label, created, _)| series(label, *created)).collect();
    family(descriptor(name, Kind::Histogram, "seconds", &["l"]), series, values)
}

pub(crate) fn snapshot(seconds: u64, families: Vec<Family>) -> Snapshot {
    Snapshot { at: at(seconds), families }
}
