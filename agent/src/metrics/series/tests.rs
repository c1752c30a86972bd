use super::*;
use kstrobe_ebpf::layout::CellKind;
use kstrobe_ebpf::layout::{Cell, MapId};
use kstrobe_ebpf::typed::{Decoder, Ty};
use kstrobe_export::snapshot::Kind;

pub(super) fn at(born: Moment, seconds: u64) -> Moment {
    let age = Duration::from_secs(seconds);
    Moment { wall: born.wall + age, mono: born.mono + age }
}

pub(super) fn descriptor(name: &str, labels: &[&str]) -> Arc<Descriptor> {
    Arc::new(Descriptor {
        name: name.into(),
        help: "X.".into(),
        kind: Kind::Counter,
        unit: String::new(),
        raw_per_unit: 1,
        label_names: labels.iter().map(|&label| label.into()).collect(),
    })
}

pub(super) fn field(ty: Ty, offset: u32, decoder: Decoder) -> KeyField {
    KeyField { names: vec![], ty, offset, decoder }
}

fn counter_table(index: Index, slots: u32, overflow: Option<u32>, key: Vec<KeyField>) -> Table {
    let labels = (0..key.len() as u32).collect();
    let cells = vec![Cell { metric: 0, offset: 0, kind: CellKind::Counter, labels }];
    Table { values: MapId(0), changes: None, shards: 1, slots, overflow, index, key, cells }
}

/// One label of type u32: 0 is `none`, everything else `many`.
fn hash_table(slots: u32) -> Table {
    let index = Index::Hash { map: MapId(1), free: MapId(2), key_bytes: 4, fresh: None };
    let decoder = Decoder::Map(vec![(0, "none".into()), (1, "one".into())], Some("many".into()));
    counter_table(index, slots, Some(0), vec![field(Ty::U32, 0, decoder)])
}

fn series_of(table: Table, ttl: u64, born: Moment) -> TableSeries {
    TableSeries::new(table, vec![descriptor("kstrobe_x_total", &["n"])], Duration::from_secs(ttl), born)
}

/// `(label texts, value)` of a family of counters.
pub(super) fn counters(family: &Family) -> Vec<(Vec<&str>, u64)> {
    let Values::Counters(values) = &family.values else { panic!("counters") };
    assert_eq!(values.len(), family.series.len());
    let labels = |series| (0..family.columns.len()).map(|position| family.label(series, position)).collect();
    family.series.iter().map(labels).zip(values.iter().copied()).collect()
}

fn read(series: &mut TableSeries, words: &[u64], index: &[(u32, u32)], now: Moment) -> Family {
    let keys: Vec<_> = index.iter().map(|(key, slot)| (key.to_le_bytes(), *slot)).collect();
    let index = keys.iter().map(|(key, slot)| (key.as_slice(), *slot));
    series.read(words, index, &mut Names::new(), now).unwrap().remove(0)
}

#[test]
fn dense_slots_appear_when_something_is_counted() {
    let born = Moment::now();
    let key =
        vec![field(Ty::Int { bits: 8, signed: false }, 0, Decoder::Unsigned), field(Ty::U32, 4, Decoder::Softirq)];
    let table = counter_table(Index::Dense(vec![2, 3]), 7, Some(6), key);
    let mut series = series_of(table, 900, born);
    assert!(read(&mut series, &[0; 7], &[], at(born, 1)).is_empty());
    let family = read(&mut series, &[0, 5, 0, 0, 0, 7, 9], &[], at(born, 5));
    let expected = [(vec!["0", "timer"], 5), (vec!["1", "net_tx"], 7), (vec!["other", "other"], 9)];
    assert_eq!(counters(&family), expected);
    assert_eq!(family.series[0].created, Some(at(born, 1).wall), "counts began after the read before");
    let family = read(&mut series, &[0, 5, 0, 0, 0, 7, 9], &[], at(born, 10_000));
    assert_eq!(family.series[0].created, Some(at(born, 1).wall));
    assert!(series.tick(at(born, 10_000).mono).is_empty(), "a dense slot frees nothing");
    assert_eq!(series.keys(), 2);
}

#[test]
fn a_table_without_labels_counts_from_zero() {
    let born = Moment::now();
    let mut series = series_of(counter_table(Index::Single, 1, None, vec![]), 1, born);
    let family = read(&mut series, &[0], &[], at(born, 3));
    assert_eq!(counters(&family), [(vec![], 0)]);
    assert_eq!(family.series[0].created, Some(born.wall));
}

#[test]
fn no_series_begins_after_a_scrape_that_had_to_wait() {
    let born = Moment::now();
    let mut series = series_of(hash_table(4), 60, born);
    read(&mut series, &[0; 4], &[], at(born, 10));
    // Another scraper asked a second before.
    let family = read(&mut series, &[0, 1, 0, 0], &[(7, 1)], at(born, 11));
    assert_eq!(family.series[0].created, Some(at(born, 9).wall));
}

