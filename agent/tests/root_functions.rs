//! Kernel functions: the same probe counts the same by whatever way it is attached. Each count is that of calls that the test
//! itself makes, in a thread whose name nobody else has.

mod support;

use kstrobe::config::plan::{ProbePlan, plan};
use kstrobe::kernel::{Loaded, Loader, Wanted, detect, load};
use kstrobe_config::model::SourceFile;
use kstrobe_ebpf::kernel_target::{Abilities, Ability};
use kstrobe_ebpf::{Artifact, Target};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use support::agent::Agent;
use support::load::{getpgid_calls, named, setpgid_refusals};

/// A way to hook functions: its name, whether the kernel has it, and how to leave the compiler no better one.
type Way = (&'static str, fn(&Abilities) -> &Ability, fn(&mut Abilities));

const WAYS: [Way; 3] = [
    ("fentry", |a| &a.fentry, |_| {}),
    ("kprobe_multi", |a| &a.kprobe_multi, |a| a.fentry = no()),
    (
        "kprobe",
        |a| &a.kprobe,
        |a| {
            a.fentry = no();
            a.kprobe_multi = no();
        },
    ),
];

fn no() -> Ability {
    Ability::No("not in this test".into())
}

/// One probe of YAML text.
fn parsed(text: &str) -> ProbePlan {
    let file = SourceFile { name: "functions.yaml".into(), text: text.into() };
    let (mut probes, diagnostics) = kstrobe_config::probes(&[Arc::new(file)]);
    let messages: Vec<String> = diagnostics.iter().map(|d| d.one_line()).collect();
    assert!(messages.is_empty(), "{messages:#?}\n{text}");
    plan(probes.remove(0))
}

/// The kernel, as far as the probe asks; `None` when it can hook no functions at all, which is noted.
fn kernel(test: &str, plan: &ProbePlan) -> Option<Target> {
    let target = detect(&Wanted { functions: plan.functions().into_iter().collect(), ..Wanted::default() });
    match &target.abilities.kprobe {
        Ability::Yes => Some(target),
        ability => {
            support::not_run(test, &format!("no kprobes: {ability:?}"));
            None
        }
    }
}

/// A probe at work.
struct Running {
    artifact: Artifact,
    loaded: Loaded,
}

impl Running {
    #[track_caller]
    fn start(plan: &ProbePlan, target: &Target) -> Running {
        Running::try_start(plan, target).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_start(plan: &ProbePlan, target: &Target) -> Result<Running, String> {
        let artifact = plan.compile(target).map_err(|refusal| refusal.reason())?;
        let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
        let loaded = load(&mut Loader::new(), &artifact.object, &artifact.module.layout, &programs);
        Ok(Running { loaded: loaded.map_err(|error| error.to_string())?, artifact })
    }

    /// The value of a metric without labels: a counter, or the sum of a histogram.
    fn value(&self, metric: u32) -> u64 {
        let (i, table, cell) = self.cell(metric);
        self.sum(i, table, cell.offset / 8)
    }

    fn cell(&self, metric: u32) -> (usize, &kstrobe_ebpf::layout::Table, &kstrobe_ebpf::layout::Cell) {
        let tables = self.artifact.module.layout.tables.iter().enumerate();
        let mut cells = tables.flat_map(|(i, t)| t.cells.iter().map(move |c| (i, t, c)));
        cells.find(|(_, _, c)| c.metric == metric).expect("a cell of this metric")
    }

    fn sum(&self, i: usize, table: &kstrobe_ebpf::layout::Table, word: u32) -> u64 {
        let record = self.artifact.module.layout.map(table.values).value_bytes.div_ceil(8);
        let view = self.loaded.maps().table(i).expect("a table");
        (0..table.shards * table.slots).map(|r| view.values[(r * record + word) as usize].load(Relaxed)).sum()
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.artifact.programs.iter().map(|p| p.attach.kind()).collect()
    }
}

/// Does a piece of work with the probe attached in each of these ways that the kernel has, and asks for the results. Says how many
/// there were; none where the kernel hooks no functions.
fn each_way(test: &str, ways: &[Way], yaml: &str, work: impl Fn(), results: impl Fn(&Running, &str)) -> usize {
    let plan = parsed(yaml);
    let Some(kernel) = kernel(test, &plan) else { return 0 };
    let mut tried = 0;
    for (way, ability, change) in ways {
        if !ability(&kernel.abilities).yes() {
            continue;
        }
        let mut target = kernel.clone();
        change(&mut target.abilities);
        let running = Running::start(&plan, &target);
        work();
        results(&running, way);
        tried += 1;
    }
    assert!(tried > 0, "none of these ways on {}", kernel.release);
    tried
}

/// Whether a probe is attached in the way that was left to it. Programs of the compiler's own (for the task's name) are besides.
#[track_caller]
fn assert_way(running: &Running, way: &str) {
    let kinds = running.kinds();
    let own = |kind: &str| match way {
        "fentry" => ["fentry", "fexit"].contains(&kind),
        way => kind.replace("kretprobe", "kprobe") == way,
    };
    assert!(kinds.iter().all(|kind| own(kind) || *kind == "tp_btf"), "{way}: {kinds:?}");
    assert!(kinds.iter().any(|kind| own(kind)), "{way}: {kinds:?}");
}

/// The kernel's function behind getpgid(2), and where it has its first argument.
#[cfg(target_arch = "x86_64")]
const GETPGID: &str = "__x64_sys_getpgid";
#[cfg(target_arch = "x86_64")]
const FIRST_ARGUMENT: &str = "args.regs.di";
#[cfg(target_arch = "aarch64")]
const GETPGID: &str = "__arm64_sys_getpgid";
#[cfg(target_arch = "aarch64")]
const FIRST_ARGUMENT: &str = "args.regs.regs[0]";
/// Bytes from its entry to an instruction that is not ftrace's. x86-64: the entry is five bytes for ftrace, with or without
/// the four that mark an indirect branch's target before them. arm64: instructions have four bytes, the first ones are
/// ftrace's.
const WITHIN: [u32; 2] = if cfg!(target_arch = "aarch64") { [12, 16] } else { [5, 9] };

/// A counter of calls, and the sum of something, of the thread that these tests name.
fn counted(at: &str, value: &str) -> String {
    format!(
        "probe: calls\nsummary: S.\nat: {at}\nwhere: comm == \"fn-calls\"\nmetrics:\n  \
         calls_total: {{ type: counter }}\n  values_total: {{ type: counter, value: {value} }}\n"
    )
}

#[test]
#[ignore = "needs root"]
fn root_functions_are_counted_alike_in_every_way() {
    let test = "root_functions_are_counted_alike_in_every_way";
    let work = || named("fn-calls", || getpgid_calls(7, 1000));
    let tried = each_way(
        test,
        &WAYS,
        &counted(&format!("function:{GETPGID}:entry"), &format!("'{FIRST_ARGUMENT}'")),
        work,
        |running, way| {
            assert_way(running, way);
            assert_eq!((running.value(0), running.value(1)), (1000, 7000), "{way}");
        },
    );
    assert_ne!(tried, 1, "nothing to compare with");
}

#[test]
#[ignore = "needs root"]
fn root_returns_of_functions_are_counted_alike_in_every_way() {
    let own = nix::unistd::getpgrp().as_raw();
    let work = || named("fn-calls", || getpgid_calls(0, 1000));
    let yaml = counted(&format!("function:{GETPGID}:return"), "u64(retval)");
    each_way("root_returns_of_functions_are_counted_alike_in_every_way", &WAYS, &yaml, work, |running, way| {
        assert_way(running, way);
        assert_eq!((running.value(0), running.value(1)), (1000, 1000 * own as u64), "{way}");
    });
}

#[test]
#[ignore = "needs root"]
fn root_functions_of_a_pattern_are_counted_alike_in_every_way() {
    let work = || {
        named("fn-calls", || {
            getpgid_calls(7, 600);
            setpgid_refusals(400);
        });
    };
    let yaml = counted(&format!("function:{}:entry", GETPGID.replace("getpgid", "*etpgid")), "2");
    let test = "root_functions_of_a_pattern_are_counted_alike_in_every_way";
    // fentry is for one function.
    each_way(test, &WAYS[1..], &yaml, work, |running, way| {
        assert_way(running, way);
        assert_eq!((running.value(0), running.value(1)), (1000, 2000), "{way}");
    });
}

#[test]
#[ignore = "needs root"]
fn root_each_kind_of_hook_at_a_function_is_taken_by_its_name() {
    let test = "root_each_kind_of_hook_at_a_function_is_taken_by_its_name";
    let work = || named("fn-calls", || getpgid_calls(7, 500));
    for (hook, way) in [("fentry", 0), ("fexit", 0), ("kprobe", 2), ("kretprobe", 2)] {
        let yaml = counted(&format!("{hook}:{GETPGID}"), "3");
        let plan = parsed(&yaml);
        let Some(kernel) = kernel(test, &plan) else { return };
        if !WAYS[way].1(&kernel.abilities).yes() {
            continue;
        }
        let running = Running::start(&plan, &kernel);
        work();
        assert_eq!((running.value(0), running.value(1)), (500, 1500), "{hook}");
        assert!(running.kinds().contains(&hook), "{hook}: {:?}", running.kinds());
    }
}

/// It takes any number of arguments, for which the kernel makes no trampoline.
#[test]
#[ignore = "needs root"]
fn root_what_fentry_is_refused_for_is_hooked_in_the_next_best_way() {
    let yaml = counted("function:seq_printf:entry", "1");
    let test = "root_what_fentry_is_refused_for_is_hooked_in_the_next_best_way";
    let Some(kernel) = kernel(test, &parsed(&yaml)) else { return };
    let agent = Agent::start_with(&[], &[("calls", &yaml)]);
    named("fn-calls", || (0..300).for_each(|_| assert!(!std::fs::read_to_string("/proc/uptime").unwrap().is_empty())));
    let metrics = agent.scrape();
    assert_eq!(metrics.sum("kstrobe_calls_total", &[]), 300.0);
    let (_, probes) = agent.get("/api/v1/probes").unwrap();
    let way = if kernel.abilities.kprobe_multi.yes() { "kprobe_multi" } else { "kprobe" };
    assert!(probes.contains(&format!("\"{way}\"")) && probes.contains("fentry: "), "{probes}");
    agent.stop();
}

/// An instruction behind the entry, where no trampoline and no multi link can be.
#[test]
#[ignore = "needs root"]
fn root_an_instruction_within_a_function_is_hooked() {
    let test = "root_an_instruction_within_a_function_is_hooked";
    let mut refused = Vec::new();
    let mut found = None;
    for offset in WITHIN {
        let plan = parsed(&counted(&format!("kprobe:{GETPGID}+{offset}"), "1"));
        let Some(kernel) = kernel(test, &plan) else { return };
        match Running::try_start(&plan, &kernel) {
            Ok(running) => found = Some(running),
            Err(error) => refused.push(error),
        }
    }
    let running = found.unwrap_or_else(|| panic!("one of the two is where an instruction begins: {refused:#?}"));
    named("fn-calls", || getpgid_calls(7, 500));
    assert_eq!((running.value(0), running.kinds()), (500, vec!["kprobe"]));
}

/// The kernel's compiler makes copies of functions that it has specialised; their names have no types.
#[test]
#[ignore = "needs root"]
fn root_copies_that_the_compiler_made_are_found_by_their_functions_name() {
    let test = "root_copies_that_the_compiler_made_are_found_by_their_functions_name";
    let copied = |line: &str| line.split_whitespace().any(|word| word == "finish_task_switch.isra.0");
    if !std::fs::read_to_string("/proc/kallsyms").unwrap().lines().any(copied) {
        support::not_asked_for(test, "this kernel has no copy of finish_task_switch");
        return;
    }
    let switches = std::sync::atomic::AtomicU64::new(0);
    let work = || {
        named("fn-calls", || {
            let of_thread = || {
                let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD).unwrap();
                (usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64
            };
            let before = of_thread();
            (0..100).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
            switches.store(of_thread() - before, Relaxed);
        });
    };
    each_way(test, &WAYS[1..], &counted("function:finish_task_switch:entry", "1"), work, |running, way| {
        assert_way(running, way);
        let (counted, switches) = (running.value(0), switches.load(Relaxed));
        // A sleep may be over before the CPU is given away.
        assert!(switches >= 50, "{switches}");
        // The thread's first switch, before it looks, and its last ones, as it ends.
        assert!((switches..=switches + 20).contains(&counted), "{way}: {counted} of {switches}");
    });
}

/// Functions of a module are called with parameters that its own types describe.
#[test]
#[ignore = "needs root"]
fn root_functions_of_modules_are_counted_alike_in_every_way() {
    let test = "root_functions_of_modules_are_counted_alike_in_every_way";
    let yaml = counted("function:dummy_xmit:entry", "1");
    if kernel(test, &parsed(&yaml)).is_none() {
        return;
    }
    let netns = support::netns::Netns::new("module");
    for arguments in ["link add dummy0 type dummy", "address add 10.98.0.1/24 dev dummy0", "link set dummy0 up"] {
        netns.ip(&arguments.split(' ').collect::<Vec<_>>());
    }
    // A device that loses all that is sent over it asks for no addresses.
    let work = || {
        let send = || {
            let socket = std::net::UdpSocket::bind("10.98.0.1:0").unwrap();
            (0..200).for_each(|_| assert_eq!(socket.send_to(b"x", "10.98.0.2:9").unwrap(), 1));
        };
        netns.spawn("fn-calls", send).join().unwrap();
    };
    fn typed(abilities: &Abilities) -> &Ability {
        if abilities.fentry.yes() { &abilities.module_btf } else { &abilities.fentry }
    }
    let ways = [("fentry", typed as _, WAYS[0].2), WAYS[1], WAYS[2]];
    each_way(test, &ways, &yaml, work, |running, way| {
        assert_way(running, way);
        assert_eq!(running.value(0), 200, "{way}");
    });
}
