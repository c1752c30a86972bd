//! What the kernel tells of the place that was hit, as keys.

use crate::corpus::{one_metric, target, written};
use crate::vm::{COOKIE, FUNCTION};
use crate::{agreed, compiled};
use kstrobe_ebpf::ir::interp::Memory;
use kstrobe_ebpf::kernel_target::{Ability, Function};
use kstrobe_ebpf::program::{Binary, Edge, Hook, HookKind, Label, MetricKind, Shape, Via};

/// The key that one event at this hook leaves, with the label `func`.
fn key(kind: HookKind) -> Vec<u8> {
    let mut target = target(&[], false, false);
    for ability in [&mut target.abilities.uprobe_multi, &mut target.abilities.kprobe, &mut target.abilities.func_ip] {
        *ability = Ability::Yes;
    }
    let function = |symbol: &str| Function { symbol: symbol.into(), traceable: true, ..Function::default() };
    target.functions.insert("case_*".into(), vec![function("case_a"), function("case_b")]);
    let mut program = one_metric(MetricKind::Gauge(None), "1");
    program.shape = Shape::At(vec![Hook { kind, text: written(100, "hook") }]);
    program.metrics[0].labels = vec![Label { name: written(101, "func"), value: written(102, "func") }];
    let compiled = compiled(&program, &target).unwrap();
    let left = agreed(&compiled, &[0; 32], &Memory::default(), &Memory::default()).unwrap();
    assert_eq!(left.keys.len(), 1, "{left:?}");
    left.keys[0].0.clone()
}

#[test]
fn a_place_in_a_program_is_known_by_the_id_it_was_attached_with() {
    let binary = Binary { path: "/bin/case".into(), pid: None };
    let hook = HookKind::User { binary, symbol: "case_*".into(), offset: 0, edge: Edge::Enter };
    assert_eq!(key(hook), COOKIE.to_le_bytes());
}

#[test]
fn a_function_of_a_pattern_is_known_by_its_address() {
    let (name, via, edge) = ("case_*".into(), Via::Best, Edge::Enter);
    assert_eq!(key(HookKind::Function { name, module: None, offset: 0, edge, via }), FUNCTION.to_le_bytes());
}
