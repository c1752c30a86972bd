//! One entry at a hook with the dispatcher behind it. A hook has one of them, or more where the kernel does not take all of its
//! programs at once: then one follows the other, and the hook runs the first.

pub(super) mod watch;

use super::meter::{self, Rate, Sum, Use};
use super::slices::{self, Events, Slices};
use super::{Body, HookError, Role, chance, has};
use crate::kernel::attach::{Attacher, Link, ProgramType};
use crate::kernel::control::Control;
use crate::kernel::mmap::Words;
use crate::kernel::pollers::softirqs;
use crate::kernel::read::OpenSpans;
use crate::kernel::sys::KernelMap;
use crate::kernel::sys::map::{MapSpec, kind as map_kind};
use crate::kernel::sys::prog::ProgSpec;
use crate::kernel::unwind;
use kstrobe_ebpf::dispatch::{self, Alarm, Maps, Parts};
use kstrobe_ebpf::typed::Attach;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use watch::Look;

/// Maps of the programs of one dispatcher. The kernel takes 64 maps a program (`MAX_USED_MAPS`), of which four are the hook's own.
const MAX_MAPS: usize = 64 - 4;

/// A probe's program at the hook.
#[derive(Debug)]
pub(super) struct Slot {
    id: u64,
    body: Body,
    /// By descriptor.
    maps: BTreeSet<u32>,
    bit: u8,
    state: Run,
    /// It runs for a share of the time, at a hook that does not rest.
    rests: bool,
    /// Costs of dispatchers that are gone.
    before: Sum,
    /// The most that was reported: what the clock takes off is an average, and a count never goes back.
    most_ns: f64,
}

/// Whether a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// It has not been let run, or not again.
    Held,
    /// It is to run once the dispatcher has it.
    Waiting,
    Running,
    /// Its probe is gone.
    Removed,
}

impl Slot {
    pub(super) fn new(id: u64, body: Body) -> Slot {
        let maps = dispatch::maps(&body.code);
        Slot { id, body, maps, bit: 0, state: Run::Held, rests: false, before: Sum::default(), most_ns: 0.0 }
    }

    pub(super) fn name(&self) -> &str {
        &self.body.name
    }

    /// What sets the weight of the measurements that begin here.
    fn begins(&self) -> Option<&Arc<Control>> {
        match &self.body.role {
            Role::Begins(weights) => Some(weights),
            Role::Ends(..) | Role::Watches(..) | Role::All => None,
        }
    }

    /// What sets the weights of the open measurements that it changes, and which are open.
    fn watches(&self) -> Option<(&Arc<Control>, &Arc<OpenSpans>)> {
        match &self.body.role {
            Role::Watches(weights, open) => Some((weights, open)),
            Role::Begins(_) | Role::Ends(..) | Role::All => None,
        }
    }

    fn runs_or_will(&self) -> bool {
        matches!(self.state, Run::Waiting | Run::Running)
    }

    fn is_one_of(&self, weights: &[Arc<Control>]) -> bool {
        self.begins().is_some_and(|begins| has(weights, begins))
    }

    fn as_body(&self) -> dispatch::Body<'_> {
        dispatch::Body { code: &self.body.code, bit: self.bit, calls: self.body.calls.as_ref() }
    }
}

/// What BPF_PROG_LOAD has to know of all programs of the hook.
#[derive(Debug)]
struct Kind {
    kind: u32,
    attach_type: u32,
    attach_btf_id: u32,
    attach_btf: Option<OwnedFd>,
}

/// Whether a dispatcher that takes times is beside the plain one.
#[derive(Debug, Default)]
enum Timed {
    #[default]
    NotYet,
    /// The kernel does not take it.
    Refused,
    /// With the costs that it counts.
    Costs(Words),
}

/// The dispatcher that runs.
#[derive(Debug, Default)]
struct Dispatcher {
    /// Programs in it, in their order.
    slots: Vec<u64>,
    table: Option<Words>,
    timed: Timed,
    /// It is the only program itself.
    alone: bool,
    /// It continues with the entry that follows.
    goes_on: bool,
}

