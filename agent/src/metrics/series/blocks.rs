//! A table read into blocks: only records that have changed since the last reading are folded, one at a time.
//!
//! Programs count the events of each record beside it, which says whether it has changed ([`Records::mark`]).

use super::{Group, TableSeries};
use crate::metrics::fold::{self, Area, FoldError, Records, Row, Words};
use crate::metrics::labels::Names;
use kstrobe_ebpf::layout::CellKind;
use kstrobe_export::reading::{Block, BlockBuilder, PackedFamily};
use kstrobe_export::snapshot::{LabelTexts, Moment, Series};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Fewest and most series of a block.
const BLOCK_SERIES: std::ops::Range<usize> = 16..64;
/// A block ends after one of so many series, which its labels decide: a new series changes the block that it is in, and no other.
const ENDS_ONE_OF: u64 = 16;
/// Program and agent do not see each other: what a program adds, and the step or the sum that says so, are visible by then in whatever order.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// One of so many blocks is folded at each reading, changed or not.
const REFOLD_ONE_OF: u64 = 64;

/// What is known of the blocks of a table.
#[derive(Default)]
pub(super) struct Blocks {
    blocks: Vec<Known>,
    readings: u64,
    counts: Vec<u64>,
}

/// A block of the last reading.
struct Known {
    series: Arc<[Series]>,
    /// By cell; none before the first reading.
    by_cell: Vec<Arc<Block>>,
    /// By series. All that a reading looks at of an idle block lies here in a row, as a miss of the CPU's cache for each group would cost
    /// more than all else.
    seen: Vec<Seen>,
    slots: Slots,
}

/// The slots of the series of a block.
#[derive(Default)]
struct Slots {
    /// Of all series, one after the other.
    all: Vec<u32>,
    /// By series, where its own end.
    ends: Vec<usize>,
}

/// What the last reading saw of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    mark: u64,
    /// The mark was as old as [`SETTLE_TIME`] when the record was folded.
    settled: bool,
}

impl TableSeries {
    /// Reads the table as [`TableSeries::read`] does, but into blocks. Without an `index`, the keys are those of the last reading.
    pub fn read_blocks<'k, W: Words + ?Sized>(
        &mut self,
        area: Area<'_, W>,
        index: Option<impl IntoIterator<Item = (&'k [u8], u32)>>,
        names: &mut Names,
        now: Moment,
    ) -> Result<Vec<PackedFamily>, FoldError> {
        fold::check_size(&self.table, area.words)?;
        self.learn(area, index, names, now);
        self.divide();
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.readings += 1;
        let records = Records::new(&self.table, area);
        let mut groups = self.groups.values_mut();
        for (number, known) in (blocks.readings..).zip(&mut blocks.blocks) {
            known.read(&records, &mut groups, number % REFOLD_ONE_OF == 0, &mut blocks.counts, now);
        }
        let families = self.families.iter().enumerate().map(|(cell, shape)| PackedFamily {
            about: shape.about.clone(),
            columns: shape.columns.clone(),
            blocks: blocks.blocks.iter().filter_map(|known| known.by_cell.get(cell)).cloned().collect(),
        });
        let families = families.collect();
        self.blocks = blocks;
        self.previous = now.wall;
        self.forget_idle_rests(now);
        Ok(families)
    }

    /// Looks which series have changed, without reading their values.
    pub fn look<'k, W: Words + ?Sized>(
        &mut self,
        area: Area<'_, W>,
        index: Option<impl IntoIterator<Item = (&'k [u8], u32)>>,
        names: &mut Names,
        now: Moment,
    ) -> Result<(), FoldError> {
        fold::check_size(&self.table, area.words)?;
        self.learn(area, index, names, now);
        let records = Records::new(&self.table, area);
        for group in self.groups.values_mut() {
            group.look(&records, now);
        }
        self.previous = now.wall;
        self.forget_idle_rests(now);
        Ok(())
    }

    /// Divides the series into blocks anew, when there are others than before. A block whose series are the same is kept.
    fn divide(&mut self) {
        if !std::mem::take(&mut self.regrouped) {
            return;
        }
        let mut old = std::mem::take(&mut self.blocks.blocks).into_iter().peekable();
        let mut new = Vec::new();
        let (mut series, mut slots, mut fresh) = (Vec::new(), Slots::default(), false);
        let mut groups = self.groups.iter_mut().peekable();
        while let Some((labels, group)) = groups.next() {
            fresh |= std::mem::take(&mut group.regrouped);
            series.push(Series { labels: labels.clone(), created: Some(group.created) });
            slots.push(&group.slots);
            if groups.peek().is_some() && !is_end(labels, series.len()) {
                continue;
            }
            let (series, slots) = (std::mem::take(&mut series), std::mem::take(&mut slots));
            while old.next_if(|known| known.series[0].labels < series[0].labels).is_some() {}
            let same = |known: &Known| !fresh && *known.series == *series;
            let known = old.next_if(same);
            new.push(known.unwrap_or_else(|| Known::new(series, slots)));
            fresh = false;
        }
        self.blocks.blocks = new;
    }
}

