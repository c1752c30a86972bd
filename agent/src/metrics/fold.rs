//! Sums the records of a table over its shards, column by column.
//!
//! The values area is an array of `shards * slots` records, shard-major; a record is [`record_words`] words and holds one
//! cell per metric. A *row* of the result is one series: usually one slot, several when different keys have the same
//! label text.

use kstrobe_ebpf::layout::{Cell, CellKind, Extreme, Index, Table};
use kstrobe_export::snapshot::{Histograms, Number};
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// The 64-bit words of a values area: the kernel's own memory, or a copy of it.
pub trait Words {
    /// How many there are.
    fn count(&self) -> usize;
    /// One word; what was written before it by the same CPU is visible afterwards.
    fn word(&self, at: usize) -> u64;
    /// `out[i] += words[at + i]`, wrapping.
    fn add_to(&self, at: usize, out: &mut [u64]);
    /// Whether `count` words from `at` are all zero.
    fn all_zero(&self, at: usize, count: usize) -> bool;
}

/// A mapped array map. Programs add while we read: each word is whole, but a histogram's sum may be one event ahead of
/// its buckets.
impl Words for [AtomicU64] {
    fn count(&self) -> usize {
        self.len()
    }
    fn word(&self, at: usize) -> u64 {
        self[at].load(Ordering::Acquire)
    }
    fn add_to(&self, at: usize, out: &mut [u64]) {
        let words = &self[at..at + out.len()];
        for (sum, word) in out.iter_mut().zip(words) {
            *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        }
    }
    fn all_zero(&self, at: usize, count: usize) -> bool {
        self[at..at + count].iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }
}

/// A copy read by system calls.
impl Words for [u64] {
    fn count(&self) -> usize {
        self.len()
    }
    fn word(&self, at: usize) -> u64 {
        self[at]
    }
    fn add_to(&self, at: usize, out: &mut [u64]) {
        let words = &self[at..at + out.len()];
        for (sum, word) in out.iter_mut().zip(words) {
            *sum = sum.wrapping_add(*word);
        }
    }
    fn all_zero(&self, at: usize, count: usize) -> bool {
        self[at..at + count].iter().all(|&word| word == 0)
    }
}

/// Why a table could not be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FoldError {
    /// The memory is smaller than the layout says.
    #[error("the values area has {have} words, but its layout needs {need}: it belongs to another layout")]
    Short {
        /// Words given.
        have: usize,
        /// Words needed.
        need: usize,
    },
}

/// Words from one record to the next.
pub fn record_words(table: &Table) -> usize {
    let end = |cell: &Cell| cell.offset as usize + cell.kind.bytes() as usize;
    table.cells.iter().map(end).max().unwrap_or(0).div_ceil(8)
}

/// Words of the whole values area.
pub fn table_words(table: &Table) -> usize {
    record_words(table) * table.slots as usize * table.shards as usize
}

/// Checks once that every word of the table can be read, so that folding needs no checks of its own.
pub fn check_size<W: Words + ?Sized>(table: &Table, words: &W) -> Result<(), FoldError> {
    let (have, need) = (words.count(), table_words(table));
    if have < need { Err(FoldError::Short { have, need }) } else { Ok(()) }
}

/// Whether no shard has anything in this slot.
pub fn is_zero<W: Words + ?Sized>(table: &Table, words: &W, slot: u32) -> bool {
    let stride = record_words(table);
    (0..table.shards as usize).all(|shard| words.all_zero(record_at(table, stride, shard, slot), stride))
}

fn record_at(table: &Table, stride: usize, shard: usize, slot: u32) -> usize {
    element(table, shard, slot) * stride
}

/// The number of a record.
fn element(table: &Table, shard: usize, slot: u32) -> usize {
    shard * table.slots as usize + slot as usize
}

/// One metric's values, one per row.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Raw units.
    Counter(Vec<u64>),
    /// `None` where it was never set.
    Gauge(Vec<Option<Number>>),
    /// Sums and bucket counts.
    Histogram(Histograms),
}

/// The folded table.
#[derive(Clone, Debug, PartialEq)]
pub struct Folded {
    /// Parallel to [`Table::cells`].
    pub columns: Vec<Column>,
    /// One number per row that changes whenever the row's values do: a sum of counts, which only grow, and a hash of gauges.
    pub fingerprints: Vec<u64>,
}

/// The memory of a table.
#[derive(Debug)]
pub struct Area<'a, W: ?Sized> {
    pub words: &'a W,
    /// A word for each record that grows with each of its events, where programs keep one.
    pub changes: Option<&'a W>,
}

impl<W: ?Sized> Clone for Area<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: ?Sized> Copy for Area<'_, W> {}

