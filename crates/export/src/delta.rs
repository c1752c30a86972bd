//! Differences of snapshots, for receivers that want what is new rather than what is all.
//!
//! A difference is a snapshot too: its values cover the time from each series' [`Series::created`] to [`Snapshot::at`].
//! Nothing is lost when a receiver is away: differences that were not taken are [`merge`]d until they are, within a bound.

use crate::part::Run;
use crate::snapshot::{Family, Histograms, LabelTexts, Series, Snapshot, Values};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

/// What was counted after `previous`, gauges as they are now.
///
/// - A series that was there: the difference, from the time of `previous`.
/// - A series that is new, or whose counts began anew (they went back, or it was created another time): all of it, from
///   its creation.
/// - A series that is new and was counted before the first snapshot: not reported yet, as its start time is unknown.
/// - Nothing new: no point. A series that is gone: nothing, its counts were in `previous`.
pub fn difference(previous: Option<&Snapshot>, current: &Snapshot) -> Snapshot {
    let known = previous.map(by_name).unwrap_or_default();
    let families = current.families.iter().map(|family| {
        let before = known.get(family.about.name.as_str()).filter(|before| same(before, family));
        family_difference(before.copied(), previous.map(|snapshot| snapshot.at), family)
    });
    Snapshot { at: current.at, families: families.filter(|family| !family.is_empty()).collect() }
}

/// Two differences that follow one another as one, and the points of `older` that did not fit in.
///
/// Points of `newer` are kept always. Those of `older` for series that are gone are kept while the whole is below about
/// `most_bytes`; those whose buckets are others now cannot be added. (A gauge that is gone is no loss: it had a value of
/// its moment.)
pub fn merge(older: &Snapshot, newer: &Snapshot, most_bytes: usize) -> (Snapshot, u64) {
    let mut room = most_bytes.saturating_sub(newer.families.iter().map(bytes).sum());
    let (newer_names, older_names) = (by_name(newer), by_name(older));
    let mut lost = 0;
    let mut families = Vec::new();
    for family in &newer.families {
        families.push(match older_names.get(family.about.name.as_str()) {
            Some(before) if same(before, family) => family_merge(before, family, &mut room, &mut lost),
            Some(before) => {
                lost += sums(before);
                family.clone()
            }
            None => family.clone(),
        });
    }
    for family in older.families.iter().filter(|family| !newer_names.contains_key(family.about.name.as_str())) {
        let none = select(family, &[]);
        families.push(family_merge(family, &none, &mut room, &mut lost));
    }
    families.retain(|family| !family.is_empty());
    (Snapshot { at: newer.at, families }, lost)
}

/// The series of these runs alone. Several runs of one family become one again.
pub fn slice(snapshot: &Snapshot, runs: &[Run]) -> Snapshot {
    let mut rows: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (family, series) in runs {
        rows.entry(*family).or_default().extend(series.clone());
    }
    let chosen = rows.into_iter().filter_map(|(family, mut rows)| {
        let family = snapshot.families.get(family)?;
        rows.retain(|&row| row < family.len());
        Some(select(family, &rows))
    });
    Snapshot { at: snapshot.at, families: chosen.collect() }
}

fn by_name(snapshot: &Snapshot) -> HashMap<&str, &Family> {
    snapshot.families.iter().map(|family| (family.about.name.as_str(), family)).collect()
}

/// Whether values of both can be compared.
fn same(a: &Family, b: &Family) -> bool {
    let schemes = match (&a.values, &b.values) {
        (Values::Histograms(a), Values::Histograms(b)) => Arc::ptr_eq(&a.scheme, &b.scheme) || a.scheme == b.scheme,
        (Values::Counters(_), Values::Counters(_)) | (Values::Gauges(_), Values::Gauges(_)) => true,
        _ => false,
    };
    schemes && a.about == b.about && a.columns == b.columns
}

fn positions(family: &Family) -> HashMap<&LabelTexts, usize> {
    family.series.iter().enumerate().map(|(position, series)| (&series.labels, position)).collect()
}

fn family_difference(before: Option<&Family>, at: Option<SystemTime>, now: &Family) -> Family {
    if let Values::Gauges(_) = now.values {
        return now.clone();
    }
    let known = before.map(positions).unwrap_or_default();
    let mut rows = Vec::new();
    let mut out = Rows::new(now);
    for (row, series) in now.series.iter().enumerate() {
        let base = before.and_then(|before| Some((before, *known.get(&series.labels)?)));
        // An unknown beginning is no other beginning.
        let other =
            |before: &Family, old: usize| series.created.is_some() && before.series[old].created != series.created;
        let base = base.filter(|(before, old)| !other(before, *old) && !went_back(before, *old, now, row));
        let began = match (base, series.created) {
            (Some(_), _) => at,
            (None, Some(created)) => Some(created),
            // Counts that went back began anew after the last look.
            (None, None) if known.contains_key(&series.labels) => at,
            (None, None) => continue,
        };
        let kept = out.push(now, row, |out| {
            if let Some((before, old)) = base {
                out.subtract(before, old);
            }
        });
        if kept {
            rows.push(Series { labels: series.labels.clone(), created: began });
        }
    }
    Family { about: now.about.clone(), columns: now.columns.clone(), series: rows, values: out.values }
}

fn went_back(before: &Family, old: usize, now: &Family, new: usize) -> bool {
    match (&before.values, &now.values) {
        (Values::Counters(before), Values::Counters(now)) => now[new] < before[old],
        (Values::Histograms(before), Values::Histograms(now)) => {
            now.sums[new] < before.sums[old] || now.counts_of(new).iter().zip(before.counts_of(old)).any(|(n, b)| n < b)
        }
        _ => false,
    }
}

