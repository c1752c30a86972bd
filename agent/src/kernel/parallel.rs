//! Work in threads that end with their caller.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

/// Most threads of [`map`], each of which may hold types of the kernel's modules.
const MAX_THREADS: usize = 8;

/// The results of a task for each item, in their order, by as many threads as there are CPUs for this process, up to a limit. Each thread has a state of
/// its own.
pub fn map<T: Send, S, R: Send>(
    items: Vec<T>,
    state: impl Fn() -> S + Sync,
    task: impl Fn(&mut S, T) -> R + Sync,
) -> Vec<R> {
    let cpus = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(items.len());
    let waiting = Mutex::new(items.into_iter().enumerate());
    let work = || {
        let (mut state, mut done) = (state(), Vec::new());
        loop {
            // A thread that panics does not hold the lock.
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((at, item)) = next else { return done };
            done.push((at, task(&mut state, item)));
        }
    };
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        let others: Vec<_> = (1..cpus).map_while(|_| Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mut all = work();
        others.into_iter().for_each(|thread| all.extend(Pending::Thread(thread).wait()));
        all
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

/// A result that another thread works out.
pub enum Pending<'scope, T> {
    Thread(ScopedJoinHandle<'scope, T>),
    Done(T),
}

/// Runs a task in a thread of its own, or at once where the system gives no thread.
pub fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    task: &'scope (impl Fn() -> T + Sync),
) -> Pending<'scope, T> {
    match Builder::new().spawn_scoped(scope, task) {
        Ok(thread) => Pending::Thread(thread),
        Err(_) => Pending::Done(task()),
    }
}

impl<T> Pending<'_, T> {
    /// The result. A panic of the thread goes on in the caller.
    pub fn wait(self) -> T {
        match self {
            Pending::Thread(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Pending::Done(result) => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_come_in_the_order_of_their_items() {
        let squares = map(
            (0..1000u64).collect(),
            || 0,
            |calls, n| {
                *calls += 1;
                (n * n, *calls)
            },
        );
        assert!(squares.iter().map(|(square, _)| *square).eq((0..1000).map(|n| n * n)));
        assert!(squares.iter().all(|(_, calls)| *calls >= 1));
        assert!(map(Vec::<u8>::new(), || (), |(), n| n).is_empty());
    }
}
