//! All series at one moment, packed: what is written of it needs no more memory than one series.
//!
//! Most buckets of most histograms are empty, and are not stored. Series lie in blocks; a reading shares the blocks of which
//! nothing has changed with the reading before it.

use crate::gzip::Fragments;
use crate::snapshot::{Descriptor, Exemplar, Family, Number, Series, Snapshot, Values};
use crate::varint::{get, put};
use kstrobe_ebpf::buckets::Scheme;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Series of a block that is made of a whole family.
const BLOCK_SERIES: usize = 64;

/// Every family at one moment.
#[derive(Debug)]
pub struct Reading {
    /// When the values were read.
    pub at: SystemTime,
    /// How long the reading took.
    pub took: Duration,
    /// In a stable order.
    pub families: Vec<PackedFamily>,
    /// Exemplars of their histograms.
    pub exemplars: Vec<Exemplar>,
}

/// One metric with its series.
#[derive(Clone, Debug)]
pub struct PackedFamily {
    pub about: Arc<Descriptor>,
    /// As in [`Family`].
    pub columns: Arc<[u32]>,
    /// Sorted by label texts.
    pub blocks: Vec<Arc<Block>>,
}

/// Some series of a family.
#[derive(Debug)]
pub struct Block {
    series: Arc<[Series]>,
    values: Packed,
    /// Whether more than one reading has it.
    shared: AtomicBool,
    /// How it was written, if it is kept.
    pub(crate) fragments: Fragments,
}

/// The values of a block, one per series.
#[derive(Clone, Debug, PartialEq)]
enum Packed {
    Counters(Vec<u64>),
    /// `None` for a series without a value, which is not shown.
    Gauges(Vec<Option<Number>>),
    Histograms {
        scheme: Arc<Scheme>,
        /// End of each histogram in `bytes`.
        ends: Vec<u32>,
        /// Of each its sum, then of each populated bucket its distance from the one before and its count; all as LEB128.
        bytes: Vec<u8>,
    },
}

/// The value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Counter(u64),
    Gauge(Number),
    Histogram(Histogram<'a>),
}

/// Read from a block when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Histogram<'a> {
    /// In raw units.
    pub sum: u64,
    buckets: &'a [u8],
}

impl<'a> Histogram<'a> {
    /// Populated in-kernel buckets and their counts, ascending.
    pub fn populated(self) -> impl Iterator<Item = (usize, u64)> + 'a {
        let (mut rest, mut next) = (self.buckets, 0);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let bucket = next + get(&mut rest) as usize;
            next = bucket + 1;
            Some((bucket, get(&mut rest)))
        })
    }
}

impl Reading {
    /// The same as a snapshot.
    pub fn of(snapshot: &Snapshot, exemplars: &[Exemplar]) -> Reading {
        let families = snapshot.families.iter().map(PackedFamily::of).collect();
        Reading { at: snapshot.at, took: Duration::ZERO, families, exemplars: exemplars.to_vec() }
    }

    /// Bytes of memory that the values take, labels not counted.
    pub fn bytes(&self) -> usize {
        self.families.iter().flat_map(|family| &family.blocks).map(|block| block.values.bytes()).sum()
    }
}

impl PackedFamily {
    /// The same as a family.
    pub fn of(family: &Family) -> PackedFamily {
        let starts = (0..family.series.len()).step_by(BLOCK_SERIES);
        let blocks = starts.map(|start| {
            let range = start..(start + BLOCK_SERIES).min(family.series.len());
            let mut builder = match &family.values {
                Values::Counters(_) => BlockBuilder::counters(),
                Values::Gauges(_) => BlockBuilder::gauges(),
                Values::Histograms(histograms) => BlockBuilder::histograms(&histograms.scheme),
            };
            for at in range.clone() {
                match &family.values {
                    Values::Counters(values) => builder.counter(values[at]),
                    Values::Gauges(values) => builder.gauge(Some(values[at])),
                    Values::Histograms(all) => builder.histogram(all.sums[at], all.counts_of(at)),
                }
            }
            Arc::new(builder.build(family.series[range].into()))
        });
        PackedFamily { about: family.about.clone(), columns: family.columns.clone(), blocks: blocks.collect() }
    }

