//! What owners left that were killed.

use super::{INSTANCES, global, lock, remove};
use crate::kernel::tracefs::Tracefs;
use nix::fcntl::FlockArg;
use std::io;
use std::sync::Arc;

/// Something that a dead owner left, and whether it could be put right.
#[derive(Debug)]
pub struct Swept {
    /// In words.
    pub what: String,
    /// Whether it could.
    pub result: io::Result<()>,
}

/// Removes instances whose owner is dead and puts the global buffer back where one died with it.
pub fn sweep(tracefs: &Arc<Tracefs>) -> io::Result<Vec<Swept>> {
    let mut swept: Vec<Swept> = global::restore_left(tracefs).into_iter().collect();
    let left = |name: &String| is_ours(name);
    let names: Vec<String> = tracefs.list(INSTANCES)?.into_iter().filter(left).collect();
    if names.is_empty() {
        return Ok(swept);
    }
    // No process is between the making of an instance and its lock.
    let _alone = lock(tracefs, INSTANCES, FlockArg::LockExclusive)?;
    for name in names {
        // The holder of the lock is alive; a directory that cannot be opened is gone.
        let Ok(_dead) = lock(tracefs, &format!("{INSTANCES}/{name}"), FlockArg::LockExclusiveNonblock) else {
            continue;
        };
        let result = remove(tracefs, &name);
        swept.push(Swept { what: format!("tracing instance {name}"), result });
    }
    Ok(swept)
}

/// The name of an instance of a process that started at so many clock ticks since boot.
pub(super) fn name(pid: u32, start_ticks: u64, number: u32) -> String {
    format!("kstrobe-{pid}-{start_ticks}-{number}")
}

/// Whether a name is of the form of [`name`].
fn is_ours(name: &str) -> bool {
    let numbers: Option<Vec<u64>> =
        name.strip_prefix("kstrobe-").and_then(|rest| rest.split('-').map(|n| n.parse().ok()).collect());
    numbers.is_some_and(|numbers| numbers.len() == 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_form_are_ours() {
        assert!(is_ours(&name(1, 99, 0)));
        for other in ["kstrobe-test-7", "kstrobe-1-2", "kstrobe-1-2-3-4", "kstrobe", "foo", "kstrobe-1-x-3"] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
