//! Hooks whose programs change open measurements and nothing else, such as context switches within a span: where what they watch begins in
//! slices of time, they are attached before each slice, and until nothing is open.

use super::{Part, Slot, Standing};
use crate::kernel::attach::Attacher;
use crate::kernel::control::Control;
use crate::kernel::hooks::has;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attaches all entries that watch for good.
pub(in crate::kernel::hooks) fn attach_all(parts: &mut [Part]) {
    parts.iter_mut().filter(|part| matches!(part.standing, Standing::Watch(_))).for_each(Part::stay);
}

/// Lets the entries rest when nothing is open whose programs all watch what begins in slices of time of its hooks.
pub(in crate::kernel::hooks) fn let_rest(parts: &mut [Part]) {
    for at in 0..parts.len() {
        if parts[at].can_watch() && parts[at].watched().all(|of| begins_in_slices(parts, of)) {
            parts[at].standing = Standing::Watch(Look::soon());
        }
    }
}

fn begins_in_slices(parts: &[Part], of: &Arc<Control>) -> bool {
    let mut begins = parts.iter().filter(|part| part.has_weights(of)).peekable();
    begins.peek().is_some() && begins.all(Part::is_sliced)
}

/// Attaches what watches the measurements that are about to begin at this entry. If that fails, the slice is put off.
pub(in crate::kernel::hooks) fn attach_before(parts: &mut [Part], at: usize, attacher: &mut Attacher) -> bool {
    let weights = parts[at].next_begins();
    let mut watching = parts.iter_mut().filter(|part| part.watched().any(|of| has(&weights, of)));
    let attached = watching.all(|part| part.attach_to_watch(attacher));
    if let (false, Standing::Slices(slices)) = (attached, &mut parts[at].standing) {
        slices.failed(Instant::now());
    }
    attached
}

/// Detaches the entries that watch and have nothing to watch.
pub(in crate::kernel::hooks) fn detach_unused(parts: &mut [Part]) {
    let now = Instant::now();
    for at in 0..parts.len() {
        if let Some(weights) = parts[at].due_to_look(now) {
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
    fn running(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.runs_or_will())
    }

    /// What sets the weights of what its programs watch.
    fn watched(&self) -> impl Iterator<Item = &Arc<Control>> {
        self.running().filter_map(Slot::watches).map(|(of, _)| of)
    }

    /// Whether the entry is attached, has programs that run, and all of them watch.
    fn can_watch(&self) -> bool {
        let (running, watching) = (self.running().count(), self.watched().count());
        let may_rest = self.can_rest() && !self.is_chained() && self.is_always() && !self.links.is_empty();
        may_rest && running > 0 && running == watching
    }

    /// Whether measurements begin here in slices of time of the entry, which is the only one of the hook.
    fn is_sliced(&self) -> bool {
        matches!(self.standing, Standing::Slices(_)) && !self.is_chained() && !self.has_slices()
    }

    /// Attaches the entry before something may begin that it watches. Whether it is attached then.
    fn attach_to_watch(&mut self, attacher: &mut Attacher) -> bool {
        if let Standing::Watch(look) = &mut self.standing {
            *look = Look::soon();
        }
        self.attach_again(attacher)
    }

    /// What is watched here, if it is time to look at it.
    fn due_to_look(&self, now: Instant) -> Option<Vec<Arc<Control>>> {
        match &self.standing {
            Standing::Watch(look) if !self.links.is_empty() && look.next <= now => {
                Some(self.watched().cloned().collect())
            }
            _ => None,
        }
    }

    /// Detaches an entry that watches if nothing is open, and puts off the next look else. `may_begin` says whether something may begin.
    fn look(&mut self, may_begin: bool) {
        // Also where it cannot be read.
        let is_open = || self.running().filter_map(Slot::watches).any(|(_, open)| open.has_some().unwrap_or(true));
        let is_quiet = matches!(&self.standing, Standing::Watch(look) if look.is_quiet);
        let next = match (may_begin, is_quiet) {
            (true, _) => Look::soon(),
            (false, false) => Look::quiet(),
            (false, true) if is_open() => return self.look_later(),
            (false, true) => return self.links.clear(),
        };
        self.standing = Standing::Watch(next);
    }

    fn look_later(&mut self) {
        if let Standing::Watch(look) = &mut self.standing {
            look.later();
        }
    }

    /// The weights of what the next switch lets begin here.
    fn next_begins(&self) -> Vec<Arc<Control>> {
        match &self.standing {
            Standing::Slices(slices) if !slices.is_attached() => {
                self.slots.iter().filter_map(Slot::begins).cloned().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether measurements of some of these weights may begin here now.
    fn lets_begin(&self, weights: &[Arc<Control>]) -> bool {
        !self.links.is_empty() && self.slots.iter().any(|slot| slot.is_one_of(weights) && self.runs(slot))
    }
}
