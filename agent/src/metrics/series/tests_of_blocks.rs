use super::tests::{at, descriptor, field};
use super::*;
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use kstrobe_ebpf::layout::{Cell, CellKind, MapId};
use kstrobe_ebpf::typed::Ty;
use kstrobe_export::reading::{PackedFamily, Reading};
use kstrobe_export::snapshot::Snapshot;
use kstrobe_export::{Form, Format, KeptBytes};
use proptest::prelude::*;
use std::io::Read;

const SLOTS: u32 = 256;
const SHARDS: u32 = 2;

/// A histogram and a counter by a number.
fn table() -> Table {
    let spec = BucketSpec { schema: 0, raw_per_unit: 1, min: 1, max: 64, classic: vec!["3".into(), "10".into()] };
    let histogram = CellKind::Histogram(Arc::new(Scheme::new(&spec).unwrap()));
    let counter = Cell { metric: 1, offset: histogram.bytes(), kind: CellKind::Counter, labels: vec![0] };
    let cells = vec![Cell { metric: 0, offset: 0, kind: histogram, labels: vec![0] }, counter];
    let index = Index::Hash { map: MapId(1), free: MapId(2), key_bytes: 4, fresh: None };
    let key = vec![field(Ty::U32, 0, Decoder::Unsigned)];
    Table { values: MapId(0), changes: None, shards: SHARDS, slots: SLOTS, overflow: Some(0), index, key, cells }
}

fn scheme(table: &Table) -> &Scheme {
    let CellKind::Histogram(scheme) = &table.cells[0].kind else { panic!("a histogram") };
    scheme
}

fn about() -> Vec<Arc<Descriptor>> {
    let mut histogram = (*descriptor("kstrobe_x", &["number"])).clone();
    histogram.kind = kstrobe_export::snapshot::Kind::Histogram;
    vec![Arc::new(histogram), descriptor("kstrobe_x_total", &["number"])]
}

fn series(born: Moment) -> TableSeries {
    TableSeries::new(table(), about(), Duration::from_secs(1000), born)
}

/// The memory of a table and its index.
struct Kernel {
    table: Table,
    words: Vec<u64>,
    /// The number of events of each record, where programs keep it.
    changes: Option<Vec<u64>>,
    keys: Vec<(u32, u32)>,
}

impl Kernel {
    fn new() -> Kernel {
        let table = table();
        Kernel { words: vec![0; fold::table_words(&table)], table, changes: None, keys: Vec::new() }
    }

    fn with_changes() -> Kernel {
        Kernel { changes: Some(vec![0; (SHARDS * SLOTS) as usize]), ..Kernel::new() }
    }

    fn area(&self) -> Area<'_, [u64]> {
        Area { words: &self.words, changes: self.changes.as_deref() }
    }

    fn record(&mut self, shard: u32, slot: u32) -> &mut [u64] {
        let stride = fold::record_words(&self.table);
        let start = (shard * SLOTS + slot) as usize * stride;
        &mut self.words[start..start + stride]
    }

    fn observe(&mut self, key: u32, shard: u32, value: u64) {
        let bucket = scheme(&self.table).index(value);
        let slot = match self.keys.iter().find(|(known, _)| *known == key) {
            Some((_, slot)) => *slot,
            None => {
                let free = (1..SLOTS).find(|slot| self.keys.iter().all(|(_, used)| used != slot));
                let Some(slot) = free else { return };
                self.keys.push((key, slot));
                slot
            }
        };
        let record = self.record(shard, slot);
        record[0] += value;
        record[1 + bucket] += 1;
        *record.last_mut().unwrap() += 1;
        if let Some(changes) = &mut self.changes {
            changes[(shard * SLOTS + slot) as usize] += 1;
        }
    }

    fn evict(&mut self, key: u32, all: &mut [&mut TableSeries]) {
        let Some(at) = self.keys.iter().position(|(known, _)| *known == key) else { return };
        let (_, slot) = self.keys.swap_remove(at);
        all.iter_mut().for_each(|series| series.evict(&[slot], self.words.as_slice()));
        (0..SHARDS).for_each(|shard| self.record(shard, slot).fill(0));
    }

    fn index(&self) -> Vec<([u8; 4], u32)> {
        self.keys.iter().map(|(key, slot)| (key.to_le_bytes(), *slot)).collect()
    }

    fn look(&self, series: &mut TableSeries, now: Moment) {
        let index = self.index();
        let index = index.iter().map(|(key, slot)| (key.as_slice(), *slot));
        series.look(self.area(), Some(index), &mut Names::new(), now).unwrap();
    }

    fn read(&self, series: &mut TableSeries, now: Moment) -> Vec<PackedFamily> {
        let index = self.index();
        let index = index.iter().map(|(key, slot)| (key.as_slice(), *slot));
        series.read_blocks(self.area(), Some(index), &mut Names::new(), now).unwrap()
    }

    /// The exposition of a reading in blocks, and that of a snapshot.
    fn both(&self, blocks: &mut TableSeries, whole: &mut TableSeries, now: Moment) -> [Reading; 2] {
        let reading = |families| Reading { at: now.wall, took: Duration::ZERO, families, exemplars: vec![] };
        let index = self.index();
        let keys = index.iter().map(|(key, slot)| (key.as_slice(), *slot));
        let families = whole.read(self.words.as_slice(), keys, &mut Names::new(), now).unwrap();
        [reading(self.read(blocks, now)), Reading::of(&Snapshot { at: now.wall, families }, &[])]
    }
}

