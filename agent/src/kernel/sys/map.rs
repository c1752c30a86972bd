//! Maps by descriptor, with keys and values as byte slices whose length is checked against the kernel's own idea of it.

use super::{Command, bpf, object_name, owned};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `BPF_MAP_TYPE_*` numbers.
pub mod kind {
    pub const HASH: u32 = 1;
    pub const ARRAY: u32 = 2;
    /// Programs for tail calls.
    pub const PROG_ARRAY: u32 = 3;
    /// Stack (last in, first out).
    pub const STACK: u32 = 23;
    /// Perf buffers.
    pub const PERF_EVENT_ARRAY: u32 = 4;
    /// Call stacks.
    pub const STACK_TRACE: u32 = 7;
    /// Hash that forgets the least recently used.
    pub const LRU_HASH: u32 = 9;
    /// Ring buffer.
    pub const RINGBUF: u32 = 27;
    pub const TASK_STORAGE: u32 = 29;
    /// Maps whose values exist once per CPU, so that a value is longer than `value_size` says.
    pub const PER_CPU: [u32; 4] = [5, 6, 10, 21];
}

/// `BPF_F_NO_PREALLOC`
pub const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`
pub const MMAPABLE: u32 = 1 << 10;
/// `BPF_F_RDONLY_PROG`: programs may read the values only (5.2).
pub const RDONLY_PROG: u32 = 1 << 7;
/// `BPF_NOEXIST`: update only if the key is new.
pub const NOEXIST: u64 = 1;

/// What to create.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapSpec<'a> {
    pub kind: u32,
    pub key_bytes: u32,
    pub value_bytes: u32,
    /// Elements.
    pub entries: u32,
    /// `BPF_F_*`
    pub flags: u32,
    /// At most 15 bytes are kept.
    pub name: &'a str,
    /// Loaded BTF with the type ids of key and value; local storage needs it.
    pub btf: Option<(BorrowedFd<'a>, u32, u32)>,
}

/// A map we hold a descriptor of.
#[derive(Debug)]
pub struct KernelMap {
    fd: OwnedFd,
    pub kind: u32,
    /// Kernel's id, as `bpftool map` shows it.
    pub id: u32,
    pub key_bytes: usize,
    pub value_bytes: usize,
    /// Elements it can hold.
    pub capacity: u32,
    /// `BPF_F_*`
    pub flags: u32,
}

/// All entries of a map at about one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    keys: Vec<u8>,
    values: Vec<u8>,
    key_bytes: usize,
    value_bytes: usize,
}

impl Entries {
    /// How many.
    pub fn len(&self) -> usize {
        self.keys.len() / self.key_bytes.max(1)
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
    /// Keys with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.keys.chunks_exact(self.key_bytes.max(1)).zip(self.values.chunks_exact(self.value_bytes.max(1)))
    }
}

#[repr(C)]
#[derive(Default)]
struct CreateAttr {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; 16],
    ifindex: u32,
    btf_fd: u32,
    btf_key_type: u32,
    btf_value_type: u32,
    btf_vmlinux_value_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// The start of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// Kernel-internal `ENOTSUPP`, which bpf(2) lets out to user space for batch operations a map type has not.
pub const ENOTSUPP: i32 = 524;

impl KernelMap {
    pub fn create(spec: &MapSpec<'_>) -> io::Result<KernelMap> {
        let (btf_fd, btf_key_type, btf_value_type) =
            spec.btf.map_or((0, 0, 0), |(fd, key, value)| (fd.as_raw_fd() as u32, key, value));
        let mut attr = CreateAttr {
            kind: spec.kind,
            key_bytes: spec.key_bytes,
            value_bytes: spec.value_bytes,
            entries: spec.entries,
            flags: spec.flags,
            name: object_name(spec.name),
            btf_fd,
            btf_key_type,
            btf_value_type,
            ..CreateAttr::default()
        };
        // SAFETY: the attribute holds no addresses; the result is a new descriptor.
        let fd = unsafe { owned(bpf(Command::MapCreate, &mut attr)?) };
        KernelMap::from_fd(fd)
    }

    /// Forbids changes of the values by system calls from now on, so that the verifier knows them (5.2).
    pub fn freeze(&self) -> io::Result<()> {
        let mut attr = [self.fd.as_raw_fd() as u32, 0];
        // SAFETY: the descriptor and padding are plain numbers.
        unsafe { bpf(Command::MapFreeze, &mut attr).map(drop) }
    }

    /// Takes a descriptor and asks the kernel for the sizes. Per-CPU maps are refused: their values are longer than
    /// the sizes say.
    pub fn from_fd(fd: OwnedFd) -> io::Result<KernelMap> {
        let mut info = MapInfo::default();
        // SAFETY: plain numbers, no addresses.
        unsafe { super::info(fd.as_fd(), &mut info)? };
        if kind::PER_CPU.contains(&info.kind) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "per-CPU maps are not read this way"));
        }
        Ok(KernelMap {
            fd,
            kind: info.kind,
            id: info.id,
            key_bytes: info.key_bytes as usize,
            value_bytes: info.value_bytes as usize,
            capacity: info.entries,
            flags: info.flags,
        })
    }

    fn check(&self, key: Option<&[u8]>, value: Option<usize>) -> io::Result<()> {
        let wrong = |what: &str, have: usize, want: usize| {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{what} of {have} bytes, map {} has {want}", self.id),
            ))
        };
        match (key, value) {
            (Some(key), _) if key.len() != self.key_bytes => wrong("key", key.len(), self.key_bytes),
            (_, Some(bytes)) if bytes != self.value_bytes => wrong("value", bytes, self.value_bytes),
            _ => Ok(()),
        }
    }

    fn elem(&self, key: *const u8, value: u64, flags: u64) -> ElemAttr {
        ElemAttr { map_fd: self.fd.as_raw_fd() as u32, pad: 0, key: key as u64, value, flags }
    }

    /// Copies the value of `key` into `value`; false when there is none.
    pub fn lookup(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        self.check(Some(key), Some(value.len()))?;
        let mut attr = self.elem(key.as_ptr(), value.as_mut_ptr() as u64, 0);
        // SAFETY: both slices have the map's own sizes (checked above) and outlive the call.
        present(unsafe { bpf(Command::MapLookup, &mut attr) })
    }

    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        self.check(Some(key), Some(value.len()))?;
        let mut attr = self.elem(key.as_ptr(), value.as_ptr() as u64, flags);
        // SAFETY: both slices have the map's own sizes (checked above); the kernel only reads them.
        unsafe { bpf(Command::MapUpdate, &mut attr) }.map(drop)
    }

    /// Pushes onto a stack; a full one gives `E2BIG`.
    pub fn push(&self, value: &[u8]) -> io::Result<()> {
        self.check(None, Some(value.len()))?;
        if self.key_bytes != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("map {} is no stack", self.id)));
        }
        let mut attr = self.elem(std::ptr::null(), value.as_ptr() as u64, 0);
        // SAFETY: the map has no keys, so the null key is not read; the value has the map's size.
        unsafe { bpf(Command::MapUpdate, &mut attr) }.map(drop)
    }

    /// Removes a key; false when it was not there.
    pub fn delete(&self, key: &[u8]) -> io::Result<bool> {
        self.check(Some(key), None)?;
        let mut attr = self.elem(key.as_ptr(), 0, 0);
        // SAFETY: the key has the map's size; this command has no value.
        present(unsafe { bpf(Command::MapDelete, &mut attr) })
    }

    /// The key after `key` (the first one without), or `None` at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> io::Result<Option<Vec<u8>>> {
        self.check(key, None)?;
        let mut next = vec![0; self.key_bytes];
        let mut attr = self.elem(key.map_or(std::ptr::null(), <[u8]>::as_ptr), next.as_mut_ptr() as u64, 0);
        // SAFETY: a null key means the first; `next` has room for one key.
        Ok(present(unsafe { bpf(Command::MapNextKey, &mut attr) })?.then_some(next))
    }

    /// Every key, one system call each: for maps whose values are not wanted, or not cheap. As with [`KernelMap::one_by_one`], a
    /// key that goes away under the walk starts it again.
    pub fn keys(&self) -> io::Result<BTreeSet<Vec<u8>>> {
        let mut found = BTreeSet::new();
        let mut key = self.next_key(None)?;
        let mut steps = 0u64;
        while let Some(this) = key {
            key = self.next_key(Some(&this))?;
            found.insert(this);
            steps += 1;
            if steps > 4 * u64::from(self.capacity) {
                break;
            }
        }
        Ok(found)
    }

    /// Every entry, in batches where the kernel has them (5.6), else one by one.
    pub fn entries(&self) -> io::Result<Entries> {
        match self.batches() {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | ENOTSUPP | libc::EOPNOTSUPP)) => {
                self.one_by_one()
            }
            result => result,
        }
    }

    /// Every entry in batches.
    pub fn batches(&self) -> io::Result<Entries> {
        let mut all = Entries { key_bytes: self.key_bytes, value_bytes: self.value_bytes, ..Entries::default() };
        // The kernel's cursor is a bucket number for hashes and a key for arrays.
        let mut cursor = vec![0u8; self.key_bytes.max(8)];
        let mut next = cursor.clone();
        let mut first = true;
        let mut chunk = self.capacity.clamp(1, 4096) as usize;
        loop {
            let have = all.len();
            all.keys.resize((have + chunk) * self.key_bytes, 0);
            all.values.resize((have + chunk) * self.value_bytes, 0);
            let mut attr = BatchAttr {
                in_batch: if first { 0 } else { cursor.as_ptr() as u64 },
                out_batch: next.as_mut_ptr() as u64,
                keys: all.keys[have * self.key_bytes..].as_mut_ptr() as u64,
                values: all.values[have * self.value_bytes..].as_mut_ptr() as u64,
                count: chunk as u32,
                map_fd: self.fd.as_raw_fd() as u32,
                ..BatchAttr::default()
            };
            // SAFETY: keys and values have room for `count` elements of the map's own sizes, the cursors for one key.
            let result = unsafe { bpf(Command::MapLookupBatch, &mut attr) };
            let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
            // Only after success or at the end does `count` say how many were copied.
            let got = if matches!(errno, None | Some(libc::ENOENT)) { (attr.count as usize).min(chunk) } else { 0 };
            all.keys.truncate((have + got) * self.key_bytes);
            all.values.truncate((have + got) * self.value_bytes);
            match errno {
                None => {}
                Some(libc::ENOENT) => return Ok(all),
                // One hash bucket holds more than fits.
                Some(libc::ENOSPC) if chunk <= self.capacity as usize => {
                    chunk *= 2;
                    continue;
                }
                Some(_) => return Err(result.err().unwrap_or_else(io::Error::last_os_error)),
            }
            std::mem::swap(&mut cursor, &mut next);
            first = false;
        }
    }

    /// Every entry, one system call per key. When a key goes away under the walk it starts again, so keys are collected in
    /// a set and the number of steps is limited.
    pub fn one_by_one(&self) -> io::Result<Entries> {
        let mut found = BTreeMap::new();
        let mut key = self.next_key(None)?;
        let mut steps = 0u64;
        while let Some(this) = key {
            let mut value = vec![0; self.value_bytes];
            key = self.next_key(Some(&this))?;
            if self.lookup(&this, &mut value)? {
                found.insert(this, value);
            }
            steps += 1;
            if steps > 4 * u64::from(self.capacity) {
                break;
            }
        }
        let mut all = Entries { key_bytes: self.key_bytes, value_bytes: self.value_bytes, ..Entries::default() };
        for (key, value) in found {
            all.keys.extend(key);
            all.values.extend(value);
        }
        Ok(all)
    }
}

impl AsFd for KernelMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn present(result: io::Result<i32>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