/// Which system calls the programs of an entry, or of those that follow it, want; `None` for all events.
pub(super) type Wanted = Option<Vec<bool>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Part {
    attach: Attach,
    shared: bool,
    place: Place,
    has_next: bool,
    kind: Kind,
    // Before the programs: dropped first.
    links: Vec<Link>,
    entry: OwnedFd,
    programs: KernelMap,
    words: Words,
    dispatcher: Dispatcher,
    slots: Vec<Slot>,
    changed: bool,
    cpus: u32,
    /// Readings of the clock in dispatchers that are gone.
    clock_before: Sum,
    rate: Rate,
    standing: Standing,
    /// When programs run that rest where the entry does not.
    bits: Option<Slices>,
    /// In a [set](super::set) of hooks: whether programs that begin measurements run.
    gate: Option<bool>,
}

/// What runs an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Hook,
    /// The entry before it.
    Follows,
}

/// What running the entry costs, as a share of what the hook takes to run one: it is reached by a tail call.
const FOLLOWING: f64 = 0.2;

/// When the entry is attached.
#[derive(Debug)]
enum Standing {
    Always,
    /// Always, but the kernel did not attach it again. It is tried then.
    Missing(Instant),
    /// For a share of the time.
    Slices(Slices),
    /// As long as a measurement may begin that its programs watch, or is open. That is looked at then, if it is attached.
    Watch(Look),
}

impl Part {
    /// An entry that is attached nowhere.
    pub(super) fn new(
        attach: &Attach,
        program: &ProgramType<'_>,
        alarm: Option<&Alarm>,
        cpus: u32,
    ) -> Result<Part, HookError> {
        let attach_btf = program.attach_btf.map(|fd| fd.try_clone_to_owned()).transpose()?;
        let ProgramType { kind, attach_type, attach_btf_id, .. } = *program;
        Part::of_kind(attach, Kind { kind, attach_type, attach_btf_id, attach_btf }, alarm, cpus)
    }

    /// Another entry at the same hook.
    pub(super) fn twin(&self, alarm: Option<&Alarm>) -> Result<Part, HookError> {
        let attach_btf = self.kind.attach_btf.as_ref().map(OwnedFd::try_clone).transpose()?;
        Part::of_kind(&self.attach, Kind { attach_btf, ..self.kind }, alarm, self.cpus)
    }

    fn of_kind(attach: &Attach, kind: Kind, alarm: Option<&Alarm>, cpus: u32) -> Result<Part, HookError> {
        let spec = MapSpec {
            kind: map_kind::PROG_ARRAY,
            key_bytes: 4,
            value_bytes: 4,
            entries: dispatch::PROGRAMS,
            name: "ks_programs",
            ..MapSpec::default()
        };
        let programs = KernelMap::create(&spec)?;
        let words = Words::create("ks_words", dispatch::words_bytes(cpus))?;
        let maps = Maps { programs: programs.as_fd().as_raw_fd() as u32, words: words.descriptor() };
        let code = dispatch::entry(&maps, alarm, cpus).map_err(HookError::Code)?;
        let entry = load(attach, &kind, "ks_entry", &code)?;
        Ok(Part {
            attach: attach.clone(),
            shared: false,
            place: Place::Hook,
            has_next: false,
            kind,
            links: Vec::new(),
            entry,
            programs,
            words,
            dispatcher: Dispatcher::default(),
            slots: Vec::new(),
            changed: false,
            cpus,
            clock_before: Sum::default(),
            rate: Rate::new(Instant::now()),
            standing: Standing::Always,
            bits: None,
            gate: None,
        })
    }

    /// Attaches the entry, which then serves all probes at the hook.
    pub(super) fn attach(&mut self, attacher: &mut Attacher) -> Result<(), HookError> {
        self.links = attacher.attach(self.entry.as_fd(), &self.attach)?;
        self.shared = true;
        Ok(())
    }

    /// Whether the kernel takes dispatchers that have functions and go on with another entry, which those before 5.10 do not (on arm64,
    /// before 6.0).
    pub(super) fn can_go_on(&self) -> bool {
        // r0 = 0; exit
        const FUNCTION: [u64; 2] = [0xb7, 0x95];
        let bodies = [dispatch::Body { code: &FUNCTION, bit: 0, calls: None }];
        let parts = Parts { maps: self.maps(), table: None, bodies: &bodies, has_next: true };
        dispatch::plain(&parts).is_ok_and(|code| load(&self.attach, &self.kind, "ks_hook", &code).is_ok())
    }