impl<'a, W: ?Sized> From<&'a W> for Area<'a, W> {
    fn from(words: &'a W) -> Self {
        Area { words, changes: None }
    }
}

/// What one series is made of.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub slots: &'a [u32],
    /// What slots had that it was made of once, a record or nothing. Gauges take no part in it.
    pub rest: &'a [u64],
}

impl<'a> From<&'a [u32]> for Row<'a> {
    fn from(slots: &'a [u32]) -> Self {
        Row { slots, rest: &[] }
    }
}

/// Adds a slot's record to `rest`, word by word.
pub fn keep<W: Words + ?Sized>(table: &Table, words: &W, slot: u32, rest: &mut Vec<u64>) {
    let stride = record_words(table);
    rest.resize(stride, 0);
    if slot < table.slots {
        (0..table.shards as usize).for_each(|shard| words.add_to(record_at(table, stride, shard, slot), rest));
    }
}

/// Folds rows of slots, in the order given. Slots beyond the table are ignored.
pub fn fold<'a, W: Words + ?Sized, R: Into<Row<'a>>>(
    table: &Table,
    words: &W,
    rows: impl ExactSizeIterator<Item = R> + Clone,
) -> Result<Folded, FoldError> {
    let rows = rows.map(Into::into);
    check_size(table, words)?;
    let mut fingerprints = vec![0; rows.len()];
    let columns =
        table.cells.iter().map(|cell| fold_cell(table, words, cell, rows.clone(), &mut fingerprints)).collect();
    Ok(Folded { columns, fingerprints })
}

fn fold_cell<'a, W: Words + ?Sized>(
    table: &Table,
    words: &W,
    cell: &Cell,
    rows: impl ExactSizeIterator<Item = Row<'a>>,
    fingerprints: &mut [u64],
) -> Column {
    let records = Records::new(table, words.into());
    let rows = rows.zip(fingerprints);
    match &cell.kind {
        CellKind::Counter | CellKind::Stacks(_) => Column::Counter(
            rows.map(|(row, print)| {
                let value = records.counter(cell, row);
                *print = print.wrapping_add(value);
                value
            })
            .collect(),
        ),
        CellKind::Gauge { .. } | CellKind::Sum { .. } | CellKind::Extreme { .. } => Column::Gauge(
            rows.map(|(row, print)| {
                let value = records.gauge(cell, row);
                *print = print.wrapping_add(gauge_print(value));
                value
            })
            .collect(),
        ),
        CellKind::Histogram(scheme) => {
            let buckets = scheme.buckets();
            let mut sums = Vec::with_capacity(rows.len());
            let mut counts = vec![0u64; rows.len() * buckets];
            for ((row, print), out) in rows.zip(counts.chunks_exact_mut(buckets)) {
                let sum = records.histogram(cell, row, out);
                let total = out.iter().fold(0u64, |total, &count| total.wrapping_add(count));
                *print = print.wrapping_add(sum).wrapping_add(total);
                sums.push(sum);
            }
            Column::Histogram(Histograms { scheme: scheme.clone(), sums, counts })
        }
    }
}

/// The records of a table whose size [`check_size`] has checked.
pub struct Records<'a, W: ?Sized> {
    table: &'a Table,
    words: &'a W,
    changes: Option<&'a W>,
    /// Words from one record to the next.
    stride: usize,
}

impl<'a, W: Words + ?Sized> Records<'a, W> {
    pub fn new(table: &'a Table, Area { words, changes }: Area<'a, W>) -> Self {
        let elements = table.slots as usize * table.shards as usize;
        let changes = changes.filter(|changes| changes.count() >= elements);
        Records { table, words, changes, stride: record_words(table) }
    }

