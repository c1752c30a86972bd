//! Kernel functions: the same probe counts the same by whatever way it is attached. Each count is that of calls that the test
//! itself makes, in a thread whose name nobody else has.

mod support;

use kstrobe::kernel::{Loaded, Loader, Wanted, detect, load};
use kstrobe::plan::{Draft, draft};
use kstrobe_config::model::SourceFile;
use kstrobe_ebpf::target::{Abilities, Ability};
use kstrobe_ebpf::{Artifact, Target};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use support::load::{getpgid_calls, named};

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
fn parsed(text: &str) -> Draft {
    let file = SourceFile { name: "functions.yaml".into(), text: text.into() };
    let (mut probes, diagnostics) = kstrobe_config::probes(&[Arc::new(file)]);
    let messages: Vec<String> = diagnostics.iter().map(|d| d.one_line()).collect();
    assert!(messages.is_empty(), "{messages:#?}\n{text}");
    draft(probes.remove(0))
}

/// The kernel, as far as the probe asks; `None` when it can hook no functions at all, which is noted.
fn kernel(test: &str, draft: &Draft) -> Option<Target> {
    let target = detect(&Wanted { functions: draft.functions().into_iter().collect(), ..Wanted::default() });
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
    fn start(draft: &Draft, target: &Target) -> Running {
        let artifact = draft.compile(target).unwrap_or_else(|refusal| panic!("{}", refusal.reason()));
        let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
        let loaded = load(&mut Loader::new(), &artifact.object, &artifact.module.layout, &programs)
            .unwrap_or_else(|error| panic!("{error}"));
        Running { artifact, loaded }
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

/// Does a piece of work with the probe attached in each way that the kernel has, and asks for the results.
fn each_way(test: &str, yaml: &str, work: impl Fn(), results: impl Fn(&Running, &str)) {
    let draft = parsed(yaml);
    let Some(kernel) = kernel(test, &draft) else { return };
    let mut ways = 0;
    for (way, ability, change) in WAYS {
        if !ability(&kernel.abilities).yes() {
            continue;
        }
        let mut target = kernel.clone();
        change(&mut target.abilities);
        let running = Running::start(&draft, &target);
        let own = |kind: &&str| kind.trim_start_matches("kret").trim_start_matches('k') == way.trim_start_matches('k');
        let traced = |kind: &&str| way == "fentry" && matches!(*kind, "fexit" | "fentry" | "tp_btf");
        assert!(running.kinds().iter().all(|k| own(k) || traced(k) || *k == "tp_btf"), "{way}: {:?}", running.kinds());
        work();
        results(&running, way);
        ways += 1;
    }
    assert!(ways >= 2, "only {ways} ways on {}", kernel.release);
}

#[test]
#[ignore = "needs root"]
fn root_functions_are_counted_alike_in_every_way() {
    let yaml = "probe: calls\nsummary: S.\nat: function:__x64_sys_getpgid:entry\nwhere: comm == \"fn-calls\"\nmetrics:\n  \
                calls_total: { type: counter }\n  \
                pids_total: { type: counter, value: args.regs.di }\n";
    let work = || named("fn-calls", || getpgid_calls(7, 1000));
    each_way("root_functions_are_counted_alike_in_every_way", yaml, work, |running, way| {
        assert_eq!((running.value(0), running.value(1)), (1000, 7000), "{way}");
    });
}
