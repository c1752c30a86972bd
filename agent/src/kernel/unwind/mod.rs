//! Tables by which programs walk the stacks of processes that have no frame pointers ([`kstrobe_ebpf::unwind`]). A program that runs in a
//! process without a table asks for it.

mod file;
mod ranges;
mod rows;
mod tables;

use crate::kernel::sys::prog::{self, Lines, ProgSpec, Refused};
use kstrobe_ebpf::unwind::{self, Facts};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use thiserror::Error;

pub use tables::{Size, Tables};

/// From one look at what programs ask for to the next.
const EVERY: Duration = Duration::from_millis(100);

/// Loads a program without lines. One that was [linked](unwind::link) needs types of its functions.
pub fn load(spec: &ProgSpec<'_>) -> Result<OwnedFd, Refused> {
    let Some(functions) = unwind::functions(spec.insns) else { return prog::load(spec) };
    let types = prog::load_btf(&unwind::types())?;
    let lines = Lines { btf: types.as_fd(), functions: &functions, lines: &[] };
    prog::load(&ProgSpec { lines: Some(lines), ..*spec })
}

/// The tables of this process's programs, which are there while some program uses them.
#[derive(Debug, Default)]
pub struct Unwinder {
    tables: Mutex<Weak<Tables>>,
    created: Condvar,
    /// Why there are none.
    refused: OnceLock<Unavailable>,
}

/// Why user stacks are walked by the kernel alone.
#[derive(Debug, Error)]
pub enum Unavailable {
    #[error("the kernel does not take the programs: {}", .0.error)]
    Refused(Refused),
    #[error("a map of the tables: {0}")]
    Map(#[from] io::Error),
}

impl Unwinder {
    /// The tables, which are made if there are none. Where they cannot be had, the log says so once.
    pub fn tables(&self, facts: Facts, cpus: u32) -> Option<Arc<Tables>> {
        let mut tables = lock(&self.tables);
        if let Some(tables) = tables.upgrade() {
            return Some(tables);
        }
        if self.refused.get().is_some() {
            return None;
        }
        match Tables::create(facts, cpus).and_then(|tables| tables.try_kernel().map(|()| tables)) {
            Ok(new) => {
                let new = Arc::new(new);
                *tables = Arc::downgrade(&new);
                self.created.notify_all();
                Some(new)
            }
            Err(reason) => {
                tracing::warn!(%reason, "user stacks are walked by frame pointers alone");
                self.refused.set(reason).ok()?;
                None
            }
        }
    }

    /// The tables, if some program uses them.
    pub fn current(&self) -> Option<Arc<Tables>> {
        lock(&self.tables).upgrade()
    }

    /// Waits until there are tables, or for the time from one look to the next.
    pub fn wait(&self) {
        let tables = lock(&self.tables);
        // Threads that wait hold no tables: they would keep them for each other.
        if tables.strong_count() == 0 {
            drop(self.created.wait(tables));
        } else {
            drop(tables);
            std::thread::sleep(EVERY);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::kernel::detect::{possible_cpus, read_btf};

    #[test]
    #[ignore = "needs root"]
    fn root_tables_go_with_the_last_program_that_uses_them() {
        let facts = Facts::of(&read_btf(None).unwrap()).unwrap();
        let unwinder = Arc::new(Unwinder::default());
        for _ in 0..2 {
            let unwinder = Arc::clone(&unwinder);
            std::thread::spawn(move || {
                loop {
                    unwinder.wait();
                    drop(unwinder.current());
                }
            });
        }
        let used = unwinder.tables(facts, possible_cpus()).unwrap();
        std::thread::sleep(2 * EVERY);
        assert!(Arc::ptr_eq(&used, &unwinder.current().unwrap()));
        drop(used);
        std::thread::sleep(2 * EVERY);
        assert!(unwinder.current().is_none());
        assert!(unwinder.tables(facts, possible_cpus()).is_some(), "and come again");
    }
}
