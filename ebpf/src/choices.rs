//! What a kernel made of a probe otherwise than it would be on one that can do more, with the reason for each.

use crate::ir::Module;
use crate::kernel_target::{Ability, Target};
use crate::layout::MapKind;
use crate::typed::{Choice, Expr, Kind, Shape, SpanKey};

/// How the state of a shape is found.
pub(crate) fn of_shape(shape: &Shape, target: &Target) -> Vec<Choice> {
    match shape {
        Shape::Span { key: SpanKey::Hash(_), start, end, max_open, .. }
            if start.iter().map(|s| &s.by).chain(end.iter().map(|s| &s.by)).all(|by| is_tid(by)) =>
        {
            let (storage, current) = (&target.abilities.task_storage, &target.abilities.current_task_btf);
            let stacks =
                Ability::No("only a hash can be listed, and the stacks that open spans hold must not go".into());
            let lacking = [storage, current].into_iter().find(|ability| !ability.yes()).unwrap_or(&stacks);
            vec![choice("task storage", format!("hash of {max_open} tasks"), lacking)]
        }
        _ => vec![],
    }
}

/// How its programs attach and read, and how its maps are read. `missed_casts`: a read went through a helper for want of
/// the cast.
pub(crate) fn of_module(module: &Module, missed_casts: bool, target: &Target) -> Vec<Choice> {
    let abilities = &target.abilities;
    let mut choices = Vec::new();
    for attach in module.funcs.iter().filter_map(|f| f.attach.as_ref()) {
        if let (Some(better), Some(event)) = (attach.better(), attach.event()) {
            let wanted = better.to_string();
            let described = target.btf.as_ref().is_some_and(|btf| btf.tracepoint_args(event).is_some());
            let unknown = Ability::No(match described {
                true => "the verifier lets no program read the type of one of its arguments".into(),
                false => format!("the kernel's BTF has no `{event}`"),
            });
            let lacking = if abilities.tp_btf.yes() { &unknown } else { &abilities.tp_btf };
            let choice = choice(&wanted, attach.to_string(), lacking);
            if !choices.contains(&choice) {
                choices.push(choice);
            }
        }
    }
    if missed_casts {
        choices.push(choice("plain loads", "a helper call for each member".into(), &abilities.rdonly_cast));
    }
    let in_kernel = module.funcs.iter().any(|f| f.attach.is_some());
    let has = |wanted: fn(MapKind) -> bool| in_kernel && module.layout.maps.iter().any(|m| wanted(m.kind));
    if !abilities.mmapable.yes() && has(|kind| matches!(kind, MapKind::Array { .. })) {
        choices.push(choice("mapped arrays", "a system call for each read".into(), &abilities.mmapable));
    }
    if !abilities.batch.yes() && has(|kind| matches!(kind, MapKind::Hash | MapKind::LruHash)) {
        choices.push(choice("batch reads", "a system call for each key".into(), &abilities.batch));
    }
    if has(|kind| kind == MapKind::PerfEvents) {
        choices.push(choice("ring buffer", "perf buffers".into(), &abilities.ringbuf));
    }
    choices
}

fn is_tid(by: &[Expr]) -> bool {
    matches!(by, [by] if by.kind == Kind::Tid)
}

fn choice(wanted: &str, got: String, lacking: &Ability) -> Choice {
    let because = match lacking {
        Ability::No(reason) => reason.clone(),
        Ability::Unknown | Ability::Yes => "it was not tried".into(),
    };
    Choice { wanted: wanted.into(), got, because: vec![because] }
}
