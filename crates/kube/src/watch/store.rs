//! Uids and versions of the objects already sent to the receiver.

use std::collections::{BTreeMap, BTreeSet};

/// An object with its uid and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object<T> {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`, or an equivalent that changes with the object.
    pub version: String,
    /// Converted object.
    pub value: T,
}

/// A change sent to the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// An object was added or changed.
    Seen(T),
    /// The object with this uid was deleted.
    Gone(String),
    /// A list is complete: all current objects have been sent.
    Synced,
}

/// Versions by uid, bounded in size.
#[derive(Clone, Debug)]
pub struct Store {
    versions: BTreeMap<String, String>,
    limit: usize,
    over_limit: u64,
}

impl Store {
    /// Stores at most `limit` objects; others are counted.
    pub fn new(limit: usize) -> Store {
        Store { versions: BTreeMap::new(), limit, over_limit: 0 }
    }

    /// Replaces the content with a list, and returns the differences.
    pub fn replace<T>(&mut self, objects: Vec<Object<T>>) -> Vec<Change<T>> {
        let mut changes = Vec::new();
        let there: BTreeSet<&str> = objects.iter().map(|object| object.uid.as_str()).collect();
        let gone: Vec<String> = self.versions.keys().filter(|uid| !there.contains(uid.as_str())).cloned().collect();
        for uid in gone {
            self.versions.remove(&uid);
            changes.push(Change::Gone(uid));
        }
        changes.extend(objects.into_iter().filter_map(|object| self.seen(object)));
        changes.push(Change::Synced);
        changes
    }

    /// Adds or updates an object; `None` if its version is unchanged.
    pub fn seen<T>(&mut self, object: Object<T>) -> Option<Change<T>> {
        let full = self.versions.len() >= self.limit;
        match self.versions.get_mut(&object.uid) {
            Some(version) if *version == object.version => return None,
            Some(version) => *version = object.version,
            None if full => {
                self.over_limit += 1;
                return None;
            }
            None => {
                self.versions.insert(object.uid, object.version);
            }
        }
        Some(Change::Seen(object.value))
    }

    /// Removes an object.
    pub fn gone<T>(&mut self, uid: &str) -> Option<Change<T>> {
        self.versions.remove(uid).map(|_| Change::Gone(uid.to_owned()))
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// Whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Takes the number of objects over the limit since the last call.
    pub fn take_over_limit(&mut self) -> u64 {
        std::mem::take(&mut self.over_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(uid: &str, version: &str) -> Object<String> {
        Object { uid: uid.into(), version: version.into(), value: format!("{uid}@{version}") }
    }

    #[test]
    fn a_list_yields_differences() {
        let mut store = Store::new(10);
        let seen = |text: &str| Change::Seen(text.to_owned());
        let first = store.replace(vec![object("a", "1"), object("b", "2")]);
        assert_eq!(first, [seen("a@1"), seen("b@2"), Change::Synced]);
        let second = store.replace(vec![object("b", "2"), object("c", "3")]);
        assert_eq!(second, [Change::Gone("a".into()), seen("c@3"), Change::Synced]);
        assert_eq!(store.seen(object("b", "4")), Some(seen("b@4")));
        assert_eq!(store.seen(object("b", "4")), None);
        assert_eq!(store.gone::<String>("b"), Some(Change::Gone("b".into())));
        assert_eq!(store.gone::<String>("b"), None);
        // A recreated object has a new uid, but a uid may also return after a deletion.
        assert_eq!(store.seen(object("b", "4")), Some(seen("b@4")));
        assert_eq!(store.replace::<String>(Vec::new()).len(), 3);
        assert!(store.is_empty());
    }

    #[test]
    fn no_more_than_the_limit() {
        let mut store = Store::new(2);
        store.replace(vec![object("a", "1"), object("b", "1"), object("c", "1")]);
        assert_eq!((store.len(), store.take_over_limit()), (2, 1));
        assert!(store.seen(object("a", "2")).is_some(), "a stored object may change");
        store.gone::<String>("a");
        assert!(store.seen(object("c", "1")).is_some());
        assert_eq!(store.take_over_limit(), 0);
    }
}
