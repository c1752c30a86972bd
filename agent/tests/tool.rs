//! Tools in a terminal, as far as no kernel is needed.

mod support;

use kstrobe::config::adhoc::{self, Filters, Wanted};
use kstrobe::config::plan;
use kstrobe_ebpf::kernel_target::dump;
use kstrobe_ebpf::layout::CellKind;
use support::agent::command;
use support::{Done, done};

fn kstrobe(arguments: &[&str]) -> Done {
    done(&mut command(arguments))
}

#[test]
fn unknown_names_say_what_may_be_meant() {
    for (name, meant) in [("runqlta", "runqlat"), ("explian", "explain"), ("softirg", "softirq")] {
        for arguments in [&[name][..], &["tool", name], &[name, "-d", "1s"]] {
            let said = kstrobe(arguments);
            assert_eq!(said.code, Some(2), "{arguments:?}: {}", said.err);
            assert!(said.err.contains(&format!("did you mean `{meant}`?")), "{arguments:?}: {}", said.err);
        }
    }
    let said = kstrobe(&["zzzzzzzz"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("there is no command, probe or tool `zzzzzzzz`"), "{}", said.err);
}

#[test]
fn what_a_probe_does_not_have_is_named() {
    let said = kstrobe(&["runqlat", "--by", "com", "-d", "1s"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("has no label `com`: did you mean `comm`?"), "{}", said.err);
    let said = kstrobe(&["offcputime", "-d", "1s"]);
    assert!(said.code == Some(2) && said.err.contains("kstrobe stacks offcpu"), "{}", said.err);
    let said = kstrobe(&["runqlat", "--cgroup", "no/such/group", "-d", "1s"]);
    assert!(said.code == Some(2) && said.err.contains("/sys/fs/cgroup/no/such/group"), "{}", said.err);
}

/// The rows that a terminal draws are bounds of the kernel's buckets, and fit the probe's memory, in each shipped probe that the
/// recorded kernel runs.
#[test]
fn shipped_probes_compile_with_the_rows_of_a_terminal() {
    let text = std::fs::read_to_string("tests/fixtures/linux-6.18-x86_64.target").unwrap();
    let target = dump::parse(&text).unwrap();
    let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
    let mut histograms = 0;
    for shipped in probes {
        let mut probe = shipped.clone();
        adhoc::apply(&mut probe, &Wanted { filters: Filters::default(), ..Wanted::default() }).unwrap();
        if plan::plan(shipped).compile(&target).is_err() {
            continue;
        }
        let plan = plan::plan(probe);
        let name = plan.meta().name.clone();
        let artifact = plan.compile(&target).unwrap_or_else(|refused| panic!("{name}: {}", refused.reason()));
        for cell in artifact.module.layout.tables.iter().flat_map(|table| &table.cells) {
            let CellKind::Histogram(scheme) = &cell.kind else { continue };
            let scale = adhoc::scale::Scale::of(scheme.spec.raw_per_unit);
            let inner = scale.bounds().into_iter().filter(|bound| *bound > scheme.upper[0]);
            let inner: Vec<u64> = inner.take_while(|bound| bound / 2 < scheme.spec.max).collect();
            assert!(inner.len() > 4, "{name}");
            assert!(inner.iter().all(|bound| scheme.upper.contains(&(bound - 1))), "{name}: {:?}", scheme.upper);
            histograms += 1;
        }
    }
    assert!(histograms > 20, "{histograms}");
}
