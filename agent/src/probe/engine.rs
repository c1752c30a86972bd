//! What every engine does.

use std::sync::Arc;
use std::time::Instant;

use kstrobe_ebpf::layout::Layout;
use kstrobe_export::reading::PackedFamily;
use kstrobe_export::snapshot::{Family, Moment};

use super::error::{NotAttached, ReadError};
use super::iterator::IteratorEngine;
use super::kernel::KernelEngine;
use super::running::Probe;
use crate::config::plan::ProbePlan;
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::kernel::read::ProbeMaps;
use crate::metrics::labels::Names;
use crate::metrics::telemetry::{Observed, Telemetry};

/// A way to run a probe.
pub trait Engine: Send {
    /// Reads the series. Adds the agent's own metrics of this probe to `scrape.observed`, and what cannot be read to
    /// `scrape.errors`.
    fn scrape(&mut self, scrape: &mut Scrape<'_>) -> Vec<Family>;

    /// The same, packed.
    fn read(&mut self, scrape: &mut Scrape<'_>) -> Vec<PackedFamily> {
        self.scrape(scrape).iter().map(PackedFamily::of).collect()
    }

    /// The same for the history, each second: without the agent's own metrics of this probe, which cost system calls.
    fn read_series(&mut self, scrape: &mut Scrape<'_>) -> Vec<PackedFamily> {
        self.read(scrape)
    }

    /// Why it does not measure, or not everywhere; empty when it does.
    fn reason(&self) -> String;

    /// Whether it measures, waits for what it measures, or has nothing to measure on this kernel.
    fn runs(&self) -> bool {
        true
    }

    /// Whether the probe compiled to nothing.
    fn is_idle(&self) -> bool {
        false
    }

    /// When [`Engine::tick`] is due, if ever.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// The same while the agent rests, but for work that may wait for the next reading.
    fn due_at_rest(&self) -> Option<Instant> {
        self.due()
    }

    /// Whether the next tick needs a process snapshot: `Some(true)` when with mapped files, for hooks that name a file
    /// without its path.
    fn needs_processes(&self) -> Option<bool> {
        None
    }

    /// Does the periodic work that is due. Returns the probe that takes this one's place, if any.
    fn tick(&mut self, _: &mut Tick<'_>) -> Option<Probe> {
        None
    }

    /// Takes a new definition of the same identity.
    fn renew(&mut self, _: &ProbePlan) {}

    /// What its maps hold, in the kernel or in the agent; `None` without maps that last.
    fn layout(&self) -> Option<&Layout> {
        None
    }

    /// Its maps in the kernel.
    fn maps(&self) -> Option<&ProbeMaps> {
        None
    }

    /// The engine of programs that run at events, which alone has a budget, single events and stacks.
    fn kernel(&mut self) -> Result<&mut KernelEngine, NotAttached> {
        Err(NotAttached(self.reason()))
    }

    /// The same to read.
    fn as_kernel(&self) -> Option<&KernelEngine> {
        None
    }

    /// The engine of iterators, which a thread of its own walks.
    fn iterator(&self) -> Option<Arc<IteratorEngine>> {
        None
    }

    /// Whether the kernel would keep a part of it after the process has ended.
    fn outlives_the_process(&self) -> bool {
        false
    }
}

/// One scrape of a probe.
pub struct Scrape<'a> {
    /// The probe's name.
    pub probe: &'a str,
    /// Label texts.
    pub names: &'a mut Names,
    /// The moment that all probes are read at.
    pub now: Moment,
    /// The agent's own metrics.
    pub observed: &'a mut Observed,
    /// What could not be read.
    pub errors: Vec<ReadError>,
}

impl Scrape<'_> {
    /// The value, or `None` with its error noted.
    pub fn note<T, E>(&mut self, result: Result<T, E>, as_error: impl FnOnce(E) -> ReadError) -> Option<T> {
        result.map_err(|error| self.errors.push(as_error(error))).ok()
    }
}

/// Periodic work on a probe.
pub struct Tick<'a> {
    /// The probe's name.
    pub probe: &'a str,
    /// Label texts.
    pub names: &'a mut Names,
    /// Where [`Engine::needs_processes`] asks for one.
    pub processes: Option<&'a ProcessSnapshot>,
    /// The agent's own metrics.
    pub telemetry: &'a Telemetry,
    /// What could not be read; `None` when nothing was tried.
    pub errors: Option<Vec<ReadError>>,
}
