//! `docs/coverage.md`: its probes compile, its commands are those of the command line.

mod support;

use clap::{CommandFactory, Parser};
use kstrobe::cli::Cli;
use kstrobe::config::adhoc::{self, Filters, Wanted};
use kstrobe::config::compile;
use kstrobe::config::plan::{self, ProbePlan};
use kstrobe::kernel::pollers;
use kstrobe_config::model::{MetricKind, Probe, SourceFile};
use kstrobe_config::oneliner::OneLiner;
use kstrobe_ebpf::Target;
use kstrobe_ebpf::kernel_target::{Abilities, Ability, dump};
use kstrobe_mixin::coverage::{Answer, Question, questions};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use support::done;

/// Each with the question that it answers.
type Named = (String, ProbePlan);

/// A question with an answer.
struct Given {
    id: String,
    probes: Vec<String>,
    commands: Vec<String>,
    yaml: Option<String>,
}

fn given() -> Vec<Given> {
    let given = |Question { id, answer, .. }: Question| match answer {
        Answer::Given { probes, commands, yaml } => Some(Given { id, probes, commands, yaml }),
        Answer::OutOfScope(_) | Answer::Unanswered(_) => None,
    };
    questions().into_iter().filter_map(given).collect()
}

/// The probes of the library that are named.
fn of_the_library() -> Vec<Named> {
    let (all, diagnostics) = kstrobe_config::probes(&kstrobe_config::embedded());
    assert!(diagnostics.is_empty(), "{}", kstrobe_config::render(&diagnostics));
    let mut plans = Vec::new();
    for question in given() {
        for name in question.probes {
            let probe = all.iter().find(|probe| probe.name() == name).unwrap_or_else(|| panic!("no probe {name}"));
            plans.push((question.id.clone(), plan::plan(probe.clone())));
        }
    }
    plans
}

/// The probes that the page shows.
fn of_the_page() -> Vec<Named> {
    let mut plans = Vec::new();
    for Given { id, yaml, .. } in given() {
        let Some(text) = yaml else { continue };
        let file = Arc::new(SourceFile { name: format!("{id}.yaml"), text });
        let (probes, diagnostics) = kstrobe_config::probes(&[file]);
        assert!(diagnostics.is_empty(), "{}", kstrobe_config::render(&diagnostics));
        plans.extend(probes.into_iter().map(|probe| (id.clone(), plan::plan(probe))));
    }
    plans
}

/// A kernel as if it had kprobes, which some kernels that tests run on lack.
fn with_kprobes(target: Target) -> Target {
    Target { polls: pollers::row_types(), abilities: Abilities { kprobe: Ability::Yes, ..target.abilities }, ..target }
}

/// What is refused of these, and why.
fn refused(plans: &[Named], target: &Target) -> Vec<String> {
    let refusal = |(id, plan): &Named| {
        let error = plan.compile(target).err()?;
        Some(format!("{id} {}: {}", plan.meta().name, error.reason()))
    };
    plans.iter().filter_map(refusal).collect()
}

/// Probes at hooks of drivers and modules that the recorded kernel was built without; docs/kernels.md says where they load.
const HOOKLESS: [&str; 5] = ["md_flushes", "scsi", "nfs", "module_loads", "module_requests"];

/// Every probe that is shipped. A record has no notes of static probe points but those of programs of its machine.
#[test]
fn every_shipped_probe_compiles_on_recorded_kernels() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let targets: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!targets.is_empty());
    let (all, diagnostics) = kstrobe_config::probes(&kstrobe_config::embedded());
    assert!(diagnostics.is_empty(), "{}", kstrobe_config::render(&diagnostics));
    let plans: Vec<Named> = all.into_iter().map(|probe| (probe.name().to_owned(), plan::plan(probe))).collect();
    assert!(of_the_library().len() > 100, "the page names probes of the library");
    for path in targets {
        let target = with_kprobes(dump::parse(&std::fs::read_to_string(&path).unwrap()).unwrap());
        let mut wrong = refused(&plans, &target);
        let lacks = |refusal: &String| HOOKLESS.iter().any(|name| refusal.starts_with(&format!("{name} {name}: ")));
        let hookless: Vec<String> = wrong.extract_if(.., |refusal| lacks(refusal)).collect();
        assert!(wrong.is_empty(), "{}:\n{}", path.display(), wrong.join("\n"));
        let is_of_kernel = |refusal: &String| refusal.contains("this kernel has no");
        assert!(hookless.iter().all(is_of_kernel) && hookless.len() == HOOKLESS.len(), "{}", hookless.join("\n"));
    }
    assert!(of_the_page().len() > 30 && of_lines().len() > 1, "all are well formed");
}

