//! Kernel maps as plain memory, with the return values of the kernel's own.

use super::Trap;
use crate::layout::{MapDef, MapKind};
use std::collections::{BTreeMap, HashMap};

/// `-errno` values of map operations.
pub(super) const ENOENT: i64 = -2;
pub(super) const E2BIG: i64 = -7;
pub(super) const EAGAIN: i64 = -11;
pub(super) const EFAULT: i64 = -14;
pub(super) const EEXIST: i64 = -17;
pub(super) const EINVAL: i64 = -22;

/// Update flags.
const NOEXIST: i64 = 1;
const EXIST: i64 = 2;

/// Most bytes of one array map; the compiler's own limit for a whole probe is far below.
const MAX_ARRAY_BYTES: u64 = 1 << 32;

/// A map and its contents.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub def: MapDef,
    /// Bytes from one value to the next: the value size rounded up to 8, as in an mmapped array.
    pub stride: usize,
    /// Values back to back.
    pub values: Vec<u8>,
    kind: Keys,
    /// Of a hash whose keys make room for one another.
    uses: Option<Uses>,
}

/// In which order the keys of a hash were used last. The kernel's order is only about this one.
#[derive(Clone, Debug, Default)]
struct Uses {
    /// Of each element.
    at: HashMap<u32, u64>,
    by_time: BTreeMap<u64, Box<[u8]>>,
    next: u64,
    /// Keys that made room.
    evicted: u64,
}

impl Uses {
    fn used(&mut self, element: u32, key: &[u8]) {
        let key = self.forget(element).unwrap_or_else(|| key.into());
        self.at.insert(element, self.next);
        self.by_time.insert(self.next, key);
        self.next += 1;
    }

    fn forget(&mut self, element: u32) -> Option<Box<[u8]>> {
        self.by_time.remove(&self.at.remove(&element)?)
    }

    /// The key that makes room.
    fn oldest(&self) -> Option<&[u8]> {
        self.by_time.first_key_value().map(|(_, key)| &**key)
    }
}

#[derive(Clone, Debug)]
enum Keys {
    Array,
    Hash(Named<Box<[u8]>>),
    /// By task address.
    Task(Named<u64>),
    /// The values are the stack, its top last.
    Stack,
    /// What was sent, oldest first, and the bytes that are left for more; `None` for no bound.
    Buffer(Vec<Vec<u8>>, Option<u64>),
}

/// Keys with the element each one owns.
#[derive(Clone, Debug)]
struct Named<K> {
    elements: HashMap<K, u32>,
    free: Vec<u32>,
}

impl<K> Named<K> {
    fn new() -> Named<K> {
        Named { elements: HashMap::new(), free: Vec::new() }
    }
}

impl Map {
    pub fn new(def: &MapDef) -> Result<Map, Trap> {
        let stride = u64::from(def.value_bytes).next_multiple_of(8);
        if stride == 0 && def.kind != MapKind::RingBuf {
            return Err(Trap::new(format!("map {} has values of 0 bytes", def.name)));
        }
        let mut values = Vec::new();
        let kind = match def.kind {
            MapKind::Array { .. } => {
                let bytes = stride * u64::from(def.entries);
                if bytes > MAX_ARRAY_BYTES || def.key_bytes != 4 {
                    return Err(Trap::new(format!("map {}: an array of {bytes} bytes or without u32 key", def.name)));
                }
                values = vec![0; bytes as usize];
                Keys::Array
            }
            MapKind::Hash | MapKind::LruHash => Keys::Hash(Named::new()),
            MapKind::TaskStorage => Keys::Task(Named::new()),
            // No program reads a call stack: there are only their ids.
            MapKind::Stack | MapKind::StackTrace => Keys::Stack,
            MapKind::RingBuf => Keys::Buffer(Vec::new(), Some(def.entries.into())),
            // Their size is that of perf events, which are no part of a layout.
            MapKind::PerfEvents => Keys::Buffer(Vec::new(), None),
        };
        let uses = (def.kind == MapKind::LruHash).then(Uses::default);
        Ok(Map { def: def.clone(), stride: stride as usize, values, kind, uses })
    }

