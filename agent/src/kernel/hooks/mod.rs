//! Hooks, each with the programs of all probes at it: one program in the kernel, whatever the number of probes.
//!
//! What runs at a hook for as long as some probe is there is its entry ([`kstrobe_ebpf::dispatch`]); the dispatcher that it continues
//! with is replaced by one write. So a probe that comes or goes leaves no gap for the others, and no event is counted twice.
//! A probe's maps are its own, and outlive dispatchers.

mod alarm;
pub mod entry;
mod meter;
mod part;
mod set;
pub mod slices;

use crate::kernel::attach::{AttachError, Attacher, ProgramType};
use crate::kernel::control::{Control, random_below};
use crate::kernel::parallel;
use crate::kernel::read::OpenSpans;
use crate::kernel::sys::prog::Refused;
use kstrobe_ebpf::dispatch::{self, AsmError};
use kstrobe_ebpf::ir::Calls;
use kstrobe_ebpf::typed::Attach;
use part::{Part, Slot, watch};
use set::HookSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Instant;
use thiserror::Error;

pub use alarm::Alarm;
pub use meter::Use;

/// Why a hook cannot be had.
#[derive(Debug, Error)]
pub enum HookError {
    /// The kernel refuses its entry, or the program of all its probes.
    #[error("the kernel refuses the program of the hook {hook}: {}", .refused.error)]
    Program {
        hook: String,
        /// With the verifier's log.
        refused: Refused,
    },
    /// A fault of the compiler.
    #[error("the program of the hook has no code: {0:?}")]
    Code(AsmError),
    /// A map of the hook.
    #[error("a map of the hook: {0}")]
    Map(#[from] io::Error),
    /// The entry cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// A probe's program, which the verifier has accepted alone.
#[derive(Debug)]
pub struct Body {
    /// For messages.
    pub name: String,
    /// Relocated instructions. The maps that they name must live as long as the [`Member`].
    pub code: Vec<u64>,
    pub calls: Option<Calls>,
    pub role: Role,
    /// The same, loaded.
    pub program: OwnedFd,
}

/// What a program does for its probe's measurements, which says when its hook may rest.
#[derive(Clone, Debug)]
pub enum Role {
    /// It has to see each event.
    All,
    /// They begin here, with the weight that this sets.
    Begins(Arc<Control>),
    /// They end here; with what sets their weights, and which of them are open.
    Ends(Arc<Control>, Arc<OpenSpans>),
    /// Those that are open change here; with what sets their weights, and which of them are open.
    Watches(Arc<Control>, Arc<OpenSpans>),
}

impl Role {
    /// What sets the weights of what begins or ends here; `None` where each event has to be seen, if only while something is open.
    fn weights(&self) -> Option<&Arc<Control>> {
        match self {
            Role::All | Role::Watches(..) => None,
            Role::Begins(weights) | Role::Ends(weights, _) => Some(weights),
        }
    }
}

/// All hooks of this process.
#[derive(Debug)]
pub struct Hooks {
    state: Mutex<State>,
    cpus: u32,
    alarm: OnceLock<io::Result<Alarm>>,
    /// For its thread.
    own: Weak<Hooks>,
}

#[derive(Debug, Default)]
struct State {
    parts: Vec<Part>,
    /// Id of the next member: the order in which they came.
    next: u64,
    /// Batches that are open.
    batches: u32,
    /// By probe, what its budget says; [`Slicing::Never`] for others.
    slicing: Vec<(Arc<Control>, Slicing)>,
    /// Entries that are attached and detached together.
    sets: Vec<HookSet>,
    /// The thread that attaches and detaches entries in slices of time.
    slicer: Option<Thread>,
}

/// Whether a probe sees the events at which its measurements begin for a share of the time alone ([`slices`]). What reaching the hook
/// costs is then a share as well, as no sampling in its program could make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slicing {
    Never,
    /// Where another probe at the hook wants it.
    Tolerated,
    Wanted,
}

impl Hooks {
    /// `cpus` is the highest possible CPU and 1.
    pub fn new(cpus: u32) -> Arc<Hooks> {
        Arc::new_cyclic(|own| Hooks { state: Mutex::default(), cpus, alarm: OnceLock::new(), own: own.clone() })
    }

    /// Lets changes wait until the batch is dropped, so that each hook's dispatcher is made once.
    pub fn batch(self: &Arc<Hooks>) -> Batch {
        self.lock().batches += 1;
        Batch(self.clone())
    }

