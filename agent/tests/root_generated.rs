//! What `check` accepts, the kernel's verifier takes: probes are made at random over the types of the kernel that runs, compiled, and
//! loaded without being attached. A probe that is refused after the check is printed as small as it can be made.
//!
//! `KSTROBE_GENERATED=N` asks for N programs, `KSTROBE_GENERATED_SEED=S` begins at another seed than 0.

mod generated;

use generated::{Kernel, Numbers};
use kstrobe::config::plan::plan;
use kstrobe::kernel::{Loader, load_unattached};
use kstrobe_config::model::SourceFile;
use kstrobe_ebpf::kernel_target::{Ability, Target};
use kstrobe_ebpf::{Fault, compile};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Programs of a plain run.
const PROGRAMS: u32 = 300;
/// Probes of a seed.
const CASES: u32 = 20;
/// Tries to make a probe smaller that was refused.
const MAX_TRIES: u32 = 600;
/// Refused probes that are shown before the rest is left.
const MAX_SHOWN: usize = 20;

/// The result of a probe.
enum Outcome {
    /// So many of its programs were loaded.
    Loaded(u32),
    /// The check refuses it, or warns that it never does anything.
    Refused(String),
}

struct Lab {
    kernel: Kernel,
    /// The kernel, and the same with less.
    targets: Vec<Target>,
    loader: Loader,
}

fn no() -> Ability {
    Ability::No("not in this test".into())
}

impl Lab {
    fn new(kernel: Kernel) -> Lab {
        let lesser = |change: fn(&mut Target)| {
            let mut target = kernel.target.clone();
            change(&mut target);
            target
        };
        let targets = vec![
            lesser(|_| {}),
            lesser(|_| {}),
            lesser(|_| {}),
            lesser(|t| t.abilities.tp_btf = no()),
            lesser(|t| t.abilities.rdonly_cast = no()),
            lesser(|t| (t.abilities.task_storage, t.abilities.current_task_btf) = (no(), no())),
        ];
        Lab { kernel, targets, loader: Loader::new() }
    }

    fn probe(&self, numbers: &[u32]) -> (usize, String) {
        let which = numbers.first().map_or(0, |n| *n as usize % self.targets.len());
        (which, Numbers(numbers.get(1..).unwrap_or_default().iter()).probe(&self.kernel))
    }

    /// The error is what is wrong with kstrobe.
    fn run(&mut self, numbers: &[u32]) -> Result<Outcome, String> {
        let (which, text) = self.probe(numbers);
        let (mut probes, diagnostics) =
            kstrobe_config::probes(&[Arc::new(SourceFile { name: "generated.yaml".into(), text })]);
        if !diagnostics.is_empty() {
            return Err(format!("no probe: {}", kstrobe_config::render(&diagnostics)));
        }
        let plan = plan(probes.remove(0));
        let artifact = match compile(plan.program(), &self.targets[which]) {
            Ok(artifact) => artifact,
            Err(errors) => match errors.iter().find(|error| error.fault == Fault::Bug) {
                Some(bug) => return Err(bug.message.clone()),
                None => return Ok(Outcome::Refused(errors[0].message.clone())),
            },
        };
        if artifact.is_idle() {
            return Ok(Outcome::Refused("never true".into()));
        }
        let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
        match load_unattached(&mut self.loader, &artifact.object, &artifact.module.layout, &programs) {
            Ok(_) => Ok(Outcome::Loaded(programs.len() as u32)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The smallest probe found that is refused as well, and what is said of it.
    fn minimised(&mut self, mut tree: impl ValueTree<Value = Vec<u32>>, error: String) -> String {
        let mut least = (tree.current(), error);
        let mut more = tree.simplify();
        for _ in 0..MAX_TRIES {
            if !more {
                break;
            }
            more = match self.run(&tree.current()) {
                Err(error) => {
                    least = (tree.current(), error);
                    tree.simplify()
                }
                Ok(_) => tree.complicate(),
            };
        }
        let (which, text) = self.probe(&least.0);
        format!("{text}# for target {which}: {}\n", least.1)
    }
}

/// A number of the environment.
fn asked(name: &str) -> Option<u32> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn numbers() -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), 8..240)
}

#[test]
#[ignore = "needs root"]
fn root_generated_probes_that_check_accepts_load() {
    let kernel = Kernel::look().expect("a kernel with types");
    let mut lab = Lab::new(kernel);
    let wanted = asked("KSTROBE_GENERATED").unwrap_or(PROGRAMS);
    let first = asked("KSTROBE_GENERATED_SEED").unwrap_or(0);
    let (mut probes, mut loaded, mut programs) = (0, 0, 0);
    let (mut wrong, mut refused) = (Vec::new(), BTreeMap::<String, u32>::new());
    for seed in first.. {
        if programs >= wanted || wrong.len() >= MAX_SHOWN {
            break;
        }
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        for _ in 0..CASES {
            let tree = numbers().new_tree(&mut runner).expect("numbers are always there");
            probes += 1;
            match lab.run(&tree.current()) {
                Ok(Outcome::Loaded(n)) => (loaded, programs) = (loaded + 1, programs + n),
                Ok(Outcome::Refused(why)) => *refused.entry(kind(&why)).or_default() += 1,
                Err(error) => {
                    let small = format!("# seed {seed}\n{}", lab.minimised(tree, error));
                    // At once: an emulated machine may be stopped before the end.
                    println!("{small}");
                    wrong.push(small);
                }
            }
        }
    }
    let mut reasons: Vec<_> = refused.iter().map(|(why, n)| (*n, why.as_str())).collect();
    reasons.sort_unstable_by(|a, b| b.cmp(a));
    println!(
        "{probes} probes from seed {first}: {loaded} loaded as {programs} programs, the check refused {reasons:?}"
    );
    assert!(wrong.is_empty(), "{} refused after the check\n{}", wrong.len(), wrong.join("\n"));
    assert!(loaded * 3 > probes, "the generator makes too much that no check accepts");
}

/// What is said without what it is said of.
fn kind(message: &str) -> String {
    message.split('`').step_by(2).collect::<Vec<_>>().join("_")
}
