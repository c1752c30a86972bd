//! Two readings of a probe, one after the other, and the difference between them.
//!
//! A reading shares the blocks that have not changed with the reading before it, which another reader may have taken: what is the same
//! block needs no look at its values. So the cursor leaves the marks of changed records to the readings, and keeps only blocks.

use kstrobe_ebpf::buckets::Scheme;
use kstrobe_export::reading::{Block, PackedFamily, Value};
use kstrobe_export::snapshot::{Descriptor, Kind, LabelTexts, Number, Series};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Values of a series' labels, in the order of [`Descriptor::label_names`].
pub type Labels = Box<[Arc<str>]>;

/// How one metric has changed.
#[derive(Clone, Debug)]
pub struct MetricChanges {
    pub about: Arc<Descriptor>,
    /// Of a histogram that has series.
    pub scheme: Option<Arc<Scheme>>,
    /// Series that have changed, in no order.
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub labels: Labels,
    pub change: Change,
}

/// How a series has changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Its increase, in raw units.
    Counter(u64),
    /// Its value; `None` when it has none any more.
    Gauge(Option<Number>),
    /// Increases: of the sum in raw units, and of in-kernel buckets, ascending.
    Histogram { sum: u64, buckets: Vec<(u32, u64)> },
}

impl Change {
    /// Adds a later change of the same series.
    pub(crate) fn add(&mut self, other: &Change) {
        match (self, other) {
            (Change::Counter(sum), Change::Counter(other)) => *sum = sum.wrapping_add(*other),
            (Change::Gauge(value), Change::Gauge(newer)) => *value = *newer,
            (Change::Histogram { sum, buckets }, Change::Histogram { sum: other, buckets: others }) => {
                *sum = sum.wrapping_add(*other);
                let mut all: BTreeMap<u32, u64> = buckets.iter().copied().collect();
                others.iter().for_each(|(bucket, count)| *all.entry(*bucket).or_default() += count);
                *buckets = all.into_iter().collect();
            }
            // A metric has one kind.
            _ => {}
        }
    }
}

/// The last reading of a probe.
#[derive(Debug, Default)]
pub struct Cursor {
    families: Vec<PackedFamily>,
}

impl Cursor {
    /// The changes from the last reading to this one. A series that is new, or that was created anew or went back, began at
    /// zero; one that was counted before the agent came begins with this reading.
    pub fn advance(&mut self, now: Vec<PackedFamily>) -> Vec<MetricChanges> {
        let mut before = std::mem::take(&mut self.families);
        let mut changes = Vec::with_capacity(now.len());
        for family in &now {
            let at = before.iter().position(|old| old.about.name == family.about.name);
            let old = at.map(|at| before.swap_remove(at)).filter(|old| is_comparable(old, family));
            let rows = old.as_ref().map_or_else(|| rows(&[], family), |old| rows(&old.blocks, family));
            changes.push(MetricChanges { about: family.about.clone(), scheme: family.scheme().cloned(), rows });
        }
        self.families = now;
        for mut family in before {
            changes.extend(gauges_end(&family));
            // A table that could not be read goes on counting: its next difference is from here.
            if family.about.kind == Kind::Gauge {
                family.blocks.clear();
            }
            self.families.push(family);
        }
        changes
    }

    /// Takes the counts of these metrics as they are: what came before them is in the changes of another probe.
    pub fn skip(&mut self, mut now: Vec<PackedFamily>, is_skipped: impl Fn(&str) -> bool) {
        now.retain(|family| is_skipped(&family.about.name) && family.about.kind != Kind::Gauge);
        self.families = now;
    }

    /// Names of the metrics of the last reading.
    pub fn metrics(&self) -> impl Iterator<Item = &str> {
        self.families.iter().map(|family| family.about.name.as_str())
    }

    /// The changes when the probe ends: its gauges have no value any more.
    pub fn end(self) -> Vec<MetricChanges> {
        self.families.iter().filter_map(gauges_end).collect()
    }
}

fn is_comparable(old: &PackedFamily, new: &PackedFamily) -> bool {
    let same_scheme = match (old.scheme(), new.scheme()) {
        (Some(old), Some(new)) => Arc::ptr_eq(old, new) || old == new,
        _ => true,
    };
    old.about.kind == new.about.kind && old.columns == new.columns && same_scheme
}

fn gauges_end(family: &PackedFamily) -> Option<MetricChanges> {
    let rows: Vec<Row> = match family.about.kind {
        Kind::Gauge => {
            family.blocks.iter().flat_map(|block| block.values()).map(|(series, _)| gone(family, series)).collect()
        }
        Kind::Counter | Kind::Histogram => return None,
    };
    (!rows.is_empty()).then(|| MetricChanges { about: family.about.clone(), scheme: None, rows })
}

