//! The set of objects that others have been told of.

use std::collections::{BTreeMap, BTreeSet};

/// An object, with what identifies it and this form of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object<T> {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`, or something else that changes with it.
    pub version: String,
    /// What we make of it.
    pub value: T,
}

/// What others are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// It is there, new or changed.
    Seen(T),
    /// The one with this uid is gone.
    Gone(String),
    /// Everything that is there has been told: said after each list.
    Synced,
}

/// Uids and versions of what has been told.
#[derive(Clone, Debug)]
pub struct Known {
    told: BTreeMap<String, String>,
    limit: usize,
    over_limit: u64,
}

impl Known {
    /// At most so many objects are told; others are counted.
    pub fn new(limit: usize) -> Known {
        Known { told: BTreeMap::new(), limit, over_limit: 0 }
    }

    /// These are all there are.
    pub fn replace<T>(&mut self, objects: Vec<Object<T>>) -> Vec<Change<T>> {
        let mut changes = Vec::new();
        let there: BTreeSet<&str> = objects.iter().map(|object| object.uid.as_str()).collect();
        let gone: Vec<String> = self.told.keys().filter(|uid| !there.contains(uid.as_str())).cloned().collect();
        for uid in gone {
            self.told.remove(&uid);
            changes.push(Change::Gone(uid));
        }
        changes.extend(objects.into_iter().filter_map(|object| self.seen(object)));
        changes.push(Change::Synced);
        changes
    }

    /// One is there, new or changed.
    pub fn seen<T>(&mut self, object: Object<T>) -> Option<Change<T>> {
        let full = self.told.len() >= self.limit;
        match self.told.get_mut(&object.uid) {
            Some(version) if *version == object.version => return None,
            Some(version) => *version = object.version,
            None if full => {
                self.over_limit += 1;
                return None;
            }
            None => {
                self.told.insert(object.uid, object.version);
            }
        }
        Some(Change::Seen(object.value))
    }

    /// One is gone.
    pub fn gone<T>(&mut self, uid: &str) -> Option<Change<T>> {
        self.told.remove(uid).map(|_| Change::Gone(uid.to_owned()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.told.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Objects that were over the limit since this was last asked.
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
    fn a_list_is_told_as_differences() {
        let mut known = Known::new(10);
        let seen = |text: &str| Change::Seen(text.to_owned());
        let first = known.replace(vec![object("a", "1"), object("b", "2")]);
        assert_eq!(first, [seen("a@1"), seen("b@2"), Change::Synced]);
        let second = known.replace(vec![object("b", "2"), object("c", "3")]);
        assert_eq!(second, [Change::Gone("a".into()), seen("c@3"), Change::Synced]);
        assert_eq!(known.seen(object("b", "4")), Some(seen("b@4")));
        assert_eq!(known.seen(object("b", "4")), None);
        assert_eq!(known.gone::<String>("b"), Some(Change::Gone("b".into())));
        assert_eq!(known.gone::<String>("b"), None);
        // The same name again has another uid, and the same uid may come back after it was gone.
        assert_eq!(known.seen(object("b", "4")), Some(seen("b@4")));
        assert_eq!(known.replace::<String>(Vec::new()).len(), 3);
        assert!(known.is_empty());
    }

    #[test]
    fn no_more_than_the_limit() {
        let mut known = Known::new(2);
        known.replace(vec![object("a", "1"), object("b", "1"), object("c", "1")]);
        assert_eq!((known.len(), known.take_over_limit()), (2, 1));
        assert!(known.seen(object("a", "2")).is_some(), "what is known may change");
        known.gone::<String>("a");
        assert!(known.seen(object("c", "1")).is_some());
        assert_eq!(known.take_over_limit(), 0);
    }
}
