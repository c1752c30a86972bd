//! The values of an array map as 64-bit words: the kernel's own memory where it can be mapped, else a copy.

use crate::kernel::sys::KernelMap;
use crate::kernel::sys::map::{MMAPABLE, MapSpec, kind};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The values of an array map. Elements lie one after the other, each rounded up to whole words.
#[derive(Debug)]
pub enum Values {
    /// The kernel's memory: programs change it while we look.
    Mapped(Mapping),
    /// A copy, as fresh as the last [`Values::refresh`].
    Copied(Vec<AtomicU64>),
}

impl Values {
    /// Maps the array when it was made with `BPF_F_MMAPABLE`, else prepares a copy (all zero until refreshed).
    pub fn open(map: &KernelMap) -> io::Result<Values> {
        let words = element_words(map) * map.capacity as usize;
        if map.flags & MMAPABLE != 0
            && let Ok(mapping) = Mapping::new(map, words)
        {
            return Ok(Values::Mapped(mapping));
        }
        Ok(Values::Copied((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    /// All words. Read them with relaxed loads.
    pub fn words(&self) -> &[AtomicU64] {
        match self {
            Values::Mapped(mapping) => mapping.words(),
            Values::Copied(words) => words,
        }
    }

    /// Brings a copy up to date; a mapping always is.
    pub fn refresh(&self, map: &KernelMap) -> io::Result<()> {
        let Values::Copied(words) = self else { return Ok(()) };
        let entries = map.entries()?;
        let stride = element_words(map);
        for (key, value) in entries.iter() {
            let Some(index) = key.try_into().ok().map(u32::from_ne_bytes) else { continue };
            let Some(target) = words.get(index as usize * stride..(index as usize + 1) * stride) else { continue };
            for (word, bytes) in target.iter().zip(value.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Zeroes elements. Adds that programs make at the same moment may survive or not.
    pub fn zero(&self, map: &KernelMap, elements: Range<u32>) -> io::Result<()> {
        let stride = element_words(map);
        let range = elements.start as usize * stride..elements.end as usize * stride;
        let words = self.words().get(range).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("map {} has no elements {elements:?}", map.id))
        })?;
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        if let Values::Copied(_) = self {
            let zeros = vec![0; map.value_bytes];
            for index in elements {
                map.update(&index.to_ne_bytes(), &zeros, 0)?;
            }
        }
        Ok(())
    }
}

/// An array of one element that this process has mapped.
#[derive(Debug)]
pub struct Words {
    pub map: KernelMap,
    pub values: Values,
}

impl Words {
    pub fn create(name: &str, bytes: u32) -> io::Result<Words> {
        let spec = MapSpec {
            kind: kind::ARRAY,
            key_bytes: 4,
            value_bytes: bytes,
            entries: 1,
            flags: MMAPABLE,
            name,
            ..MapSpec::default()
        };
        let map = KernelMap::create(&spec)?;
        match Values::open(&map)? {
            values @ Values::Mapped(_) => Ok(Words { map, values }),
            Values::Copied(_) => Err(io::Error::other("the kernel maps no arrays into processes")),
        }
    }

    pub fn descriptor(&self) -> u32 {
        self.map.as_fd().as_raw_fd() as u32
    }
}

/// Words from one element to the next.
pub fn element_words(map: &KernelMap) -> usize {
    map.value_bytes.div_ceil(8)
}

/// A shared, writable mapping of an array map; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and all access goes through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(map: &KernelMap, words: usize) -> io::Result<Mapping> {
        if words == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an empty map"));
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing; the kernel refuses a length
        // beyond the map's own.
        let start = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), words * 8, access, libc::MAP_SHARED, map.as_fd().as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `words * 8` bytes long, page-aligned, readable and writable, and lives as long as `self`.
        // Others (the kernel) change it at any time, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the range that `mmap` gave; no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * 8) };
    }
}