#[test]
#[ignore = "needs root"]
fn root_every_probe_of_the_page_compiles_for_this_kernel() {
    const TEST: &str = "root_every_probe_of_the_page_compiles_for_this_kernel";
    if let Some(kernel) = std::env::var("KSTROBE_LAB")
        .ok()
        .filter(|name| ["5.10", "6.1"].iter().any(|old| *name == *old || name.starts_with(&format!("{old}-"))))
    {
        return kstrobe_testing::not_asked_for(
            TEST,
            &format!("{kernel} lacks tracepoints of sockets that came with 6.3"),
        );
    }
    // Virtual machines often have no counters of the processor.
    let named = of_the_page().into_iter().chain(of_lines());
    let plans: Vec<Named> = named.filter(|(_, plan)| plan.counters().is_empty()).collect();
    let only: Vec<ProbePlan> = plans.iter().map(|(_, plan)| plan.clone()).collect();
    let wrong = refused(&plans, &with_kprobes(compile::look(&only, None)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_of_the_page_is_understood() {
    let mut wrong = Vec::new();
    for question in given() {
        for command in question.commands {
            if let Err(error) = Cli::try_parse_from(words(&command)) {
                wrong.push(format!("{} {command}: {error}", question.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The lines of `kstrobe tool -e`.
fn of_lines() -> Vec<Named> {
    let mut plans = Vec::new();
    for Given { id, commands, .. } in given() {
        for command in commands {
            let words = words(&command);
            let [tool, flag, line, ..] = &words[1..] else { continue };
            if tool != "tool" || flag != "-e" {
                continue;
            }
            let one = OneLiner::parse(line, "line").unwrap_or_else(|wrong| panic!("{id} {line}: {wrong:?}"));
            let (probes, wrong) = kstrobe_config::probes(std::slice::from_ref(one.yaml()));
            assert!(wrong.is_empty(), "{id} {line}: {}", kstrobe_config::render(&wrong));
            plans.extend(probes.into_iter().map(|probe| (id.clone(), plan::plan(probe))));
        }
    }
    plans
}

/// What sums by stack is no tool of a terminal.
#[test]
fn every_tool_of_the_page_draws_a_probe() {
    let (shipped, _) = kstrobe_config::probes(&kstrobe_config::embedded());
    let commands: BTreeSet<String> =
        Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut tools = 0;
    for Given { id, commands: given, .. } in given() {
        for command in given {
            let words = words(&command);
            let name = match &words[1..] {
                [tool, flag, ..] if tool == "tool" && flag == "-e" => continue,
                [tool, name, ..] if tool == "tool" => name,
                [name, ..] => name,
                [] => panic!("{id}: `{command}` is no command"),
            };
            if commands.contains(name) {
                continue;
            }
            let own = shipped.iter().filter(|probe| probe.name() == name);
            let found: Vec<&Probe> = own.chain(kstrobe_config::probes_replacing(name, &shipped)).collect();
            let drawn = |probe: &&Probe| {
                let mut probe = Probe::clone(probe);
                adhoc::apply(&mut probe, &Wanted { filters: Filters::default(), ..Wanted::default() }).is_ok()
                    && probe.metrics().any(|(metric, _)| !matches!(metric.kind, MetricKind::Stacks(_)))
            };
            assert!(found.iter().any(drawn), "{id}: `{command}` draws nothing");
            tools += 1;
        }
    }
    assert!(tools > 20, "{tools} tools");
}

/// What reads the tables of the kernel and of the library, and nothing else.
#[test]
fn every_list_of_the_page_runs() {
    let mut ran = 0;
    for Given { id, commands, .. } in given() {
        for command in commands.iter().filter(|command| command.starts_with("kstrobe list ")) {
            let arguments = words(command);
            // Whether a program is on this machine is not known here.
            if arguments[2] == "usdt" {
                continue;
            }
            let done = done(support::agent::command(&[]).args(&arguments[1..]));
            assert_eq!(done.code, Some(0), "{id} {command}: {}", done.err);
            ran += 1;
        }
    }
    assert!(ran > 1, "{ran} lists");
}

/// As a shell does where only single quotes are used.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in command.split('\'').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}
