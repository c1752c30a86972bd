//! The shipped probes on the recorded kernel, and on kernels that can do less.

use super::fixture::{edited, every_shipped, file, shipped, target};
use kstrobe::config::plan::ProbePlan;
use kstrobe_ebpf::kernel_target::{Abilities, Ability};
use kstrobe_ebpf::layout::MapKind;
use kstrobe_ebpf::typed::Attach;
use kstrobe_ebpf::{Artifact, Target};

/// A kernel that is like the recorded one but lacks something.
fn without(lose: impl FnOnce(&mut Abilities)) -> Target {
    let mut target = target();
    lose(&mut target.abilities);
    target
}

fn no() -> Ability {
    Ability::No("this test says so".into())
}

fn compile(plan: &ProbePlan, target: &Target) -> Artifact {
    let name = &plan.meta().name;
    plan.compile(target).unwrap_or_else(|r| panic!("{name}:\n{}", kstrobe_config::render(&r.diagnostics)))
}

fn name(plan: &ProbePlan) -> &str {
    &plan.meta().name
}

fn has_map(artifact: &Artifact, wanted: impl Fn(MapKind) -> bool) -> bool {
    artifact.module.layout.maps.iter().any(|m| wanted(m.kind))
}

/// What is refused on a kernel, and with which words.
fn refusals(target: &Target) -> Vec<(String, String, bool)> {
    let plans = shipped();
    let refused = plans.iter().filter_map(|d| Some((name(d).to_owned(), d.compile(target).err()?)));
    refused.map(|(name, refusal)| (name, refusal.diagnostics[0].message.clone(), refusal.target)).collect()
}

#[test]
fn all_compile_to_the_same_bytes_each_time() {
    let target = target();
    for plan in shipped() {
        let (first, second) = (compile(&plan, &target), compile(&plan, &target));
        assert!(first == second, "{}", name(&plan));
        let polls = first.programs.is_empty();
        assert_eq!(first.object.is_empty(), polls, "{}: only what the agent polls has no object", name(&plan));
        let limit = plan.program().limits;
        assert!(first.module.layout.bytes() <= limit.map_bytes, "{}", name(&plan));
        assert!(first.programs.iter().all(|p| p.instructions <= limit.instructions), "{}", name(&plan));
    }
}

/// Also of those that do not run by default: the record lacks types that they need, which is an error and no doubt.
#[test]
fn nothing_about_them_is_doubtful() {
    let target = target();
    for plan in shipped() {
        let warnings = plan.warnings(&compile(&plan, &target));
        assert!(warnings.is_empty(), "{}:\n{}", name(&plan), kstrobe_config::render(&warnings));
    }
    for plan in every_shipped() {
        let mut doubts = plan.mistakes(&target);
        doubts.retain(|diagnostic| !diagnostic.is_error());
        assert!(doubts.is_empty(), "{}:\n{}", name(&plan), kstrobe_config::render(&doubts));
    }
}

#[test]
fn a_recent_kernel_gets_typed_tracepoints_and_task_storage() {
    for plan in shipped() {
        let artifact = compile(&plan, &target());
        let typed = artifact.programs.iter().all(|p| matches!(p.attach, Attach::TpBtf { .. }));
        assert!(typed, "{}: {:?}", name(&plan), artifact.programs);
        let by_task = matches!(name(&plan), "recvfrom" | "syscalls" | "tcp_backlog");
        assert_eq!(has_map(&artifact, |kind| kind == MapKind::TaskStorage), by_task, "{}", name(&plan));
        assert!(!has_map(&artifact, |kind| kind == MapKind::Array { mmap: false }) || has_losses_only(&artifact));
    }
}

/// Whether the arrays that are not mapped are those of losses, of open spans and of control: they are not what a scrape reads.
fn has_losses_only(artifact: &Artifact) -> bool {
    let maps = artifact.module.layout.maps.iter().filter(|m| m.kind == MapKind::Array { mmap: false });
    let others = ["ks_lost", "ks_open", "ks_control", "ks_calls"];
    maps.into_iter().all(|map| others.contains(&map.name.as_str()))
}

#[test]
fn without_typed_tracepoints_raw_ones_serve_all_but_the_time_off_the_cpu() {
    let target = without(|a| a.tp_btf = no());
    let reason = "this kernel cannot tell when a task is switched out: tp_btf: this test says so";
    assert_eq!(refusals(&target), [("recvfrom".to_owned(), reason.to_owned(), true)]);
    for plan in shipped().iter().filter(|d| name(d) != "recvfrom") {
        let artifact = compile(plan, &target);
        let raw = artifact.programs.iter().all(|p| matches!(p.attach, Attach::RawTp { .. }));
        assert!(raw, "{}: {:?}", name(plan), artifact.programs);
    }
}

