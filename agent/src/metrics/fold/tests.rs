use super::*;
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use kstrobe_ebpf::layout::{Index, MapId};
use std::sync::Arc;
use std::time::Instant;

/// Bounds 0, 1, 2: four buckets.
fn scheme() -> Arc<Scheme> {
    scheme_of(0, 2)
}

fn scheme_of(schema: u8, max: u64) -> Arc<Scheme> {
    Arc::new(Scheme::new(&BucketSpec { schema, raw_per_unit: 1, min: 1, max, classic: vec![] }).unwrap())
}

fn cell(metric: u32, offset: u32, kind: CellKind) -> Cell {
    Cell { metric, offset, kind, labels: vec![] }
}

/// A counter, a gauge and a histogram of four buckets: 1 + 2 + 5 words.
fn table(shards: u32, slots: u32) -> Table {
    Table {
        values: MapId(0),
        changes: None,
        shards,
        slots,
        overflow: None,
        index: Index::Single,
        key: vec![],
        cells: vec![
            cell(0, 0, CellKind::Counter),
            cell(1, 8, CellKind::Gauge { signed: true }),
            cell(2, 24, CellKind::Histogram(scheme())),
        ],
    }
}

fn put(words: &mut [u64], table: &Table, shard: usize, slot: usize, record: &[u64]) {
    let stride = record_words(table);
    let at = (shard * table.slots as usize + slot) * stride;
    words[at..at + record.len()].copy_from_slice(record);
}

#[test]
fn shards_and_keys_of_one_row_are_added() {
    let table = table(2, 3);
    let mut words = vec![0u64; table_words(&table)];
    put(&mut words, &table, 0, 0, &[1, 0, 0, 10, 1, 2, 3, 4]);
    put(&mut words, &table, 1, 0, &[2, -5i64 as u64, 1, 20, 4, 5, 6, 7]);
    put(&mut words, &table, 0, 1, &[100, 7, 1, 1, 0, 0, 1, 0]);
    put(&mut words, &table, 1, 2, &[50, 0, 0, 5, 1, 0, 0, 0]);

    let rows: [&[u32]; 2] = [&[0], &[1, 2]];
    let folded = fold(&table, words.as_slice(), rows.into_iter()).unwrap();
    let histograms = Histograms { scheme: scheme(), sums: vec![30, 6], counts: vec![5, 7, 9, 11, 1, 0, 1, 0] };
    assert_eq!(
        folded.columns,
        [
            Column::Counter(vec![3, 150]),
            Column::Gauge(vec![Some(Number::Signed(-5)), Some(Number::Signed(7))]),
            Column::Histogram(histograms),
        ]
    );
    assert!(!is_zero(&table, words.as_slice(), 2));

    let mapped: Vec<AtomicU64> = words.iter().copied().map(AtomicU64::new).collect();
    assert_eq!(fold(&table, mapped.as_slice(), rows.into_iter()).unwrap(), folded, "mapped memory reads the same");
}

#[test]
fn an_unset_gauge_is_none_even_when_its_value_is_left_over() {
    let table = table(1, 1);
    let folded = fold(&table, [0, 9, 0, 0, 0, 0, 0, 0].as_slice(), [[0].as_slice()].into_iter()).unwrap();
    assert_eq!(folded.columns[1], Column::Gauge(vec![None]));
}

#[test]
fn every_change_changes_the_fingerprint() {
    let table = table(1, 1);
    let print =
        |record: [u64; 8]| fold(&table, record.as_slice(), [[0].as_slice()].into_iter()).unwrap().fingerprints[0];
    let before = print([1, 5, 1, 10, 1, 0, 0, 0]);
    for after in
        [[2, 5, 1, 10, 1, 0, 0, 0], [1, 4, 1, 10, 1, 0, 0, 0], [1, 5, 1, 11, 1, 0, 0, 0], [1, 5, 1, 10, 1, 0, 0, 1]]
    {
        assert_ne!(before, print(after), "{after:?}");
    }
}

#[test]
fn memory_of_another_layout_is_refused_and_wild_slots_are_ignored() {
    let table = table(2, 3);
    let short = vec![0u64; table_words(&table) - 1];
    let error = fold(&table, short.as_slice(), [[0].as_slice()].into_iter()).unwrap_err();
    assert_eq!(error, FoldError::Short { have: 47, need: 48 });

    let words = vec![1u64; table_words(&table)];
    let folded = fold(&table, words.as_slice(), [[3, u32::MAX].as_slice()].into_iter()).unwrap();
    assert_eq!(folded.columns[0], Column::Counter(vec![0]));
}

#[test]
fn extremes_of_cpus_become_one_and_what_is_unset_counts_not() {
    let mut table = table(3, 1);
    let extreme = |end| CellKind::Extreme { signed: true, end };
    table.cells = vec![cell(0, 0, extreme(Extreme::Min)), cell(1, 16, extreme(Extreme::Max))];
    let mut words = vec![0u64; table_words(&table)];
    put(&mut words, &table, 0, 0, &[-5i64 as u64, 1, 7, 1]);
    put(&mut words, &table, 2, 0, &[-9i64 as u64, 1, 3, 1]);
    let folded = fold(&table, words.as_slice(), [[0].as_slice()].into_iter()).unwrap();
    let gauge = |value| Column::Gauge(vec![Some(Number::Signed(value))]);
    assert_eq!(folded.columns, [gauge(-9), gauge(7)], "the second CPU has had no event");
}

/// `cargo test -p kstrobe --release -- --ignored --nocapture cost_of`
#[test]
#[ignore = "prints a measurement"]
fn cost_of_folding_10_000_histograms() {
    let wide = scheme_of(3, 1 << 28);
    let mut table = table(2, 10_001);
    table.cells = vec![cell(0, 0, CellKind::Histogram(wide.clone()))];
    let words: Vec<AtomicU64> = (0..table_words(&table) as u64).map(AtomicU64::new).collect();
    let slots: Vec<[u32; 1]> = (1..=10_000).map(|slot| [slot]).collect();
    let best = (0..10).map(|_| {
        let start = Instant::now();
        let folded = fold(&table, words.as_slice(), slots.iter().map(|slot| slot.as_slice())).unwrap();
        let spent = start.elapsed();
        assert_eq!(folded.fingerprints.len(), 10_000);
        spent
    });
    println!("fold 10,000 x {} buckets x 2 shards: {:?}", wide.buckets(), best.min().unwrap());
}
