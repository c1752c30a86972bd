//! Sums by stack: keys, values and losses.

use super::*;
use crate::layout::{MapId, MapKind};
use crate::program::{StackSpec, Unwind};

const BOTH: StackSpec = StackSpec { kernel: true, user: true, depth: 50, at_start: false, unwind: Unwind::Tables };

/// Sums of an argument by both stacks and a label, and events by the kernel's stack.
fn probe() -> Probe {
    let hidden = [("k", Ty::S32), ("u", Ty::S32), ("pid", Ty::U32)].map(|(name, ty)| label(name, ty, None));
    let labels = [vec![label("kind", Ty::U32, Some(4))], hidden.to_vec()].concat();
    let of_kernel = StackSpec { user: false, depth: 127, ..BOTH };
    let stacks = [node(Kind::KernelStack, Ty::S32), node(Kind::UserStack, Ty::S32), node(Kind::Pid, Ty::U32)];
    let value = node(Kind::Convert(Box::new(arg(0))), Ty::U64);
    let sums = Measure { filter: None, value, labels: [vec![arg(1)], stacks.to_vec()].concat() };
    let events = Measure { filter: None, value: node(Kind::Const(1), Ty::U64), labels: stacks[..1].to_vec() };
    let mut probe = counter(8);
    probe.shape = Shape::At(vec![Site {
        attach: raw("x"),
        place: Place::default(),
        select: Select::All,
        filter: None,
        measures: vec![Some(sums), Some(events)],
        slow: None,
    }]);
    probe.metrics = vec![
        metric("sums", MetricKind::Stacks(BOTH), labels, 8),
        metric("events", MetricKind::Stacks(of_kernel), hidden[..1].to_vec(), 8),
    ];
    probe
}

/// Sums of a table by key.
fn sums(m: &Machine, module: &Module, table: usize) -> Vec<(Vec<i32>, u64)> {
    let table = &module.layout.tables[table];
    let Index::Hash { map, .. } = table.index else { panic!("hash") };
    let mut sums: Vec<_> = m
        .hash(map)
        .iter()
        .map(|(key, slot)| {
            let field = |f: &crate::layout::KeyField| {
                let at = f.offset as usize;
                i32::from_le_bytes(key[at..at + 4].try_into().expect("4 bytes"))
            };
            let slot = u32::from_le_bytes(slot[..4].try_into().expect("u32"));
            (table.key.iter().map(field).collect(), word(m.array(table.values), slot as usize))
        })
        .collect();
    sums.sort();
    sums
}

#[test]
fn values_add_up_by_stack_process_and_label() {
    let module = compiled(probe(), &target(1));
    let mut m = machine(&module);
    m.environment.pid_tgid = (7 << 32) | 9;
    for (kernel, user, value, kind) in [(5, 6, 100, 1), (5, 6, 20, 1), (5, 8, 3, 1), (5, 6, 4, 2)] {
        (m.environment.kernel_stack, m.environment.user_stack) = ([kernel, -1], [user, -1]);
        run(&mut m, &module, "ks_bytes_at", &[value, kind]);
    }
    m.environment.pid_tgid = 8 << 32;
    run(&mut m, &module, "ks_bytes_at", &[50, 2]);
    let expected = [(vec![1, 5, 6, 7], 120), (vec![1, 5, 8, 7], 3), (vec![2, 5, 6, 7], 4), (vec![2, 5, 6, 8], 50)];
    assert_eq!(sums(&m, &module, 0), expected);
    assert_eq!(sums(&m, &module, 1), [(vec![5], 5)]);
    assert_eq!(lost(&m, &module, Loss::StackCollision), 0);
    let listing = crate::ir::print::module(&module);
    assert_eq!(
        listing.matches("get_stackid").count(),
        4,
        "each stack is taken once, and once more where that fails:\n{listing}"
    );
}

#[test]
fn a_stack_that_was_not_kept_is_counted_and_its_value_stays() {
    let module = compiled(probe(), &target(1));
    let mut m = machine(&module);
    m.environment.kernel_stack = [5, -1];
    // EFAULT: a kernel thread; EEXIST: another stack has the id; ENOMEM: the map is full.
    for code in [-14, -17, -12] {
        m.environment.user_stack = [code; 2];
        run(&mut m, &module, "ks_bytes_at", &[10, 1]);
    }
    assert_eq!(sums(&m, &module, 0), [-17, -14, -12].map(|code| (vec![1, 5, code, 0], 10)));
    assert_eq!(lost(&m, &module, Loss::StackCollision), 2);
}