fn is_end(labels: &LabelTexts, length: usize) -> bool {
    let mut hasher = DefaultHasher::new();
    labels.hash(&mut hasher);
    length >= BLOCK_SERIES.end || length >= BLOCK_SERIES.start && hasher.finish().is_multiple_of(ENDS_ONE_OF)
}

impl Group {
    pub(super) fn row(&self) -> Row<'_> {
        Row { slots: &self.slots, rest: &self.rest }
    }

    /// Notes whether its records have changed since they were last looked at.
    fn look<W: Words + ?Sized>(&mut self, records: &Records<'_, W>, now: Moment) {
        let mark = records.mark(&self.slots);
        if mark != self.mark {
            (self.mark, self.changed) = (mark, now.mono);
        }
    }

    /// Its records are folded now. Returns what was seen of them.
    fn folded(&self, now: Moment) -> Seen {
        Seen { mark: self.mark, settled: now.mono.saturating_duration_since(self.changed) >= SETTLE_TIME }
    }
}

impl Slots {
    fn push(&mut self, of_series: &[u32]) {
        self.all.extend_from_slice(of_series);
        self.ends.push(self.all.len());
    }

    /// By series.
    fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.all[*start..*end])
    }
}

impl Known {
    fn new(series: Vec<Series>, slots: Slots) -> Known {
        Known { by_cell: Vec::new(), seen: vec![Seen::default(); series.len()], series: series.into(), slots }
    }

    /// By series, whether its records are as they were when they were last folded.
    fn idle<W: Words + ?Sized>(&self, records: &Records<'_, W>) -> Vec<bool> {
        let is_idle = |(seen, slots): (&Seen, &[u32])| seen.settled && records.mark(slots) == seen.mark;
        self.seen.iter().zip(self.slots.iter()).map(is_idle).collect()
    }

    /// Reads the groups of this block. With `all`, also those that are idle.
    fn read<'g, W: Words + ?Sized>(
        &mut self,
        records: &Records<'_, W>,
        groups: impl Iterator<Item = &'g mut Group>,
        all: bool,
        counts: &mut Vec<u64>,
        now: Moment,
    ) {
        let mut builders: Vec<BlockBuilder> = Vec::new();
        let fresh = self.by_cell.is_empty();
        let idle = self.idle(records);
        if idle.iter().all(|idle| *idle) && !all && !fresh {
            self.by_cell.iter_mut().for_each(|block| *block = block.share());
            // Passes over the groups without a look into them.
            groups.take(idle.len()).for_each(drop);
            return;
        }
        for (at, (idle, group)) in idle.into_iter().zip(groups).enumerate() {
            if idle && !all && !fresh {
                builders.iter_mut().zip(&self.by_cell).for_each(|(builder, old)| builder.copy(old, at));
                continue;
            }
            group.look(records, now);
            if builders.is_empty() {
                builders = records.table().cells.iter().map(|cell| builder(&cell.kind)).collect();
                for (builder, old) in builders.iter_mut().zip(&self.by_cell) {
                    (0..at).for_each(|before| builder.copy(old, before));
                }
            }
            for (builder, cell) in builders.iter_mut().zip(&records.table().cells) {
                match &cell.kind {
                    CellKind::Counter | CellKind::Stacks(_) => builder.counter(records.counter(cell, group.row())),
                    CellKind::Gauge { .. } | CellKind::Sum { .. } | CellKind::Extreme { .. } => {
                        builder.gauge(records.gauge(cell, group.row()));
                    }
                    CellKind::Histogram(scheme) => {
                        counts.resize(scheme.buckets(), 0);
                        let sum = records.histogram(cell, group.row(), counts);
                        builder.histogram(sum, counts);
                    }
                }
            }
            self.seen[at] = group.folded(now);
        }
        let mut builders = builders.into_iter();
        let old = std::mem::take(&mut self.by_cell);
        if fresh {
            self.by_cell = builders.map(|builder| Arc::new(builder.build(self.series.clone()))).collect();
            return;
        }
        let block = |old: Arc<Block>| match builders.next().filter(|new| !new.is_same(&old)) {
            Some(new) => Arc::new(new.build(self.series.clone())),
            None => old.share(),
        };
        self.by_cell = old.into_iter().map(block).collect();
    }
}

fn builder(kind: &CellKind) -> BlockBuilder {
    match kind {
        CellKind::Counter | CellKind::Stacks(_) => BlockBuilder::counters(),
        CellKind::Gauge { .. } | CellKind::Sum { .. } | CellKind::Extreme { .. } => BlockBuilder::gauges(),
        CellKind::Histogram(scheme) => BlockBuilder::histograms(scheme),
    }
}
