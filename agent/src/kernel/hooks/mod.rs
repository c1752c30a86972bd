//! Hooks, each with the programs of all probes at it: one program in the kernel, whatever the number of probes.
//!
//! What runs at a hook for as long as some probe is there is its entry ([`kstrobe_ebpf::dispatch`]); the dispatcher that it continues
//! with is replaced by one write. So a probe that comes or goes leaves no gap for the others, and no event is counted twice.
//! A probe's maps are its own, and outlive dispatchers.

pub mod entry;
mod meter;
mod part;

use crate::kernel::attach::{AttachError, Attacher, ProgramType};
use crate::kernel::sys::prog::Refused;
use kstrobe_ebpf::dispatch::{self, AsmError};
use kstrobe_ebpf::ir::Calls;
use kstrobe_ebpf::typed::Attach;
use part::{Part, Slot};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

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
    /// The same, loaded.
    pub program: OwnedFd,
}

/// All hooks of this process.
#[derive(Debug)]
pub struct Hooks {
    state: Mutex<State>,
    cpus: u32,
}

#[derive(Debug, Default)]
struct State {
    parts: Vec<Part>,
    /// Id of the next member: the order in which they came.
    next: u64,
    /// Batches that are open.
    batches: u32,
}

impl Hooks {
    /// `cpus` is the highest possible CPU and 1.
    pub fn new(cpus: u32) -> Arc<Hooks> {
        Arc::new(Hooks { state: Mutex::default(), cpus })
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
                let mut part = Part::new(attach, program, self.cpus)?;
                part.attach(attacher)?;
                state.push(part)
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
        let at = state.push(Part::new(attach, program, self.cpus)?);
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
        let mut apart = Vec::new();
        for part in state.parts.iter_mut().filter(|part| part.is_changed()) {
            let slots = part.build();
            apart.extend(slots.into_iter().map(|slot| (part.hook().clone(), slot)));
        }
        state.parts.retain(|part| !part.is_empty());
        for (attach, slot) in apart {
            self.set_apart(state, &attach, slot);
        }
        let mut waiting: Vec<u64> = state.parts.iter().flat_map(Part::waiting).collect();
        waiting.sort_unstable();
        for id in waiting {
            if let Some(part) = state.part_of(id) {
                part.start(id);
            }
        }
    }

    /// Gives a program that the dispatcher of its hook cannot take, being too complex for the verifier, an entry of its own.
    fn set_apart(&self, state: &mut State, attach: &Attach, slot: Slot) {
        let name = slot.name().to_owned();
        let sibling = state.parts.iter().find(|part| part.is_shared_at(attach));
        let made = sibling.ok_or_else(|| io::Error::other("the hook is gone").into()).and_then(|sibling| {
            let mut part = sibling.twin(self.cpus)?;
            part.attach(&mut Attacher::new())?;
            Ok::<_, HookError>(part)
        });
        match made {
            Ok(mut part) => {
                part.add(slot);
                // Alone it cannot be too complex: it was verified so.
                part.build();
                tracing::warn!(program = name, hook = %attach, "runs beside the other programs of its hook");
                state.parts.push(part);
            }
            Err(error) => tracing::error!(program = name, hook = %attach, %error, "does not run"),
        }
    }

    /// Makes what is lacking of the dispatchers that take times.
    pub fn measure(&self) {
        let mut state = self.lock();
        for part in &mut state.parts {
            if let Err(error) = part.build_timed() {
                tracing::warn!(hook = %part.hook(), %error, "its cost is not measured");
            }
        }
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

    fn part_of(&mut self, id: u64) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.has(id))
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
