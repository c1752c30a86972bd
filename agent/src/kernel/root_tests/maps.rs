//! Maps as the kernel keeps them.

use crate::kernel::abilities::task_storage_map;
use crate::kernel::mmap::Values;
use crate::kernel::read::ProbeMaps;
use crate::kernel::sys::map::{MMAPABLE, NOEXIST, kind};
use crate::kernel::sys::{KernelMap, MapSpec, monotonic_ns};
use kstrobe_ebpf::layout::{Index, Layout, Loss, LossMap, MapDef, MapId, MapKind, SpanMap, Table};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

fn create(kind: u32, key_bytes: u32, value_bytes: u32, entries: u32, flags: u32) -> KernelMap {
    crate::kernel::privileges::lift_locked();
    KernelMap::create(&MapSpec { kind, key_bytes, value_bytes, entries, flags, name: "kstrobe_test", btf: None })
        .unwrap()
}

#[test]
#[ignore = "needs root"]
fn root_wrong_sizes_never_reach_the_kernel() {
    let map = create(kind::HASH, 8, 16, 4, 0);
    assert!(map.lookup(&[0; 4], &mut [0; 16]).is_err());
    assert!(map.lookup(&[0; 8], &mut [0; 15]).is_err());
    assert!(map.update(&[0; 8], &[0; 17], 0).is_err());
    assert!(map.delete(&[0; 9]).is_err());
    assert!(map.next_key(Some(&[0; 7])).is_err());
    assert!(map.push(&[0; 16]).is_err(), "a hash is no stack");
    assert!(
        KernelMap::create(&MapSpec { kind: 6, key_bytes: 4, value_bytes: 8, entries: 1, ..MapSpec::default() })
            .is_err()
    );
}