    /// The same blocks for another reading.
    pub fn share(&self) -> PackedFamily {
        let blocks = self.blocks.iter().map(Block::share).collect();
        PackedFamily { about: self.about.clone(), columns: self.columns.clone(), blocks }
    }

    /// The partition of its histograms, if that is what it has.
    pub fn scheme(&self) -> Option<&Arc<Scheme>> {
        self.blocks.iter().find_map(|block| match &block.values {
            Packed::Histograms { scheme, .. } => Some(scheme),
            _ => None,
        })
    }

    /// Whether it has no value to show.
    pub fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| block.values().next().is_none())
    }

    /// Value of a series' label, by position among [`Descriptor::label_names`].
    pub(crate) fn label<'a>(&self, series: &'a Series, position: usize) -> &'a str {
        self.columns.get(position).and_then(|&column| series.labels.get(column as usize)).map_or("", |text| text)
    }
}

impl Block {
    /// Its series, also those without a value.
    pub fn series(&self) -> &Arc<[Series]> {
        &self.series
    }

    /// The same block for another reading: what is written of it is worth keeping.
    pub fn share(self: &Arc<Block>) -> Arc<Block> {
        self.shared.store(true, Ordering::Relaxed);
        self.clone()
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// The series that have a value, with it.
    pub fn values(&self) -> impl Iterator<Item = (&Series, Value<'_>)> {
        let value = |at: usize| {
            Some(match &self.values {
                Packed::Counters(values) => Value::Counter(values[at]),
                Packed::Gauges(values) => Value::Gauge(values[at]?),
                Packed::Histograms { .. } => {
                    let mut buckets = self.values.packed(at);
                    Value::Histogram(Histogram { sum: get(&mut buckets), buckets })
                }
            })
        };
        self.series.iter().enumerate().filter_map(move |(at, series)| Some((series, value(at)?)))
    }
}

impl Packed {
    fn packed(&self, at: usize) -> &[u8] {
        let Packed::Histograms { ends, bytes, .. } = self else { return &[] };
        let start = at.checked_sub(1).map_or(0, |before| ends[before] as usize);
        &bytes[start..ends[at] as usize]
    }

    fn bytes(&self) -> usize {
        match self {
            Packed::Counters(values) => size_of_val(values.as_slice()),
            Packed::Gauges(values) => size_of_val(values.as_slice()),
            Packed::Histograms { ends, bytes, .. } => size_of_val(ends.as_slice()) + bytes.len(),
        }
    }
}

/// Packs the values of a block, one series after the other.
#[derive(Debug)]
pub struct BlockBuilder(Packed);

impl BlockBuilder {
    pub fn counters() -> BlockBuilder {
        BlockBuilder(Packed::Counters(Vec::new()))
    }

    pub fn gauges() -> BlockBuilder {
        BlockBuilder(Packed::Gauges(Vec::new()))
    }

    pub fn histograms(scheme: &Arc<Scheme>) -> BlockBuilder {
        BlockBuilder(Packed::Histograms { scheme: scheme.clone(), ends: Vec::new(), bytes: Vec::new() })
    }

    /// The next counter, in raw units. Nothing in a block of another kind, as are the others.
    pub fn counter(&mut self, value: u64) {
        if let Packed::Counters(values) = &mut self.0 {
            values.push(value);
        }
    }

    /// The next gauge, if it has a value.
    pub fn gauge(&mut self, value: Option<Number>) {
        if let Packed::Gauges(values) = &mut self.0 {
            values.push(value);
        }
    }

    /// The next histogram: its sum in raw units, and the counts of all its in-kernel buckets.
    pub fn histogram(&mut self, sum: u64, counts: &[u64]) {
        let Packed::Histograms { ends, bytes, .. } = &mut self.0 else { return };
        put(bytes, sum);
        let mut next = 0;
        for (bucket, &count) in counts.iter().enumerate().filter(|(_, count)| **count != 0) {
            put(bytes, (bucket - next) as u64);
            put(bytes, count);
            next = bucket + 1;
        }
        ends.push(bytes.len() as u32);
    }

