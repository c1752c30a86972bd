//! Ids of the names of hooked functions and static probe points. A program gets the id of the place that was hit (the cookie of its
//! link), and keeps it in keys and records.
//!
//! Ids are of the process and are never taken back: labels of a series outlive the file that it was counted in. There are as many
//! as different names were hooked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static NAMES: Mutex<Option<Names>> = Mutex::new(None);

#[derive(Default)]
struct Names {
    names: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, u64>,
}

/// The id of a name, from 1 on.
pub fn id(name: &str) -> u64 {
    let mut guard = lock();
    let Names { names, ids } = guard.get_or_insert_default();
    if let Some(id) = ids.get(name) {
        return *id;
    }
    let name: Arc<str> = name.into();
    names.push(name.clone());
    let id = names.len() as u64;
    ids.insert(name, id);
    id
}

/// `None` for an id that was never given.
pub fn name(id: u64) -> Option<Arc<str>> {
    let index = usize::try_from(id.checked_sub(1)?).ok()?;
    lock().as_ref()?.names.get(index).cloned()
}

fn lock() -> MutexGuard<'static, Option<Names>> {
    // No code that holds it can leave a name without its id.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_id() {
        let (malloc, free) = (id("kst_malloc"), id("kst_free"));
        assert_ne!(malloc, free);
        assert_eq!((id("kst_malloc"), id("kst_free")), (malloc, free));
        assert_eq!((name(malloc).as_deref(), name(free).as_deref()), (Some("kst_malloc"), Some("kst_free")));
        assert_eq!((name(0), name(u64::MAX)), (None, None));
    }
}
