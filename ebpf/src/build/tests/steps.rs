//! Steps: what is seen, set and forgotten, in which order.

use super::*;
use crate::typed::StepSite;

fn step(event: &str, state_filter: Option<Expr>) -> StepSite {
    StepSite {
        attach: raw(event),
        place: Place::default(),
        select: Select::All,
        by: vec![arg(0)],
        filter: None,
        state_filter,
        measured: None,
        set: Vec::new(),
        observe: Vec::new(),
        delete: false,
        slow: None,
    }
}

fn there() -> Expr {
    node(Kind::State(1), Ty::Bool)
}

fn sum_of(value: Expr, filter: Option<Expr>) -> (u32, Measure) {
    (0, Measure { filter, value, labels: Vec::new() })
}

fn state() -> Expr {
    node(Kind::State(0), Ty::U64)
}

/// At `x`: a new key is set to the second argument, and what another step of the same event then sees is added to the sum.
/// At `y`: what is kept is added when it is more than 100, and the key is forgotten whatever it is. The condition is the metric's or the
/// probe's.
fn probe(of_metric: bool) -> Probe {
    let mut probe = counter(8);
    probe.metrics = vec![metric("sum_total", MetricKind::Counter, Vec::new(), 1)];
    let value = |e: Expr| node(Kind::Convert(Box::new(e)), Ty::U64);
    let first = StepSite {
        set: vec![(0, value(arg(1)))],
        observe: vec![sum_of(state(), None)],
        ..step("x", Some(node(Kind::Not(Box::new(there())), Ty::Bool)))
    };
    let second = StepSite { observe: vec![sum_of(state(), None)], ..step("x", Some(there())) };
    let more =
        node(Kind::Cmp(crate::typed::Cmp::Gt, Box::new(state()), Box::new(node(Kind::Const(100), Ty::U64))), Ty::Bool);
    let (metrics, measured) = if of_metric { (Some(more), None) } else { (None, Some(more)) };
    let last = StepSite { observe: vec![sum_of(state(), metrics)], measured, delete: true, ..step("y", Some(there())) };
    probe.shape = Shape::Steps {
        key: vec![Ty::U32],
        fields: vec![("kept".into(), Ty::U64)],
        max_entries: 4,
        sites: vec![first, second, last],
    };
    probe
}

#[test]
fn steps_of_one_event_run_in_order_and_what_is_deleted_goes_whatever_is_measured() {
    in_order(&compiled(probe(true), &target(1)));
    in_order(&compiled(probe(false), &target(1)));
}

fn in_order(module: &Module) {
    assert_eq!(module.funcs.len(), 2, "one program for each hook");
    let mut m = machine(module);
    let state = module.layout.state.clone().expect("a state");
    let sum = |m: &Machine| word(m.array(module.layout.tables[0].values), 0);
    let event = |m: &mut Machine, program: &str, key: u64, value: u64| {
        run(m, module, program, &[key, value]);
        sum(m)
    };
    // What is observed before it is set is 0; the step after sees what was set.
    assert_eq!(event(&mut m, "ks_bytes_step0", 7, 30), 30);
    assert_eq!(event(&mut m, "ks_bytes_step0", 7, 1000), 60, "the first value stays");
    assert_eq!(event(&mut m, "ks_bytes_step0", 8, 200), 260);
    assert_eq!(m.hash(state.map).len(), 2);
    assert_eq!(event(&mut m, "ks_bytes_step1", 7, 0), 260, "30 is not more than 100");
    assert_eq!(m.hash(state.map).len(), 1, "it is forgotten all the same");
    assert_eq!(event(&mut m, "ks_bytes_step1", 8, 0), 460);
    assert_eq!(event(&mut m, "ks_bytes_step1", 8, 0), 460, "nothing is there any more");
    let counts = m.array(state.counts);
    assert_eq!((word(counts, 0), word(counts, 1)), (2, 2), "two came, two went");
}
