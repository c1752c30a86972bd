//! The thread that walks over kernel objects for probes at iterators, and requests for walks.

use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::task::{self, Task};
use super::{App, lock};
use crate::probe::iterator::{EVERY, IteratorEngine, WALK_TIMEOUT};

/// Requests for walks, from scrapes to the thread that walks.
#[derive(Default)]
pub(super) struct IterTrigger {
    state: Mutex<TriggerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TriggerState {
    wanted: bool,
    last: Option<Instant>,
    /// There are probes at iterators.
    active: bool,
    /// Generation of the list of probes.
    round: u64,
}

impl TriggerState {
    fn is_fresh(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() < EVERY)
    }
}

impl IterTrigger {
    /// Requests a walk, unless one began within the last second, and waits for it up to `WALK_TIMEOUT`.
    pub fn refresh(&self) {
        let mut state = lock(&self.state);
        if !state.active || state.is_fresh() {
            return;
        }
        state.wanted = true;
        self.changed.notify_all();
        let waiting = |state: &mut TriggerState| state.active && !state.is_fresh();
        drop(self.changed.wait_timeout_while(state, WALK_TIMEOUT, waiting).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for a request. Returns the generation.
    fn next(&self) -> u64 {
        let idle = |state: &mut TriggerState| !state.wanted;
        let mut state = self.changed.wait_while(lock(&self.state), idle).unwrap_or_else(PoisonError::into_inner);
        state.wanted = false;
        state.round
    }

    fn done(&self, begun: Instant, round: u64) {
        let mut state = lock(&self.state);
        match round == state.round {
            true => state.last = Some(begun),
            // A reload replaced the probes during the walk: a scrape may wait for the new ones.
            false => state.wanted = true,
        }
        self.changed.notify_all();
    }

    /// Sets whether there are probes to walk, and discards the last walk, which was of other probes.
    pub fn set_active(&self, active: bool) {
        let mut state = lock(&self.state);
        (state.active, state.last) = (active, None);
        state.round += 1;
        self.changed.notify_all();
    }
}

/// Starts the thread that runs iterators, which lives as long as the agent. It sleeps while no probe needs it.
pub(super) fn start(app: &Arc<App>) -> std::io::Result<()> {
    let app = app.clone();
    task::spawn(move || Walker { app, walk: None }).map(drop)
}

struct Walker {
    app: Arc<App>,
    /// When the walk that is requested began, and its generation.
    walk: Option<(Instant, u64)>,
}

impl Walker {
    fn done(&mut self) {
        if let Some((begun, round)) = self.walk.take() {
            self.app.iter_trigger.done(begun, round);
        }
    }
}

impl Task for Walker {
    const NAME: &'static str = "iterate";

    fn run(&mut self) {
        if self.walk.is_some() {
            let probes = self.app.probes();
            let iterators: Vec<Arc<IteratorEngine>> = probes.iter().filter_map(|p| p.lock().iterator()).collect();
            iterators.iter().for_each(|iterator| iterator.walk(&self.app.names));
            self.done();
        }
    }

    /// Scrapes do not wait for a walk that will not end.
    fn panicked(&mut self) {
        self.done();
    }

    fn wait(&mut self) -> ControlFlow<()> {
        let round = self.app.iter_trigger.next();
        self.walk = Some((Instant::now(), round));
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_scrape_waits_for_a_walk_but_not_for_long() {
        let iter_trigger = Arc::new(IterTrigger::default());
        let begun = Instant::now();
        iter_trigger.refresh();
        assert!(begun.elapsed() < WALK_TIMEOUT, "no probes, no wait");
        iter_trigger.set_active(true);
        iter_trigger.refresh();
        assert!(begun.elapsed() >= WALK_TIMEOUT, "no walker runs");
        let walker = iter_trigger.clone();
        let walks = Arc::new(AtomicU64::default());
        let walked = walks.clone();
        std::thread::spawn(move || {
            loop {
                let round = walker.next();
                walked.fetch_add(1, Ordering::SeqCst);
                walker.done(Instant::now(), round);
            }
        });
        // The first request was not answered yet: its walk may end before the next one.
        for _ in 0..5 {
            iter_trigger.refresh();
            assert!(lock(&iter_trigger.state).is_fresh());
        }
        assert_eq!(walks.load(Ordering::SeqCst), 1, "within a second all see the same walk");
    }

    #[test]
    fn a_walk_over_other_probes_is_no_answer() {
        let iter_trigger = IterTrigger::default();
        iter_trigger.set_active(true);
        iter_trigger.refresh();
        let round = iter_trigger.next();
        iter_trigger.set_active(true);
        iter_trigger.done(Instant::now(), round);
        assert!(!lock(&iter_trigger.state).is_fresh());
        let round = iter_trigger.next();
        iter_trigger.done(Instant::now(), round);
        assert!(lock(&iter_trigger.state).is_fresh());
    }
}
