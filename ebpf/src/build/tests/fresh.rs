//! Slots of hashed tables, where programs count those that no key has had.

use super::{compiled, counter, lost, machine, run, target, word};
use crate::ir::Module;
use crate::ir::interp::Machine;
use crate::kernel_target::Ability;
use crate::layout::{FreshSlots, Index, Loss, MapKind};
use crate::typed::{Metric, Shape};

/// A counter with a hashed label of at most two series, where programs count the slots that no key has had.
fn with_fresh_slots() -> (Module, Machine) {
    let mut probe = counter(2);
    probe.metrics[0].max_series = 2;
    let mut target = target(1);
    target.abilities.atomic_fetch = Ability::Yes;
    let module = compiled(probe, &target);
    let machine = machine(&module);
    (module, machine)
}

#[test]
fn fresh_slots_come_first_and_each_goes_to_one_key() {
    let (module, mut m) = with_fresh_slots();
    let Index::Hash { map, free, fresh: Some(fresh), .. } = module.layout.tables[0].index else { panic!("hash") };
    assert!(module.layout.tables[0].free_at_start().is_none());
    let counts = |m: &Machine| (word(m.array(fresh.map), 0), word(m.array(fresh.map), 1));
    let count = |m: &mut Machine, comm: &str| {
        m.environment.comm = [0; 16];
        m.environment.comm[..comm.len()].copy_from_slice(comm.as_bytes());
        run(m, &module, &module.funcs[0].name, &[12, 1, 0, 0]);
    };
    let slots = |m: &Machine| -> Vec<u8> { m.hash(map).into_iter().map(|(_, slot)| slot[0]).collect() };
    ["a", "b", "a"].iter().for_each(|comm| count(&mut m, comm));
    assert_eq!((slots(&m), counts(&m)), (vec![1, 2], (2, 2)));
    count(&mut m, "c");
    assert_eq!(
        (counts(&m), lost(&m, &module, Loss::SeriesOverflow)),
        ((2, 2), 1),
        "a full table is not counted further"
    );
    // The agent takes a key out and gives its slot back.
    let (first, _) = m.hash(map)[0].clone();
    assert!(m.delete(map, &first) && m.push(free, &1u32.to_le_bytes()));
    count(&mut m, "c");
    assert_eq!((slots(&m), counts(&m)), (vec![2, 1], (2, 3)));
    assert_eq!(lost(&m, &module, Loss::SeriesOverflow), 1);
}

#[test]
fn hashed_tables_share_a_map_of_fresh_slots() {
    let mut probe = counter(2);
    let mut target = target(1);
    target.abilities.atomic_fetch = Ability::Yes;
    // Another cap, so that it has a table of its own.
    probe.metrics.push(Metric { max_series: 7, name: "more_total".into(), ..probe.metrics[0].clone() });
    let Shape::At(sites) = &mut probe.shape else { panic!("at") };
    let again = sites[0].measures[0].clone();
    sites[0].measures.push(again);
    let layout = compiled(probe, &target).layout;
    let fresh: Vec<_> = layout
        .tables
        .iter()
        .filter_map(|table| match table.index {
            Index::Hash { fresh, .. } => fresh,
            _ => None,
        })
        .collect();
    assert_eq!(fresh.iter().map(|fresh| fresh.element).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(fresh[0].map, fresh[1].map);
    let map = layout.map(fresh[0].map);
    assert_eq!((map.kind, map.entries, map.value_bytes), (MapKind::Array { mmap: true }, 2, FreshSlots::BYTES));
}
