//! Lowered code does what the IR says: random functions, run in rbpf and by an evaluator.

mod support;

use kstrobe_ebpf::ir::Func;
use kstrobe_ebpf::lower::{Options, lower};
use proptest::prelude::*;
use support::{check, eval, module, random, vm};

fn agree(func: Func, ctx: &[u64]) -> Result<u32, TestCaseError> {
    let slot_bytes = func.slots.iter().map(|bytes| bytes.next_multiple_of(8)).sum();
    let module = module(func);
    let func = &module.funcs[0];
    let code = lower(func, &module, &Options::default()).map_err(|d| TestCaseError::fail(d.message))?;
    prop_assert_eq!(check::broken_rule(&code, slot_bytes), None, "\n{}", code.listing());
    let ran = vm::run(&code, &module, ctx).map_err(|e| TestCaseError::fail(format!("{e}\n{}", code.listing())))?;
    prop_assert_eq!(ran, eval::run(func, &module, ctx), "\n{}", code.listing());
    Ok(code.stack_bytes - slot_bytes)
}

fn words() -> impl Strategy<Value = Vec<u64>> {
    let word = prop_oneof![any::<u64>(), 0..4u64, Just(u64::MAX), Just(1 << 63), any::<u32>().prop_map(u64::from)];
    prop::collection::vec(word, random::CTX_WORDS as usize)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_functions_do_what_the_ir_says(numbers in prop::collection::vec(any::<u32>(), 0..300), ctx in words()) {
        agree(random::function(&numbers, 2), &ctx)?;
    }

    #[test]
    fn also_when_most_values_live_in_memory(
        numbers in prop::collection::vec(any::<u32>(), 0..200), pressure in 11..40u32, ctx in words()
    ) {
        agree(random::function(&numbers, pressure), &ctx)?;
        // The same values with nothing in between are all alive at one call.
        let spilled = agree(random::function(&[], pressure), &ctx)?;
        prop_assert!(spilled >= 8 * (pressure - 4), "{spilled} bytes");
    }
}