#[test]
#[ignore = "needs root"]
fn root_a_hash_is_read_whole_in_batches_and_one_by_one() {
    for count in [0u32, 1, 5000] {
        let map = create(kind::HASH, 4, 12, count.max(1), 0);
        let mut want = BTreeMap::new();
        for i in 0..count {
            let (key, mut value) = (i.to_ne_bytes(), [7u8; 12]);
            value[..4].copy_from_slice(&(i * 3).to_ne_bytes());
            map.update(&key, &value, NOEXIST).unwrap();
            want.insert(key.to_vec(), value.to_vec());
        }
        for entries in [map.entries().unwrap(), map.batches().unwrap(), map.one_by_one().unwrap()] {
            assert_eq!(entries.len(), count as usize);
            let got: BTreeMap<Vec<u8>, Vec<u8>> = entries.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert_eq!(got, want);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn root_an_array_is_read_by_mapping_and_by_copy_alike() {
    let mapped = create(kind::ARRAY, 4, 24, 700, MMAPABLE);
    let copied = create(kind::ARRAY, 4, 24, 700, 0);
    let write = |map: &KernelMap, index: u32, word: u64| {
        let value: Vec<u8> = [word, word + 1, word + 2].iter().flat_map(|w| w.to_ne_bytes()).collect();
        map.update(&index.to_ne_bytes(), &value, 0).unwrap();
    };
    for map in [&mapped, &copied] {
        let values = Values::open(map).unwrap();
        assert_eq!(matches!(values, Values::Mapped(_)), map.flags & MMAPABLE != 0);
        assert_eq!(values.words().len(), 2100);
        write(map, 0, 10);
        write(map, 699, 90);
        values.refresh(map).unwrap();
        let words: Vec<u64> = values.words().iter().map(|w| w.load(Relaxed)).collect();
        assert_eq!((&words[..3], &words[2097..], words[3]), (&[10, 11, 12][..], &[90, 91, 92][..], 0));
        values.zero(map, 699..700).unwrap();
        let mut value = [1; 24];
        assert!(map.lookup(&699u32.to_ne_bytes(), &mut value).unwrap());
        assert_eq!(value, [0; 24], "the kernel's own value is zeroed");
        assert_eq!(values.words()[2098].load(Relaxed), 0);
        assert_eq!(values.words()[0].load(Relaxed), 10, "others stay");
        assert!(values.zero(map, 700..701).is_err());
    }
}

#[test]
#[ignore = "needs root"]
fn root_task_storage_can_be_made_and_is_empty_for_this_task() {
    match task_storage_map() {
        Ok(map) => assert_eq!((map.kind, map.key_bytes, map.value_bytes), (kind::TASK_STORAGE, 4, 8)),
        Err(reason) => {
            assert!(
                !reason.to_string().is_empty()
                    && !crate::kernel::detect(&Default::default()).abilities.task_storage.yes()
            )
        }
    }
}

/// A table of 2 shards x 4 slots with a hashed index, a span map and a loss map.
fn probe_maps(mmap: bool) -> ProbeMaps {
    let def = |name: &str, kind, key_bytes, value_bytes, entries| MapDef {
        name: name.into(),
        kind,
        key_bytes,
        value_bytes,
        entries,
    };
    let layout = Layout {
        cpus: 2,
        maps: vec![
            def("values", MapKind::Array { mmap }, 4, 16, 8),
            def("index", MapKind::Hash, 8, 4, 3),
            def("free", MapKind::Stack, 0, 4, 3),
            def("spans", MapKind::Hash, 4, 16, 8),
            def("losses", MapKind::Array { mmap }, 4, 16, 2),
        ],
        tables: vec![Table {
            values: MapId(0),
            changes: None,
            shards: 2,
            slots: 4,
            overflow: Some(0),
            index: Index::Hash { map: MapId(1), free: MapId(2), key_bytes: 8, fresh: None },
            key: vec![],
            cells: vec![],
        }],
        spans: Some(SpanMap { map: MapId(3), stack_ids: vec![] }),
        losses: Some(LossMap { map: MapId(4), reasons: vec![Loss::NoStart, Loss::SpansFull] }),
        ..Layout::default()
    };
    ProbeMaps::new(layout, probe_maps_raw(mmap)).unwrap()
}

#[test]
#[ignore = "needs root"]
fn root_a_layout_that_does_not_fit_is_refused() {
    let mut layout = probe_maps(true).layout().clone();
    let maps = || probe_maps_raw(true);
    assert!(ProbeMaps::new(layout.clone(), maps()).is_ok());
    layout.maps[1].key_bytes = 4;
    assert!(ProbeMaps::new(layout.clone(), maps()).unwrap_err().to_string().contains("map index"));
    layout.maps[1].key_bytes = 8;
    layout.tables[0].slots = 5;
    assert!(ProbeMaps::new(layout.clone(), maps()).unwrap_err().to_string().contains("2 x 5"));
    layout.tables[0].slots = 4;
    layout.tables[0].values = MapId(9);
    assert!(ProbeMaps::new(layout, maps()).is_err());
}

fn probe_maps_raw(mmap: bool) -> Vec<KernelMap> {
    let flags = if mmap { MMAPABLE } else { 0 };
    vec![
        create(kind::ARRAY, 4, 16, 8, flags),
        create(kind::HASH, 8, 4, 3, 0),
        create(kind::STACK, 0, 4, 3, 0),
        create(kind::HASH, 4, 16, 8, 0),
        create(kind::ARRAY, 4, 16, 2, flags),
    ]
}

#[test]
#[ignore = "needs root"]
fn root_keys_are_evicted_and_their_slots_given_back() {
    for mmap in [true, false] {
        let maps = probe_maps(mmap);
        let (values, index, free) = (maps.map(MapId(0)), maps.map(MapId(1)), maps.map(MapId(2)));
        for (key, slot) in [(100u64, 1u32), (200, 2)] {
            index.update(&key.to_ne_bytes(), &slot.to_ne_bytes(), 0).unwrap();
        }
        for element in 0..8u32 {
            values
                .update(&element.to_ne_bytes(), &[u64::from(element) + 1; 2].map(u64::to_ne_bytes).concat(), 0)
                .unwrap();
        }
        let view = maps.table(0).unwrap();
        let mut keys: Vec<(u64, u32)> =
            view.index.iter().map(|(k, s)| (u64::from_ne_bytes(k[..].try_into().unwrap()), *s)).collect();
        keys.sort();
        assert_eq!(keys, [(100, 1), (200, 2)]);
        assert_eq!(view.values[5 * 2].load(Relaxed), 6, "shard 1, slot 1");
        let mut victims = view.index.clone();
        victims.retain(|(_, slot)| *slot == 1);
        victims.push((Box::from([9u8; 8]), 3));
        assert_eq!(maps.evict(0, &victims, |_, _| {}).unwrap(), 1, "the second key was never there");
        let view = maps.table(0).unwrap();
        assert_eq!(view.index.len(), 1);
        let words: Vec<u64> = view.values.iter().step_by(2).map(|w| w.load(Relaxed)).collect();
        assert_eq!(words, [1, 0, 3, 4, 5, 0, 7, 8]);
        // One slot is back: the stack of 3 takes two more and not a third.
        free.push(&[0; 4]).unwrap();
        free.push(&[0; 4]).unwrap();
        assert!(free.push(&[0; 4]).is_err());
    }
}

#[test]
#[ignore = "needs root"]
fn root_free_slots_leave_out_the_overflow_slot() {
    let maps = probe_maps(true);
    maps.fill_free_slots().unwrap();
    assert!(maps.map(MapId(2)).push(&[0; 4]).is_err(), "1, 2 and 3 fill the stack");
}

#[test]
#[ignore = "needs root"]
fn root_losses_are_summed_over_cpus() {
    for mmap in [true, false] {
        let maps = probe_maps(mmap);
        for (cpu, counts) in [(0u32, [1u64, 20]), (1, [300, 4000])] {
            maps.map(MapId(4)).update(&cpu.to_ne_bytes(), &counts.map(u64::to_ne_bytes).concat(), 0).unwrap();
        }
        assert_eq!(maps.losses().unwrap(), [(Loss::NoStart, 301), (Loss::SpansFull, 4020)]);
    }
}

#[test]
#[ignore = "needs root"]
fn root_stale_spans_are_swept_and_closed_ones_when_it_is_crowded() {
    let maps = probe_maps(true);
    let spans = maps.map(MapId(3));
    let now = monotonic_ns();
    let put =
        |key: u32, start: u64| spans.update(&key.to_ne_bytes(), &[start, 7].map(u64::to_ne_bytes).concat(), 0).unwrap();
    put(1, now - 5_000_000_000);
    put(2, now);
    put(3, 0);
    assert_eq!(maps.sweep_spans(1_000_000_000).unwrap(), 1);
    let left = |maps: &ProbeMaps| -> Vec<u32> {
        let entries = maps.map(MapId(3)).entries().unwrap();
        let mut keys: Vec<u32> = entries.iter().map(|(k, _)| u32::from_ne_bytes(k.try_into().unwrap())).collect();
        keys.sort();
        keys
    };
    assert_eq!(left(&maps), [2, 3], "a closed span keeps its entry while there is room");
    (4..8).for_each(|key| put(key, 0));
    assert_eq!(maps.sweep_spans(1_000_000_000).unwrap(), 0, "closed spans are not lost");
    assert_eq!(left(&maps), [2]);
    let fill = maps.fill(|_| None).unwrap();
    assert_eq!(
        fill.iter().map(|f| (f.name.as_str(), f.entries, f.capacity)).collect::<Vec<_>>(),
        [("index", 0, 3), ("spans", 1, 8)]
    );
}
