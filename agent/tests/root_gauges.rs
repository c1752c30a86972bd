//! What a gauge keeps, against calls whose arguments the test knows.

mod support;

use std::time::Duration;
use support::agent::{Agent, Setup};
use support::{emulated, load, wait_for};

const PROBE: &str = r#"
probe: kept
summary: Arguments of calls of this test.
at: syscall:getpgid:enter
where: comm == "kst-gauges"
metrics:
  kept_smallest: { type: gauge, keep: min, value: s32(args.pid), labels: { odd: "(args.pid & 1) == 1" } }
  kept_largest: { type: gauge, keep: max, value: s32(args.pid), labels: { odd: "(args.pid & 1) == 1" } }
  kept_last: { type: gauge, value: s32(args.pid) }
  kept_added: { type: gauge, keep: sum, value: s32(args.pid) }
---
probe: held
summary: Arguments that were put with one call and not taken with the other.
state: { by: s32(args.pid), fields: { amount: u32 } }
steps:
  - { at: "syscall:[getpgid, getsid]:enter", where: 'comm == "kst-gauges" && has(state)', observe: held_amount, delete: true }
  - { at: "syscall:getpgid:enter", where: 'comm == "kst-gauges" && args.pid > 0', observe: held_amount, set: { amount: u32(args.pid) } }
metrics:
  held_amount: { type: gauge, keep: sum, value: "has(state) ? -s64(state.amount) : s64(args.pid)" }
"#;

fn agent() -> Agent {
    let agent = Setup { probes: &[("gauges", PROBE)], ..Setup::default() }.start();
    let limit = Duration::from_secs(if emulated() { 120 } else { 40 });
    wait_for("the probes' hooks", limit, || {
        let metrics = agent.scrape();
        let on = |probe| metrics.sum("kstrobe_probe_attached", &[("probe", probe)]) > 0.0;
        (on("kept") && on("held")).then_some(())
    });
    agent
}

/// Calls of a thread that the probes know by its name, each with one argument.
fn calls(arguments: &[i32], call: impl Fn(i32) + Sync) {
    let work = || arguments.iter().for_each(|pid| call(*pid));
    std::thread::scope(|scope| {
        std::thread::Builder::new().name("kst-gauges".into()).spawn_scoped(scope, work).unwrap();
    });
}

#[test]
#[ignore = "needs root"]
fn root_gauges_keep_the_smallest_largest_last_and_sum() {
    let agent = agent();
    let put = |pid| load::getpgid_calls(pid, 1);
    // Several threads, so that more than one CPU has values.
    for chunk in [&[-7, 12, 3, 900_001], &[5, -8, 44, 700_000], &[1, 2, 3, 4]] {
        calls(chunk, put);
    }
    let metrics = agent.scrape();
    let of = |name: &str, labels: &[(&str, &str)]| metrics.sum(&format!("kstrobe_kept_{name}"), labels);
    assert_eq!((of("smallest", &[("odd", "true")]), of("smallest", &[("odd", "false")])), (-7.0, -8.0));
    assert_eq!((of("largest", &[("odd", "true")]), of("largest", &[("odd", "false")])), (900_001.0, 700_000.0));
    assert_eq!((of("last", &[]), of("added", &[])), (4.0, 1_600_060.0));

    assert_eq!(metrics.sum("kstrobe_held_amount", &[]), 1_600_072.0, "an argument that is put twice counts once");
    calls(&[900_001, 700_000, 77, 12], |pid| load::getsid_calls(pid, 1));
    assert_eq!(agent.scrape().sum("kstrobe_held_amount", &[]), 59.0, "what was taken is gone from the sum");
}
