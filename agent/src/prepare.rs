//! From files to compiled probes, for every command that needs them: one bad probe never stops the others.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kstrobe_ebpf::target::usdt_name;
use kstrobe_ebpf::{Artifact, Target};

use crate::binaries;
use crate::binaries::find::World;
use crate::kernel::detect::{self, Wanted};
use crate::plan::{Draft, Refusal};
use crate::polls;

/// Probes compiled for this kernel, and those it cannot run.
pub struct Prepared {
    /// The kernel as found.
    pub target: Target,
    /// Ready to run.
    pub planned: Vec<(Draft, Artifact)>,
    /// Not to be run here, with the reason.
    pub refused: Vec<(Draft, Refusal)>,
}

/// Looks at the kernel with the eyes of these probes and compiles them.
pub fn prepare(drafts: impl IntoIterator<Item = Draft>, btf: Option<&Path>) -> Prepared {
    let drafts: Vec<Draft> = drafts.into_iter().collect();
    let target = look(&drafts, btf);
    let mut planned = Vec::new();
    let mut refused = Vec::new();
    for draft in drafts {
        match draft.compile(&target) {
            Ok(artifact) => planned.push((draft, artifact)),
            Err(refusal) => refused.push((draft, refusal)),
        }
    }
    Prepared { target, planned, refused }
}

/// This kernel as plain data, as far as these probes need it.
pub fn look(drafts: &[Draft], btf: Option<&Path>) -> Target {
    let wanted = Wanted {
        tracepoints: drafts.iter().flat_map(Draft::tracepoints).collect(),
        syscalls: drafts.iter().flat_map(Draft::syscalls).collect(),
        functions: drafts.iter().flat_map(Draft::functions).collect(),
        btf: btf.map(Path::to_path_buf),
    };
    let mut target = detect::detect(&wanted);
    target.polls = polls::row_types();
    target.usdts = usdts(drafts, World::look);
    target
}

/// What the notes of static probe points say of their arguments. Points that are not found, yet, are absent.
pub fn usdts<W: Borrow<World>>(drafts: &[Draft], world: impl FnOnce() -> W) -> BTreeMap<String, Vec<String>> {
    let wanted: Vec<_> = drafts.iter().flat_map(Draft::usdts).collect();
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let world = world();
    let mut found = BTreeMap::new();
    for (binary, provider, name) in wanted {
        let files = world.borrow().find(binary).unwrap_or_default();
        let sites = files.iter().flat_map(|file| binaries::probes(file, provider, name).unwrap_or_default());
        let ways: BTreeSet<String> = sites.map(|site| site.args).collect();
        if !ways.is_empty() {
            found.insert(usdt_name(binary, provider, name), ways.into_iter().collect());
        }
    }
    found
}
