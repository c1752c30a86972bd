//! Random expressions mean the same to interpreter, machine and mathematics.

use crate::corpus::{one_metric, target};
use crate::generate::{ARGS, Node, Numbers, word};
use crate::{agreed, compiled};
use kstrobe_ebpf::ir::interp::Memory;
use kstrobe_ebpf::program::MetricKind;
use proptest::prelude::*;

fn check(node: &Node, contexts: &[Vec<u64>]) -> Result<(), TestCaseError> {
    let text = node.text();
    let fail = |message: String| TestCaseError::fail(format!("{text}\n{message}"));
    let compiled = compiled(&one_metric(MetricKind::Gauge(None), &text), &target(&ARGS, false, false)).map_err(fail)?;
    for ctx in contexts {
        let left = agreed(&compiled, ctx, &Memory::default(), &Memory::default()).map_err(fail)?;
        prop_assert_eq!(left.values, [node.stored(ctx), 1], "{} of {:x?}", text, ctx);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_expressions_mean_what_the_language_says(
        numbers in prop::collection::vec(any::<u32>(), 1..120),
        words in prop::collection::vec(prop::array::uniform8(any::<(u32, u32)>()), 4),
    ) {
        let contexts: Vec<Vec<u64>> =
            words.iter().map(|words| words.iter().map(|(a, b)| word(*a, *b)).collect()).collect();
        check(&Numbers(numbers.iter()).expression(), &contexts)?;
    }
}