    /// The next value is that of a series of another block of the same family.
    pub fn copy(&mut self, block: &Block, at: usize) {
        match (&mut self.0, &block.values) {
            (Packed::Counters(values), Packed::Counters(old)) => values.push(old[at]),
            (Packed::Gauges(values), Packed::Gauges(old)) => values.push(old[at]),
            (Packed::Histograms { ends, bytes, .. }, old) => {
                bytes.extend_from_slice(old.packed(at));
                ends.push(bytes.len() as u32);
            }
            _ => {}
        }
    }

    /// Whether these are the values of that block.
    pub fn is_same(&self, block: &Block) -> bool {
        match (&self.0, &block.values) {
            (Packed::Histograms { ends, bytes, .. }, Packed::Histograms { ends: old_ends, bytes: old, .. }) => {
                ends == old_ends && bytes == old
            }
            (new, old) => new == old,
        }
    }

    /// The block; `series` is parallel to the values.
    pub fn build(mut self, series: Arc<[Series]>) -> Block {
        match &mut self.0 {
            Packed::Counters(values) => values.shrink_to_fit(),
            Packed::Gauges(values) => values.shrink_to_fit(),
            Packed::Histograms { ends, bytes, .. } => {
                ends.shrink_to_fit();
                bytes.shrink_to_fit();
            }
        }
        Block { series, values: self.0, shared: AtomicBool::new(false), fragments: Fragments::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::{families, sample};
    use proptest::prelude::*;

    fn unpacked(family: &PackedFamily) -> Vec<(Series, Vec<u64>)> {
        let buckets = family.scheme().map_or(0, |scheme| scheme.buckets());
        let one = |(series, value): (&Series, Value<'_>)| {
            let words = match value {
                Value::Counter(value) => vec![value],
                Value::Gauge(Number::Unsigned(value)) => vec![value],
                Value::Gauge(Number::Signed(value)) => vec![value as u64],
                Value::Gauge(Number::Float(value)) => vec![value.to_bits()],
                Value::Histogram(histogram) => {
                    let mut words = vec![0; buckets + 1];
                    words[0] = histogram.sum;
                    histogram.populated().for_each(|(bucket, count)| words[bucket + 1] = count);
                    words
                }
            };
            (series.clone(), words)
        };
        family.blocks.iter().flat_map(|block| block.values().map(one).collect::<Vec<_>>()).collect()
    }

    fn words(family: &Family) -> Vec<(Series, Vec<u64>)> {
        let one = |(at, series): (usize, &Series)| {
            let words = match &family.values {
                Values::Counters(values) => vec![values[at]],
                Values::Gauges(values) => vec![match values[at] {
                    Number::Unsigned(value) => value,
                    Number::Signed(value) => value as u64,
                    Number::Float(value) => value.to_bits(),
                }],
                Values::Histograms(all) => [&[all.sums[at]], all.counts_of(at)].concat(),
            };
            (series.clone(), words)
        };
        family.series.iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_packed_family_has_all_values() {
        for family in &sample().families {
            assert_eq!(unpacked(&PackedFamily::of(family)), words(family), "{}", family.about.name);
        }
    }

    proptest! {
        #[test]
        fn any_family_is_packed_without_loss(families in families()) {
            for family in &families {
                prop_assert_eq!(unpacked(&PackedFamily::of(family)), words(family));
            }
        }
    }

    #[test]
    fn a_copied_value_is_the_same() {
        let sample = sample();
        for family in &sample.families {
            let packed = PackedFamily::of(family);
            let Some(old) = packed.blocks.first() else { continue };
            let mut builder = match &family.values {
                Values::Counters(_) => BlockBuilder::counters(),
                Values::Gauges(_) => BlockBuilder::gauges(),
                Values::Histograms(all) => BlockBuilder::histograms(&all.scheme),
            };
            (0..family.len()).for_each(|at| builder.copy(old, at));
            // NaN differs from itself: such a block is new each time.
            let is_nan = |value: &Number| matches!(value, Number::Float(value) if value.is_nan());
            let nan = matches!(&family.values, Values::Gauges(values) if values.iter().any(is_nan));
            assert_eq!(builder.is_same(old), !nan);
            let blocks = vec![Arc::new(builder.build(old.series().clone()))];
            let copied = PackedFamily { blocks, about: packed.about, columns: packed.columns };
            assert_eq!(unpacked(&copied), words(family));
        }
    }
}
