//! Probes built from typed form and run by the interpreter: what each event must leave in the maps.

use super::build;
use crate::buckets::BucketSpec;
use crate::diag::Place;
use crate::ir::interp::Machine;
use crate::ir::{Module, verify};
use crate::kernel_target::{Ability, Target};
use crate::layout::{CellKind, Index, Loss};
use crate::program::{Aggregate, Keep, Limits};
use crate::typed::*;

mod calls;
mod cgroups;
mod fresh;
mod shards;
mod slow;
mod stacks;
mod steps;

fn node(kind: Kind, ty: Ty) -> Expr {
    Expr { kind, ty, duration: false, place: Place::default() }
}

fn target(cpus: u32) -> Target {
    let mut t = Target { cpus, ..Target::default() };
    t.abilities.mmapable = Ability::Yes;
    t
}

fn seconds() -> MetricKind {
    let classic = ["0.001", "0.01", "0.1"].map(String::from).to_vec();
    MetricKind::Histogram(BucketSpec { schema: 3, raw_per_unit: 1_000_000_000, min: 1000, max: 1 << 34, classic })
}

fn metric(name: &str, kind: MetricKind, labels: Vec<Label>, max_series: u32) -> Metric {
    Metric { name: name.into(), place: Place::default(), kind, labels, max_series }
}

fn label(name: &str, ty: Ty, domain: Option<u32>) -> Label {
    Label { name: name.into(), ty, decoder: Decoder::Unsigned, domain }
}

/// What a site measures of its first metric.
fn first(measures: &mut [Option<Measure>]) -> &mut Measure {
    measures[0].as_mut().expect("it is measured")
}

fn raw(event: &str) -> Attach {
    Attach::RawTp { event: event.into() }
}

fn arg(n: u32) -> Expr {
    node(Kind::Arg { offset: 8 * n }, Ty::U32)
}

/// `softirq`: a span by CPU with a dense label.
fn softirq(keep: Keep) -> Probe {
    let cpu = || vec![node(Kind::Cpu, Ty::U32)];
    let measure = Measure { filter: None, value: node(Kind::Elapsed, Ty::U64), labels: vec![arg(0)] };
    Probe {
        name: "softirq".into(),
        shape: Shape::Span {
            start: vec![StartSite {
                attach: raw("softirq_entry"),
                place: Place::default(),
                select: Select::All,
                filter: None,
                by: cpu(),
                save: vec![],
            }],
            end: vec![EndSite {
                attach: raw("softirq_exit"),
                place: Place::default(),
                hook: Select::All,
                select: Select::All,
                before: None,
                filter: None,
                by: cpu(),
                measures: vec![Some(measure)],
                slow: None,
            }],
            key: SpanKey::Dense(vec![2]),
            save: vec![],
            keep,
            max_open: 16,
            off_cpu: false,
            filtered: false,
        },
        metrics: vec![metric("softirq_seconds", seconds(), vec![label("vector", Ty::U32, Some(10))], 64)],
        slow: None,
        choices: vec![],
        warnings: vec![],
        limits: Limits::default(),
    }
}

mod control;

fn compiled(probe: Probe, target: &Target) -> Module {
    let (module, _) = build(probe, target, &Default::default()).expect("builds");
    verify::verify(&module).unwrap_or_else(|e| panic!("{e:#?}\n{}", crate::ir::print::module(&module)));
    module
}

fn machine(module: &Module) -> Machine {
    let mut m = Machine::new(&module.layout).expect("maps");
    for t in &module.layout.tables {
        if let Some((free, slots)) = t.free_at_start() {
            slots.for_each(|slot| assert!(m.push(free, &slot.to_le_bytes())));
        }
    }
    m
}

fn run(m: &mut Machine, module: &Module, name: &str, args: &[u64]) {
    let i = module.funcs.iter().position(|f| f.name == name).expect("function");
    let ctx: Vec<u8> = args.iter().flat_map(|a| a.to_le_bytes()).collect();
    m.run(module, i, &ctx).unwrap_or_else(|t| panic!("{name}: {t}"));
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("8 bytes"))
}

