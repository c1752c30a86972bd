//! What each kernel lacks is told with what takes its place.

use super::fixture::{file, target};
use kstrobe::config::plan::{self, ProbePlan, explain};
use kstrobe_ebpf::kernel_target::{Abilities, Ability};

fn plan(text: &str) -> ProbePlan {
    let (mut probes, diagnostics) = kstrobe_config::probes(&[file("x.yaml", text)]);
    assert!(diagnostics.is_empty(), "{}", kstrobe_config::render(&diagnostics));
    plan::plan(probes.remove(0))
}

/// What is chosen for a probe on a kernel that lacks something.
fn chosen(plan: &ProbePlan, lose: impl FnOnce(&mut Abilities)) -> Vec<String> {
    let mut target = target();
    target.abilities.batch = Ability::Yes;
    lose(&mut target.abilities);
    let artifact = plan.compile(&target).unwrap_or_else(|r| panic!("{}", kstrobe_config::render(&r.diagnostics)));
    let line = |c: explain::Choice| format!("{} for {}: {}", c.got, c.wanted, c.because.join("; "));
    explain::choices(&artifact).into_iter().map(line).collect()
}

fn no() -> Ability {
    Ability::No("not here".into())
}

#[test]
fn each_lesser_way_says_why() {
    let probe = plan(
        "probe: x\nsummary: x\nspan: { start: 'syscall:read:enter', end: 'syscall:read:exit', \
         save: { s: fd_sock(args.fd) } }\n\
         metrics: { x_seconds: { type: histogram, value: elapsed, labels: { port: start.s.sk_num } } }\n",
    );
    assert_eq!(chosen(&probe, |_| {}), [""; 0]);
    let raw = ["raw_tp:sys_exit for tp_btf:sys_exit: not here", "raw_tp:sys_enter for tp_btf:sys_enter: not here"];
    assert_eq!(chosen(&probe, |a| a.tp_btf = no()), raw);
    let hash = ["hash of 16384 tasks for task storage: not here"];
    assert_eq!(chosen(&probe, |a| a.task_storage = no()), hash);
    assert_eq!(chosen(&probe, |a| a.current_task_btf = no()), hash);
    assert_eq!(chosen(&probe, |a| a.rdonly_cast = no()), ["a helper call for each member for plain loads: not here"]);
    assert_eq!(chosen(&probe, |a| a.mmapable = no()), ["a system call for each read for mapped arrays: not here"]);
    assert_eq!(
        chosen(&probe, |a| a.batch = Ability::Unknown),
        ["a system call for each key for batch reads: it was not tried"]
    );
}

#[test]
fn what_a_probe_does_not_use_it_does_not_miss() {
    let probe = plan("probe: x\nsummary: x\nat: 'syscall:*:enter'\nmetrics: { x_total: { type: counter } }\n");
    let all = |a: &mut Abilities| (a.task_storage, a.rdonly_cast, a.batch, a.ringbuf) = (no(), no(), no(), no());
    assert_eq!(chosen(&probe, all), [""; 0]);
}

#[test]
fn each_hook_has_the_kind_it_became() {
    let probe = plan(
        "probe: x\nsummary: x\nat:\n- first_of: ['rawtracepoint:no_such_event', 'interval:s:1']\n- 'syscall:read:exit'\n\
         - 'syscall:write:exit'\nmetrics: { x_total: { type: counter } }\n",
    );
    let artifact = probe.compile(&target()).expect("it compiles");
    assert_eq!(probe.kinds(&artifact), ["interval", "tp_btf", "tp_btf"]);
    assert_eq!(probe.meta().hooks[0], "first_of [rawtracepoint:no_such_event, interval:s:1]");
    assert_eq!(
        chosen(&probe, |_| {}),
        ["interval:s:1 for first_of [rawtracepoint:no_such_event, interval:s:1]: \
          this kernel has no tracepoint `no_such_event`"]
    );
}
