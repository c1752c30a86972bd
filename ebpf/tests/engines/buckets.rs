//! The bucket index of the interpreter, of the machine and of the mathematics is one.

use crate::compiled;
use crate::corpus::{one_metric, target};
use crate::generate::{scheme, values};
use crate::vm::Vm;
use kstrobe_ebpf::buckets::Scheme;
use kstrobe_ebpf::ir::interp::{Machine, Memory};
use kstrobe_ebpf::program::MetricKind;
use proptest::prelude::*;

/// After each value its own bucket and the sum have grown, and nothing else.
fn follow(scheme: &Scheme, values: &[u64], mut step: impl FnMut(u64) -> Vec<u64>) -> Result<(), String> {
    let mut want = vec![0u64; 1 + scheme.buckets()];
    for &value in values {
        want[0] = want[0].wrapping_add(value);
        want[1 + scheme.index(value)] += 1;
        let found = step(value);
        if found != want {
            let at = (0..want.len()).find(|i| found.get(*i) != want.get(*i));
            return Err(format!("{value} of {:?}: word {at:?} differs", scheme.spec));
        }
    }
    Ok(())
}

fn agree(scheme: &Scheme, values: &[u64]) -> Result<(), String> {
    let program = one_metric(MetricKind::Histogram(scheme.spec.clone()), "args.v");
    let compiled = compiled(&program, &target(&[("u64", "v")], false, false))?;
    let table = &compiled.module.layout.tables[0];
    let mut machine = Machine::new(&compiled.module.layout).map_err(|trap| trap.to_string())?;
    follow(scheme, values, |value| {
        machine.run(&compiled.module, 0, &value.to_le_bytes()).expect("no trap");
        machine.array(table.values).chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect()
    })
    .map_err(|error| format!("interpreter: {error}"))?;
    let mut vm = Vm::new(&compiled.module, &compiled.codes, Memory::default(), Memory::default());
    let mut step = |value: u64| {
        vm.run(0, &[value]).expect("no fault");
        vm.values(table.values).to_vec()
    };
    follow(scheme, values, &mut step).map_err(|error| format!("rbpf: {error}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_schemes(numbers in prop::collection::vec(any::<u32>(), 40..80)) {
        if let Some(scheme) = scheme(&numbers) {
            let values = values(&scheme, &numbers);
            agree(&scheme, &values).map_err(TestCaseError::fail)?;
        }
    }
}

#[test]
fn most_random_numbers_describe_a_scheme() {
    let numbers = |seed: u32| -> Vec<u32> {
        (0..60u32).map(|i| (i + 1).wrapping_mul(seed).wrapping_mul(0x9e37_79b9) ^ seed.rotate_left(i)).collect()
    };
    let possible = (1..200).filter(|seed| scheme(&numbers(*seed)).is_some()).count();
    assert!(possible > 100, "only {possible} of 199");
}
