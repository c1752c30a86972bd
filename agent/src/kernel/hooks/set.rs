//! Hooks that are attached and detached together, in slices of time: those at which a measurement begins and those at which it ends,
//! where it is known whether some measurement is open.
//!
//! A slice ends for what begins; the hooks stay until all that has begun has ended as well, so that long measurements are seen as
//! often as short ones.

use super::part::Part;
use super::slices::{Events, Slices};
use super::{chance, has};
use crate::kernel::attach::Attacher;
use crate::kernel::control::Control;
use crate::kernel::sys::monotonic_ns;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at what is still open. A softirq seldom runs for longer than 2 ms (`MAX_SOFTIRQ_TIME`).
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Least time between two looks at what the kernel has counted itself.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Which entries and probes.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    /// By [`Part::key`].
    entries: Vec<RawFd>,
    /// Of the probes whose measurements end here as well.
    weights: Vec<Arc<Control>>,
}

impl Members {
    fn is(&self, other: &Members) -> bool {
        let (ours, theirs) = (&self.weights, &other.weights);
        self.entries == other.entries && ours.len() == theirs.len() && ours.iter().all(|of| has(theirs, of))
    }

    pub(super) fn has(&self, part: &Part) -> bool {
        self.entries.contains(&part.key())
    }

    fn of<'a>(&'a self, parts: &'a mut [Part]) -> impl Iterator<Item = &'a mut Part> {
        parts.iter_mut().filter(|part| self.has(part))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct HookSet {
    pub(super) members: Members,
    slices: Slices,
    phase: Phase,
    /// Events in slices so far, and at the begin of this one.
    seen: (f64, f64),
    counted: Option<Instant>,
}

#[derive(Debug)]
enum Phase {
    Detached,
    /// Measurements begin.
    Slice,
    /// Those that are open end. It is looked at then.
    Ending(Instant),
}

impl HookSet {
    /// Of entries that are attached, and whose programs that begin measurements do not run ([`Part::gate`]).
    fn new(members: Members) -> HookSet {
        let now = Instant::now();
        let slices = Slices::new(now, chance());
        HookSet { members, slices, phase: Phase::Ending(now + LOOK_EVERY), seen: (0.0, 0.0), counted: None }
    }

    pub(super) fn due(&self) -> Instant {
        match self.phase {
            Phase::Detached | Phase::Slice => self.slices.due(),
            Phase::Ending(next) => next.min(self.slices.due()),
        }
    }

    /// Does what is due.
    pub(super) fn switch(&mut self, parts: &mut [Part], attacher: &mut Attacher) {
        let now = Instant::now();
        match self.phase {
            Phase::Slice if self.slices.due() <= now => self.end_slice(parts),
            Phase::Detached | Phase::Ending(_) if self.slices.due() <= now => self.begin_slice(parts, attacher),
            Phase::Ending(next) if next <= now => {
                let has_open = self.members.of(parts).any(|part| part.has_open(&self.members.weights));
                self.phase = match has_open {
                    true => Phase::Ending(now + LOOK_EVERY),
                    false => {
                        self.members.of(parts).for_each(Part::detach);
                        Phase::Detached
                    }
                };
            }
            _ => {}
        }
    }

    fn begin_slice(&mut self, parts: &mut [Part], attacher: &mut Attacher) {
        if matches!(self.phase, Phase::Detached) {
            if !self.members.of(parts).all(|part| part.attach_again(attacher)) {
                self.members.of(parts).for_each(Part::detach);
                self.slices.failed(Instant::now());
                return;
            }
            self.renew();
        }
        self.seen.1 = self.events(parts);
        self.slices.switched(Instant::now(), chance(), None);
        self.members.of(parts).for_each(|part| part.gate(Some(true)));
        self.phase = Phase::Slice;
    }

    fn end_slice(&mut self, parts: &mut [Part]) {
        self.members.of(parts).for_each(|part| part.gate(Some(false)));
        let now = Instant::now();
        self.seen.0 += self.events(parts) - self.seen.1;
        let is_due = self.counted.is_none_or(|at| now.saturating_duration_since(at) >= COUNT_EVERY);
        let all = if is_due { self.members.of(parts).find_map(|part| part.counted_by_kernel()) } else { None };
        if all.is_some() {
            self.counted = Some(now);
        }
        self.slices.switched(now, chance(), all.map(|all| Events { seen: self.seen.0, all }));
        self.phase = Phase::Ending(now + LOOK_EVERY);
    }

    /// Events of the hook that the kernel counts as well.
    fn events(&self, parts: &[Part]) -> f64 {
        let counts = |part: &&Part| self.members.has(part) && part.is_counted_by_kernel();
        parts.iter().find(counts).map_or(0.0, Part::events)
    }

    /// Lets nothing be measured that began before: its end may not have been seen.
    fn renew(&self) {
        let now = monotonic_ns();
        for of in &self.members.weights {
            if let Err(error) = of.renew(now) {
                tracing::error!(%error, "what began before a slice of time could not be excluded");
            }
        }
    }

    /// Stops what begins measurements, for other weights of them.
    pub(super) fn hold(&mut self, parts: &mut [Part]) {
        if matches!(self.phase, Phase::Slice) {
            self.end_slice(parts);
        }
    }

    /// Nothing is attached and detached by it from now on. What begins measurements does not run, and the entries may be detached.
    fn end(mut self, parts: &mut [Part]) {
        self.hold(parts);
        if matches!(self.phase, Phase::Detached) {
            self.renew();
        }
    }
}

/// Marks the probes of these sets, whose ends rest, and takes the mark of the others away ([`Control::ends_rest`]).
pub(super) fn mark_resting_ends(wanted: &[Members], all: &[Arc<Control>]) {
    for of in all {
        let rest = wanted.iter().any(|members| has(&members.weights, of));
        if let Err(error) = of.set_ends_rest(rest) {
            tracing::error!(%error, "ends whose begin was not seen count as lost");
        }
    }
}

/// Ends the sets that are not wanted any more.
pub(super) fn end_others(sets: &mut Vec<HookSet>, wanted: &[Members], parts: &mut [Part]) {
    let is_whole = |set: &HookSet| parts.iter().filter(|part| set.members.has(part)).all(Part::is_in_set);
    let is_left = |set: &HookSet| wanted.iter().any(|members| members.is(&set.members)) && is_whole(set);
    let ended: Vec<HookSet> = sets.extract_if(.., |set| !is_left(set)).collect();
    ended.into_iter().for_each(|set| set.end(parts));
}

/// Adds the sets that are not there yet.
pub(super) fn add_missing(sets: &mut Vec<HookSet>, wanted: &[Members], parts: &mut [Part]) {
    for members in wanted {
        if sets.iter().any(|set| set.members.is(members)) {
            continue;
        }
        members.of(parts).for_each(|part| {
            part.gate(Some(false));
            part.stay();
        });
        sets.push(HookSet::new(members.clone()));
    }
}

/// The sets of these probes: entries that share one of them, or another entry that does, are together.
pub(super) fn wanted(parts: &[Part], granted: &[Arc<Control>]) -> Vec<Members> {
    let mut sets: Vec<Members> = Vec::new();
    for of in granted.iter().filter(|of| parts.iter().any(|part| part.ends(of))) {
        let entries = super::groups(parts, of).map(Part::key).collect();
        let mut members = Members { entries, weights: vec![of.clone()] };
        let shares = |set: &mut Members| set.entries.iter().any(|key| members.entries.contains(key));
        let shared: Vec<Members> = sets.extract_if(.., |set| shares(set)).collect();
        for set in shared {
            members.entries.extend(set.entries);
            members.weights.extend(set.weights);
        }
        members.entries.sort_unstable();
        members.entries.dedup();
        sets.push(members);
    }
    sets
}