    /// The element that holds the key's value. A map without keys has none.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        match &self.kind {
            Keys::Array => {
                let index = u32::from_le_bytes(key.try_into().ok()?);
                (index < self.def.entries).then_some(index)
            }
            Keys::Hash(named) => named.elements.get(key).copied(),
            Keys::Task(_) | Keys::Stack | Keys::Buffer(..) => None,
        }
    }

    /// The same for a program that looks it up, which is a use of it.
    pub fn look_up(&mut self, key: &[u8]) -> Option<u32> {
        let found = self.find(key)?;
        self.uses.iter_mut().for_each(|uses| uses.used(found, key));
        Some(found)
    }

    /// Keys that made room for others so far.
    pub fn evicted(&self) -> u64 {
        self.uses.as_ref().map_or(0, |uses| uses.evicted)
    }

    pub fn update(&mut self, key: &[u8], value: &[u8], flags: i64) -> i64 {
        if !(0..=EXIST).contains(&flags) {
            return EINVAL;
        }
        let found = self.find(key);
        let element = match (&mut self.kind, found) {
            (Keys::Array, None) => return E2BIG,
            (Keys::Array | Keys::Hash(_), Some(_)) if flags == NOEXIST => return EEXIST,
            (Keys::Array | Keys::Hash(_), Some(element)) => element,
            (Keys::Hash(_), None) if flags == EXIST => return ENOENT,
            (Keys::Hash(named), None) => {
                if named.elements.len() >= self.def.entries as usize {
                    let Some(uses) = &mut self.uses else { return E2BIG };
                    let Some(element) = uses.oldest().and_then(|key| named.elements.remove(key)) else { return E2BIG };
                    uses.forget(element);
                    uses.evicted += 1;
                    named.free.push(element);
                }
                let element = take(&mut self.values, self.stride, named);
                named.elements.insert(key.into(), element);
                element
            }
            (Keys::Task(_) | Keys::Stack | Keys::Buffer(..), _) => return EINVAL,
        };
        self.uses.iter_mut().for_each(|uses| uses.used(element, key));
        let at = element as usize * self.stride;
        let length = value.len().min(self.def.value_bytes as usize);
        self.values[at..at + length].copy_from_slice(&value[..length]);
        0
    }

    pub fn delete(&mut self, key: &[u8]) -> i64 {
        match &mut self.kind {
            Keys::Hash(named) => match named.elements.remove(key) {
                Some(element) => {
                    self.uses.iter_mut().for_each(|uses| _ = uses.forget(element));
                    named.free.push(element);
                    0
                }
                None => ENOENT,
            },
            Keys::Array | Keys::Task(_) | Keys::Stack | Keys::Buffer(..) => EINVAL,
        }
    }

    /// The element of a task, made with zeros if `create`.
    pub fn of_task(&mut self, task: u64, create: bool) -> Option<u32> {
        let Keys::Task(named) = &mut self.kind else { return None };
        if let Some(&element) = named.elements.get(&task) {
            return Some(element);
        }
        if !create || task == 0 {
            return None;
        }
        let element = take(&mut self.values, self.stride, named);
        named.elements.insert(task, element);
        Some(element)
    }

    /// Frees what a task stored, as its exit does.
    pub fn forget_task(&mut self, task: u64) {
        if let Keys::Task(named) = &mut self.kind
            && let Some(element) = named.elements.remove(&task)
        {
            named.free.push(element);
        }
    }

    pub fn push(&mut self, value: &[u8], flags: i64) -> i64 {
        if !matches!(self.kind, Keys::Stack) || ![0, EXIST].contains(&flags) {
            return EINVAL;
        }
        if self.values.len() / self.stride >= self.def.entries as usize {
            if flags != EXIST || self.def.entries == 0 {
                return E2BIG;
            }
            // BPF_EXIST makes room by dropping the oldest value.
            self.values.drain(..self.stride);
        }
        let end = self.values.len() + self.stride;
        self.values.extend_from_slice(&value[..value.len().min(self.stride)]);
        self.values.resize(end, 0);
        0
    }

    /// Takes the top value into `out`, which is zeroed when there is none.
    pub fn pop(&mut self, out: &mut [u8]) -> i64 {
        if !matches!(self.kind, Keys::Stack) {
            return EINVAL;
        }
        out.fill(0);
        let Some(top) = self.values.len().checked_sub(self.stride) else { return ENOENT };
        let length = out.len().min(self.stride);
        out[..length].copy_from_slice(&self.values[top..top + length]);
        self.values.truncate(top);
        0
    }

    /// Appends a record, if there is room for it and the header of 8 bytes that the kernel puts before it.
    pub fn output(&mut self, record: &[u8]) -> i64 {
        let Keys::Buffer(records, room) = &mut self.kind else { return EINVAL };
        if let Some(room) = room {
            match room.checked_sub((record.len() as u64 + 8).next_multiple_of(8)) {
                Some(left) => *room = left,
                None => return EAGAIN,
            }
        }
        records.push(record.to_vec());
        0
    }

    /// Takes all records, as a reader would.
    pub fn take_records(&mut self) -> Vec<Vec<u8>> {
        let Keys::Buffer(records, room) = &mut self.kind else { return Vec::new() };
        if let Some(room) = room {
            *room = self.def.entries.into();
        }
        std::mem::take(records)
    }

    /// Value bytes of one element; `None` past the end.
    pub fn value(&self, element: u32) -> Option<&[u8]> {
        let at = (element as usize).checked_mul(self.stride)?;
        self.values.get(at..at.checked_add(self.def.value_bytes as usize)?)
    }

    /// Value bytes of one element; `None` past the end.
    pub fn value_mut(&mut self, element: u32) -> Option<&mut [u8]> {
        let at = (element as usize).checked_mul(self.stride)?;
        self.values.get_mut(at..at.checked_add(self.def.value_bytes as usize)?)
    }

    /// Keys and values of a hash, by key.
    pub fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Keys::Hash(named) = &self.kind else { return Vec::new() };
        let value = |element: u32| self.value(element).unwrap_or_default().to_vec();
        let mut entries: Vec<_> = named.elements.iter().map(|(k, &e)| (k.to_vec(), value(e))).collect();
        entries.sort_unstable();
        entries
    }

    /// Values of all tasks, by task address.
    pub fn tasks(&self) -> Vec<(u64, Vec<u8>)> {
        let Keys::Task(named) = &self.kind else { return Vec::new() };
        let value = |element: u32| self.value(element).unwrap_or_default().to_vec();
        let mut tasks: Vec<_> = named.elements.iter().map(|(&task, &e)| (task, value(e))).collect();
        tasks.sort_unstable();
        tasks
    }
}

/// A zeroed element: a freed one, or a new one at the end.
fn take<K>(values: &mut Vec<u8>, stride: usize, named: &mut Named<K>) -> u32 {
    match named.free.pop() {
        Some(element) => {
            let at = element as usize * stride;
            values[at..at + stride].fill(0);
            element
        }
        None => {
            let element = (values.len() / stride) as u32;
            values.resize(values.len() + stride, 0);
            element
        }
    }
}