    /// Lets the entry serve all probes at the hook: the entry that [`Part::set_next`] names it in runs it.
    pub(super) fn follow(&mut self) {
        (self.shared, self.place) = (true, Place::Follows);
    }

    /// Whether it follows, or is followed: then all entries of the hook are one.
    pub(super) fn is_chained(&self) -> bool {
        self.place == Place::Follows || self.has_next
    }

    /// Whether the hook runs the entry itself.
    pub(super) fn is_first(&self) -> bool {
        self.place == Place::Hook
    }

    pub(super) fn has_next(&self) -> bool {
        self.has_next
    }

    /// Says which entry follows. A dispatcher that does not go on is made anew by the next [`Part::build`].
    pub(super) fn set_next(&mut self, next: Option<&OwnedFd>) -> io::Result<()> {
        match next {
            Some(entry) => self.put(dispatch::NEXT, entry)?,
            None if self.has_next => self.clear(dispatch::NEXT)?,
            None => {}
        }
        self.has_next = next.is_some();
        self.changed |= self.has_next && !self.dispatcher.goes_on && !self.slots.is_empty();
        self.write_active();
        Ok(())
    }

    /// Lets the events go on that what follows wants. Gives what this one and those that follow it want.
    pub(super) fn let_on(&self, next: Option<Wanted>) -> Wanted {
        let goes_on = |number: usize| match &next {
            None => false,
            Some(None) => true,
            Some(Some(wanted)) => wanted[number],
        };
        if let Some(table) = &self.dispatcher.table {
            const BIT: u64 = 1 << dispatch::NEXT_BIT;
            for (number, word) in table.values.words().iter().enumerate().take(dispatch::TABLE_ENTRIES) {
                match goes_on(number) {
                    true => word.fetch_or(BIT, Ordering::SeqCst),
                    false => word.fetch_and(!BIT, Ordering::SeqCst),
                };
            }
        }
        let is_all = self.slots.iter().any(|slot| slot.body.calls.is_none()) || matches!(next, Some(None));
        let wants = |slot: &Slot, number| dispatch::wants(slot.body.calls.as_ref(), number);
        let any = |number| goes_on(number) || self.slots.iter().any(|slot| wants(slot, number));
        (!is_all).then(|| (0..dispatch::TABLE_ENTRIES).map(any).collect())
    }

    /// Whether it can be attached for a share of the time.
    pub(super) fn can_rest(&self) -> bool {
        self.shared && self.attach.is_tracepoint_program()
    }

    /// Of each program that runs or is to run, what sets its probe's weights; `None` where events must not be missed.
    pub(super) fn weights(&self) -> impl Iterator<Item = Option<&Arc<Control>>> {
        self.slots.iter().filter(|slot| slot.runs_or_will()).map(|slot| slot.body.role.weights())
    }

    /// Whether a program that begins measurements with these weights is here, running or not.
    pub(super) fn has_weights(&self, of: &Arc<Control>) -> bool {
        self.slots.iter().any(|slot| slot.begins().is_some_and(|begins| Arc::ptr_eq(begins, of)))
    }

    /// Whether a program is here at which measurements with these weights end.
    pub(super) fn ends(&self, of: &Arc<Control>) -> bool {
        let ends = |slot: &Slot| matches!(&slot.body.role, Role::Ends(weights, _) if Arc::ptr_eq(weights, of));
        self.slots.iter().any(ends)
    }

    /// Whether a measurement with these weights that ends here is open; also where that cannot be read.
    pub(super) fn has_open(&self, of: &[Arc<Control>]) -> bool {
        let is_open = |slot: &Slot| match &slot.body.role {
            Role::Ends(weights, open) if has(of, weights) => open.has_some().unwrap_or(true),
            _ => false,
        };
        self.slots.iter().any(is_open)
    }

    /// What tells the entry from others, as long as it is there.
    pub(super) fn key(&self) -> RawFd {
        self.entry.as_raw_fd()
    }

    /// Lets programs that begin measurements run, or not, as long as the entry is in a set of hooks.
    pub(super) fn gate(&mut self, gate: Option<bool>) {
        self.gate = gate;
        self.write_active();
    }

    pub(super) fn is_in_set(&self) -> bool {
        self.gate.is_some()
    }

    /// Detaches the entry.
    pub(super) fn detach(&mut self) {
        self.links.clear();
    }

