//! Work in threads that end with their caller.

use std::thread::{Builder, Scope, ScopedJoinHandle};

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