fn gone(family: &PackedFamily, series: &Series) -> Row {
    Row { labels: labels(family, &series.labels), change: Change::Gauge(None) }
}

fn labels(family: &PackedFamily, texts: &LabelTexts) -> Labels {
    let text = |column: &u32| texts.get(*column as usize).cloned().unwrap_or_default();
    family.columns.iter().map(text).collect()
}

/// Both are sorted by labels: blocks that both have are passed over, and the rest is walked side by side.
fn rows(old: &[Arc<Block>], family: &PackedFamily) -> Vec<Row> {
    let new = &family.blocks;
    if old.len() == new.len() && old.iter().zip(new).all(|(old, new)| Arc::ptr_eq(old, new)) {
        return Vec::new();
    }
    let pointers = |blocks: &[Arc<Block>]| blocks.iter().map(Arc::as_ptr).collect::<HashSet<_>>();
    let (in_old, in_new) = (pointers(old), pointers(new));
    let only = |block: &&Arc<Block>, others: &HashSet<*const Block>| !others.contains(&Arc::as_ptr(block));
    let mut before = old.iter().filter(|b| only(b, &in_new)).flat_map(|b| b.values()).peekable();
    let mut rows = Vec::new();
    for (series, value) in new.iter().filter(|b| only(b, &in_old)).flat_map(|b| b.values()) {
        let mut earlier = None;
        while let Some((other, _)) = before.peek() {
            match other.labels.cmp(&series.labels) {
                Ordering::Greater => break,
                Ordering::Less => rows.extend(before.next().and_then(|(other, value)| ended(family, other, value))),
                Ordering::Equal => earlier = before.next(),
            }
        }
        let change = change(earlier, series, value);
        rows.extend(change.map(|change| Row { labels: labels(family, &series.labels), change }));
    }
    rows.extend(before.filter_map(|(other, value)| ended(family, other, value)));
    rows
}

fn ended(family: &PackedFamily, series: &Series, value: Value<'_>) -> Option<Row> {
    matches!(value, Value::Gauge(_)).then(|| gone(family, series))
}

fn change(earlier: Option<(&Series, Value<'_>)>, series: &Series, now: Value<'_>) -> Option<Change> {
    if let Value::Gauge(number) = now {
        let same = matches!(earlier, Some((_, Value::Gauge(old))) if bits(old) == bits(number));
        return (!same).then_some(Change::Gauge(Some(number)));
    }
    let began_anew = |old: &Series| series.created.is_some() && series.created != old.created;
    let before = match earlier {
        Some((old, value)) => (!began_anew(old)).then_some(value),
        // Its source counted before the agent came.
        None if series.created.is_none() => return None,
        None => None,
    };
    match (before, now) {
        (Some(Value::Counter(before)), Value::Counter(now)) => counter(now.checked_sub(before).unwrap_or(now)),
        (_, Value::Counter(now)) => counter(now),
        (Some(Value::Histogram(before)), Value::Histogram(now)) => match growth(before.populated(), now.populated()) {
            Some(buckets) => histogram(now.sum.wrapping_sub(before.sum), buckets),
            None => histogram(now.sum, whole(now.populated())),
        },
        (_, Value::Histogram(now)) => histogram(now.sum, whole(now.populated())),
        (_, Value::Gauge(_)) => None,
    }
}

/// Two numbers of one metric are the same when kind and bits are: NaN differs from itself.
fn bits(number: Number) -> (u8, u64) {
    match number {
        Number::Unsigned(value) => (0, value),
        Number::Signed(value) => (1, value as u64),
        Number::Float(value) => (2, value.to_bits()),
    }
}

fn counter(increase: u64) -> Option<Change> {
    (increase > 0).then_some(Change::Counter(increase))
}

fn histogram(sum: u64, buckets: Vec<(u32, u64)>) -> Option<Change> {
    (sum > 0 || !buckets.is_empty()).then_some(Change::Histogram { sum, buckets })
}

fn whole(now: impl Iterator<Item = (usize, u64)>) -> Vec<(u32, u64)> {
    now.map(|(bucket, count)| (bucket as u32, count)).collect()
}

/// By how much the buckets grew; `None` when one of them went back.
fn growth(
    before: impl Iterator<Item = (usize, u64)>,
    now: impl Iterator<Item = (usize, u64)>,
) -> Option<Vec<(u32, u64)>> {
    let mut before = before.peekable();
    let mut grown = Vec::new();
    for (bucket, count) in now {
        let old = match before.peek() {
            Some((old, _)) if *old < bucket => return None,
            Some((old, _)) if *old == bucket => before.next().map_or(0, |(_, count)| count),
            _ => 0,
        };
        let increase = count.checked_sub(old)?;
        if increase > 0 {
            grown.push((bucket as u32, increase));
        }
    }
    before.next().is_none().then_some(grown)
}
