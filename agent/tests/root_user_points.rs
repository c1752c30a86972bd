//! Points within a program's functions: a static probe point with a semaphore and arguments of all kinds, and an instruction.
//! The program is this one; what it calls them with is known.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::agent::Setup;
use support::points::{BEYOND, kst_listeners, kst_steps};
use support::{Folder, Killed, emulated, wait_for};

/// What the point is reached with, and how often.
const WHOLE: u64 = 1 << 40;
const SIGNED: i32 = -2;
const BYTE: u8 = 200;
const IN_MEMORY: u64 = 77;
const STEPS: u64 = 300;

/// Names the file that the program of steps makes when all are made.
const MADE: &str = "KSTROBE_TEST_MADE";

/// The program: makes its steps once somebody listens, as its semaphore says, and ends when nobody does any more.
#[test]
#[ignore = "other tests run it"]
fn a_program_of_steps() {
    let Some(made) = std::env::var_os(MADE) else { return };
    let limit = Duration::from_secs(300);
    wait_for("a listener", limit, || (kst_listeners() > 0).then_some(()));
    for _ in 0..STEPS {
        assert_eq!(kst_steps(WHOLE, SIGNED, BYTE, &[1, IN_MEMORY]), WHOLE + 5);
    }
    fs::write(made, "").unwrap();
    wait_for("the listener's end", limit, || (kst_listeners() == 0).then_some(()));
}

fn probe(name: &str, hook: &str, program: &Path, values: &[&str]) -> String {
    let hook = hook.replace("PROGRAM", &program.display().to_string());
    let value = |(i, value): (usize, &&str)| format!("  {name}_{i}_total: {{ type: counter, where: {value} }}\n");
    let metrics: String = values.iter().enumerate().map(value).collect();
    format!("probe: {name}\nsummary: S.\nat: \"{hook}\"\nmetrics:\n  {name}_total: {{ type: counter }}\n{metrics}")
}

#[test]
#[ignore = "needs root"]
fn root_points_within_functions_have_their_arguments_and_are_switched_on() {
    let folder = Folder::new();
    let (program, made) = (folder.0.join("kst-steps"), folder.0.join("made"));
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let before = format!("arg0 == {WHOLE}");
    let after = format!("arg0 == {}", WHOLE + 5);
    let typed = [
        after.as_str(),
        &format!("arg1 == {SIGNED}"),
        &format!("arg2 == {BYTE}"),
        &format!("arg3 == {IN_MEMORY}"),
        "arg4 == -3",
        "arg1 > 0",
    ];
    let probes = [
        ("point", probe("point", "usdt:PROGRAM:kst:step", &program, &typed)),
        ("entry", probe("entry", "uprobe:PROGRAM:kst_steps", &program, &[&before, &after])),
        (
            "instruction",
            probe("instruction", &format!("uprobe:PROGRAM:kst_steps{BEYOND}"), &program, &[&before, &after]),
        ),
    ];
    let probes: Vec<(&str, &str)> = probes.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let agent = Setup { probes: &probes, ..Setup::default() }.start();
    let limit = Duration::from_secs(if emulated() { 120 } else { 40 });
    wait_for("all hooks", limit, || {
        let metrics = agent.scrape();
        let on = |probe| metrics.sum("kstrobe_probe_attached", &[("probe", probe)]) == 1.0;
        ["point", "entry", "instruction"].into_iter().all(on).then_some(())
    });
    let mut steps = Command::new(&program);
    steps.args(["a_program_of_steps", "--exact", "--ignored", "--test-threads=1"]).env(MADE, &made);
    let mut steps = Killed(steps.stdout(Stdio::null()).spawn().unwrap());
    wait_for("the steps", limit, || made.exists().then_some(()));
    let metrics = agent.scrape();
    let count = |name: &str| metrics.sum(&format!("kstrobe_{name}_total"), &[]) as u64;
    for name in ["point", "entry", "instruction"] {
        assert_eq!(count(name), STEPS, "{name}");
    }
    let typed = [0, 1, 2, 3, 4, 5].map(|i| count(&format!("point_{i}")));
    assert_eq!(typed, [STEPS, STEPS, STEPS, STEPS, STEPS, 0], "what its note says of each argument");
    assert_eq!(["entry_0", "entry_1", "instruction_0", "instruction_1"].map(count), [STEPS, 0, 0, STEPS]);
    assert!(steps.0.try_wait().unwrap().is_none(), "it goes on while somebody listens");
    agent.stop();
    let status = wait_for("the program's end", limit, || steps.0.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