fn exposition(reading: &Reading, format: Format, gzip: Option<&KeptBytes>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut send = |piece: bytes::Bytes| {
        out.extend_from_slice(&piece);
        Ok(())
    };
    kstrobe_export::write(reading, b"", Form { format, native_bucket_limit: 4 }, gzip, &mut send).unwrap();
    if gzip.is_none() {
        return out;
    }
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(out.as_slice()).read_to_end(&mut unpacked).unwrap();
    unpacked
}

#[derive(Clone, Debug)]
enum Step {
    Observe { key: u32, shard: u32, value: u64 },
    Evict(u32),
    Look(u64),
    Read(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let observe = (0..200u32, 0..SHARDS, 0..100u64);
    let step = prop_oneof![
        8 => observe.prop_map(|(key, shard, value)| Step::Observe { key, shard, value }),
        1 => (0..200u32).prop_map(Step::Evict),
        1 => (0..2u64).prop_map(Step::Look),
        2 => (0..2u64).prop_map(Step::Read),
    ];
    proptest::collection::vec(step, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn blocks_are_what_the_whole_table_is(steps in steps(), changes in any::<bool>()) {
        let (born, kept) = (Moment::now(), KeptBytes::default());
        let mut kernel = if changes { Kernel::with_changes() } else { Kernel::new() };
        let (mut blocks, mut whole, mut seconds) = (series(born), series(born), 0);
        (0..150).for_each(|key| kernel.observe(key, 0, 5));
        for step in steps.into_iter().chain([Step::Read(1), Step::Read(1), Step::Read(1)]) {
            match step {
                Step::Observe { key, shard, value } => kernel.observe(key, shard, value),
                Step::Evict(key) => kernel.evict(key, &mut [&mut blocks, &mut whole]),
                Step::Look(passed) => {
                    seconds += passed;
                    kernel.look(&mut blocks, at(born, seconds));
                    kernel.look(&mut whole, at(born, seconds));
                }
                Step::Read(passed) => {
                    seconds += passed;
                    let [blocks, whole] = kernel.both(&mut blocks, &mut whole, at(born, seconds));
                    for format in Format::ALL {
                        let expected = exposition(&whole, format, None);
                        prop_assert!(exposition(&blocks, format, None) == expected, "{format:?}");
                        prop_assert!(exposition(&blocks, format, Some(&kept)) == expected, "{format:?}, packed");
                    }
                }
            }
        }
    }
}

#[test]
fn blocks_without_a_change_are_shared() {
    let (born, mut kernel) = (Moment::now(), Kernel::new());
    let mut series = series(born);
    (0..200).for_each(|key| kernel.observe(key, key % 2, 7));
    let mut read = |kernel: &Kernel, seconds| kernel.read(&mut series, at(born, seconds)).remove(0).blocks;
    read(&kernel, 1);
    read(&kernel, 2);
    let before = read(&kernel, 3);
    assert!(before.len() > 2);
    kernel.observe(77, 0, 9);
    let after = read(&kernel, 4);
    let shared = before.iter().zip(&after).filter(|(before, after)| Arc::ptr_eq(before, after));
    assert_eq!(shared.count(), before.len() - 1);
    // A new series changes the block that it comes into.
    kernel.observe(1000, 0, 9);
    let more = read(&kernel, 5);
    let kept = after.iter().filter(|block| more.iter().any(|other| Arc::ptr_eq(block, other)));
    assert!(kept.count() >= after.len() - 1);
}

/// Counts in the buckets of the histograms, and the sum.
fn counted(kernel: &Kernel, series: &mut TableSeries, now: Moment) -> String {
    let families = kernel.read(series, now);
    let reading = Reading { at: now.wall, took: Duration::ZERO, families, exemplars: vec![] };
    let text = String::from_utf8(exposition(&reading, Format::Text004, None)).unwrap();
    text.lines().filter(|line| line.starts_with("kstrobe_x_count")).map(str::to_owned).collect()
}

#[test]
fn an_event_that_a_reading_cut_in_two_is_counted_by_the_next() {
    let (born, mut kernel) = (Moment::now(), Kernel::new());
    let mut series = series(born);
    kernel.observe(1, 0, 7);
    for seconds in 1..4 {
        assert!(counted(&kernel, &mut series, at(born, seconds)).ends_with(" 1"));
    }
    kernel.record(0, 1)[0] += 7;
    assert!(counted(&kernel, &mut series, at(born, 4)).ends_with(" 1"));
    let bucket = scheme(&kernel.table).index(7);
    kernel.record(0, 1)[1 + bucket] += 1;
    assert!(counted(&kernel, &mut series, at(born, 5)).ends_with(" 2"));
}

#[test]
fn values_that_leave_the_sum_as_it_was_are_found_in_time() {
    let (born, mut kernel) = (Moment::now(), Kernel::new());
    let mut series = series(born);
    kernel.observe(1, 0, 7);
    for seconds in 1..4 {
        counted(&kernel, &mut series, at(born, seconds));
    }
    let bucket = scheme(&kernel.table).index(9);
    kernel.record(0, 1)[1 + bucket] += 2;
    let found = (4..4 + 64).find(|seconds| counted(&kernel, &mut series, at(born, *seconds)).ends_with(" 3"));
    assert!(found.is_some());
}

#[test]
fn words_of_changes_alone_say_what_is_read_again() {
    let (born, mut kernel) = (Moment::now(), Kernel::with_changes());
    let mut series = series(born);
    kernel.observe(1, 0, 7);
    (1..4).for_each(|seconds| assert!(counted(&kernel, &mut series, at(born, seconds)).ends_with(" 1")));
    // A program that is not through has added to the record, and says so last.
    let bucket = scheme(&kernel.table).index(7);
    let record = kernel.record(1, 1);
    (record[0], record[1 + bucket]) = (7, 1);
    assert!(counted(&kernel, &mut series, at(born, 4)).ends_with(" 1"));
    kernel.changes.as_mut().unwrap()[(SLOTS + 1) as usize] = 1;
    assert!(counted(&kernel, &mut series, at(born, 5)).ends_with(" 2"));
}

#[test]
fn a_look_notices_changes_as_a_reading_does() {
    let (born, mut kernel) = (Moment::now(), Kernel::new());
    let mut series = series(born);
    kernel.observe(1, 0, 7);
    let look = |kernel: &Kernel, series: &mut TableSeries, seconds| {
        let index = kernel.index();
        let index = index.iter().map(|(key, slot)| (key.as_slice(), *slot));
        series.look(kernel.area(), Some(index), &mut Names::new(), at(born, seconds)).unwrap();
        series.tick(at(born, seconds).mono).len()
    };
    assert_eq!(look(&kernel, &mut series, 1), 0);
    assert_eq!(look(&kernel, &mut series, 1000), 0);
    assert_eq!(look(&kernel, &mut series, 1001), 1, "idle for its time to live");
    kernel.observe(1, 1, 0);
    assert_eq!(look(&kernel, &mut series, 1002), 0);
}