fn lost(m: &Machine, module: &Module, loss: Loss) -> u64 {
    let l = module.layout.losses.as_ref().expect("losses");
    let at = l.reasons.iter().position(|r| *r == loss).expect("reason");
    let counts = m.array(l.map);
    (0..module.layout.cpus as usize).map(|c| word(counts, c * l.reasons.len() + at)).sum()
}

#[test]
fn a_span_by_cpu_fills_the_record_of_its_label() {
    let module = compiled(softirq(Keep::Last), &target(2));
    let mut m = machine(&module);
    m.environment.cpu = 1;
    m.environment.now_ns = 1_000_000;
    run(&mut m, &module, "ks_softirq_start", &[3]);
    m.environment.now_ns = 3_500_000;
    run(&mut m, &module, "ks_softirq_end", &[3]);
    run(&mut m, &module, "ks_softirq_end", &[3]);
    let table = &module.layout.tables[0];
    let CellKind::Histogram(scheme) = &table.cells[0].kind else { panic!("histogram") };
    let stride = 1 + scheme.buckets();
    assert_eq!((table.shards, table.slots, table.overflow), (2, 11, Some(10)));
    let record = (table.slots as usize + 3) * stride;
    let words = m.array(table.values);
    let elapsed = 2_500_000 + m.environment.tick_ns;
    assert!(word(words, record).abs_diff(elapsed) <= 2 * m.environment.tick_ns + 1);
    let bucket = scheme.index(word(words, record));
    assert_eq!(word(words, record + 1 + bucket), 1);
    assert_eq!((0..words.len() / 8).filter(|w| word(words, *w) != 0).count(), 2, "nothing else was touched");
    assert_eq!(lost(&m, &module, Loss::NoStart), 1);
}

#[test]
fn each_event_of_a_record_steps_its_word_of_changes() {
    let few = compiled(softirq(Keep::Last), &target(2));
    assert!(few.layout.tables[0].changes.is_none(), "eleven records are looked at themselves");
    let mut probe = softirq(Keep::Last);
    probe.metrics[0].labels[0].domain = Some(100);
    let module = compiled(probe, &target(2));
    let mut m = machine(&module);
    for (cpu, vector) in [(0, 3), (1, 3), (1, 3), (1, 177)] {
        m.environment.cpu = cpu;
        m.environment.now_ns += 1000;
        run(&mut m, &module, "ks_softirq_start", &[vector]);
        m.environment.now_ns += 1000;
        run(&mut m, &module, "ks_softirq_end", &[vector]);
    }
    let table = &module.layout.tables[0];
    let changes = m.array(table.changes.expect("more label sets than lie in a line"));
    let stepped: Vec<(usize, u64)> =
        (0..changes.len() / 8).map(|at| (at, word(changes, at))).filter(|(_, steps)| *steps > 0).collect();
    // Keys take the slots 1 and 2 of each shard.
    let shard = table.slots as usize;
    assert_eq!(stepped, [(1, 1), (shard + 1, 2), (shard + 2, 1)]);
}

#[test]
fn an_event_that_is_no_end_leaves_the_span_and_misses_none() {
    let mut probe = softirq(Keep::Last);
    let Shape::Span { end, .. } = &mut probe.shape else { panic!("span") };
    let four = Box::new(node(Kind::Const(4), Ty::U32));
    end[0].before = Some(node(Kind::Cmp(Cmp::Ne, Box::new(arg(0)), four), Ty::Bool));
    let module = compiled(probe, &target(1));
    let mut m = machine(&module);
    m.environment.now_ns = 1_000_000;
    run(&mut m, &module, "ks_softirq_end", &[4]);
    run(&mut m, &module, "ks_softirq_start", &[3]);
    run(&mut m, &module, "ks_softirq_end", &[4]);
    m.environment.now_ns = 3_500_000;
    run(&mut m, &module, "ks_softirq_end", &[3]);
    let table = &module.layout.tables[0];
    let stride = module.layout.map(table.values).value_bytes as usize / 8;
    let sum = word(m.array(table.values), 3 * stride);
    assert!(sum.abs_diff(2_500_000) < 1000, "the span went on until its end: {sum}");
    assert_eq!(lost(&m, &module, Loss::NoStart), 0);
    run(&mut m, &module, "ks_softirq_end", &[3]);
    assert_eq!(lost(&m, &module, Loss::NoStart), 1, "what is an end is missed");
}