    pub fn table(&self) -> &'a Table {
        self.table
    }

    /// Where the records of a row begin.
    fn starts<'r>(&'r self, row: Row<'r>) -> impl Iterator<Item = usize> + 'r {
        row.slots.iter().flat_map(move |&slot| self.records(slot))
    }

    /// Where the records of a slot begin: none beyond the table.
    fn records(&self, slot: u32) -> impl Iterator<Item = usize> {
        self.elements(slot).map(|element| element * self.stride)
    }

    /// The numbers of the records of a slot.
    fn elements(&self, slot: u32) -> impl Iterator<Item = usize> {
        let shards = if slot < self.table.slots { 0..self.table.shards as usize } else { 0..0 };
        shards.map(move |shard| element(self.table, shard, slot))
    }

    pub fn counter(&self, cell: &Cell, row: Row<'_>) -> u64 {
        let first = first_word(cell);
        let rest = row.rest.get(first).copied().unwrap_or(0);
        self.starts(row).fold(rest, |sum, at| sum.wrapping_add(self.words.word(at + first)))
    }

    /// Of whatever is a gauge.
    pub fn gauge(&self, cell: &Cell, row: Row<'_>) -> Option<Number> {
        let first = first_word(cell);
        let starts = self.starts(row).map(|at| at + first);
        match cell.kind {
            // Nothing at all is a true count where no label tells of what.
            CellKind::Sum { signed } => sum(self.words, starts, signed, self.table.index == Index::Single),
            // A last value has no sum over keys that read the same: the largest stands for all.
            CellKind::Gauge { signed } => extreme(self.words, starts, signed, Extreme::Max),
            CellKind::Extreme { signed, end } => extreme(self.words, starts, signed, end),
            _ => None,
        }
    }

    /// Writes the counts of all buckets, and returns the sum.
    pub fn histogram(&self, cell: &Cell, row: Row<'_>, counts: &mut [u64]) -> u64 {
        let first = first_word(cell);
        counts.fill(0);
        let mut sum = row.rest.get(first).copied().unwrap_or(0);
        for (count, rest) in counts.iter_mut().zip(row.rest.get(first + 1..).unwrap_or(&[])) {
            *count = *rest;
        }
        for at in self.starts(row) {
            self.words.add_to(at + first + 1, counts);
            sum = sum.wrapping_add(self.words.word(at + first));
        }
        sum
    }

    /// A number that changes with the values of these slots, from the words that programs keep for this. Where they keep none, from two words
    /// of each cell: an observation changes the sum of its histogram, or has the value 0 and is in the first bucket. It then stays the
    /// same when values of a histogram add up to a multiple of 2^64.
    pub fn mark(&self, slots: &[u32]) -> u64 {
        match self.changes {
            Some(changes) => {
                let elements = slots.iter().flat_map(|&slot| self.elements(slot));
                elements.fold(0, |mark, at| mixed(mark ^ changes.word(at)))
            }
            None => {
                let words = slots.iter().flat_map(|&slot| self.marking_words(slot));
                words.fold(0, |mark, word| mixed(mark ^ word))
            }
        }
    }

    /// Whether [`Records::mark`] finds nothing in this slot.
    pub fn is_unused(&self, slot: u32) -> bool {
        match self.changes {
            Some(changes) => self.elements(slot).all(|at| changes.word(at) == 0),
            None => self.marking_words(slot).all(|word| word == 0),
        }
    }

    fn marking_words(&self, slot: u32) -> impl Iterator<Item = u64> {
        self.records(slot).flat_map(move |at| {
            self.table.cells.iter().flat_map(move |cell| {
                let first = at + first_word(cell);
                let second = !matches!(cell.kind, CellKind::Counter | CellKind::Stacks(_));
                (first..=first + usize::from(second)).map(|at| self.words.word(at))
            })
        })
    }
}

/// Of a cell, from the beginning of its record.
fn first_word(cell: &Cell) -> usize {
    cell.offset as usize / 8
}

fn mixed(word: u64) -> u64 {
    word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

/// The smallest or the largest of all; `None` where there is no value.
fn extreme<W: Words + ?Sized>(
    words: &W,
    starts: impl Iterator<Item = usize>,
    signed: bool,
    end: Extreme,
) -> Option<Number> {
    // The flag is written after the value, so it is read before it.
    let set = starts.filter(|at| words.word(at + 1) != 0).map(|at| words.word(at));
    set.reduce(|a, b| end.aggregate().of(a, b, signed)).map(|word| number(word, signed))
}

fn number(word: u64, signed: bool) -> Number {
    if signed { Number::Signed(word as i64) } else { Number::Unsigned(word) }
}

/// What was added for keys that read the same; `None` where nothing was, unless `counts` says that this is a 0.
fn sum<W: Words + ?Sized>(
    words: &W,
    starts: impl Iterator<Item = usize>,
    signed: bool,
    counts: bool,
) -> Option<Number> {
    let set = starts.filter(|at| words.word(at + 1) != 0).map(|at| words.word(at));
    let sum = set.reduce(u64::wrapping_add).or(counts.then_some(0))?;
    Some(number(sum, signed))
}

/// Gauges go up and down, so a plain sum over the row could stay the same when two of them move.
fn gauge_print(value: Option<Number>) -> u64 {
    let bits = match value {
        None => return 0,
        Some(Number::Unsigned(value)) => value,
        Some(Number::Signed(value)) => value as u64,
        Some(Number::Float(value)) => value.to_bits(),
    };
    let mixed = (bits ^ (bits >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests;
