//! What is loaded for a probe, in this order: the kernel may refuse a kind of hook at one function though it has that kind.

use kstrobe_ebpf::kernel_target::Ability;
use kstrobe_ebpf::typed::Attach;
use kstrobe_ebpf::{Artifact, Target};

use super::plan::ProbePlan;

/// The attempts after the best one, which is compiled for the target as it is. Each has other kinds of hooks than those that were refused.
pub struct Attempts<'a> {
    plan: &'a ProbePlan,
    target: &'a Target,
    /// The target without the refused kinds.
    lesser: Option<Target>,
}

impl<'a> Attempts<'a> {
    pub fn new(plan: &'a ProbePlan, target: &'a Target) -> Attempts<'a> {
        Attempts { plan, target, lesser: None }
    }

    /// The next attempt, without this kind of hook. `None` when no other kind can take its place.
    pub fn without(&mut self, refused: &Attach, reason: String) -> Option<Artifact> {
        let target = self.lesser.get_or_insert_with(|| self.target.clone());
        let ability = match refused {
            Attach::TpBtf { .. } => &mut target.abilities.tp_btf,
            Attach::Fentry { .. } | Attach::Fexit { .. } => &mut target.abilities.fentry,
            Attach::Kprobe { multi: true, .. } => &mut target.abilities.kprobe_multi,
            _ => return None,
        };
        let was = std::mem::replace(ability, Ability::No(reason));
        was.yes().then(|| self.plan.compile(target).ok()).flatten()
    }
}
