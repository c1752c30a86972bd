//! `kstrobe check`, `explain` and `compile` without root: what they say is what `kstrobe run` would do, here or on the kernel that
//! a file describes.

mod support;

use kstrobe_config::model::{MetricKind, Probe};
use kstrobe_config::unique_metrics;
use std::time::Duration;
use support::agent::{self, Setup, without_rights};
use support::{Done, Folder, done, wait_for};

const KERNEL: &str = "agent/tests/fixtures/linux-6.18-x86_64.target";

fn kstrobe(arguments: &[&str]) -> Done {
    done(&mut agent::command_under(without_rights(), arguments))
}

/// The built-in probes that run by default, or the others.
fn shipped(enabled: bool) -> Vec<Probe> {
    let (mut probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
    probes.retain(|probe| probe.enabled == enabled);
    probes
}

fn counter_of(probes: &[Probe]) -> String {
    let counter = |metric: &&kstrobe_config::model::Metric| metric.kind == MetricKind::Counter;
    probes.iter().flat_map(|probe| &probe.program.metrics).find(counter).unwrap().name.value.clone()
}

/// A poll, which needs no rights.
fn polled(name: &str, metric: &str) -> String {
    format!(
        "probe: {name}\nsummary: Counters.\npoll: {{ source: netstat, every: 100ms }}\n\
         metrics:\n  {metric}: {{ type: counter, value: args.value, labels: {{ name: args.name }} }}\n"
    )
}

/// A counter at these hooks with one label.
fn counted(hooks: &str, label: &str) -> String {
    format!(
        "probe: own\nsummary: Events.\nat: {hooks}\nmetrics:\n  own_total: {{ type: counter, labels: {{ x: '{label}' }} }}\n"
    )
}

#[test]
fn a_metric_of_a_probe_that_is_off_may_be_used() {
    assert_eq!(unique_metrics([shipped(true), shipped(false)].concat()).1, [], "no two shipped probes share a metric");
    let metric = counter_of(&shipped(false));
    let folder = Folder::new();
    let file = folder.write("mine.yaml", &polled("mine", &metric));
    let path = file.to_str().unwrap();
    let found = kstrobe(&["check", path]);
    assert_eq!((found.code, found.out.as_str()), (Some(0), "1 probes fine, 0 errors\n"), "{}", found.err);
    let agent = Setup { arguments: &["--probes", path], under: without_rights(), ..Setup::default() }.start();
    assert_eq!(agent.get("/readyz"), Some((200, "ready: 1 probes attached\n".to_owned())));
    wait_for("its metric", Duration::from_secs(10), || {
        agent.scrape().has(&format!("kstrobe_{metric}"), &[]).then_some(())
    });
    agent.stop();
}

#[test]
fn check_refuses_a_metric_of_a_probe_that_runs() {
    let metric = counter_of(&shipped(true));
    let folder = Folder::new();
    let file = folder.write("mine.yaml", &polled("mine", &metric));
    let path = file.to_str().unwrap();
    let found = kstrobe(&["check", path]);
    assert_eq!((found.code, found.out.as_str()), (Some(1), "0 probes fine, 1 errors\n"), "{}", found.err);
    assert!(found.err.contains(&format!("metric `{metric}` is defined twice")), "{}", found.err);
    assert!(found.err.contains("the first is in <embedded>/"), "{}", found.err);
    let packs = agent::DEFAULT_PACKS;
    let agent = Setup { packs: &packs, arguments: &["--probes", path], under: without_rights(), ..Setup::default() };
    let agent = agent.start();
    let (_, body) = agent.get("/readyz").unwrap();
    assert!(body.contains(&format!("mine.yaml:5:3: metric `{metric}` is defined twice")), "{body}");
    agent.stop();
    let found = kstrobe(&["check", "probes/interrupts/softirq.yaml", "--syntax-only"]);
    assert_eq!(found.code, Some(0), "a shipped file is not compared with itself: {}", found.err);
}

#[test]
fn a_described_kernel_needs_no_rights() {
    let folder = Folder::new();
    let good = folder.write("good.yaml", &counted("rawtracepoint:sched_switch", "args.next.comm"));
    let path = good.to_str().unwrap();
    let found = kstrobe(&["check", "--target", KERNEL, path]);
    assert_eq!((found.code, found.out.as_str()), (Some(0), "1 probes fine, 0 errors\n"), "{}", found.err);
    let found = kstrobe(&["explain", "--target", KERNEL, "softirq"]);
    assert_eq!((found.code, found.err.as_str()), (Some(0), ""), "{}", found.out);
    assert!(found.out.contains("BTF-typed tracepoint") && found.out.contains("at 8 CPUs"), "{}", found.out);
    let object = folder.0.join("own.bpf.o");
    let found = kstrobe(&["compile", "--target", KERNEL, path, "-o", object.to_str().unwrap()]);
    assert_eq!(found.code, Some(0), "{}", found.err);
    assert!(std::fs::read(&object).unwrap().starts_with(b"\x7fELF"));
}

#[test]
fn a_described_kernel_refuses_what_it_lacks() {
    let folder = Folder::new();
    let bad = folder.write("bad.yaml", &counted("rawtracepoint:no_such_event_of_any", "1"));
    let found = kstrobe(&["check", "--target", KERNEL, bad.to_str().unwrap()]);
    assert_eq!(found.code, Some(1));
    assert!(found.err.contains("this kernel has no tracepoint `no_such_event_of_any`"), "{}", found.err);
    assert!(found.err.contains("kstrobe target dump --file"), "the way to a description is named:\n{}", found.err);
    let broken = folder.write("broken.target", "kstrobe_target 1\nrelease 6\n");
    for command in ["check", "explain"] {
        let what = if command == "check" { bad.to_str().unwrap() } else { "softirq" };
        let found = kstrobe(&[command, "--target", broken.to_str().unwrap(), what]);
        assert_eq!(found.code, Some(1));
        assert!(found.err.contains("broken.target does not describe a kernel: line 2"), "{}", found.err);
    }
}

/// The recorded kernel with some lines written otherwise.
fn kernel(folder: &Folder, changes: &[(&str, &str)]) -> String {
    let mut text = std::fs::read_to_string(format!("{}/../{KERNEL}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    for (line, instead) in changes {
        assert!(text.contains(line), "{line}");
        text = text.replace(line, instead);
    }
    folder.write("edited.target", &text).to_str().unwrap().to_owned()
}

#[test]
fn a_hook_that_cannot_be_attached_hides_no_mistake() {
    let folder = Folder::new();
    let without = [
        ("ability tp_btf yes", "ability tp_btf no \"not here\""),
        ("ability raw_tp yes", "ability raw_tp no \"not here\""),
    ];
    let kernel = kernel(&folder, &without);
    let hooks = "[rawtracepoint:sched_switch, rawtracepoint:sched_wakeup]";
    let file = folder.write("own.yaml", &counted(hooks, "no_such_name"));
    let found = kstrobe(&["check", "--target", &kernel, file.to_str().unwrap()]);
    assert_eq!(found.code, Some(1));
    assert!(found.err.contains("no_such_name"), "the mistake is hidden:\n{}", found.err);
    assert_eq!(found.err.matches("cannot be attached on this kernel").count(), 2, "{}", found.err);
    assert_eq!(found.err.matches("tp_btf: not here").count(), 1, "the help is said once:\n{}", found.err);
    let right = folder.write("right.yaml", &counted(hooks, "comm"));
    let found = kstrobe(&["check", "--target", &kernel, right.to_str().unwrap()]);
    assert_eq!(found.out, "0 probes fine, 2 errors\n", "{}", found.err);
}

#[test]
fn a_machine_without_counters_refuses_hardware_events() {
    let folder = Folder::new();
    let file = folder.write("own.yaml", &counted("hardware:cycles:1000000", "comm"));
    let path = file.to_str().unwrap();
    let says = |answer: &str| {
        let line = format!("ability perf_event yes\ncounter \"cpu-cycles\" {answer}");
        kstrobe(&["check", "--target", &kernel(&folder, &[("ability perf_event yes", &line)]), path])
    };
    assert_eq!(says("yes").code, Some(0));
    let found = says("no \"there is no counter here\"");
    assert_eq!(found.code, Some(1));
    assert!(found.err.contains("`hardware:cycles:1000000` cannot be attached"), "{}", found.err);
    assert!(found.err.contains("there is no counter here"), "{}", found.err);
}

#[test]
fn check_names_files_and_functions_that_are_missing() {
    let folder = Folder::new();
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    for (hook, why) in [
        ("uprobe:/nonexistent/program:main".to_owned(), "there is no file /nonexistent/program"),
        (format!("uprobe:{program}:no_such_function_of_any"), "it has no function `no_such_function_of_any`"),
        (format!("usdt:{program}:provider:point"), "it has no static probe points"),
    ] {
        let file = folder.write("own.yaml", &counted(&hook, "comm"));
        let found = kstrobe(&["check", file.to_str().unwrap()]);
        assert_eq!(found.code, Some(1), "{}", found.err);
        assert!(
            found.err.contains(&format!("error: {why}")) || found.err.contains(&format!(": {why}")),
            "{}",
            found.err
        );
    }
}

#[test]
fn a_probe_point_whose_program_is_not_there_is_a_note() {
    let folder = Folder::new();
    let file = folder.write("own.yaml", &counted("usdt:/nonexistent/server:provider:point", "arg0"));
    let path = file.to_str().unwrap();
    let found = kstrobe(&["check", "--target", KERNEL, path]);
    assert_eq!((found.code, found.out.as_str()), (Some(0), "1 probes fine, 0 errors\n"), "{}", found.err);
    assert!(found.err.starts_with("note: "), "{}", found.err);
    let found = kstrobe(&["check", "--target", KERNEL, "-o", "json", path]);
    let told: serde_json::Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!(told["diagnostics"][0]["severity"], "note");
    let found = kstrobe(&["explain", "--target", KERNEL, "--probes", path, "own"]);
    assert!(found.code == Some(0) && found.err.contains("waits for the program"), "{}", found.err);
}

#[test]
fn check_reads_a_configuration_with_its_probes() {
    let folder = Folder::new();
    std::fs::create_dir(folder.0.join("probes")).unwrap();
    folder.write("probes/mine.yaml", &polled("mine", "mine_total"));
    let directory = folder.0.join("probes");
    let write = |more: &str| {
        let packs = agent::DEFAULT_PACKS.join(", ");
        let text = format!("probes: {{ disable: [{packs}], directory: {} }}\n{more}", directory.display());
        folder.write("kstrobe.yaml", &text).to_str().unwrap().to_owned()
    };
    let found = kstrobe(&["check", "--config", &write("captures: {}\n")]);
    assert_eq!((found.code, found.out.as_str()), (Some(0), "1 probes fine, 0 errors\n"), "{}", found.err);
    let rule = "rules: [{ name: r, when: rate(mine_totl) > 1, capture: { events: sched } }]\nlog: { levl: info }\n";
    let found = kstrobe(&["check", "--config", &write(rule)]);
    assert!(found.code == Some(1) && found.err.contains("`log` has no key `levl`"), "{}", found.err);
    let found = kstrobe(&["check", "--config", &write(&rule.replace("levl", "level"))]);
    assert!(found.err.contains("no probe has a metric `mine_totl`"), "{}", found.err);
    assert!(found.err.contains("did you mean `mine_total`?"), "{}", found.err);
    assert_eq!((found.code, found.out.as_str()), (Some(1), "1 probes fine, 1 errors\n"));
    // What is wrong with a probe of its folder is shown, too.
    folder.write("probes/mine.yaml", &polled("mine", "mine_total").replace("args.name", "args.nam"));
    let found = kstrobe(&["check", "--config", &write("")]);
    assert!(found.code == Some(1) && found.err.contains("mine.yaml:5"), "{}", found.err);
    let found = kstrobe(&["check", &write("captures: {}\n")]);
    assert!(found.err.contains("this is the agent's configuration, not a probe"), "{}", found.err);
    assert!(found.err.contains("kstrobe check --config"), "{}", found.err);
    assert_eq!((found.code, found.err.matches("error: ").count()), (Some(1), 1), "{}", found.err);
}
