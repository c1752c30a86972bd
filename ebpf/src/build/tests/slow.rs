//! Records of single events: what is in them, how many a second, and what becomes of the others.

use super::*;
use crate::layout::{EventMap, MapKind};

const COMM: [u8; 16] = *b"nginx\0\0\0\0\0\0\0\0\0\0\0";

/// The spans of [`softirq`] that last longer than a microsecond, `most` a second.
fn probe(most: u32) -> Probe {
    let mut probe = softirq(Keep::Last);
    let fields =
        [("vector", Ty::U32), ("bits", Ty::Int { bits: 8, signed: false }), ("comm", Ty::Str(16)), ("took", Ty::U64)];
    let fields = fields.map(|(name, ty)| label(name, ty, None));
    let Shape::Span { end, .. } = &mut probe.shape else { panic!("span") };
    let long = Kind::Cmp(Cmp::Gt, Box::new(node(Kind::Elapsed, Ty::U64)), Box::new(node(Kind::Const(1000), Ty::U64)));
    let bits = node(Kind::Convert(Box::new(arg(0))), fields[1].ty);
    end[0].slow = Some(SlowMeasure {
        when: node(long, Ty::Bool),
        fields: vec![arg(0), bits, node(Kind::Comm, Ty::Str(16)), node(Kind::Elapsed, Ty::U64)],
    });
    probe.slow = Some(Slow {
        place: Place::default(),
        fields: fields.to_vec(),
        otlp_span: Vec::new(),
        max_per_second: most,
        buffer_bytes: None,
    });
    probe
}

fn with_ring_buffer(cpus: u32) -> Target {
    let mut target = target(cpus);
    target.abilities.ringbuf = Ability::Yes;
    target
}

fn events(module: &Module) -> &EventMap {
    module.layout.events.as_ref().expect("events")
}

/// A span of so many nanoseconds that ends at `now`.
fn span(m: &mut Machine, module: &Module, now: u64, took: u64) {
    m.environment.now_ns = now - took;
    run(m, module, "ks_softirq_start", &[3]);
    m.environment.now_ns = now;
    run(m, module, "ks_softirq_end", &[3]);
}

fn ready(module: &Module) -> Machine {
    let mut m = machine(module);
    (m.environment.comm, m.environment.pid_tgid) = (COMM, 77 << 32 | 78);
    m
}

#[test]
fn a_record_has_the_header_and_its_fields_in_both_buffers() {
    for (target, kind) in [(with_ring_buffer(2), MapKind::RingBuf), (target(2), MapKind::PerfEvents)] {
        let module = compiled(probe(10), &target);
        let mut m = ready(&module);
        let events = events(&module);
        assert_eq!(module.layout.map(events.map).kind, kind);
        span(&mut m, &module, 5_000_000_000, 1000);
        assert_eq!(m.take_records(events.map), Vec::<Vec<u8>>::new(), "not longer than a microsecond");
        span(&mut m, &module, 5_000_000_000, 1001);
        let mut expected = [5_000_000_000u64.to_le_bytes().as_slice(), &[77, 0, 0, 0, 78, 0, 0, 0]].concat();
        expected.extend([&[3, 0, 0, 0, 3, 0, 0, 0], &COMM[..], &1001u64.to_le_bytes()].concat());
        assert_eq!(m.take_records(events.map), [expected]);
        let at: Vec<_> = events.fields.iter().map(|f| (f.names[0].as_str(), f.offset)).collect();
        assert_eq!((at, events.bytes), (vec![("vector", 16), ("bits", 20), ("comm", 24), ("took", 40)], 48));
        assert_eq!((lost(&m, &module, Loss::EventsLimited), lost(&m, &module, Loss::EventsFull)), (0, 0));
    }
}

#[test]
fn each_cpu_sends_so_many_a_second_and_counts_the_others() {
    let module = compiled(probe(3), &with_ring_buffer(2));
    let mut m = ready(&module);
    let mut sent = |cpu, now, spans| {
        m.environment.cpu = cpu;
        (0..spans).for_each(|_| span(&mut m, &module, now, 2000));
        (m.take_records(events(&module).map).len(), lost(&m, &module, Loss::EventsLimited))
    };
    assert_eq!(sent(0, 5_000_000_000, 2), (2, 0));
    assert_eq!(sent(0, 5_999_999_999, 5), (1, 4), "still the same second");
    assert_eq!(sent(1, 5_999_999_999, 4), (3, 5), "another CPU has its own count");
    assert_eq!(sent(0, 6_000_000_000, 4), (3, 6));
    assert_eq!(lost(&m, &module, Loss::EventsFull), 0);
    let table = &module.layout.tables[0];
    let stride = module.layout.map(table.values).value_bytes as usize / 8;
    let spans: u64 = [3, table.slots as usize + 3].map(|slot| word(m.array(table.values), slot * stride)).iter().sum();
    assert_eq!(spans, 15 * 2000, "all are measured");
}