    /// Puts a program to the others at a kernel hook. It does not run before [`Member::activate`].
    pub fn join(
        self: &Arc<Hooks>,
        attach: &Attach,
        program: &ProgramType<'_>,
        body: Body,
        attacher: &mut Attacher,
    ) -> Result<Member, HookError> {
        let mut state = self.lock();
        let maps = dispatch::maps(&body.code);
        // The newest: the others of a hook that was split are at the verifier's limits.
        let at = match state.parts.iter().rposition(|part| part.is_shared_at(attach) && part.has_room(&maps)) {
            Some(at) => at,
            None => {
                let part = Part::new(attach, program, self.alarm_at(&state, attach).as_ref(), self.cpus)?;
                state.put(part, attacher)?
            }
        };
        self.member(&mut state, at, body)
    }

    /// The same for a program whose caller attaches [`Member::entry`] and ends that itself: hooks in files, and on CPUs that come and go.
    pub fn join_alone(
        self: &Arc<Hooks>,
        attach: &Attach,
        program: &ProgramType<'_>,
        body: Body,
    ) -> Result<Member, HookError> {
        let mut state = self.lock();
        let alarm = self.alarm().ok().map(Alarm::maps);
        let at = state.push(Part::new(attach, program, alarm.as_ref(), self.cpus)?);
        self.member(&mut state, at, body)
    }

    fn member(self: &Arc<Hooks>, state: &mut State, at: usize, body: Body) -> Result<Member, HookError> {
        let id = state.next;
        state.next += 1;
        let entry = state.parts[at].entry()?;
        state.parts[at].add(Slot::new(id, body));
        Ok(Member { hooks: self.clone(), id, entry })
    }

    /// Makes the dispatchers of hooks that have changed, then lets new programs run in the order in which they came.
    fn commit(&self, state: &mut State) {
        if state.batches > 0 {
            return;
        }
        let changed = state.parts.iter_mut().filter(|part| part.is_changed()).collect();
        let built = parallel::map(changed, || (), |(), part: &mut Part| (part.build(), part.hook().clone()));
        let apart = built.into_iter().flat_map(|(slots, hook)| slots.into_iter().map(move |slot| (hook.clone(), slot)));
        for (attach, slot) in apart {
            self.set_apart(state, &attach, slot);
        }
        state.clean();
        state.let_on();
        // Before one may run that must not miss an event.
        self.settle(state);
        let mut waiting: Vec<u64> = state.parts.iter().flat_map(Part::waiting).collect();
        waiting.sort_unstable();
        for id in waiting {
            if let Some(part) = state.part_of(id) {
                part.start(id);
            }
        }
    }

    /// Says how the probe with these weights stands to slices of time.
    pub fn slice(&self, weights: &Arc<Control>, slicing: Slicing) {
        let mut state = self.lock();
        match state.slicing.iter_mut().find(|(of, _)| Arc::ptr_eq(of, weights)) {
            Some((_, known)) if *known == slicing => return,
            Some((_, known)) => *known = slicing,
            None => state.slicing.push((weights.clone(), slicing)),
        }
        self.settle(&mut state);
    }

