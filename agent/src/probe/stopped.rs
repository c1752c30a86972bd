//! Probes that do not run: one waits for a program, one has nothing to measure here, one cannot.

use std::path::PathBuf;
use std::time::Instant;

use kstrobe_export::snapshot::Family;

use super::engine::{Engine, Scrape, Tick};
use super::running::Probe;
use super::user_hooks::LOOK_EVERY;
use crate::config::compile;
use crate::config::plan::ProbePlan;
use crate::kernel::load::Loader;
use crate::kernel::load::Shared;

/// Compiled once the program with its static probe points runs.
pub struct Waiting {
    pub plan: ProbePlan,
    /// Where its programs will run.
    pub shared: Shared,
    pub btf: Option<PathBuf>,
    pub reason: String,
    pub looked: Instant,
}

impl Engine for Waiting {
    fn scrape(&mut self, _: &mut Scrape<'_>) -> Vec<Family> {
        Vec::new()
    }

    fn reason(&self) -> String {
        self.reason.clone()
    }

    fn due(&self) -> Option<Instant> {
        Some(self.looked + LOOK_EVERY)
    }

    fn needs_processes(&self) -> Option<bool> {
        Some(true)
    }

    fn tick(&mut self, tick: &mut Tick<'_>) -> Option<Probe> {
        let processes = tick.processes?;
        self.looked = Instant::now();
        let plans = std::slice::from_ref(&self.plan);
        if compile::usdts(plans, || processes).is_empty() {
            return None;
        }
        let target = compile::look(plans, self.btf.as_deref());
        let compiled = compile::probe(&self.plan, &target);
        let btf = self.btf.as_deref();
        let mut loader = Loader::for_target(self.shared.clone(), &target, btf);
        Some(Probe::start(&self.plan, compiled, &target, &mut loader, btf))
    }

    fn renew(&mut self, plan: &ProbePlan) {
        self.plan = plan.clone();
    }
}

/// Compiled to nothing, as its conditions are never true on this kernel; the warnings that name them.
pub struct Idle(pub String);

impl Engine for Idle {
    fn scrape(&mut self, _: &mut Scrape<'_>) -> Vec<Family> {
        Vec::new()
    }

    fn reason(&self) -> String {
        self.0.clone()
    }

    fn is_idle(&self) -> bool {
        true
    }
}

/// Not running, with the reason.
pub struct Off(pub String);

impl Engine for Off {
    fn scrape(&mut self, _: &mut Scrape<'_>) -> Vec<Family> {
        Vec::new()
    }

    fn reason(&self) -> String {
        self.0.clone()
    }

    fn runs(&self) -> bool {
        false
    }
}