#[test]
fn a_full_buffer_is_counted() {
    let module = compiled(probe(1_000_000), &with_ring_buffer(1));
    let mut m = ready(&module);
    let events = events(&module);
    let room = events.buffer_bytes / (events.bytes + 8);
    (0..room + 7).for_each(|_| span(&mut m, &module, 5_000_000_000, 2000));
    assert_eq!(m.take_records(events.map).len() as u32, room);
    assert_eq!(lost(&m, &module, Loss::EventsFull), 7);
}

#[test]
fn buffers_have_room_for_two_seconds_within_bounds() {
    let bytes = |most, target: Target| events(&compiled(probe(most), &target)).buffer_bytes;
    assert_eq!(bytes(10, with_ring_buffer(2)), 64 << 10, "whole pages of every machine");
    // 2 s x 4 CPUs x 1000 records of 48 + 16 bytes.
    assert_eq!(bytes(1000, with_ring_buffer(4)), 512 << 10);
    assert_eq!(bytes(1_000_000, with_ring_buffer(256)), 1 << 20);
    let of_user = |own, target: Target| {
        let mut probe = probe(10);
        probe.slow.as_mut().expect("slow").buffer_bytes = Some(own);
        probe.limits.map_bytes = 64 << 20;
        events(&compiled(probe, &target)).buffer_bytes
    };
    assert_eq!(of_user(3 << 20, with_ring_buffer(2)), 4 << 20, "a power of two");
    assert_eq!(of_user(64 << 10, target(2)), 64 << 10);
    assert_eq!(bytes(10, target(64)), 4 << 10, "one a CPU");
    let layout = compiled(probe(10), &target(64)).layout;
    let maps: u64 = layout.maps.iter().map(crate::layout::MapDef::bytes).sum();
    assert_eq!(layout.bytes(), maps + 64 * (4 << 10), "perf buffers are part of the budget");
}

#[test]
fn what_the_condition_read_is_not_read_again() {
    let mut probe = probe(10);
    let Shape::Span { end, .. } = &mut probe.shape else { panic!("span") };
    let slow = end[0].slow.as_mut().expect("slow");
    let is = node(Kind::StrEq(Box::new(slow.fields[2].clone()), b"nginx\0".to_vec()), Ty::Bool);
    slow.when = node(Kind::And(Box::new(slow.when.clone()), Box::new(is)), Ty::Bool);
    let module = compiled(probe, &with_ring_buffer(1));
    assert_eq!(crate::ir::print::module(&module).matches("get_current_comm").count(), 1);
    let mut m = ready(&module);
    span(&mut m, &module, 5_000_000_000, 2000);
    assert_eq!(m.take_records(events(&module).map)[0][24..40], COMM);
}

#[test]
fn a_record_beyond_the_stack_is_said_in_words() {
    let mut probe = probe(10);
    let Shape::Span { end, .. } = &mut probe.shape else { panic!("span") };
    let text = |n: u64| node(Kind::StrAt(Box::new(node(Kind::Const(n), Ty::U64))), Ty::Str(64));
    end[0].slow.as_mut().expect("slow").fields = (0..8).map(text).collect();
    probe.slow.as_mut().expect("slow").fields = (0..8).map(|i| label(&format!("f{i}"), Ty::Str(64), None)).collect();
    let errors = build(probe, &with_ring_buffer(1), &Default::default()).expect_err("too much");
    assert!(errors[0].message.contains("bytes of stack"), "{}", errors[0].message);
}

#[test]
fn a_hash_of_spans_is_let_go_of_whatever_becomes_of_the_record() {
    let mut probe = probe(1);
    let Shape::Span { start, end, key, .. } = &mut probe.shape else { panic!("span") };
    (start[0].by, end[0].by, *key) = (vec![arg(0)], vec![arg(0)], SpanKey::Hash(vec![Ty::U32]));
    let module = compiled(probe, &with_ring_buffer(1));
    let mut m = ready(&module);
    (0..3).for_each(|_| span(&mut m, &module, 5_000_000_000, 2000));
    assert_eq!((m.take_records(events(&module).map).len(), lost(&m, &module, Loss::EventsLimited)), (1, 2));
    assert_eq!(m.hash(module.layout.spans.as_ref().expect("a hash").map), []);
}