    /// Attaches the entries of hooks for good or in slices of time, as their probes allow, and sets these probes' weights while
    /// none of their programs that begin measurements runs.
    fn settle(&self, state: &mut State) {
        let State { parts, slicing, sets, .. } = state;
        slicing.retain(|(of, _)| parts.iter().any(|part| part.has_weights(of)));
        let granted = granted(parts, slicing);
        let is_granted = |of: &Arc<Control>| has(&granted, of);
        // What does not rest with its hooks rests at them.
        let wanted = slicing.iter().filter(|(of, slicing)| *slicing == Slicing::Wanted && !is_granted(of));
        let alone: Vec<Arc<Control>> = wanted.map(|(of, _)| of.clone()).collect();
        let times = |of: &Arc<Control>| if is_granted(of) || has(&alone, of) { slices::TIMES } else { 1 };
        let changed: Vec<Arc<Control>> =
            slicing.iter().filter(|(of, _)| of.times() != times(of)).map(|(of, _)| of.clone()).collect();
        let wanted = set::wanted(parts, &granted);
        // Before something else may let measurements begin.
        watch::attach_all(parts);
        // Before begins are missed; of others, after they are seen again.
        set::mark_resting_ends(&wanted, &granted);
        set::end_others(sets, &wanted, parts);
        sets.iter_mut().for_each(|set| set.hold(parts));
        let is_in_set = |part: &Part| wanted.iter().any(|members| members.has(part));
        let rest: Vec<bool> =
            (0..parts.len()).map(|at| group(parts, at).any(|part| part.weights().flatten().any(is_granted))).collect();
        for (part, rests) in
            parts.iter_mut().zip(&rest).filter(|(part, _)| changed.iter().any(|of| part.has_weights(of)))
        {
            match *rests || !part.is_always() {
                _ if is_in_set(part) => part.gate(Some(false)),
                true => part.rest(),
                false => part.hold_programs(&changed),
            }
        }
        changed.iter().for_each(|of| weigh(of, times(of)));
        for (part, rests) in parts.iter_mut().zip(rest) {
            part.slice_programs(&alone);
            match rests && part.is_first() {
                _ if is_in_set(part) => {}
                true => part.slice(),
                false => part.stay(),
            }
        }
        set::add_missing(sets, &wanted, parts);
        let is_free = |part: &&mut Part| part.is_in_set() && !sets.iter().any(|set| set.members.has(part));
        parts.iter_mut().filter(is_free).for_each(|part| part.gate(None));
        parts.iter_mut().for_each(Part::look_at_bits);
        let all: Vec<Arc<Control>> = slicing.iter().map(|(of, _)| of.clone()).collect();
        set::mark_resting_ends(&wanted, &all);
        watch::let_rest(parts);
        if let Err(error) = self.wake_slicer(state) {
            // Hooks that nothing attaches again must not rest.
            tracing::error!(%error, "no hook is attached in slices of time");
            std::mem::take(&mut state.slicing).iter().for_each(|(of, _)| weigh(of, 1));
            set::end_others(&mut state.sets, &[], &mut state.parts);
            for part in &mut state.parts {
                part.stay();
                part.gate(None);
            }
            set::mark_resting_ends(&[], &all);
        }
    }

    /// Lets the thread look that attaches and detaches, if there is something to do; starts it where it does not run.
    fn wake_slicer(&self, state: &mut State) -> io::Result<()> {
        if state.due().is_none() {
            return Ok(());
        }
        if state.slicer.is_none() {
            let hooks = self.own.clone();
            let spawned = thread::Builder::new().name("slices".into()).spawn(|| switch_in_time(hooks))?;
            state.slicer = Some(spawned.thread().clone());
        }
        state.slicer.iter().for_each(Thread::unpark);
        Ok(())
    }

    /// Gives a program that the dispatcher of its hook cannot take, being too complex for the verifier, an entry of its own.
    fn set_apart(&self, state: &mut State, attach: &Attach, slot: Slot) {
        let name = slot.name().to_owned();
        let sibling = state.parts.iter().find(|part| part.is_shared_at(attach));
        let twin = sibling
            .ok_or_else(|| io::Error::other("the hook is gone").into())
            .and_then(|one| one.twin(self.alarm_at(state, attach).as_ref()));
        let made = twin.and_then(|part| state.put(part, &mut Attacher::new()));
        match made {
            Ok(at) => {
                state.parts[at].add(slot);
                // Alone it cannot be too complex: it was verified so.
                state.parts.iter_mut().filter(|part| part.is_changed()).for_each(|part| _ = part.build());
                tracing::warn!(program = name, hook = %attach, "runs beside the other programs of its hook");
            }
            Err(error) => tracing::error!(program = name, hook = %attach, %error, "does not run"),
        }
    }

    /// Wakes the agent when many events come. The kernel has to have ring buffers (Linux 5.8).
    pub fn alarm(&self) -> Result<&Alarm, &io::Error> {
        self.alarm.get_or_init(Alarm::create).as_ref()
    }

    /// For a new entry: those that others run have none, so that it counts each event once.
    fn alarm_at(&self, state: &State, attach: &Attach) -> Option<dispatch::Alarm> {
        let follows = state.parts.iter().any(|part| part.is_shared_at(attach) && part.can_go_on());
        self.alarm().ok().filter(|_| !follows).map(Alarm::maps)
    }