#[test]
fn the_first_start_stands_when_asked() {
    for (keep, expected) in [(Keep::First, 2_500_000u64), (Keep::Last, 500_000)] {
        let module = compiled(softirq(keep), &target(1));
        let mut m = machine(&module);
        for now in [1_000_000, 3_000_000] {
            m.environment.now_ns = now;
            run(&mut m, &module, "ks_softirq_start", &[3]);
        }
        m.environment.now_ns = 3_500_000;
        run(&mut m, &module, "ks_softirq_end", &[3]);
        let table = &module.layout.tables[0];
        let stride = module.layout.map(table.values).value_bytes as usize / 8;
        let sum = word(m.array(table.values), 3 * stride);
        assert!(sum.abs_diff(expected) < 1000, "{keep:?}: {sum}");
    }
}

#[test]
fn a_span_ends_whose_condition_never_holds() {
    let mut probe = softirq(Keep::Last);
    let Shape::Span { end, .. } = &mut probe.shape else { panic!("span") };
    end[0].filter = Some(node(Kind::Const(0), Ty::Bool));
    let module = compiled(probe, &target(1));
    let mut m = machine(&module);
    for func in ["start", "end", "end"] {
        m.environment.now_ns += 1000;
        run(&mut m, &module, &format!("ks_softirq_{func}"), &[3]);
    }
    assert!(m.array(module.layout.tables[0].values).iter().all(|byte| *byte == 0));
    assert_eq!(lost(&m, &module, Loss::NoStart), 1, "the first end has closed it");
}

#[test]
fn a_label_outside_its_domain_goes_to_other_and_is_counted() {
    let module = compiled(softirq(Keep::Last), &target(1));
    let mut m = machine(&module);
    m.environment.now_ns = 1000;
    run(&mut m, &module, "ks_softirq_start", &[77]);
    m.environment.now_ns = 5000;
    run(&mut m, &module, "ks_softirq_end", &[77]);
    let table = &module.layout.tables[0];
    let stride = module.layout.map(table.values).value_bytes as usize / 8;
    assert!(word(m.array(table.values), 10 * stride) > 0);
    assert_eq!(lost(&m, &module, Loss::SeriesOverflow), 1);
}

#[test]
fn a_start_outside_its_range_is_counted_and_its_end_is_not() {
    let mut probe = softirq(Keep::Last);
    let Shape::Span { start, end, .. } = &mut probe.shape else { panic!("span") };
    (start[0].by, end[0].by) = (vec![arg(1)], vec![arg(1)]);
    let module = compiled(probe, &target(1));
    let mut m = machine(&module);
    for (func, cpu) in [("start", 2), ("end", 2), ("start", 1), ("end", 1)] {
        m.environment.now_ns += 1000;
        run(&mut m, &module, &format!("ks_softirq_{func}"), &[3, cpu]);
    }
    assert_eq!((lost(&m, &module, Loss::OutOfRange), lost(&m, &module, Loss::NoStart)), (1, 0));
    let losses = compiled(softirq(Keep::Last), &target(1)).layout.losses.expect("losses");
    assert!(!losses.reasons.contains(&Loss::OutOfRange), "a CPU's number is never outside");
}

