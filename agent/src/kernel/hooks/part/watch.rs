//! Hooks whose programs change open measurements and nothing else, such as context switches within a span: they are attached as long as
//! something may begin or is open.

use super::{Part, Slot, Standing};
use crate::kernel::attach::Attacher;
use crate::kernel::control::Control;
use crate::kernel::hooks::has;
use crate::kernel::hooks::slices::Slices;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Lets the entries rest when nothing is open whose programs all watch probes that are seen in slices, and attaches the others for good.
pub(in crate::kernel::hooks) fn let_rest(parts: &mut [Part], sliced: &[Arc<Control>]) {
    for part in parts {
        match part.may_watch(sliced) {
            true => part.watch(),
            false if part.is_watch() => part.stay(),
            false => {}
        }
    }
}

/// Attaches what watches the measurements that are about to begin at this entry. If that fails, the slice is put off.
pub(in crate::kernel::hooks) fn attach_before(parts: &mut [Part], at: usize, attacher: &mut Attacher) -> bool {
    let begin = parts[at].is_about_to_begin();
    let mut watching = parts.iter_mut().filter(|part| part.is_watch_of(&begin));
    let attached = watching.all(|part| part.attach_to_watch(attacher));
    if !attached {
        parts[at].put_off(Instant::now());
    }
    attached
}

/// Detaches the entries that watch and have nothing to watch.
pub(in crate::kernel::hooks) fn detach_unused(parts: &mut [Part]) {
    let now = Instant::now();
    for at in 0..parts.len() {
        if let Some(weights) = parts[at].is_watch_due(now) {
            let may_begin = parts.iter().any(|part| part.lets_begin(&weights));
            parts[at].look(may_begin);
        }
    }
}

/// When it is looked at whether something is open.
#[derive(Debug)]
pub(super) struct Look {
    next: Instant,
    /// How long what is open puts off the next look.
    pause: Duration,
    /// At the last look nothing could begin any more.
    is_quiet: bool,
}

impl Look {
    /// Shortest and longest pause.
    const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(320));
    /// A program that the kernel ran when its hook was detached may still let something begin.
    const IN_FLIGHT: Duration = Duration::from_millis(2);

    /// When it is looked at.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    fn soon() -> Look {
        Look { next: Instant::now() + Look::PAUSE.0, pause: Look::PAUSE.0, is_quiet: false }
    }

    fn quiet() -> Look {
        Look { next: Instant::now() + Look::IN_FLIGHT, pause: Look::PAUSE.0, is_quiet: true }
    }

    /// What is open for long may be so for as long again.
    fn later(&mut self) {
        self.pause = (self.pause * 2).min(Look::PAUSE.1);
        self.next = Instant::now() + self.pause;
    }
}

impl Part {
    /// Whether all its programs watch open measurements of probes that are seen in slices, so that it may rest when none is open.
    fn may_watch(&self, sliced: &[Arc<Control>]) -> bool {
        let mut running = self.slots.iter().filter(|slot| slot.runs_or_will()).peekable();
        self.can_rest()
            && !self.is_chained()
            && running.peek().is_some()
            && running.all(|slot| slot.watches().is_some_and(|(of, _)| has(sliced, of)))
    }

    pub(in crate::kernel::hooks) fn is_watch(&self) -> bool {
        matches!(self.standing, Standing::Watch(_))
    }

    /// Lets the entry be detached when nothing is open that it watches, from a while after now on.
    fn watch(&mut self) {
        if matches!(self.standing, Standing::Always) {
            self.standing = Standing::Watch(Look::soon());
        }
    }

    /// Whether measurements that it watches are of these weights.
    fn is_watch_of(&self, weights: &[Arc<Control>]) -> bool {
        self.is_watch() && self.slots.iter().filter_map(Slot::watches).any(|(of, _)| has(weights, of))
    }

    /// Attaches an entry that watches, before what it watches may begin. Whether it is attached then.
    fn attach_to_watch(&mut self, attacher: &mut Attacher) -> bool {
        self.standing = Standing::Watch(Look::soon());
        self.attach_again(attacher)
    }

    /// What it watches, if it is to be looked at.
    fn is_watch_due(&self, now: Instant) -> Option<Vec<Arc<Control>>> {
        match &self.standing {
            Standing::Watch(look) if !self.links.is_empty() && look.next <= now => {
                Some(self.slots.iter().filter_map(Slot::watches).map(|(of, _)| of.clone()).collect())
            }
            _ => None,
        }
    }

    /// Detaches an entry that watches if nothing is open, and puts off the next look else. `may_begin` says whether something may begin.
    fn look(&mut self, may_begin: bool) {
        let Standing::Watch(look) = &mut self.standing else { return };
        let mut open = self.slots.iter().filter_map(Slot::watches).map(|(_, open)| open);
        match may_begin {
            true => *look = Look::soon(),
            false if !look.is_quiet => *look = Look::quiet(),
            // Also where it cannot be read.
            false if open.any(|open| open.has_some().unwrap_or(true)) => look.later(),
            false => self.links.clear(),
        }
    }

    /// The weights of what the next switch may let begin here.
    fn is_about_to_begin(&self) -> Vec<Arc<Control>> {
        let begins = |slices: &Slices| !slices.is_attached();
        let entry = matches!(&self.standing, Standing::Slices(slices) if begins(slices));
        match entry || self.bits.as_ref().is_some_and(begins) {
            true => self.slots.iter().filter_map(Slot::begins).cloned().collect(),
            false => Vec::new(),
        }
    }

    /// Whether measurements of some of these weights may begin here now.
    fn lets_begin(&self, weights: &[Arc<Control>]) -> bool {
        let is_attached = !self.is_first() || !self.links.is_empty();
        is_attached && self.slots.iter().any(|slot| slot.is_one_of(weights) && self.runs(slot))
    }

    /// Puts off what is due, as it cannot be done.
    fn put_off(&mut self, now: Instant) {
        if let Standing::Slices(slices) = &mut self.standing
            && slices.due() <= now
        {
            slices.failed(now);
        }
        if let Some(slices) = self.bits.as_mut().filter(|slices| slices.due() <= now) {
            slices.failed(now);
        }
    }
}
