//! What is loaded for a probe, in this order: the kernel may refuse a kind of hook at one function though it has that kind.

use kstrobe_ebpf::kernel_target::Ability;
use kstrobe_ebpf::typed::Attach;
use kstrobe_ebpf::{Artifact, Target};

use super::plan::ProbePlan;

/// The artifacts of one probe, the best first. Each further one has other kinds of hooks than those that were refused.
pub struct Attempts<'a> {
    plan: &'a ProbePlan,
    target: &'a Target,
    /// The target without the refused kinds.
    lesser: Option<Target>,
    next: Option<Artifact>,
}

impl<'a> Attempts<'a> {
    pub fn new(plan: &'a ProbePlan, target: &'a Target, best: Artifact) -> Attempts<'a> {
        Attempts { plan, target, lesser: None, next: Some(best) }
    }

    /// Compiles the next attempt without this kind of hook. Without effect when no other kind can take its place.
    pub fn without(&mut self, refused: &Attach, reason: String) {
        let target = self.lesser.get_or_insert_with(|| self.target.clone());
        let ability = match refused {
            Attach::TpBtf { .. } => &mut target.abilities.tp_btf,
            Attach::Fentry { .. } | Attach::Fexit { .. } => &mut target.abilities.fentry,
            Attach::Kprobe { multi: true, .. } => &mut target.abilities.kprobe_multi,
            _ => return,
        };
        if std::mem::replace(ability, Ability::No(reason)).yes() {
            self.next = self.plan.compile(target).ok();
        }
    }
}

impl Iterator for Attempts<'_> {
    type Item = Artifact;

    fn next(&mut self) -> Option<Artifact> {
        self.next.take()
    }
}