/// `by comm`: a counter behind a hash, with a condition.
fn counter(max_series: u32) -> Probe {
    let over = node(
        Kind::And(
            Box::new(node(Kind::Cmp(Cmp::Gt, Box::new(arg(0)), Box::new(node(Kind::Const(10), Ty::U32))), Ty::Bool)),
            Box::new(node(
                Kind::Not(Box::new(node(
                    Kind::Or(
                        Box::new(node(
                            Kind::StrEq(Box::new(node(Kind::Comm, Ty::Str(16))), b"idle\0".to_vec()),
                            Ty::Bool,
                        )),
                        Box::new(node(Kind::OneOf(Box::new(arg(0)), vec![13, 14]), Ty::Bool)),
                    ),
                    Ty::Bool,
                ))),
                Ty::Bool,
            )),
        ),
        Ty::Bool,
    );
    let value = node(Kind::Convert(Box::new(arg(0))), Ty::U64);
    let comm = node(Kind::Comm, Ty::Str(16));
    Probe {
        name: "bytes".into(),
        shape: Shape::At(vec![Site {
            attach: raw("x"),
            place: Place::default(),
            select: Select::OneOf(arg(1), vec![1, 2]),
            filter: Some(over),
            measures: vec![Some(Measure { filter: None, value, labels: vec![comm, arg(1)] })],
            slow: None,
        }]),
        metrics: vec![metric(
            "bytes_total",
            MetricKind::Counter,
            vec![label("comm", Ty::Str(16), None), label("kind", Ty::U32, None)],
            max_series,
        )],
        slow: None,
        choices: vec![],
        warnings: vec![],
        limits: Limits::default(),
    }
}

#[test]
fn hashed_labels_take_slots_until_there_are_none() {
    let module = compiled(counter(2), &target(1));
    let mut m = machine(&module);
    let comm = |m: &mut Machine, name: &str| {
        m.environment.comm = [0; 16];
        m.environment.comm[..name.len()].copy_from_slice(name.as_bytes());
    };
    comm(&mut m, "nginx");
    for (size, kind) in [(20, 1), (30, 1), (5, 1), (13, 1), (20, 3)] {
        run(&mut m, &module, "ks_bytes_at", &[size, kind]);
    }
    comm(&mut m, "idle");
    run(&mut m, &module, "ks_bytes_at", &[20, 1]);
    comm(&mut m, "idles");
    run(&mut m, &module, "ks_bytes_at", &[100, 2]);
    comm(&mut m, "third");
    run(&mut m, &module, "ks_bytes_at", &[7000, 2]);
    let table = &module.layout.tables[0];
    let Index::Hash { map, .. } = table.index else { panic!("hash") };
    let mut sums: Vec<(String, u64)> = m
        .hash(map)
        .iter()
        .map(|(key, slot)| {
            let name = String::from_utf8_lossy(&key[..16]).trim_end_matches('\0').to_string();
            (name, word(m.array(table.values), u32::from_le_bytes(slot[..4].try_into().expect("u32")) as usize))
        })
        .collect();
    sums.sort();
    assert_eq!(sums, [("idles".to_string(), 100), ("nginx".to_string(), 50)]);
    assert_eq!(word(m.array(table.values), 0), 7000, "the overflow slot");
    assert_eq!(lost(&m, &module, Loss::SeriesOverflow), 1);
}

#[test]
fn many_cpus_share_shards_within_the_budget() {
    let mut probe = softirq(Keep::Last);
    let module = compiled(probe.clone(), &target(4096));
    let table = &module.layout.tables[0];
    assert!(module.layout.bytes() <= probe.limits.map_bytes);
    assert!(table.shards < 4096 && table.shards.is_power_of_two());
    assert!(crate::ir::print::module(&module).contains("atomic"));
    probe.limits.map_bytes = 4096;
    let errors = build(probe, &target(2), &Default::default()).expect_err("too much");
    assert!(errors[0].message.contains("more than its"), "{}", errors[0].message);
}

fn gauge_of(keep: Aggregate) -> Probe {
    let mut probe = counter(1000);
    probe.metrics[0].kind = MetricKind::Gauge { signed: true, keep: Some(keep) };
    probe
}

#[test]
fn extremes_have_a_shard_for_each_cpu_or_are_refused() {
    let mut probe = gauge_of(Aggregate::Max);
    let module = compiled(probe.clone(), &target(64));
    assert_eq!(module.layout.tables[0].shards, 64);
    probe.limits.map_bytes = 512 << 10;
    let refusals = build(probe, &target(64), &Default::default()).expect_err("1 MiB is more than half of one");
    assert!(refusals[0].message.contains("of kernel maps"), "{}", refusals[0].message);
}