    /// Makes what is lacking of the dispatchers that take times, and lets each take so many as say enough.
    pub fn measure(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        for part in &mut state.parts {
            part.measure_by_rate(now);
            if let Err(error) = part.build_timed() {
                tracing::warn!(hook = %part.hook(), %error, "its cost is not measured");
            }
        }
    }

    /// Events at all hooks so far, but for those of hooks that are gone.
    pub fn events(&self) -> f64 {
        self.lock().parts.iter().filter(|part| part.is_first()).map(Part::events).sum()
    }

    /// The entries: the hook of each, by its name, and how many programs are at it.
    #[cfg(test)]
    pub fn sizes(&self) -> Vec<(String, usize)> {
        self.lock().parts.iter().map(|part| (part.hook().to_string(), part.len())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds it can leave a part half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns where it lies.
    fn push(&mut self, part: Part) -> usize {
        self.parts.push(part);
        self.parts.len() - 1
    }

    /// Adds another entry to a hook: behind those that are there, else at the hook itself. Returns where it lies.
    fn put(&mut self, mut part: Part, attacher: &mut Attacher) -> Result<usize, HookError> {
        let hook = part.hook().clone();
        let last = self.parts.iter_mut().rfind(|last| last.is_shared_at(&hook) && !last.has_next());
        match last.filter(|_| part.can_go_on()) {
            Some(last) => {
                part.follow();
                last.set_next(Some(&part.entry()?))?;
            }
            None => part.attach(attacher)?,
        }
        Ok(self.push(part))
    }

    /// Drops the entries without programs, unless others follow them.
    fn clean(&mut self) {
        while let Some(at) = self.parts.iter().position(|part| part.is_empty() && !(part.is_first() && part.has_next()))
        {
            if let Err(error) = self.bridge(at) {
                // It leads to what follows.
                tracing::error!(hook = %self.parts[at].hook(), %error, "an entry without programs stays at the hook");
                return;
            }
            self.parts.remove(at);
        }
    }

    /// Lets the entry before this one go on with the one behind it.
    fn bridge(&mut self, at: usize) -> io::Result<()> {
        let part = &self.parts[at];
        if part.is_first() {
            return Ok(());
        }
        let hook = part.hook().clone();
        let chained = |part: &Part| part.is_shared_at(&hook) && part.is_chained();
        let next = self.parts[at + 1..].iter().find(|part| chained(part)).map(Part::entry).transpose()?;
        match self.parts[..at].iter_mut().rfind(|part| chained(part)) {
            Some(before) => before.set_next(next.as_ref()),
            None => Ok(()),
        }
    }

    /// Lets the events go on from entry to entry that are wanted behind it.
    fn let_on(&self) {
        let firsts = self.parts.iter().filter(|part| part.is_first() && part.has_next());
        for first in firsts {
            let chain = self.parts.iter().filter(|part| part.is_shared_at(first.hook()) && part.is_chained());
            chain.rev().fold(None, |next, part| Some(part.let_on(next)));
        }
    }

    /// When the next entry is to be attached or detached.
    fn due(&self) -> Option<Instant> {
        self.parts.iter().filter_map(Part::due).chain(self.sets.iter().map(HookSet::due)).min()
    }

    fn part_of(&mut self, id: u64) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.has(id))
    }
}

/// The probes that see events for a share of the time: those that want it and, where they share a hook with one that does, those that
/// tolerate it; without those that begin a measurement at a hook where some program must see all events.
fn granted(parts: &[Part], slicing: &[(Arc<Control>, Slicing)]) -> Vec<Arc<Control>> {
    let wanted = slicing.iter().filter(|(_, slicing)| *slicing == Slicing::Wanted);
    let mut granted: Vec<Arc<Control>> = wanted.map(|(of, _)| of.clone()).collect();
    let tolerates = |of: &Arc<Control>| slicing.iter().any(|(s, how)| Arc::ptr_eq(s, of) && *how != Slicing::Never);
    // Those that come in bring in those at their other hooks.
    let mut at = 0;
    while let Some(of) = granted.get(at).cloned() {
        for beside in groups(parts, &of).flat_map(Part::weights).flatten() {
            if tolerates(beside) && !has(&granted, beside) {
                granted.push(beside.clone());
            }
        }
        at += 1;
    }
    loop {
        let rests = |part: &Part| part.can_rest() && part.weights().all(|of| of.is_some_and(|of| has(&granted, of)));
        let left: Vec<Arc<Control>> = granted.iter().filter(|of| groups(parts, of).all(rests)).cloned().collect();
        if left.len() == granted.len() {
            return granted;
        }
        granted = left;
    }
}

fn has(all: &[Arc<Control>], of: &Arc<Control>) -> bool {
    all.iter().any(|other| Arc::ptr_eq(of, other))
}

/// The entries that are attached and detached together with one.
fn group(parts: &[Part], at: usize) -> impl Iterator<Item = &Part> {
    let one = &parts[at];
    let is_in = move |part: &&Part| part.is_chained() && one.is_chained() && part.is_shared_at(one.hook());
    parts.iter().enumerate().filter(move |(other, part)| *other == at || is_in(part)).map(|(_, part)| part)
}

/// The same for all entries at which a measurement with these weights begins, or ends so that its end can rest.
fn groups<'a>(parts: &'a [Part], of: &Arc<Control>) -> impl Iterator<Item = &'a Part> {
    let is_of = move |at: &usize| parts[*at].has_weights(of) || parts[*at].ends(of);
    (0..parts.len()).filter(is_of).flat_map(|at| group(parts, at))
}

