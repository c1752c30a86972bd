//! The recorded kernel.

use kstrobe::config::compile;
use kstrobe::config::plan::{self, ProbePlan};
use kstrobe::kernel::pollers;
use kstrobe::kernel::{Loader, load};
use kstrobe_config::model::SourceFile;
use kstrobe_ebpf::Target;
use kstrobe_ebpf::kernel_target::{Abilities, Ability, dump};
use std::path::Path;
use std::sync::{Arc, OnceLock};

const TEXT: &str = include_str!("../fixtures/linux-6.18-x86_64.target");

/// The recorded kernel, with the poll sources of this agent.
pub fn target() -> Target {
    static PARSED: OnceLock<Target> = OnceLock::new();
    PARSED.get_or_init(|| edited(|text| text)).clone()
}

/// The same kernel with its record changed.
pub fn edited(edit: impl FnOnce(String) -> String) -> Target {
    let text = edit(TEXT.to_owned());
    let parsed = dump::parse(&text).unwrap_or_else(|e| panic!("the recorded kernel: {e}"));
    // The recorded kernel was built without kprobes; what the page says of functions is compiled as if it had them.
    let abilities = Abilities { kprobe: Ability::Yes, func_ip: Ability::Yes, ..parsed.abilities };
    Target { polls: pollers::row_types(), abilities, ..parsed }
}

/// A text as if it were a file.
pub fn file(name: &str, text: &str) -> Arc<SourceFile> {
    Arc::new(SourceFile { name: name.to_owned(), text: text.to_owned() })
}

/// The shipped probes that run without being named.
pub fn shipped() -> Vec<ProbePlan> {
    every_shipped().into_iter().filter(|plan| plan.meta().enabled).collect()
}

/// All shipped probes.
pub fn every_shipped() -> Vec<ProbePlan> {
    let (probes, diagnostics) = kstrobe_config::probes(&kstrobe_config::embedded());
    assert!(diagnostics.is_empty(), "{}", kstrobe_config::render(&diagnostics));
    probes.into_iter().map(plan::plan).collect()
}

/// Every example and every expression of the page, loaded and attached one after the other: as compiled for this kernel, and
/// as for kernels that can do less. What this kernel lacks is left out, but most must be there.
#[test]
#[ignore = "needs root"]
fn root_the_verifier_accepts_every_example() {
    let plans: Vec<ProbePlan> = every_shipped().into_iter().chain(super::examples::plans()).collect();
    let live = compile::look(&plans, None);
    let no = || Ability::No("this test says so".into());
    let mut lesser = vec![live.clone(); 4];
    lesser[1].abilities.tp_btf = no();
    (lesser[2].abilities.task_storage, lesser[2].abilities.current_task_btf) = (no(), no());
    lesser[3].abilities.rdonly_cast = no();
    let mut loader = Loader::new();
    for (i, target) in lesser.iter().enumerate() {
        let loaded = plans.iter().filter(|plan| attaches(plan, target, &mut loader)).count();
        assert!(loaded * 2 > plans.len(), "only {loaded} of {} as for kernel {i}", plans.len());
    }
}

/// Whether the kernel takes a probe; `false` when there is nothing to take.
fn attaches(plan: &ProbePlan, target: &Target, loader: &mut Loader) -> bool {
    let Ok(artifact) = plan.compile(target) else { return false };
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    if programs.is_empty() {
        return false;
    }
    if let Err(error) = load(loader, &artifact.object, &artifact.module.layout, &programs) {
        let labels = plan.program().metrics.iter().flat_map(|m| &m.labels);
        let labels: Vec<&str> = labels.map(|label| label.value.value.as_str()).collect();
        panic!("{} {labels:?} for {:?}: {error}", plan.meta().name, target.abilities);
    }
    true
}

/// Records the kernel this runs on, as far as the shipped probes and the language page need it (`BLESS=1`), after a look at
/// whether a record gives what the kernel itself gives.
#[test]
#[ignore = "needs root"]
fn root_a_recorded_kernel_compiles_as_the_kernel_itself() {
    let plans: Vec<ProbePlan> = every_shipped().into_iter().chain(super::examples::plans()).collect();
    let live = compile::look(&plans, None);
    let text = plan::dump(&plans, &live);
    let recorded = dump::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    for plan in &plans {
        let name = &plan.meta().name;
        match (plan.compile(&live), plan.compile(&Target { polls: pollers::row_types(), ..recorded.clone() })) {
            (Ok(live), Ok(recorded)) => {
                let size = |a: &kstrobe_ebpf::Artifact| -> Vec<_> {
                    a.programs.iter().map(|p| (p.attach.clone(), p.instructions)).collect()
                };
                assert_eq!(size(&live), size(&recorded), "{name}");
                assert_eq!(live.module.layout, recorded.module.layout, "{name}");
            }
            (Err(live), Err(recorded)) => {
                // What is meant is guessed among all names, of which the recording has few.
                let message = |r: kstrobe::config::plan::CompileError| r.diagnostics[0].message.clone();
                assert_eq!(message(live), message(recorded), "{name}");
            }
            (live, recorded) => panic!("{name}: {:?} but {:?}", live.err(), recorded.err()),
        }
    }
    if std::env::var_os("BLESS").is_some() {
        // What distributions append to a version, and how many CPUs one machine has, say nothing about a kernel.
        let version = live.release.split('-').next().unwrap_or_default().to_owned();
        let series = version.rsplitn(2, '.').last().unwrap_or_default();
        let name = format!("tests/fixtures/linux-{series}-{}.target", std::env::consts::ARCH);
        let target = Target { release: version.clone(), cpus: 8, ..live };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        std::fs::write(path, plan::dump(&plans, &target)).unwrap();
    }
}