fn family_merge(older: &Family, newer: &Family, room: &mut usize, lost: &mut u64) -> Family {
    let (in_older, in_newer) = (positions(older), positions(newer));
    let both = newer.series.iter().enumerate().map(|(row, series)| (Some(row), in_older.get(&series.labels).copied()));
    let mut rows: Vec<(Option<usize>, Option<usize>)> = both.collect();
    let gone = older.series.iter().enumerate().filter(|(_, series)| !in_newer.contains_key(&series.labels));
    if !matches!(older.values, Values::Gauges(_)) {
        let cost = row_bytes(older);
        for (row, _) in gone {
            if *room < cost {
                *lost += 1;
                continue;
            }
            *room -= cost;
            rows.push((None, Some(row)));
        }
    }
    let series_of = |row: &(Option<usize>, Option<usize>)| match *row {
        (Some(new), _) => Some(&newer.series[new]),
        (None, old) => old.map(|old| &older.series[old]),
    };
    rows.sort_by(|a, b| series_of(a).map(|s| &s.labels).cmp(&series_of(b).map(|s| &s.labels)));
    let mut out = Rows::new(newer);
    let mut series = Vec::with_capacity(rows.len());
    for row in &rows {
        let (from, position) = match *row {
            (Some(new), _) => (newer, new),
            (None, Some(old)) => (older, old),
            (None, None) => continue,
        };
        out.push(from, position, |out| {
            if let (Some(_), Some(old)) = *row {
                out.add(older, old);
            }
        });
        let began = row.1.map_or(from.series[position].created, |old| older.series[old].created);
        series.push(Series { labels: from.series[position].labels.clone(), created: began });
    }
    Family { about: newer.about.clone(), columns: newer.columns.clone(), series, values: out.values }
}

fn select(family: &Family, rows: &[usize]) -> Family {
    let mut out = Rows::new(family);
    for &row in rows {
        out.copy(family, row);
    }
    let series = rows.iter().map(|&row| family.series[row].clone()).collect();
    Family { about: family.about.clone(), columns: family.columns.clone(), series, values: out.values }
}

/// Values of a family under construction.
struct Rows {
    values: Values,
}

impl Rows {
    fn new(like: &Family) -> Rows {
        Rows {
            values: match &like.values {
                Values::Counters(_) => Values::Counters(Vec::new()),
                Values::Gauges(_) => Values::Gauges(Vec::new()),
                Values::Histograms(histograms) => Values::Histograms(Histograms {
                    scheme: histograms.scheme.clone(),
                    sums: Vec::new(),
                    counts: Vec::new(),
                }),
            },
        }
    }

    fn copy(&mut self, from: &Family, row: usize) {
        match (&mut self.values, &from.values) {
            (Values::Counters(out), Values::Counters(from)) => out.push(from[row]),
            (Values::Gauges(out), Values::Gauges(from)) => out.push(from[row]),
            (Values::Histograms(out), Values::Histograms(from)) => {
                out.sums.push(from.sums[row]);
                out.counts.extend_from_slice(from.counts_of(row));
            }
            // Families are compared before their values are.
            _ => {}
        }
    }

    /// Copies a row and changes it. A row in which nothing was counted is taken back: `false`.
    fn push(&mut self, from: &Family, row: usize, change: impl FnOnce(&mut Rows)) -> bool {
        self.copy(from, row);
        change(self);
        match &mut self.values {
            Values::Counters(values) => {
                let nothing = values.last() == Some(&0);
                if nothing {
                    values.pop();
                }
                !nothing
            }
            Values::Gauges(_) => true,
            Values::Histograms(histograms) => {
                let row = histograms.sums.len() - 1;
                let nothing = histograms.counts_of(row).iter().all(|count| *count == 0);
                if nothing {
                    histograms.sums.pop();
                    histograms.counts.truncate(row * histograms.scheme.buckets());
                }
                !nothing
            }
        }
    }

    fn subtract(&mut self, other: &Family, row: usize) {
        self.with_last(other, row, u64::wrapping_sub);
    }

    fn add(&mut self, other: &Family, row: usize) {
        self.with_last(other, row, u64::wrapping_add);
    }

    fn with_last(&mut self, other: &Family, row: usize, operation: fn(u64, u64) -> u64) {
        match (&mut self.values, &other.values) {
            (Values::Counters(out), Values::Counters(other)) => {
                if let Some(last) = out.last_mut() {
                    *last = operation(*last, other[row]);
                }
            }
            (Values::Histograms(out), Values::Histograms(other)) => {
                if let Some(last) = out.sums.last_mut() {
                    *last = operation(*last, other.sums[row]);
                }
                let begin = out.counts.len() - out.scheme.buckets();
                for (count, other) in out.counts[begin..].iter_mut().zip(other.counts_of(row)) {
                    *count = operation(*count, *other);
                }
            }
            _ => {}
        }
    }
}

/// Points of a family that are sums.
fn sums(family: &Family) -> u64 {
    if matches!(family.values, Values::Gauges(_)) { 0 } else { family.len() as u64 }
}

/// Bytes of a family in memory, nearly: label texts are shared with the cache.
fn bytes(family: &Family) -> usize {
    family.len() * row_bytes(family)
}

fn row_bytes(family: &Family) -> usize {
    size_of::<Series>()
        + match &family.values {
            Values::Counters(_) | Values::Gauges(_) => 16,
            Values::Histograms(histograms) => 8 + 8 * histograms.scheme.buckets(),
        }
}

#[cfg(test)]
mod tests;