#[test]
fn sums_that_go_down_share_shards_and_are_not_sampled() {
    let mut probe = gauge_of(Aggregate::Sum);
    probe.limits.map_bytes = 512 << 10;
    probe.limits.sampled = true;
    let module = compiled(probe.clone(), &target(64));
    assert!((2..64).contains(&module.layout.tables[0].shards));
    assert_eq!(module.layout.control, None);
    probe.metrics[0].kind = MetricKind::Counter;
    assert!(compiled(probe, &target(64)).layout.control.is_some());
}

#[test]
fn many_domains_and_many_cpus_do_not_overflow() {
    let mut probe = counter(2);
    let Shape::At(sites) = &mut probe.shape else { panic!("at") };
    // 512^8 is 2^72.
    first(&mut sites[0].measures).labels = vec![arg(1); 8];
    probe.metrics[0].labels = (0..8).map(|i| label(&format!("l{i}"), Ty::U32, Some(512))).collect();
    let module = compiled(probe.clone(), &target(1));
    assert!(matches!(module.layout.tables[0].index, Index::Hash { .. }));
    probe.metrics[0].max_series = u32::MAX;
    probe.limits.map_bytes = 1 << 60;
    let module = compiled(probe, &target(u32::MAX));
    let table = &module.layout.tables[0];
    assert_eq!((table.shards, table.slots), (1, u32::MAX));
}

#[test]
fn a_long_name_is_cut_before_the_role() {
    let mut probe = softirq(Keep::Last);
    probe.name = "a".repeat(63);
    let module = compiled(probe, &target(1));
    let names: Vec<&str> = module.funcs.iter().map(|f| f.name.as_str()).collect();
    assert!(names.iter().all(|n| n.len() <= 63), "{names:?}");
    assert!(names[0].ends_with("a_end") && names[1].ends_with("a_start"), "{names:?}");
}

#[test]
fn too_much_stack_is_said_in_words() {
    let mut probe = counter(2);
    let Shape::At(sites) = &mut probe.shape else { panic!("at") };
    let text = |n: u64| node(Kind::StrAt(Box::new(node(Kind::Const(n), Ty::U64))), Ty::Str(64));
    first(&mut sites[0].measures).labels = (0..8).map(text).collect();
    probe.metrics[0].labels = (0..8).map(|i| label(&format!("l{i}"), Ty::Str(64), None)).collect();
    let errors = build(probe, &target(1), &Default::default()).expect_err("too much");
    assert!(errors[0].message.contains("bytes of stack"), "{}", errors[0].message);
    assert_eq!(errors[0].fault, crate::diag::Fault::Limit);
}

#[test]
fn text_is_read_once_and_areas_are_used_again() {
    let mut probe = counter(2);
    // A condition on `comm` and a label of it.
    let module = compiled(probe.clone(), &target(1));
    assert_eq!(crate::ir::print::module(&module).matches("get_current_comm").count(), 1);
    let Shape::At(sites) = &mut probe.shape else { panic!("at") };
    let mut metrics = Vec::new();
    let measure = first(&mut sites[0].measures).clone();
    sites[0].measures = (0..16).map(|i| Some(Measure { value: arg(i), ..measure.clone() })).collect();
    for i in 0..16 {
        // Other caps, so that each has a table of its own.
        metrics.push(Metric { max_series: 10 + i, name: format!("m{i}_total"), ..probe.metrics[0].clone() });
    }
    probe.metrics = metrics;
    let module = compiled(probe, &target(1));
    assert_eq!(module.layout.tables.len(), 16);
    assert!(module.funcs[0].slots.iter().sum::<u32>() <= 128, "{:?}", module.funcs[0].slots);
}

#[test]
fn a_dense_table_never_has_more_series_than_the_user_allows() {
    let mut probe = softirq(Keep::Last);
    probe.metrics[0].max_series = 9;
    let layout = compiled(probe, &target(2)).layout;
    assert!(matches!(layout.tables[0].index, Index::Hash { .. }));
    assert_eq!((layout.tables[0].slots, layout.tables[0].overflow), (10, Some(0)));
    let mut probe = softirq(Keep::Last);
    probe.metrics[0].max_series = 10;
    assert_eq!(compiled(probe, &target(2)).layout.tables[0].index, Index::Dense(vec![10]));
}
