//! Conditions that the recorded kernel never meets, wherever one may stand: the probe compiles to nothing, with a warning.

use super::fixture::{file, target};
use kstrobe::config::plan::{self, ProbePlan};

fn plan(text: &str) -> ProbePlan {
    let (mut probes, diagnostics) = kstrobe_config::probes(&[file("x.yaml", text)]);
    assert!(diagnostics.is_empty(), "{}", kstrobe_config::render(&diagnostics));
    plan::plan(probes.remove(0))
}

/// A probe that measures nothing, by the place of its condition.
const IDLE: [(&str, &str); 9] = [
    ("where", "at: rawtracepoint:sched_switch\nwhere: has_type(struct gone) && cast(struct gone, args.prev).x == 1\n"),
    ("a plain false", "at: rawtracepoint:sched_switch\nwhere: false\n"),
    (
        "span.where",
        "span: { start: 'syscall:read:enter', end: 'syscall:read:exit', where: has(args.gone) && args.gone == 1 }\n",
    ),
    (
        "where of a span",
        "span: { start: 'syscall:read:enter', end: 'syscall:read:exit' }\nwhere: has(args.gone) && args.gone == 1\n",
    ),
    (
        "where of a step",
        "state: { by: tid }\nsteps:\n- at: rawtracepoint:sched_switch\n  where: has(args.gone) && args.gone\n  observe: x\n",
    ),
    (
        "where of steps",
        "state: { by: tid }\nsteps:\n- { at: 'rawtracepoint:sched_switch', observe: x }\nwhere: has(args.gone)\n",
    ),
    ("poll", "poll: { source: softnet }\nwhere: has(args.gone) && args.gone > 1\n"),
    (
        "engine: ftrace",
        "engine: ftrace\nat: tracepoint:sock:inet_sock_set_state\nwhere: has(args.gone) && args.gone == 1\n",
    ),
    ("first_of", "at: { first_of: ['rawtracepoint:gone', 'rawtracepoint:sched_switch'] }\nwhere: has(args.gone)\n"),
];

#[test]
fn a_probe_that_is_never_true_compiles_to_nothing() {
    for (place, shape) in IDLE {
        let text = format!(
            "probe: x\nsummary: x\n{shape}metrics:\n  x: {{ type: gauge, value: 1, labels: {{ l: has(args.gone) }} }}\n"
        );
        let mut plan = plan(&text);
        if place.starts_with("engine") {
            plan = plan.for_session();
        }
        let artifact =
            plan.compile(&target()).unwrap_or_else(|r| panic!("{place}: {}", kstrobe_config::render(&r.diagnostics)));
        assert!(artifact.is_idle() && artifact.object.is_empty() && artifact.programs.is_empty(), "{place}");
        let shown = kstrobe_config::render(&plan.warnings(&artifact));
        assert!(shown.contains("warning: this is never true on this kernel"), "{place}: {shown}");
        assert!(shown.contains("the probe does nothing here"), "{place}: {shown}");
        assert_eq!(plan::explain::here(&plan, &target()), "nothing: never true on this kernel", "{place}");
    }
}

#[test]
fn what_else_a_probe_measures_goes_on() {
    let text = "probe: x\nsummary: x\nat: rawtracepoint:sched_switch\nmetrics:\n  x_total: { type: counter }\n\
                \x20 y_total: { type: counter, where: has(args.gone) && args.gone == 1, labels: { gone: args.gone } }\n\
                slow: { when: has(args.gone), fields: { gone: args.gone } }\n";
    let plan = plan(text);
    let artifact = plan.compile(&target()).unwrap_or_else(|r| panic!("{}", kstrobe_config::render(&r.diagnostics)));
    let layout = &artifact.module.layout;
    assert_eq!((layout.tables.len(), layout.tables[0].cells.len()), (1, 1));
    assert!(layout.events.is_none());
    let shown = kstrobe_config::render(&plan.warnings(&artifact));
    assert!(shown.contains("`y_total` measures nothing") && shown.contains("no single event is sent"), "{shown}");
}