fn weigh(of: &Control, times: u64) {
    if let Err(error) = of.weigh(times) {
        tracing::error!(%error, "the weight of a probe's events could not be set");
    }
}

/// Attaches and detaches entries in slices of time until there are none left, or no hooks.
fn switch_in_time(hooks: Weak<Hooks>) {
    let mut attacher = Attacher::new();
    while let Some(hooks) = hooks.upgrade() {
        let mut state = hooks.lock();
        let now = Instant::now();
        // Each call that begins also ends, where no slices are.
        let is_end = |part: &&Part| part.hook().event() == Some("sys_exit") && part.is_first() && part.is_always();
        let ends = state.parts.iter().find(is_end);
        let ends = ends.map(Part::events);
        let State { sets, parts, .. } = &mut *state;
        let is_due = |at: &usize| parts[*at].due().is_some_and(|due| due <= now);
        let due: Vec<usize> = (0..parts.len()).filter(is_due).collect();
        for at in due {
            if watch::attach_before(parts, at, &mut attacher) {
                let all = ends.filter(|_| parts[at].hook().event() == Some("sys_enter"));
                parts[at].switch(&mut attacher, all);
            }
        }
        watch::detach_unused(parts);
        sets.iter_mut().filter(|set| set.due() <= now).for_each(|set| set.switch(parts, &mut attacher));
        let Some(due) = state.due() else {
            state.slicer = None;
            return;
        };
        drop(state);
        drop(hooks);
        thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
}

/// See [`Hooks::batch`].
#[derive(Debug)]
pub struct Batch(Arc<Hooks>);

impl Drop for Batch {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.batches -= 1;
        self.0.commit(&mut state);
    }
}

/// A program at a hook. Dropping it takes it away.
#[derive(Debug)]
pub struct Member {
    hooks: Arc<Hooks>,
    id: u64,
    entry: OwnedFd,
}

impl Member {
    /// Lets the program run from now on, or not.
    pub fn activate(&self, runs: bool) {
        let mut state = self.hooks.lock();
        if let Some(part) = state.part_of(self.id) {
            part.activate(self.id, runs);
        }
        self.hooks.commit(&mut state);
    }

    /// See [`Hooks::slice`].
    pub fn slice(&self, weights: &Arc<Control>, slicing: Slicing) {
        self.hooks.slice(weights, slicing);
    }

    /// What it has cost so far, as far as that is measured.
    pub fn used(&self) -> Option<Use> {
        let mut state = self.hooks.lock();
        state.part_of(self.id).and_then(|part| part.used(self.id))
    }

    /// Whether the kernel has taken the program at its hook, or has not been asked yet.
    pub fn is_accepted(&self) -> bool {
        self.hooks.lock().part_of(self.id).is_some()
    }

    /// What the kernel runs at the hook.
    pub fn entry(&self) -> BorrowedFd<'_> {
        self.entry.as_fd()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.hooks.lock();
        if let Some(part) = state.part_of(self.id) {
            part.remove(self.id);
        }
        self.hooks.commit(&mut state);
    }
}

/// Of 0 .. 1.
fn chance() -> f64 {
    const VALUES: u64 = 1 << 20;
    random_below(VALUES) as f64 / VALUES as f64
}