    /// Whether programs run in slices of time here, and the entry may do so as well.
    fn has_slices(&self) -> bool {
        self.gate.is_some() || self.bits.is_some()
    }

    /// Puts a dispatcher before a program that is alone at its hook and runs in slices of time. Its bits are switched at once, while
    /// the kernel waits for all CPUs when a program is taken out of its array (`bpf_arch_poke_desc_update`).
    pub(super) fn look_at_bits(&mut self) {
        if self.dispatcher.alone && self.has_slices() {
            // The only program is set apart from none.
            let _ = self.build();
        }
    }

    /// Whether the kernel counts the hook's events itself.
    pub(super) fn is_counted_by_kernel(&self) -> bool {
        self.attach.event() == Some("softirq_entry")
    }

    /// How many it has counted.
    pub(super) fn counted_by_kernel(&self) -> Option<f64> {
        self.is_counted_by_kernel().then(softirqs)?.ok()
    }

    /// Detaches the entry.
    pub(super) fn rest(&mut self) {
        self.links.clear();
        if let Standing::Slices(slices) = &mut self.standing
            && slices.is_attached()
        {
            slices.switched(Instant::now(), chance(), None);
        }
    }

    /// Lets the programs with these weights run in slices of time from now on, of which none is yet, and no others.
    pub(super) fn slice_programs(&mut self, weights: &[Arc<Control>]) {
        self.slots.iter_mut().for_each(|slot| slot.rests = slot.is_one_of(weights));
        match self.slots.iter().any(|slot| slot.rests) {
            true => {
                self.bits.get_or_insert_with(|| Slices::new(Instant::now(), chance()));
            }
            false => self.bits = None,
        }
        self.write_active();
    }

    /// Lets no program with these weights run until [`Part::slice_programs`].
    pub(super) fn hold_programs(&mut self, weights: &[Arc<Control>]) {
        self.slots.iter_mut().filter(|slot| slot.is_one_of(weights)).for_each(|slot| slot.rests = true);
        match &mut self.bits {
            Some(slices) if slices.is_attached() => slices.switched(Instant::now(), chance(), None),
            Some(_) => {}
            None => self.bits = Some(Slices::new(Instant::now(), chance())),
        }
        self.write_active();
    }

    /// Attaches the entry in slices of time from now on.
    pub(super) fn slice(&mut self) {
        if !matches!(self.standing, Standing::Slices(_)) {
            self.links.clear();
            self.standing = Standing::Slices(Slices::new(Instant::now(), chance()));
        }
    }

    /// Attaches the entry for good where it is not.
    pub(super) fn stay(&mut self) {
        self.standing = Standing::Always;
        if self.shared && !self.attach_again(&mut Attacher::new()) {
            self.standing = Standing::Missing(Instant::now() + slices::AGAIN);
        }
    }

    /// Attaches the entry, if it is one that the hook runs and is not attached. Whether it is then.
    pub(super) fn attach_again(&mut self, attacher: &mut Attacher) -> bool {
        if !self.is_first() || !self.links.is_empty() {
            return true;
        }
        match attacher.attach(self.entry.as_fd(), &self.attach) {
            Ok(links) => self.links = links,
            Err(error) => {
                tracing::error!(hook = %self.attach, %error, "could not be attached again, which will be tried again");
                return false;
            }
        }
        true
    }

    /// Whether the entry is attached at any time.
    pub(super) fn is_always(&self) -> bool {
        matches!(self.standing, Standing::Always) && self.gate.is_none()
    }

    /// When the entry is to be attached or detached, or programs that rest are to run or not.
    pub(super) fn due(&self) -> Option<Instant> {
        let entry = match &self.standing {
            Standing::Always => None,
            Standing::Missing(due) => Some(*due),
            Standing::Slices(slices) => Some(slices.due()),
            Standing::Watch(look) => (!self.links.is_empty()).then_some(look.next()),
        };
        entry.into_iter().chain(self.bits.as_ref().map(Slices::due)).min()
    }