#[test]
fn without_any_raw_tracepoint_the_reasons_of_both_are_told() {
    let target = without(|a| (a.tp_btf, a.raw_tp) = (no(), Ability::No("nor this".into())));
    let refused = refusals(&target);
    assert_eq!(
        refused.len(),
        shipped().iter().filter(|d| !compile(d, &super::fixture::target()).programs.is_empty()).count()
    );
    for (name, reason, lacks) in refused {
        assert!(reason.contains("cannot be attached on this kernel") && lacks, "{name}: {reason}");
    }
}

#[test]
fn without_task_storage_a_hash_by_thread_serves() {
    for lose in [|a: &mut Abilities| a.task_storage = no(), |a: &mut Abilities| a.current_task_btf = no()] {
        for plan in shipped() {
            let artifact = compile(&plan, &without(lose));
            assert!(!has_map(&artifact, |kind| kind == MapKind::TaskStorage), "{}", name(&plan));
            let by_task = matches!(name(&plan), "recvfrom" | "syscalls" | "tcp_backlog");
            assert_eq!(artifact.module.layout.spans.is_some(), by_task, "{}", name(&plan));
        }
    }
}

/// `bpf_get_current_task_btf` does not exist there, so the verifier would refuse a program that calls it.
#[test]
fn without_the_current_task_as_btf_nobody_asks_for_it() {
    let (with, without) = (target(), without(|a| (a.task_storage, a.current_task_btf) = (no(), no())));
    let calls = |artifact: &Artifact| artifact.programs.iter().any(|p| p.listing.contains("get_current_task_btf"));
    let mut asked = 0;
    for plan in shipped() {
        asked += usize::from(calls(&compile(&plan, &with)));
        assert!(!calls(&compile(&plan, &without)), "{}", name(&plan));
    }
    assert!(asked >= 3, "listings name the helper");
}

#[test]
fn without_mapped_arrays_all_are_read_by_system_call() {
    let target = without(|a| a.mmapable = no());
    for plan in shipped() {
        assert!(!has_map(&compile(&plan, &target), |kind| kind == MapKind::Array { mmap: true }), "{}", name(&plan));
    }
}

#[test]
fn without_the_cast_of_addresses_memory_is_read_by_helper() {
    let (with, without) = (target(), without(|a| a.rdonly_cast = no()));
    let casts = |artifact: &Artifact| artifact.programs.iter().any(|p| p.listing.contains("kfunc#"));
    let mut cast = Vec::new();
    for plan in shipped() {
        assert!(!casts(&compile(&plan, &without)), "{}", name(&plan));
        if casts(&compile(&plan, &with)) {
            cast.push(name(&plan).to_owned());
        }
    }
    assert_eq!(cast, ["tcp_backlog", "recvfrom"], "those that look behind descriptors");
}

/// Polls need no kernel types, and neither does the time of all system calls: everything else says what it lacks.
#[test]
fn without_types_of_the_kernel_the_reason_is_told() {
    let target =
        Target { btf: None, ..without(|a| (a.tp_btf, a.task_storage, a.current_task_btf) = (no(), no(), no())) };
    let refused = refusals(&target);
    let names: Vec<&str> = refused.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(
        names,
        ["softirq", "softirq_delay", "tcp_backlog", "tcp_retransmits", "tcp_synack_retransmits", "recvfrom"]
    );
    for (name, reason, lacks) in &refused {
        assert!(reason.contains("BTF") && *lacks, "{name}: {reason}");
    }
    for (hook, label) in [
        ("interval:s:1", "cpu"),
        ("tracepoint:sock:inet_sock_set_state", "tcp_state(args.newstate)"),
        ("syscall:read:enter", "comm"),
        ("syscall:*:exit", "errno(-retval)"),
    ] {
        compile(&counter(hook, label), &target);
    }
}

/// A probe that counts events of a hook.
fn counter(hook: &str, label: &str) -> ProbePlan {
    let text = format!(
        "probe: x\nsummary: x\nat: '{hook}'\nmetrics: {{ x_total: {{ type: counter, labels: {{ x: '{label}' }} }} }}\n"
    );
    let (mut probes, diagnostics) = kstrobe_config::probes(&[file("x.yaml", &text)]);
    assert!(diagnostics.is_empty(), "{}", kstrobe_config::render(&diagnostics));
    kstrobe::config::plan::plan(probes.remove(0))
}

#[test]
fn a_kernel_without_a_member_on_the_way_says_which() {
    let target = edited(|text| text.replace(" f_inode:", " f_other:"));
    let reason = "what is behind a descriptor cannot be found: this kernel has no `file.f_inode`";
    let expected = ["tcp_backlog", "recvfrom"].map(|name| (name.to_owned(), reason.to_owned(), true));
    assert_eq!(refusals(&target), expected);
}

#[test]
fn many_cpus_share_shards_and_keep_the_budget() {
    let target = Target { cpus: 256, ..target() };
    for plan in shipped() {
        let layout = compile(&plan, &target).module.layout;
        let (bytes, limit) = (layout.bytes(), plan.program().limits.map_bytes);
        assert!(bytes <= limit, "{}: {bytes} bytes, {limit} allowed", name(&plan));
    }
}