#[test]
fn the_second_map_takes_what_has_no_place_in_the_first() {
    let module = compiled(probe(), &target(1));
    let mut m = machine(&module);
    m.environment.kernel_stack = [-17, 5];
    m.environment.user_stack = [-12, -17];
    run(&mut m, &module, "ks_bytes_at", &[10, 1]);
    assert_eq!(sums(&m, &module, 0), [(vec![1, (1 << 30) + 5, -17, 0], 10)]);
    assert_eq!(lost(&m, &module, Loss::StackCollision), 1);
}

#[test]
fn maps_as_deep_as_the_deepest_and_with_room_for_all() {
    let module = compiled(probe(), &target(1));
    let stacks = module.layout.stacks.expect("a map of stacks");
    assert_eq!(stacks.depth, 127);
    let map = &module.layout.maps[stacks.map.0 as usize];
    assert_eq!((map.kind, map.key_bytes, map.value_bytes), (MapKind::StackTrace, 4, 8 * 127));
    assert_eq!((map.entries, module.layout.maps[stacks.second.0 as usize].entries), (129, 129));
    let mut large = probe();
    large.metrics[0].max_series = 1000;
    let layout = compiled(large, &target(1)).layout;
    // 1000 keys with two stacks, 8 with one: 2048 places in two maps.
    assert_eq!(layout.maps[stacks.map.0 as usize].entries, 1025);
    let table = &module.layout.tables[0];
    assert_eq!((table.cells[0].labels.as_slice(), table.key.len()), (&[0][..], 4), "stacks are no labels");
    assert_eq!(module.layout.tables[1].cells[0].labels, []);
}

#[test]
fn a_counter_shares_no_table_with_stacks() {
    let mut both = probe();
    both.metrics[1].kind = MetricKind::Counter;
    both.metrics[1].labels[0] = both.metrics[0].labels[1].clone();
    assert_eq!(compiled(both, &target(1)).layout.tables.len(), 2);
    let mut twice = probe();
    twice.metrics[1] = Metric { name: "again".into(), ..twice.metrics[0].clone() };
    let Shape::At(sites) = &mut twice.shape else { panic!("at") };
    let one = Measure { value: node(Kind::Const(1), Ty::U64), ..first(&mut sites[0].measures).clone() };
    sites[0].measures[1] = Some(one);
    let layout = compiled(twice, &target(1)).layout;
    assert_eq!((layout.tables.len(), layout.tables[0].cells.len()), (1, 2), "the same stacks are taken once");
}

#[test]
fn too_many_stacks_for_the_budget_say_what_to_lower() {
    let mut probe = probe();
    probe.limits.map_bytes = 100_000;
    let errors = build(probe, &target(1), &Default::default()).expect_err("too much");
    assert!(errors[0].hint.as_deref().is_some_and(|h| h.contains("`depth`")), "{errors:?}");
}

#[test]
fn stacks_of_a_start_are_found_in_open_spans() {
    let mut probe = softirq(Keep::Last);
    let Shape::Span { start, end, key, save, .. } = &mut probe.shape else { panic!("span") };
    *key = SpanKey::Hash(vec![Ty::U32]);
    *save = vec![("n".into(), Ty::U64), ("kernel stack".into(), Ty::S32)];
    start[0].save = vec![node(Kind::Const(4), Ty::U64), node(Kind::KernelStack, Ty::S32)];
    first(&mut end[0].measures).labels = vec![node(Kind::Saved(1), Ty::S32)];
    probe.metrics[0].kind = MetricKind::Stacks(StackSpec { user: false, at_start: true, ..BOTH });
    probe.metrics[0].labels = vec![label("kernel stack", Ty::S32, None)];
    let module = compiled(probe, &target(1));
    let spans = module.layout.spans.clone().expect("open spans");
    assert_eq!(spans.stack_ids, [16]);
    let mut m = machine(&module);
    m.environment.now_ns = 1_000;
    m.environment.kernel_stack = [42, -1];
    run(&mut m, &module, "ks_softirq_start", &[0]);
    let open: Vec<_> = m.hash(MapId(spans.map.0)).into_iter().collect();
    assert_eq!(open[0].1[16..20], 42i32.to_le_bytes());
    m.environment.now_ns = 9_000;
    m.environment.kernel_stack = [1, -1];
    run(&mut m, &module, "ks_softirq_end", &[0]);
    assert_eq!(sums(&m, &module, 0), [(vec![42], 8_000)]);
}