    /// Attaches the entry, or detaches it, when that is due; the same for programs that rest.
    /// `all` are the events so far of a hook that sees each of its own as well, at any time.
    pub(super) fn switch(&mut self, attacher: &mut Attacher, all: Option<f64>) {
        let begin = Instant::now();
        if let Some(slices) = self.bits.as_mut().filter(|slices| slices.due() <= begin) {
            slices.switched(begin, chance(), None);
            self.write_active();
        }
        let is_attached = match &self.standing {
            Standing::Missing(due) if *due <= begin => return self.stay(),
            Standing::Slices(slices) if slices.due() <= begin => slices.is_attached(),
            _ => return,
        };
        let (done, at) = match is_attached {
            true => {
                self.links.clear();
                // Somewhere in between.
                (true, begin + begin.elapsed() / 2)
            }
            false => (self.attach_again(attacher), Instant::now()),
        };
        let events = all.map(|all| Events { seen: self.events(), all });
        if let Standing::Slices(slices) = &mut self.standing {
            match done {
                true => slices.switched(at, chance(), events),
                false => slices.failed(at),
            }
        }
    }

    pub(super) fn hook(&self) -> &Attach {
        &self.attach
    }
    pub(super) fn is_shared_at(&self, attach: &Attach) -> bool {
        self.shared && self.attach == *attach
    }
    /// Whether the dispatcher may have another program with these maps.
    pub(super) fn has_room(&self, maps: &BTreeSet<u32>) -> bool {
        let all: BTreeSet<u32> = self.slots.iter().flat_map(|slot| &slot.maps).chain(maps).copied().collect();
        self.slots.is_empty() || self.slots.len() < dispatch::MAX_BODIES && all.len() <= MAX_MAPS
    }
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
    pub(super) fn has(&self, id: u64) -> bool {
        self.slots.iter().any(|slot| slot.id == id)
    }
    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }
    pub(super) fn entry(&self) -> io::Result<OwnedFd> {
        self.entry.try_clone()
    }

    /// Programs that are to run from the end of a change on.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().filter(|slot| slot.state == Run::Waiting).map(|slot| slot.id)
    }

    /// Adds a program, which the next [`Part::build`] takes.
    pub(super) fn add(&mut self, mut slot: Slot) {
        let free = |bit: &u8| !self.slots.iter().any(|slot| slot.bit == *bit);
        slot.bit = (0..dispatch::MAX_BODIES as u8).find(free).unwrap_or_default();
        self.slots.push(slot);
        self.changed = true;
    }

    /// Stops a program, which the next [`Part::build`] leaves out.
    pub(super) fn remove(&mut self, id: u64) {
        self.set(id, Run::Removed);
        self.changed = true;
    }

    /// Lets a program run from the end of the change on, or not from now on.
    pub(super) fn activate(&mut self, id: u64, runs: bool) {
        self.set(id, if runs { Run::Waiting } else { Run::Held });
    }

    /// Lets a program run that the dispatcher has.
    pub(super) fn start(&mut self, id: u64) {
        if self.dispatcher.slots.contains(&id) {
            self.set(id, Run::Running);
        }
    }

    fn set(&mut self, id: u64, state: Run) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) else { return };
        slot.state = state;
        self.write_active();
    }

    fn runs(&self, slot: &Slot) -> bool {
        let held = match self.gate {
            Some(open) => !open && slot.begins().is_some(),
            None => slot.rests && !self.bits.as_ref().is_some_and(Slices::is_attached),
        };
        slot.state == Run::Running && !held
    }

    /// Lets those programs run that are to run now.
    fn write_active(&self) {
        let next = u64::from(self.has_next) << dispatch::NEXT_BIT;
        let running = self.slots.iter().filter(|slot| self.runs(slot));
        let bits = running.fold(next, |bits, slot| bits | 1 << slot.bit);
        if let Some(word) = self.words.values.words().get(dispatch::ACTIVE as usize / 8) {
            word.store(bits, Ordering::SeqCst);
        }
        if self.dispatcher.alone
            && let Err(error) = self.show_alone()
        {
            tracing::error!(hook = %self.attach, %error, "its program could not be switched");
        }
    }

    /// A program that is alone at its hook looks at no bits: it is there or not.
    fn show_alone(&self) -> io::Result<()> {
        let running = self.slots.iter().find(|slot| self.runs(slot) && self.dispatcher.slots == [slot.id]);
        match running {
            Some(slot) => self.put(dispatch::PLAIN, &slot.body.program),
            None => self.clear(dispatch::PLAIN),
        }
    }

    fn put(&self, element: u32, program: &OwnedFd) -> io::Result<()> {
        self.programs.update(&element.to_ne_bytes(), &(program.as_raw_fd() as u32).to_ne_bytes(), 0)
    }

    fn clear(&self, element: u32) -> io::Result<()> {
        self.programs.delete(&element.to_ne_bytes()).map(drop)
    }

    fn maps(&self) -> Maps {
        Maps { programs: self.programs.as_fd().as_raw_fd() as u32, words: self.words.descriptor() }
    }

    /// Replaces the dispatcher by one for the programs that there are. Returns those that the kernel refuses to take together with
    /// the others.
    pub(super) fn build(&mut self) -> Vec<Slot> {
        self.changed = false;
        self.keep_costs();
        self.slots.retain(|slot| slot.state != Run::Removed);
        let Err(error) = self.replace() else { return Vec::new() };
        let newest = self.slots.iter().map(|slot| slot.id).max();
        let known = &self.dispatcher.slots;
        let has_known = self.slots.iter().any(|slot| known.contains(&slot.id));
        // Where all are new, the newest goes and the rest is tried again.
        let goes = |slot: &Slot| if has_known { !known.contains(&slot.id) } else { Some(slot.id) == newest };
        let mut apart: Vec<Slot> = self.slots.extract_if(.., |slot| goes(slot)).collect();
        if apart.is_empty() {
            // What ran together does so no more without those that went.
            apart = self.slots.extract_if(.., |slot| Some(slot.id) == newest).collect();
        }
        if self.slots.is_empty() {
            tracing::error!(hook = %self.attach, %error, "its programs do not run");
            return Vec::new();
        }
        tracing::warn!(hook = %self.attach, %error, programs = apart.len(), "the kernel does not take all programs at once");
        apart.extend(self.build());
        apart
    }

    fn replace(&mut self) -> Result<(), HookError> {
        // The one that takes times has programs that may go: from here on every event runs the plain one.
        self.clear(dispatch::TIMED)?;
        if self.slots.is_empty() {
            self.clear(dispatch::PLAIN)?;
            self.dispatcher = Dispatcher::default();
            return Ok(());
        }
        // One that measures some system calls has the table before it: to see there that a call is another is cheaper than
        // the function's own comparisons. If the verifier refuses the two together, it runs as it was verified.
        match &self.slots[..] {
            [only] if only.body.calls.is_none() && !self.has_next && !self.has_slices() => self.be_alone(),
            [_] if !self.has_next => self.dispatch().or_else(|_| self.be_alone()),
            _ => self.dispatch(),
        }
    }

    /// The only program becomes the dispatcher.
    fn be_alone(&mut self) -> Result<(), HookError> {
        let slots = self.slots.iter().map(|slot| slot.id).collect();
        self.dispatcher = Dispatcher { slots, alone: true, ..Dispatcher::default() };
        Ok(self.show_alone()?)
    }

    /// Puts a dispatcher before the programs.
    fn dispatch(&mut self) -> Result<(), HookError> {
        let bodies: Vec<_> = self.slots.iter().map(Slot::as_body).collect();
        let table = table(&bodies)?;
        let descriptor = table.as_ref().map(Words::descriptor);
        let parts = Parts { maps: self.maps(), table: descriptor, bodies: &bodies, has_next: self.has_next };
        let inlined = dispatch::inline(&parts);
        let inlined = inlined.and_then(|code| load(&self.attach, &self.kind, "ks_hook", &code).ok());
        let program = match inlined {
            Some(program) => program,
            // The verifier may take as functions what it cannot follow through each other.
            None => {
                let code = dispatch::plain(&parts).map_err(HookError::Code)?;
                load(&self.attach, &self.kind, "ks_hook", &code)?
            }
        };
        self.put(dispatch::PLAIN, &program)?;
        let slots = self.slots.iter().map(|slot| slot.id).collect();
        self.dispatcher = Dispatcher { slots, table, goes_on: self.has_next, ..Dispatcher::default() };
        Ok(())
    }

    /// Puts the dispatcher that takes times beside the plain one, if it is not there. What the kernel refuses is not tried again.
    pub(super) fn build_timed(&mut self) -> Result<(), HookError> {
        if !matches!(self.dispatcher.timed, Timed::NotYet) || self.dispatcher.slots.is_empty() {
            return Ok(());
        }
        self.dispatcher.timed = Timed::Refused;
        let in_order = self.dispatcher.slots.iter().filter_map(|id| self.slots.iter().find(|slot| slot.id == *id));
        let bodies: Vec<_> = in_order.map(Slot::as_body).collect();
        let costs = Words::create("ks_costs", dispatch::costs_bytes(self.cpus, bodies.len()))?;
        let table = match self.dispatcher.table.take() {
            Some(table) => Some(table),
            None => table(&bodies)?,
        };
        let descriptor = table.as_ref().map(Words::descriptor);
        let has_next = self.dispatcher.goes_on;
        let parts = Parts { maps: self.maps(), table: descriptor, bodies: &bodies, has_next };
        let code = dispatch::timed(&parts, costs.descriptor(), self.cpus);
        self.dispatcher.table = table;
        let program = load(&self.attach, &self.kind, "ks_timed", &code.map_err(HookError::Code)?)?;
        self.put(dispatch::TIMED, &program)?;
        self.dispatcher.timed = Timed::Costs(costs);
        Ok(())
    }

    /// Lets fewer events be measured where many have come since the last call, and more where few have.
    pub(super) fn measure_by_rate(&mut self, now: Instant) {
        let events = self.events();
        self.rate.look(now, events);
        if let Some(word) = self.words.values.words().get(dispatch::TIMED_OF as usize / 8) {
            word.store(self.rate.timed_of - 1, Ordering::Relaxed);
        }
    }

    /// What the dispatcher has counted of a program; of readings of the clock for `None`.
    fn counted(&self, slot: Option<usize>) -> Sum {
        match &self.dispatcher.timed {
            Timed::Costs(costs) => meter::cost(&costs.values, self.cpus, self.dispatcher.slots.len(), slot),
            Timed::NotYet | Timed::Refused => Sum::default(),
        }
    }

    /// Adds the costs of the dispatcher to those before.
    fn keep_costs(&mut self) {
        self.clock_before = self.clock_before.plus(self.counted(None));
        for at in 0..self.dispatcher.slots.len() {
            let (id, counted) = (self.dispatcher.slots[at], self.counted(Some(at)));
            if let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) {
                slot.before = slot.before.plus(counted);
            }
        }
        self.dispatcher.timed = Timed::NotYet;
    }

    /// Events so far.
    pub(super) fn events(&self) -> f64 {
        meter::events(&self.words.values, self.cpus)
    }

    /// What a program has cost; `None` before its times are taken.
    pub(super) fn used(&mut self, id: u64) -> Option<Use> {
        let at = self.dispatcher.slots.iter().position(|known| *known == id)?;
        let (clock, counted) = (self.clock_before.plus(self.counted(None)), self.counted(Some(at)));
        let events = self.events();
        let way = if self.is_first() { 1.0 } else { FOLLOWING };
        let sharers = self.slots.iter().filter(|slot| slot.state == Run::Running).count();
        let is_timed = matches!(self.dispatcher.timed, Timed::Costs(_));
        let slot = self.slots.iter_mut().find(|slot| slot.id == id)?;
        if !is_timed && slot.before.samples == 0 {
            return None;
        }
        let used = slot.before.plus(counted).used(clock, events * way, sharers.max(1), self.rate.timed_of);
        slot.most_ns = slot.most_ns.max(used.run_ns);
        Some(Use { run_ns: slot.most_ns, ..used })
    }
}

/// The table of system calls of these programs, which neither programs nor processes change.
fn table(bodies: &[dispatch::Body<'_>]) -> io::Result<Option<Words>> {
    let Some(words) = dispatch::table(bodies) else { return Ok(None) };
    let table = Words::create("ks_calls", words.len() as u32 * 8)?;
    for (to, word) in table.values.words().iter().zip(words) {
        to.store(word, Ordering::Relaxed);
    }
    Ok(Some(table))
}

fn load(attach: &Attach, kind: &Kind, name: &str, code: &[u64]) -> Result<OwnedFd, HookError> {
    let spec = ProgSpec {
        kind: kind.kind,
        attach_type: kind.attach_type,
        attach_btf_id: kind.attach_btf_id,
        attach_btf: kind.attach_btf.as_ref().map(AsFd::as_fd),
        lines: None,
        insns: code,
        name,
    };
    unwind::load(&spec).map_err(|refused| HookError::Program { hook: attach.to_string(), refused })
}
