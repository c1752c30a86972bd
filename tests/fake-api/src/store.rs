//! Objects with versions, their history, and consistent lists in pages.

use crate::selector::selects;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which object. `resource` is the path up to the plural without namespaces, as `api/v1/pods`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// One change.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) version: u64,
    pub(crate) key: Key,
    pub(crate) before: Option<Value>,
    /// As it is then; what is deleted as it was last.
    pub(crate) object: Value,
    pub(crate) deleted: bool,
}

/// What is asked of a list or a watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) resource: String,
    /// Empty: of all namespaces.
    pub(crate) namespace: String,
    pub(crate) labels: String,
    pub(crate) fields: String,
}

impl Scope {
    pub(crate) fn has(&self, key: &Key, object: &Value) -> bool {
        key.resource == self.resource
            && (self.namespace.is_empty() || key.namespace == self.namespace)
            && selects(&self.labels, &self.fields, object).unwrap_or(false)
    }
}

/// A page of a list, or 410.
pub(crate) enum Page {
    Of { version: u64, items: Vec<Value>, token: Option<String>, remaining: usize },
    Expired,
}

/// Everything that is stored.
pub(crate) struct Store {
    version: u64,
    objects: BTreeMap<Key, Value>,
    history: Vec<Entry>,
    /// The history before this version is gone.
    floor: u64,
    /// Lists that go on, by their number.
    lists: BTreeMap<u64, (u64, Arc<Vec<Value>>)>,
    next_uid: u64,
}

impl Default for Store {
    fn default() -> Store {
        // Real clusters are not young.
        Store {
            version: 1000,
            objects: BTreeMap::new(),
            history: Vec::new(),
            floor: 0,
            lists: BTreeMap::new(),
            next_uid: 1,
        }
    }
}

impl Store {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// Stores it as it is, with a new version, and a uid when it has none.
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        let before = self.objects.get(&key).cloned();
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata["uid"].as_str().is_none_or(str::is_empty) {
            let kept = before.as_ref().map(|before| before["metadata"]["uid"].clone());
            metadata["uid"] = kept.unwrap_or_else(|| {
                self.next_uid += 1;
                json!(format!("f0000000-0000-4000-8000-{:012x}", self.next_uid))
            });
        }
        let generation = before.as_ref().map_or(0, |before| before["metadata"]["generation"].as_u64().unwrap_or(1));
        let changed = before.as_ref().is_none_or(|before| before["spec"] != object["spec"]);
        object["metadata"]["generation"] = json!(generation + u64::from(changed));
        self.objects.insert(key.clone(), object.clone());
        self.history.push(Entry { version: self.version, key, before, object: object.clone(), deleted: false });
        object
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Value> {
        let mut object = self.objects.remove(key)?;
        self.version += 1;
        // A deletion has a version of its own.
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.history.push(Entry {
            version: self.version,
            key: key.clone(),
            before: Some(object.clone()),
            object: object.clone(),
            deleted: true,
        });
        Some(object)
    }

    /// Forgets the history and all lists that are under way.
    pub(crate) fn compact(&mut self) {
        self.floor = self.version;
        self.history.clear();
        self.lists.clear();
    }

    /// All that is there now.
    pub(crate) fn all(&self, scope: &Scope) -> Vec<Value> {
        self.objects.iter().filter(|(key, object)| scope.has(key, object)).map(|(_, object)| object.clone()).collect()
    }

    /// The first page, or the one that the token stands for.
    pub(crate) fn page(&mut self, scope: &Scope, limit: usize, token: &str) -> Page {
        let (number, start) = match token.split_once(':').and_then(|(n, s)| Some((n.parse().ok()?, s.parse().ok()?))) {
            Some(found) => found,
            None if token.is_empty() => {
                let number = self.lists.len() as u64 + 1;
                self.lists.insert(number, (self.version, Arc::new(self.all(scope))));
                (number, 0usize)
            }
            None => return Page::Expired,
        };
        let Some((version, all)) = self.lists.get(&number).cloned() else { return Page::Expired };
        let end = if limit == 0 { all.len() } else { all.len().min(start + limit) };
        let remaining = all.len() - end;
        let token = (remaining > 0).then(|| format!("{number}:{end}"));
        Page::Of { version, items: all[start.min(end)..end].to_vec(), token, remaining }
    }

    /// What came after a version, for a watch: kind and object.
    pub(crate) fn since(&self, scope: &Scope, version: u64) -> Vec<(&'static str, Value)> {
        let after = self.history.iter().filter(|entry| entry.version > version);
        after
            .filter_map(|entry| {
                let was = entry.before.as_ref().is_some_and(|before| scope.has(&entry.key, before));
                let is = !entry.deleted && scope.has(&entry.key, &entry.object);
                let kind = match (was, is) {
                    (false, true) => "ADDED",
                    (true, true) => "MODIFIED",
                    (true, false) => "DELETED",
                    (false, false) => return None,
                };
                Some((kind, entry.object.clone()))
            })
            .collect()
    }
}