#[test]
fn keys_that_read_the_same_are_one_series_and_go_together() {
    let born = Moment::now();
    let mut series = series_of(hash_table(4), 60, born);
    let index = [(7, 1), (8, 2), (0, 3)];
    let family = read(&mut series, &[0, 10, 20, 3], &index, at(born, 1));
    assert_eq!(counters(&family), [(vec!["many"], 30), (vec!["none"], 3)]);

    read(&mut series, &[0, 10, 21, 3], &index, at(born, 50));
    let slots = |series: &TableSeries, seconds| -> Vec<u32> {
        series.tick(at(born, seconds).mono).into_iter().map(|expired| expired.slot).collect()
    };
    assert_eq!(slots(&series, 60), Vec::<u32>::new());
    assert_eq!(slots(&series, 61), [3], "key 7 is idle, but its series is not");
    assert_eq!(slots(&series, 110), [1, 2, 3]);

    drop(family);
    series.evict(&[1, 2], [0, 10, 21, 3].as_slice());
    assert_eq!((series.evicted(), series.keys()), (2, 1));
    let family = read(&mut series, &[0, 0, 0, 3], &[(0, 3)], at(born, 120));
    assert_eq!(counters(&family), [(vec!["none"], 3)]);
    assert!(!series.texts.contains("many"), "texts go with their key");

    let family = read(&mut series, &[0, 1, 0, 3], &[(0, 3), (9, 1)], at(born, 130));
    assert_eq!(counters(&family)[0], (vec!["many"], 1));
    assert_eq!(family.series[0].created, Some(at(born, 120).wall), "it is a new series");
}

#[test]
fn overflow_is_other_and_never_expires() {
    let born = Moment::now();
    let mut series = series_of(hash_table(3), 60, born);
    let family = read(&mut series, &[0, 1, 0], &[(0, 1)], at(born, 1));
    assert_eq!(counters(&family), [(vec!["none"], 1)], "an empty overflow slot is absent");
    let family = read(&mut series, &[4, 1, 0], &[(0, 1)], at(born, 2));
    assert_eq!(counters(&family), [(vec!["none"], 1), (vec!["other"], 4)]);
    let expired = series.tick(at(born, 1000).mono);
    assert_eq!(expired, [Expired { slot: 1, key: 0u32.to_le_bytes().into() }]);
}

#[test]
fn zero_ttl_keeps_everything() {
    let born = Moment::now();
    let mut series = series_of(hash_table(3), 0, born);
    read(&mut series, &[0, 1, 0], &[(0, 1)], at(born, 1));
    assert!(series.tick(at(born, 1 << 30).mono).is_empty());
}

#[test]
fn a_slot_with_a_new_key_is_a_new_series() {
    let born = Moment::now();
    let mut series = series_of(hash_table(3), 60, born);
    read(&mut series, &[0, 9, 0], &[(0, 1)], at(born, 1));
    let family = read(&mut series, &[0, 2, 0], &[(1, 1)], at(born, 2));
    assert_eq!(counters(&family), [(vec!["one"], 2)]);
}

#[test]
fn nonsense_in_the_index_is_ignored() {
    let born = Moment::now();
    let mut series = series_of(hash_table(2), 60, born);
    let index: [(&[u8], u32); 3] = [(&[1, 2], 1), (&[0; 4], 99), (&[0; 4], 0)];
    let families = series.read([0, 0].as_slice(), index, &mut Names::new(), at(born, 1)).unwrap();
    assert!(families[0].is_empty());
    let error = series.read([0].as_slice(), index, &mut Names::new(), at(born, 1)).unwrap_err();
    assert_eq!(error, FoldError::Short { have: 1, need: 2 });
}

#[test]
fn label_order_is_the_metrics_own() {
    let born = Moment::now();
    let key = vec![field(Ty::U32, 0, Decoder::Unsigned), field(Ty::Str(4), 4, Decoder::Str)];
    let index = Index::Hash { map: MapId(1), free: MapId(2), key_bytes: 8, fresh: None };
    let mut table = counter_table(index, 2, Some(0), key);
    table.cells[0].labels = vec![1, 0];
    let about = vec![descriptor("kstrobe_x_total", &["comm", "n"])];
    let mut series = TableSeries::new(table, about, Duration::ZERO, born);
    let families =
        series.read([0, 5].as_slice(), [(b"\x07\0\0\0sh\0\0".as_slice(), 1)], &mut Names::new(), born).unwrap();
    assert_eq!(counters(&families[0]), [(vec!["sh", "7"], 5)]);
}

/// `cargo test -p kstrobe --release -- --ignored --nocapture cost_of`
#[test]
#[ignore = "prints a measurement"]
fn cost_of_reading_10_000_keys() {
    let born = Moment::now();
    let key = vec![field(Ty::U32, 0, Decoder::Unsigned)];
    let index = Index::Hash { map: MapId(1), free: MapId(2), key_bytes: 4, fresh: None };
    let mut series = series_of(counter_table(index, 10_001, Some(0), key), 900, born);
    let index: Vec<_> = (1..=10_000).map(|slot| (slot, slot)).collect();
    let words = vec![1u64; 10_001];
    for round in 0..3 {
        let start = Instant::now();
        assert_eq!(read(&mut series, &words, &index, at(born, round)).len(), 10_001);
        println!("read {round} of 10,000 keys: {:?}", start.elapsed());
    }
}
