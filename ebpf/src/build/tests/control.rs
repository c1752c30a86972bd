//! Probes whose events the agent samples while they run.

use super::*;
use crate::layout::ControlMap;

pub(super) fn sampled(mut probe: Probe) -> Module {
    probe.limits.sampled = true;
    compiled(probe, &target(1))
}

/// One of `mask + 1` events is sampled, after `left` that are passed over.
pub(super) fn set(m: &mut Machine, module: &Module, mask: u64, since: u64, left: u64) {
    let control = module.layout.control.as_ref().expect("control");
    let words =
        [(ControlMap::MASK, mask), (ControlMap::SINCE, since), (ControlMap::LEFT, left), (ControlMap::OTHERS, mask)];
    let bytes = m.array_mut(control.map);
    for (at, word) in words {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

fn total(m: &Machine, module: &Module) -> u64 {
    let bytes = m.array(module.layout.tables[0].values);
    (0..bytes.len() / 8).map(|at| word(bytes, at)).sum()
}

#[test]
fn an_event_that_is_sampled_counts_for_those_passed_over() {
    let module = sampled(counter(2));
    let mut m = machine(&module);
    let event = |m: &mut Machine, random: u32| {
        m.environment.random = random;
        run(m, &module, "ks_bytes_at", &[20, 1]);
        total(m, &module)
    };
    assert_eq!([0, 1, u32::MAX].map(|random| event(&mut m, random)), [20, 40, 60], "without a mask all count");
    set(&mut m, &module, 7, 1, 2);
    // A quarter of the range is 3 of 0 ..= 14.
    assert_eq!([0, 0, 1 << 30, 0, 0, 0, 0].map(|random| event(&mut m, random)), [60, 60, 220, 220, 220, 220, 380]);
    set(&mut m, &module, 0, 1, 0);
    assert_eq!(event(&mut m, 7), 400);
}

/// Starts are seen for one of `times` parts of the time, and of those one of `mask + 1` is taken.
fn slice(m: &mut Machine, module: &Module, mask: u64, times: u64) {
    set(m, module, mask, 1, 0);
    let control = module.layout.control.as_ref().expect("control");
    let words = [(ControlMap::OTHERS, (mask + 1) * times - 1), (ControlMap::SLICED, 1)];
    let bytes = m.array_mut(control.map);
    words.iter().for_each(|(at, word)| bytes[*at..at + 8].copy_from_slice(&word.to_le_bytes()));
}

#[test]
fn an_event_in_a_slice_counts_for_those_outside() {
    let module = sampled(counter(2));
    let mut m = machine(&module);
    slice(&mut m, &module, 0, 8);
    run(&mut m, &module, "ks_bytes_at", &[20, 1]);
    assert_eq!(total(&m, &module), 160);
    slice(&mut m, &module, 3, 8);
    m.environment.random = 0;
    run(&mut m, &module, "ks_bytes_at", &[20, 1]);
    assert_eq!(total(&m, &module), 160 + 640);
}

#[test]
fn gaps_between_sampled_events_have_the_right_mean() {
    let module = sampled(counter(2));
    let mut m = machine(&module);
    set(&mut m, &module, 7, 1, 0);
    let mut state = 1u32;
    for _ in 0..40_000 {
        // Numerical Recipes' generator.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        m.environment.random = state;
        run(&mut m, &module, "ks_bytes_at", &[20, 1]);
    }
    let total = total(&m, &module) as f64 / 20.0;
    // The gaps' deviation is 4.3 of a mean of 8: 5,000 of them are within 0.8 % with one sigma.
    assert!((total / 40_000.0 - 1.0).abs() < 0.03, "{total}");
}

#[test]
fn a_probe_that_is_not_sampled_has_no_control_map() {
    assert_eq!(compiled(counter(2), &target(1)).layout.control, None);
}

/// Observations, and ends that found no start.
fn spans(m: &Machine, module: &Module) -> (u64, u64) {
    (observations(m, module), lost(m, module, Loss::NoStart))
}

pub(super) fn observations(m: &Machine, module: &Module) -> u64 {
    let table = &module.layout.tables[0];
    let CellKind::Histogram(scheme) = &table.cells[0].kind else { panic!("histogram") };
    let stride = 1 + scheme.buckets();
    let words = m.array(table.values);
    (0..words.len() / 8).filter(|at| at % stride != 0).map(|at| word(words, at)).sum()
}

/// Sum of all durations in nanoseconds.
pub(super) fn sums(m: &Machine, module: &Module) -> u64 {
    let table = &module.layout.tables[0];
    let CellKind::Histogram(scheme) = &table.cells[0].kind else { panic!("histogram") };
    let words = m.array(table.values);
    (0..words.len() / 8).step_by(1 + scheme.buckets()).map(|at| word(words, at)).sum()
}

#[test]
fn a_span_is_passed_over_whole() {
    for keep in [Keep::Last, Keep::First] {
        let module = sampled(softirq(keep));
        let mut m = machine(&module);
        m.environment.now_ns = 1000;
        let at = |m: &mut Machine, hook: &str, left: u64| {
            m.environment.now_ns += 1000;
            set(m, &module, 1, 1, left);
            run(m, &module, &format!("ks_softirq_{hook}"), &[3]);
            spans(m, &module)
        };
        at(&mut m, "start", 1);
        assert_eq!(at(&mut m, "end", 0), (0, 0), "{keep:?}: passed over, which is no loss");
        assert_eq!(at(&mut m, "end", 0), (0, 1), "{keep:?}: an end too many is one");
        at(&mut m, "start", 0);
        assert_eq!(at(&mut m, "end", 1), (2, 1), "{keep:?}: the start alone decides");
        at(&mut m, "start", 0);
        at(&mut m, "start", 1);
        let expected = if keep == Keep::Last { 2 } else { 4 };
        assert_eq!(at(&mut m, "end", 0).0, expected, "{keep:?}: what counts of two starts is the same as ever");
        at(&mut m, "start", 1);
        at(&mut m, "start", 0);
        // The last is measured, or the first was not.
        assert_eq!(at(&mut m, "end", 0).0, 4, "{keep:?}");
    }
}

#[test]
fn a_span_has_the_weight_of_its_start() {
    let module = sampled(softirq(Keep::Last));
    let mut m = machine(&module);
    for (mask, later, counts) in [(0, 7, 1), (7, 0, 8), (3, 1, 4)] {
        let before = spans(&m, &module).0;
        set(&mut m, &module, mask, 1, 0);
        m.environment.now_ns += 1000;
        run(&mut m, &module, "ks_softirq_start", &[3]);
        set(&mut m, &module, later, 1, 7);
        m.environment.now_ns += 1000;
        run(&mut m, &module, "ks_softirq_end", &[3]);
        assert_eq!(spans(&m, &module).0 - before, counts, "{mask} {later}");
        assert_eq!(sums(&m, &module), 1000 * spans(&m, &module).0);
    }
}

#[test]
fn a_span_from_before_the_probe_came_back_is_not_measured() {
    let module = sampled(softirq(Keep::Last));
    let mut m = machine(&module);
    m.environment.now_ns = 5000;
    run(&mut m, &module, "ks_softirq_start", &[3]);
    set(&mut m, &module, 0, 9000, 0);
    m.environment.now_ns = 10_000;
    run(&mut m, &module, "ks_softirq_end", &[3]);
    assert_eq!(spans(&m, &module), (0, 0));
    run(&mut m, &module, "ks_softirq_start", &[3]);
    run(&mut m, &module, "ks_softirq_end", &[3]);
    assert_eq!(spans(&m, &module), (1, 0));
}

#[test]
fn spans_in_a_hash_are_not_sampled() {
    let mut probe = softirq(Keep::Last);
    let Shape::Span { key, start, end, .. } = &mut probe.shape else { panic!("span") };
    *key = SpanKey::Hash(vec![Ty::U32]);
    start[0].by = vec![arg(0)];
    end[0].by = vec![arg(0)];
    assert_eq!(sampled(probe).layout.control, None);
}
